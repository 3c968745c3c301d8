//! Plain device memory and copies.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::gate::{Answer, call, ensure, refuse};
use crate::state::{Range, State, unmap};
use cann_sim::{Kind, SharedMemory};
use comm_hccl::sys::*;
use shared_memory::{copy_from_shared, copy_to_shared};
use std::ffi::c_void;
use std::sync::Arc;

/// Refuses an allocation that is larger than the memory of its device. The sum of several is not checked.
pub(crate) fn fits(state: &State, size: usize) -> Answer {
    let memory = (state.attachment.config().memory as usize) << 20;
    ensure(size <= memory, ACL_ERROR_RT_MEMORY_ALLOCATION, "more than the device has")
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
        // SAFETY: not null; the caller provides a place for one address.
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
        let from_device = matches!(kind, ACL_MEMCPY_DEVICE_TO_HOST | ACL_MEMCPY_DEVICE_TO_DEVICE);
        let to_device = matches!(kind, ACL_MEMCPY_HOST_TO_DEVICE | ACL_MEMCPY_DEVICE_TO_DEVICE);
        if to_device {
            state.usable(destination as usize, count)?;
        }
        if from_device {
            state.usable(source as usize, count)?;
        }
        let (source, destination) = (source.cast::<u8>(), destination.cast::<u8>());
        // SAFETY: device sides were just found mapped and accessible for `count` bytes, and the state's lock keeps them so;
        // the caller vouches for host sides, which are its own. Device memory is shared with other processes, so it is
        // copied with `shared_memory` only, from device to device in two steps.
        unsafe {
            match (from_device, to_device) {
                (false, false) => std::ptr::copy(source, destination, count),
                (false, true) => copy_to_shared(std::slice::from_raw_parts(source, count), destination),
                (true, false) => copy_from_shared(source, std::slice::from_raw_parts_mut(destination, count)),
                (true, true) => {
                    let mut bytes = vec![0; count];
                    copy_from_shared(source, &mut bytes);
                    copy_to_shared(&bytes, destination);
                }
            }
        }
        Ok(())
    })
}

/// Bytes that one copy of a fill writes.
const FILL: usize = 64 << 10;

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
        let bytes = vec![value as u8; FILL.min(count)];
        for offset in (0..count).step_by(FILL) {
            let part = &bytes[..FILL.min(count - offset)];
            // SAFETY: the range was just found mapped and accessible, and the state's lock keeps it so.
            unsafe { copy_to_shared(part, pointer.cast::<u8>().add(offset)) };
        }
        Ok(())
    })
}
