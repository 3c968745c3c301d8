//! What the double's `libhccl.so` needs of this library. No vendor has these symbols.
//!
//! # Safety
//! Unsafe only by their C interface: no pointer that is passed is followed.
#![allow(unsafe_code)]

use crate::gate::without_gate;
use crate::state::{FOREIGN_CONTEXT, set_current_context};
use std::ffi::c_void;

/// The driver-visible id of the calling thread's device; -1 without one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_current_card() -> i32 {
    without_gate(|state| {
        state.device().and_then(|device| state.rank_block(device as i32)).map_or(-1, |card| card as i32)
    })
    .unwrap_or(-1)
}

/// Leaves the calling thread with HCCL's context, as `HcclBarrier` does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_switch_context() {
    set_current_context(FOREIGN_CONTEXT);
}

/// Whether the current device can use all of a range of addresses: 1 or 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_usable(pointer: *const c_void, len: usize) -> i32 {
    without_gate(|state| state.usable(pointer as usize, len).is_ok().into()).unwrap_or(0)
}

/// Whether a stream exists: 1 or 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_stream(stream: *const c_void) -> i32 {
    without_gate(|state| state.streams.contains_key(&(stream as usize)).into()).unwrap_or(0)
}
