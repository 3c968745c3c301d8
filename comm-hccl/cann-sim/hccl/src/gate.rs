//! The frame of every vendor function: the gate, then the body, then the code.

pub(crate) use cann_sim::gate::{Refusal, ensure, refuse};

use cann_sim::Attachment;
use cann_sim::gate::GateCodes;
use comm_hccl::sys::*;

const CODES: GateCodes = GateCodes { no_session: HCCL_E_INTERNAL, forked: HCCL_E_INTERNAL };

/// Passes a call through the gate and runs its body.
pub(crate) fn call(
    function: &'static str,
    body: impl FnOnce(&'static Attachment) -> Result<(), Refusal>,
) -> HcclResult {
    match enter(function).and_then(body) {
        Ok(()) => HCCL_SUCCESS,
        Err(refusal) => {
            cann_sim::log(&format!("{function}: {}", refusal.reason()));
            refusal.code()
        }
    }
}

/// Passes a call through the gate.
pub(crate) fn enter(function: &'static str) -> Result<&'static Attachment, Refusal> {
    cann_sim::gate::enter(function, CODES)
}
