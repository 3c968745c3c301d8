//! Plain device memory and copies.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::addresses;
use crate::gate::{Answer, Refusal, answer, call, ensure, refuse, with_state};
use crate::kernel::finish;
use crate::state::{Place, Range, State};
use crate::view::View;
use cann_sim::{Kind, SharedMemory};
use comm_hccl::sys::*;
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
        let made = SharedMemory::create(size.next_multiple_of(4096)).and_then(View::new);
        let made = made.and_then(|view| Ok((addresses::reserve(view.size())?, view)));
        let (base, view) = made.or_else(|e| refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, e.to_string()))?;
        state.now_usable(device, base, &view)?;
        state.ranges.insert(base, Range { device, view: Arc::new(view), kind: Kind::Memory });
        state.attachment.created(Kind::Memory);
        // SAFETY: not null; the caller provides a place for one address.
        unsafe { pointer.write(base as *mut c_void) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtPointerGetAttributes(
    pointer: *const c_void,
    attributes: *mut aclrtPtrAttributes,
) -> aclError {
    call("aclrtPointerGetAttributes", |state| {
        ensure(!attributes.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let on_device = state.locate(pointer as usize, 1).is_ok();
        let r#type =
            if on_device { ACL_MEM_LOCATION_TYPE_DEVICE } else { ACL_MEM_LOCATION_TYPE_UNREGISTERED };
        let location = aclrtMemLocation { id: 0, r#type };
        // SAFETY: not null; the caller provides a place for one.
        unsafe { attributes.write(aclrtPtrAttributes { location, pageSize: 4096, rsv: [0; 4] }) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtFree(pointer: *mut c_void) -> aclError {
    call("aclrtFree", |state| match state.ranges.get(&(pointer as usize)) {
        Some(range) if range.kind == Kind::Memory => {
            let (base, device, size) = (pointer as usize, range.device, range.view.size());
            state.no_longer_usable(device, base, size);
            addresses::release(base, size);
            state.ranges.remove(&base);
            state.attachment.destroyed(Kind::Memory);
            Ok(())
        }
        _ => refuse(ACL_ERROR_RT_PARAM_INVALID, "not memory of aclrtMalloc"),
    })
}

/// The memory behind one side of a copy. The vendor rules out copies between the host and memory that was imported.
fn device_side(state: &State, address: usize, count: usize, with_host: bool) -> Result<Place, Refusal> {
    let place = state.locate(address, count)?;
    ensure(
        !(with_host && place.imported),
        ACL_ERROR_RT_PARAM_INVALID,
        "the memory is a peer's: it can be copied on the device, but the host cannot reach it",
    )?;
    Ok(place)
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
        let with_host = !(from_device && to_device);
        let side = |address: usize, on_device: bool| match on_device {
            true => device_side(state, address, count, with_host).map(Some),
            false => state.host_memory(address, count).map(|()| None),
        };
        let (from, to) = (side(source as usize, from_device)?, side(destination as usize, to_device)?);
        let (source, destination) = (source.cast::<u8>(), destination.cast::<u8>());
        match (from, to) {
            // SAFETY: the caller vouches for both sides, which are its own.
            (None, None) => unsafe { std::ptr::copy(source, destination, count) },
            (None, Some(to)) => {
                // SAFETY: the caller vouches for the host's side, which is its own.
                to.view.write(to.offset, unsafe { std::slice::from_raw_parts(source, count) })
            }
            (Some(from), None) => {
                // SAFETY: as above.
                from.view.read(from.offset, unsafe { std::slice::from_raw_parts_mut(destination, count) });
            }
            (Some(from), Some(to)) => {
                let mut bytes = vec![0; count];
                from.view.read(from.offset, &mut bytes);
                to.view.write(to.offset, &bytes);
            }
        }
        Ok(())
    })
}

/// Sums of 32-bit integers (CN-15). It is done when the call returns, after what is before it on its stream.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtReduceAsync(
    destination: *mut c_void,
    source: *const c_void,
    count: u64,
    kind: aclrtReduceKind,
    data_type: aclDataType,
    stream: aclrtStream,
    reserved: *mut c_void,
) -> aclError {
    const NAME: &str = "aclrtReduceAsync";
    let (destination, source, count) = (destination as usize, source as usize, count as usize);
    let code = call(NAME, |state| {
        ensure(destination != 0 && source != 0, ACL_ERROR_INVALID_PARAM, "null pointer")?;
        ensure(reserved.is_null(), ACL_ERROR_RT_PARAM_INVALID, "what is reserved must be null")?;
        ensure(
            kind == ACL_RT_MEMCPY_SDMA_AUTOMATIC_SUM && data_type == ACL_INT32,
            ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
            "the double sums 32-bit integers only",
        )?;
        let whole = count > 0 && [destination, source, count].iter().all(|number| number.is_multiple_of(4));
        ensure(whole, ACL_ERROR_RT_PARAM_INVALID, "not whole elements, or not where elements are")?;
        let device = state.device()?;
        state.healthy(device)?;
        let of = state.streams.get(&(stream as usize)).map(|stream| stream.device);
        let Some(of) = of else { return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown stream") };
        ensure(of == device, ACL_ERROR_RT_STREAM_CONTEXT, "the stream is of another device")?;
        state.locate(source, count)?;
        state.locate(destination, count).map(drop)
    });
    if code != ACL_SUCCESS {
        return code;
    }
    let added = |state: &mut State| {
        let (from, to) = (state.locate(source, count)?, state.locate(destination, count)?);
        for at in (0..count).step_by(4) {
            let mut by = [0; 4];
            from.view.read(from.offset + at, &mut by);
            to.view.add(to.offset + at, u32::from_le_bytes(by));
        }
        Ok(())
    };
    answer(NAME, finish(stream).and_then(|()| with_state(added).unwrap_or(Ok(()))))
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
        let place = device_side(state, pointer as usize, count, true)?;
        place.view.fill(place.offset, value as u8, count);
        Ok(())
    })
}
