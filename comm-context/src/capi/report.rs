//! How a failed call is reported: by a number, in the last error of the thread, and in a line on standard error.

use crate::comm::CommError;
use core::ffi::{c_char, c_int};
use core::fmt::Display;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::CString;
use std::io::Write;
use std::sync::Mutex;
use worker_errors::ErrorCode;

std::thread_local!(static LAST_ERROR: RefCell<CString> = RefCell::default());

/// The failures that were printed last, so that a call that only repeats one need not print it again.
static PRINTED: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
const REMEMBERED: usize = 16;

/// An error that a C caller gets as a number and a text.
pub trait CError: Display {
    /// The number.
    fn code(&self) -> ErrorCode;

    /// The first failure of the object, where this one only repeats it.
    fn repeats(&self) -> Option<&dyn Display>;
}

impl CError for CommError {
    fn code(&self) -> ErrorCode {
        Self::code(self)
    }

    fn repeats(&self) -> Option<&dyn Display> {
        match self {
            Self::Broken { cause } => Some(cause),
            _ => None,
        }
    }
}

/// Runs a call. No panic crosses the border, and every failure is reported. `who` is asked after a failure, and names the
/// caller, such as `rank 1`, where that is known.
#[inline]
pub fn guarded<E: CError>(
    call: &str,
    who: impl FnOnce() -> Option<String>,
    body: impl FnOnce() -> Result<(), E>,
) -> c_int {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => failed(call, who(), &error),
        Err(_) => panicked(call, who()),
    }
}

#[cold]
fn failed(call: &str, who: Option<String>, error: &dyn CError) -> c_int {
    let text = error.to_string();
    let repeats = error.repeats().is_some_and(|first| is_printed(&first.to_string()));
    if repeats {
        report(call, who, "it failed because of the error above", &text);
    } else {
        remember(&text);
        report(call, who, &text, &text);
    }
    error.code().as_i32()
}

#[cold]
fn panicked(call: &str, who: Option<String>) -> c_int {
    let text = "the library panicked, which is a bug of it: see standard error above, and please report it";
    report(call, who, text, text);
    ErrorCode::Internal.as_i32()
}

/// Prints `shown`, and keeps `text` as the last error of the thread.
fn report(call: &str, who: Option<String>, shown: &str, text: &str) {
    let who = who.unwrap_or_else(|| format!("pid {}", std::process::id()));
    // In one piece, so that the lines of several ranks stay apart. Not `eprintln!`, which panics when standard error is
    // closed.
    let _ = std::io::stderr().write_all(format!("[chipcomm] {who}: {call}: {shown}\n").as_bytes());
    let text = CString::new(format!("{call}: {text}").replace('\0', "\\0")).unwrap_or_default();
    // A thread that is ending has no storage for the text any more.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

/// Whether `cause` was printed not long ago. In a forked copy of the process the lock may be held for ever: then it is
/// printed again.
fn is_printed(cause: &str) -> bool {
    PRINTED.try_lock().is_ok_and(|printed| printed.iter().any(|text| text.contains(cause)))
}

fn remember(text: &str) {
    if let Ok(mut printed) = PRINTED.try_lock() {
        if printed.len() == REMEMBERED {
            printed.pop_front();
        }
        printed.push_back(text.to_owned());
    }
}

/// The text of the calling thread's last failure.
pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
