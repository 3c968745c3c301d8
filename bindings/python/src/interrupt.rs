//! Ctrl-C while a call waits: Python has noted the signal, and its handler runs here.

use pyo3::PyErr;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::OnceLock;
use std::thread::ThreadId;

/// The thread that imported the package. Python runs handlers in its main thread, which is this one unless a thread imported it.
static MAIN: OnceLock<ThreadId> = OnceLock::new();

std::thread_local!(static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) });

pub(crate) fn install() {
    MAIN.get_or_init(|| std::thread::current().id());
    mailbox_atomics::interrupt_waits(check);
}

/// Runs the handlers of signals that came. What one of them raised is kept for [`raised`], and ends the wait.
fn check() -> bool {
    if MAIN.get() != Some(&std::thread::current().id()) {
        return false;
    }
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    match Python::try_attach(|py| py.check_signals()) {
        Some(Err(error)) => {
            RAISED.set(Some(error));
            true
        }
        Some(Ok(())) | None => false,
    }
}

/// What a handler raised while the call that ends now was waiting.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}
