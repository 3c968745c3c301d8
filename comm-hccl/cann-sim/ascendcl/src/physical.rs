//! Physical memory, addresses, mappings.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::gate::{Refusal, call, ensure, refuse};
use crate::memory::fits;
use crate::state::{Physical, Reservation, State, unmap};
use cann_sim::{Kind, SharedMemory};
use comm_hccl::sys::*;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::Arc;

/// Unit of huge pages.
const HUGE: usize = 2 << 20;
/// Unit of normal pages.
const NORMAL: usize = 64 << 10;

fn unit(state: &State, prop: *const aclrtPhysicalMemProp) -> Result<usize, Refusal> {
    ensure(!prop.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
    // SAFETY: not null; the caller provides a valid struct.
    let prop = unsafe { *prop };
    let plain = prop.handleType == ACL_MEM_HANDLE_TYPE_NONE
        && prop.allocationType == ACL_MEM_ALLOCATION_TYPE_PINNED
        && prop.location.r#type == ACL_MEM_LOCATION_TYPE_DEVICE
        && prop.reserve == 0;
    ensure(plain, ACL_ERROR_RT_PARAM_INVALID, "only pinned device memory without a handle type")?;
    // A logical id belongs here; one that is only driver-visible is out of range.
    state.visible_id(prop.location.id as i32)?;
    ensure(
        prop.location.id == state.device()?,
        ACL_ERROR_RT_DRV_INTERNAL_ERROR,
        "memory of another device than the current one",
    )?;
    match prop.memAttr {
        ACL_HBM_MEM_HUGE => Ok(HUGE),
        ACL_HBM_MEM_NORMAL => Ok(NORMAL),
        _ => refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown memory attribute"),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemGetAllocationGranularity(
    prop: *mut aclrtPhysicalMemProp,
    option: aclrtMemGranularityOptions,
    granularity: *mut usize,
) -> aclError {
    call("aclrtMemGetAllocationGranularity", |state| {
        ensure(!granularity.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        ensure(option == ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, ACL_ERROR_RT_PARAM_INVALID, "unknown option")?;
        let unit = unit(state, prop)?;
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { granularity.write(unit) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMallocPhysical(
    handle: *mut aclrtDrvMemHandle,
    size: usize,
    prop: *const aclrtPhysicalMemProp,
    flags: u64,
) -> aclError {
    call("aclrtMallocPhysical", |state| {
        ensure(!handle.is_null() && flags == 0, ACL_ERROR_INVALID_PARAM, "null pointer or flags")?;
        let unit = unit(state, prop)?;
        ensure(
            size > 0 && size.is_multiple_of(unit),
            ACL_ERROR_RT_PARAM_INVALID,
            "not a multiple of the granularity",
        )?;
        let device = state.device()?;
        fits(state, size)?;
        let memory =
            SharedMemory::create(size).or_else(|e| refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, e.to_string()))?;
        let id = state.handle();
        let physical =
            Physical { device, memory: Arc::new(memory), kind: Kind::Physical, exports: Vec::new() };
        state.physical.insert(id, physical);
        state.attachment.created(Kind::Physical);
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { handle.write(id as aclrtDrvMemHandle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtFreePhysical(handle: aclrtDrvMemHandle) -> aclError {
    call("aclrtFreePhysical", |state| match state.physical.remove(&(handle as usize)) {
        None => refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown physical memory"),
        Some(physical) => {
            physical.exports.iter().for_each(|&nonce| crate::share::withdraw(state.attachment, nonce));
            state.attachment.destroyed(physical.kind);
            Ok(())
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtReserveMemAddress(
    pointer: *mut *mut c_void,
    size: usize,
    alignment: usize,
    expected: *mut c_void,
    flags: u64,
) -> aclError {
    call("aclrtReserveMemAddress", |state| {
        let plain = !pointer.is_null() && size > 0 && alignment == 0 && expected.is_null();
        ensure(plain, ACL_ERROR_INVALID_PARAM, "null pointer, size 0, an alignment or an expected address")?;
        ensure(flags <= HUGE_PAGE_TYPE as u64, ACL_ERROR_RT_PARAM_INVALID, "unknown page type")?;
        let device = state.device()?;
        let base = reserve(size).or_else(|e| refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, e.to_string()))?;
        let reservation = Reservation { device, size, mapped: None, access: HashSet::new() };
        state.reservations.insert(base, reservation);
        state.attachment.created(Kind::Reservation);
        // SAFETY: not null; the caller provides a place for one address.
        unsafe { pointer.write(base as *mut c_void) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtReleaseMemAddress(pointer: *mut c_void) -> aclError {
    call("aclrtReleaseMemAddress", |state| match state.reservations.get(&(pointer as usize)) {
        None => refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown reservation"),
        Some(r) if r.mapped.is_some() => {
            refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "memory is still mapped there")
        }
        Some(r) => {
            unmap(pointer as usize, r.size);
            state.reservations.remove(&(pointer as usize));
            state.attachment.destroyed(Kind::Reservation);
            Ok(())
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMapMem(
    pointer: *mut c_void,
    size: usize,
    offset: usize,
    handle: aclrtDrvMemHandle,
    flags: u64,
) -> aclError {
    call("aclrtMapMem", |state| {
        ensure(offset == 0 && flags == 0, ACL_ERROR_RT_PARAM_INVALID, "an offset or flags are given")?;
        let Some(physical) = state.physical.get(&(handle as usize)) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown physical memory");
        };
        let memory = Arc::clone(&physical.memory);
        let Some(reservation) = state.reservations.get_mut(&(pointer as usize)) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown reservation");
        };
        let fits = size == memory.size() && size <= reservation.size;
        ensure(
            fits,
            ACL_ERROR_RT_PARAM_INVALID,
            "size of the mapping, the memory and the reservation differ",
        )?;
        ensure(
            reservation.mapped.is_none(),
            ACL_ERROR_RT_PARAM_INVALID,
            "something is mapped there already",
        )?;
        // Without access until aclrtMemSetAccess allows it, so that a forgotten call is noticed.
        map_over(pointer as usize, &memory)
            .or_else(|e| refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, e.to_string()))?;
        reservation.mapped = Some(memory);
        state.attachment.created(Kind::Mapping);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtUnmapMem(pointer: *mut c_void) -> aclError {
    call("aclrtUnmapMem", |state| {
        let Some(reservation) = state.reservations.get_mut(&(pointer as usize)) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown reservation");
        };
        ensure(reservation.mapped.take().is_some(), ACL_ERROR_RT_PARAM_INVALID, "nothing is mapped there")?;
        reservation.access.clear();
        let size = reservation.size;
        state.attachment.destroyed(Kind::Mapping);
        reserve_over(pointer as usize, size)
            .or_else(|e| refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, e.to_string()))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemSetAccess(
    pointer: *mut c_void,
    size: usize,
    desc: *mut aclrtMemAccessDesc,
    count: usize,
) -> aclError {
    call("aclrtMemSetAccess", |state| {
        ensure(!desc.is_null() && count == 1, ACL_ERROR_INVALID_PARAM, "exactly one description")?;
        // SAFETY: not null; the caller provides `count` valid structs.
        let desc = unsafe { *desc };
        let plain = desc.flags == ACL_RT_MEM_ACCESS_FLAGS_READWRITE
            && desc.location.r#type == ACL_MEM_LOCATION_TYPE_DEVICE
            && desc.rsv == [0; 12];
        ensure(plain, ACL_ERROR_RT_PARAM_INVALID, "only read and write for a device")?;
        // A driver-visible id belongs here; see VisibleDevices.
        ensure(
            state.visible.contains(&desc.location.id),
            ACL_ERROR_RT_DRV_INTERNAL_ERROR,
            "this id is not a driver-visible device of this process",
        )?;
        let current = state.current_visible_id()?;
        let Some(reservation) = state.reservations.get_mut(&(pointer as usize)) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown reservation");
        };
        let mapped = reservation.mapped.as_ref().is_some_and(|m| m.size() == size);
        ensure(mapped, ACL_ERROR_RT_PARAM_INVALID, "nothing of this size is mapped there")?;
        reservation.access.insert(desc.location.id);
        if reservation.access.contains(&current) {
            // SAFETY: this library made the mapping, with this size.
            let code = unsafe { libc::mprotect(pointer, size, libc::PROT_READ | libc::PROT_WRITE) };
            ensure(code == 0, ACL_ERROR_RT_DRV_INTERNAL_ERROR, "mprotect failed")?;
        }
        Ok(())
    })
}

fn reserve(size: usize) -> std::io::Result<usize> {
    // SAFETY: a new mapping at an address that the system picks touches no existing memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(base as usize) }
}

fn reserve_over(base: usize, size: usize) -> std::io::Result<()> {
    // SAFETY: replaces a range that this library reserved.
    let mapped = unsafe {
        libc::mmap(
            base as *mut c_void,
            size,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn map_over(base: usize, memory: &SharedMemory) -> std::io::Result<()> {
    // SAFETY: replaces the start of a range that this library reserved and that is at least as long.
    let mapped = unsafe {
        libc::mmap(
            base as *mut c_void,
            memory.size(),
            libc::PROT_NONE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            memory.raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
