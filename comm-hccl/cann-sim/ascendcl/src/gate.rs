//! The frame of every vendor function: the gate, then the body with the process's state, then the code and its text.

pub(crate) use cann_sim::gate::{Refusal, ensure, refuse};

use crate::state::State;
use cann_sim::Attachment;
use cann_sim::gate::GateCodes;
use comm_hccl::sys::*;
use std::cell::RefCell;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

/// The result of a call.
pub(crate) type Answer = Result<(), Refusal>;

const CODES: GateCodes =
    GateCodes { no_session: ACL_ERROR_INTERNAL_ERROR, forked: ACL_ERROR_RT_INTERNAL_ERROR };

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static RECENT: RefCell<Option<CString>> = const { RefCell::new(None) };
    /// The text that the caller got last; it must stay valid.
    static RETURNED: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Passes a call through the gate and runs its body with the process's state.
pub(crate) fn call(function: &'static str, body: impl FnOnce(&mut State) -> Answer) -> aclError {
    let answer = enter(function).and_then(|attachment| {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        body(state.get_or_insert_with(|| State::new(attachment)))
    });
    match answer {
        Ok(()) => ACL_SUCCESS,
        Err(refusal) => {
            let text = format!("cann-sim: {function}: {}", refusal.reason());
            RECENT.set(CString::new(text.replace('\0', " ")).ok());
            refusal.code()
        }
    }
}

/// Passes a call through the gate.
pub(crate) fn enter(function: &'static str) -> Result<&'static Attachment, Refusal> {
    cann_sim::gate::enter(function, CODES)
}

/// The latest text of this thread, once.
pub(crate) fn take_recent() -> *const std::ffi::c_char {
    let text = RECENT.take();
    RETURNED.with_borrow_mut(|returned| {
        *returned = text;
        returned.as_ref().map_or(std::ptr::null(), |t| t.as_ptr())
    })
}

/// The state for a question of the sibling library, which is not a vendor call.
pub(crate) fn without_gate<T>(body: impl FnOnce(&State) -> T) -> Option<T> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(body)
}
