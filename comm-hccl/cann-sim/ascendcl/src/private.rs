//! What the double's `libhccl.so` uses of this library. The vendor's library does not have these symbols.
//!
//! # Safety
//! Unsafe by their C interface. Device addresses are looked up, never dereferenced; host buffers are those of the sibling.
#![allow(unsafe_code)]

use crate::gate::with_state;
use crate::state::{FOREIGN_CONTEXT, set_current_context};
use std::ffi::c_void;

/// Whether a device is set in the calling thread: 1 or 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_has_device() -> i32 {
    with_state(|state| state.device().is_ok().into()).unwrap_or(0)
}

/// Leaves the calling thread with HCCL's context, as `HcclBarrier` does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_switch_context() {
    set_current_context(FOREIGN_CONTEXT);
}

/// Whether the current device can use all of a range of addresses: 1 or 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_usable(pointer: *const c_void, len: usize) -> i32 {
    with_state(|state| state.locate(pointer as usize, len).is_ok().into()).unwrap_or(0)
}

/// Copies out of memory that the current device can use: 1, or 0 when it cannot.
///
/// # Safety
/// `into` has room for `len` bytes of the host.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_read(from: *const c_void, into: *mut u8, len: usize) -> i32 {
    with_state(|state| match state.locate(from as usize, len) {
        Ok(place) => {
            // SAFETY: the caller's promise.
            place.view.read(place.offset, unsafe { std::slice::from_raw_parts_mut(into, len) });
            1
        }
        Err(_) => 0,
    })
    .unwrap_or(0)
}

/// Copies into memory that the current device can use: 1, or 0 when it cannot.
///
/// # Safety
/// `from` has `len` bytes of the host.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_write(to: *mut c_void, from: *const u8, len: usize) -> i32 {
    with_state(|state| match state.locate(to as usize, len) {
        Ok(place) => {
            // SAFETY: the caller's promise.
            place.view.write(place.offset, unsafe { std::slice::from_raw_parts(from, len) });
            1
        }
        Err(_) => 0,
    })
    .unwrap_or(0)
}

/// Whether a stream exists: 1 or 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cann_sim_stream(stream: *const c_void) -> i32 {
    with_state(|state| state.streams.contains_key(&(stream as usize)).into()).unwrap_or(0)
}
