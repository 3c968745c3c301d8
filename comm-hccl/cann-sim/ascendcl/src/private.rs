//! What the double's `libhccl.so` uses of this library. The vendor's library does not have these symbols.
//!
//! # Safety
//! Unsafe only by their C interface: no pointer that is passed is dereferenced.
#![allow(unsafe_code)]

use crate::gate::without_gate;
use crate::state::{FOREIGN_CONTEXT, set_current_context};
use std::ffi::c_void;

/// Whether a device is set in the calling thread: 1 or 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_has_device() -> i32 {
    without_gate(|state| state.device().is_ok().into()).unwrap_or(0)
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
