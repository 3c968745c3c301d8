//! What every vendor function does first and last: faults, the state's lock, the code and its text.

use crate::state::State;
use cann_sim::{Attachment, Entry};
use comm_hccl::sys::*;
use std::cell::RefCell;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

/// Why a call is refused: the vendor's code, and words for `aclGetRecentErrMsg`.
pub(crate) struct Refusal {
    code: i32,
    why: String,
}

/// What a call comes to.
pub(crate) type Answer = Result<(), Refusal>;

/// A refusal with a code and words.
pub(crate) fn refuse<T>(code: i32, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, why: why.into() })
}

/// Refuses when a condition does not hold.
pub(crate) fn ensure(holds: bool, code: i32, why: &str) -> Answer {
    if holds { Ok(()) } else { refuse(code, why) }
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static RECENT: RefCell<Option<CString>> = const { RefCell::new(None) };
    /// Keeps the text alive that the caller was given last.
    static GIVEN: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Passes a call through the gate and runs its body with the process's state.
pub(crate) fn call(function: &'static str, body: impl FnOnce(&mut State) -> Answer) -> aclError {
    let answer = match enter(function) {
        Err(refusal) => Err(refusal),
        Ok(attachment) => {
            let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
            body(state.get_or_insert_with(|| State::new(attachment)))
        }
    };
    match answer {
        Ok(()) => ACL_SUCCESS,
        Err(Refusal { code, why }) => {
            remember(&format!("cann-sim: {function}: {why}"));
            code
        }
    }
}

/// Passes a call through the gate.
pub(crate) fn enter(function: &'static str) -> Result<&'static Attachment, Refusal> {
    let attachment = cann_sim::attach().or_else(|why| refuse(ACL_ERROR_INTERNAL_ERROR, why))?;
    if attachment.is_forked() {
        return refuse(ACL_ERROR_RT_INTERNAL_ERROR, "this process was forked after the first vendor call");
    }
    match attachment.enter(function) {
        Entry::Proceed => Ok(attachment),
        Entry::Return(code) => refuse(code, "a fault of the script"),
    }
}

fn remember(text: &str) {
    RECENT.set(CString::new(text.replace('\0', " ")).ok());
}

/// The latest text of this thread, once.
pub(crate) fn take_recent() -> *const std::ffi::c_char {
    let text = RECENT.take();
    GIVEN.with_borrow_mut(|given| {
        *given = text;
        given.as_ref().map_or(std::ptr::null(), |t| t.as_ptr())
    })
}

/// The state for a question of the sibling library, which is not a vendor call.
pub(crate) fn without_gate<T>(body: impl FnOnce(&State) -> T) -> Option<T> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(body)
}
