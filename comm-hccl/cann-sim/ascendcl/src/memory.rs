//! Plain device memory and copies.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the
//! vendor's headers say. Null, sizes and handles are checked here; each unsafe block says what is left to the
//! caller.
#![allow(unsafe_code)]

use crate::gate::{Answer, call, ensure, refuse};
use crate::state::{Range, State, unmap};
use cann_sim::{Kind, SharedMemory};
use comm_hccl::sys::*;
use std::ffi::c_void;
use std::sync::Arc;

/// No allocation is larger than its card. What several take together is not counted.
pub(crate) fn fits(state: &State, size: usize) -> Answer {
    let card = (state.attachment.config().memory as usize) << 20;
    ensure(size <= card, ACL_ERROR_RT_MEMORY_ALLOCATION, "more than the card has")
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMalloc(
    pointer: *mut *mut c_void,
    size: usize,
    policy: aclrtMemMallocPolicy,
) -> aclError {
    call("aclrtMalloc", |state| {
        ensure(!pointer.is_null() && size > 0, ACL_ERROR_INVALID_PARAM, "null pointer or size 0")?;
        let known = (ACL_MEM_MALLOC_HUGE_FIRST..=ACL_MEM_MALLOC_NORMAL_ONLY).contains(&policy);
        ensure(known, ACL_ERROR_RT_PARAM_INVALID, "unknown policy")?;
        let device = state.device()?;
        fits(state, size)?;
        let made = SharedMemory::create(size.next_multiple_of(4096)).and_then(|m| Ok((m.map()?, m)));
        let (base, memory) = made.or_else(|e| refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, e.to_string()))?;
        state.ranges.insert(
            base,
            Range { device, size: memory.size(), memory: Arc::new(memory), kind: Kind::Memory },
        );
        state.attachment.created(Kind::Memory);
        // SAFETY: not null; the caller gives a place for one address.
        unsafe { pointer.write(base as *mut c_void) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtFree(pointer: *mut c_void) -> aclError {
    call("aclrtFree", |state| match state.ranges.get(&(pointer as usize)) {
        Some(range) if range.kind == Kind::Memory => {
            unmap(pointer as usize, range.size);
            state.ranges.remove(&(pointer as usize));
            state.attachment.destroyed(Kind::Memory);
            Ok(())
        }
        _ => refuse(ACL_ERROR_RT_PARAM_INVALID, "not memory of aclrtMalloc"),
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemcpy(
    destination: *mut c_void,
    capacity: usize,
    source: *const c_void,
    count: usize,
    kind: aclrtMemcpyKind,
) -> aclError {
    call("aclrtMemcpy", |state| {
        ensure(!destination.is_null() && !source.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        ensure(count <= capacity, ACL_ERROR_RT_PARAM_INVALID, "more bytes than the destination holds")?;
        let known = (ACL_MEMCPY_HOST_TO_HOST..=ACL_MEMCPY_DEVICE_TO_DEVICE).contains(&kind);
        ensure(known, ACL_ERROR_RT_PARAM_INVALID, "unknown kind")?;
        state.device()?;
        if matches!(kind, ACL_MEMCPY_HOST_TO_DEVICE | ACL_MEMCPY_DEVICE_TO_DEVICE) {
            state.usable(destination as usize, count)?;
        }
        if matches!(kind, ACL_MEMCPY_DEVICE_TO_HOST | ACL_MEMCPY_DEVICE_TO_DEVICE) {
            state.usable(source as usize, count)?;
        }
        // SAFETY: device sides were just found mapped and accessible for `count` bytes, and the state's lock
        // keeps them so; host sides are valid as the caller vouches. `copy` allows an overlap. A peer may
        // write at the same time, as on the device; the bytes are then either's, and nothing here looks at
        // them.
        unsafe { std::ptr::copy(source.cast::<u8>(), destination.cast::<u8>(), count) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemset(
    pointer: *mut c_void,
    capacity: usize,
    value: i32,
    count: usize,
) -> aclError {
    call("aclrtMemset", |state| {
        ensure(count <= capacity, ACL_ERROR_RT_PARAM_INVALID, "more bytes than the destination holds")?;
        state.usable(pointer as usize, count)?;
        // SAFETY: the range was just found mapped and accessible, and the state's lock keeps it so.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), value as u8, count) };
        Ok(())
    })
}
