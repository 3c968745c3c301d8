//! What every vendor function does first and last.

use cann_sim::{Attachment, Entry};
use comm_hccl::sys::*;

/// Why a call is refused.
pub(crate) struct Refusal {
    code: HcclResult,
    why: String,
}

/// A refusal with a code and words.
pub(crate) fn refuse<T>(code: HcclResult, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, why: why.into() })
}

/// Refuses when a condition does not hold.
pub(crate) fn ensure(holds: bool, code: HcclResult, why: &str) -> Result<(), Refusal> {
    if holds { Ok(()) } else { refuse(code, why) }
}

/// Passes a call through the gate and runs its body.
pub(crate) fn call(
    function: &'static str,
    body: impl FnOnce(&'static Attachment) -> Result<(), Refusal>,
) -> HcclResult {
    match enter(function).and_then(body) {
        Ok(()) => HCCL_SUCCESS,
        Err(Refusal { code, why }) => {
            cann_sim::say(&format!("{function}: {why}"));
            code
        }
    }
}

/// Passes a call through the gate.
pub(crate) fn enter(function: &'static str) -> Result<&'static Attachment, Refusal> {
    let attachment = cann_sim::attach().or_else(|why| refuse(HCCL_E_INTERNAL, why))?;
    if attachment.is_forked() {
        return refuse(HCCL_E_INTERNAL, "this process was forked after the first vendor call");
    }
    match attachment.enter(function) {
        Entry::Proceed => Ok(attachment),
        Entry::Return(code) => refuse(code, "a fault of the script"),
    }
}
