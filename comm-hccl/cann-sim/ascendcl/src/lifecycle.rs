//! Life cycle, contexts, streams.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::gate::{answer, call, ensure, enter, refuse, take_recent};
use crate::kernel::finish;
use crate::state::{FOREIGN_CONTEXT, NO_CONTEXT, Stream, context_of, current_context, set_current_context};
use cann_sim::Kind;
use comm_hccl::sys::*;
use std::ffi::c_char;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclInit(_config_path: *const c_char) -> aclError {
    call("aclInit", |state| {
        ensure(!state.initialised, ACL_ERROR_REPEAT_INITIALIZE, "already initialised")?;
        state.initialised = true;
        state.attachment.created(Kind::Runtime);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclFinalize() -> aclError {
    call("aclFinalize", |state| {
        ensure(state.initialised, ACL_ERROR_REPEAT_FINALIZE, "not initialised")?;
        state.reclaim(None);
        for _ in 0..state.set.values().sum::<u32>() {
            state.attachment.reclaimed(Kind::Device);
        }
        state.set.clear();
        state.initialised = false;
        state.attachment.destroyed(Kind::Runtime);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtGetVersion(
    major: *mut i32,
    minor: *mut i32,
    patch: *mut i32,
) -> aclError {
    call("aclrtGetVersion", |state| {
        let pointers = [major, minor, patch];
        ensure(pointers.iter().all(|p| !p.is_null()), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        for (pointer, number) in pointers.into_iter().zip(state.attachment.config().acl_version) {
            // SAFETY: not null; the caller provides a place for one number.
            unsafe { pointer.write(number) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtGetSocName() -> *const c_char {
    match enter("aclrtGetSocName") {
        Ok(attachment) => attachment.config().soc.as_ptr(),
        Err(_) => std::ptr::null(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    match enter("aclGetRecentErrMsg") {
        Ok(_) => take_recent(),
        Err(_) => std::ptr::null(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtSetDevice(device: i32) -> aclError {
    call("aclrtSetDevice", |state| {
        ensure(state.initialised, ACL_ERROR_UNINITIALIZE, "aclInit was not called")?;
        let visible = state.visible_id(device)?;
        state.attachment.device_is_rank(visible as i32);
        *state.set.entry(device as u32).or_default() += 1;
        state.attachment.created(Kind::Device);
        set_current_context(context_of(device as u32));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtResetDevice(device: i32) -> aclError {
    call("aclrtResetDevice", |state| {
        state.visible_id(device)?;
        let device = device as u32;
        match state.set.get_mut(&device) {
            None => return refuse(ACL_ERROR_RT_INVALID_DEVICEID, "the device is not set"),
            Some(1) => {
                state.reclaim(Some(device));
                state.set.remove(&device);
                if [context_of(device), FOREIGN_CONTEXT].contains(&current_context()) {
                    set_current_context(NO_CONTEXT);
                }
            }
            Some(count) => *count -= 1,
        }
        state.attachment.destroyed(Kind::Device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtGetDevice(device: *mut i32) -> aclError {
    call("aclrtGetDevice", |state| {
        ensure(!device.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let current = state.device()?;
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { device.write(current as i32) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtGetDeviceCount(count: *mut u32) -> aclError {
    call("aclrtGetDeviceCount", |state| {
        ensure(!count.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { count.write(state.visible.len() as u32) };
        ensure(!state.visible.is_empty(), ACL_ERROR_RT_NO_DEVICE, "no device is visible")
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtGetCurrentContext(context: *mut aclrtContext) -> aclError {
    call("aclrtGetCurrentContext", |_| {
        ensure(!context.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        ensure(current_context() != NO_CONTEXT, ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context")?;
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { context.write(current_context() as aclrtContext) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtSetCurrentContext(context: aclrtContext) -> aclError {
    call("aclrtSetCurrentContext", |state| {
        let context = context as usize;
        let known = context == FOREIGN_CONTEXT || state.set.keys().any(|&d| context_of(d) == context);
        ensure(known, ACL_ERROR_RT_PARAM_INVALID, "unknown context")?;
        set_current_context(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtGetPhyDevIdByLogicDevId(logical: i32, physical: *mut i32) -> aclError {
    call("aclrtGetPhyDevIdByLogicDevId", |state| {
        ensure(!physical.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let id = state.visible_id(logical)? + state.attachment.config().physical_base;
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { physical.write(id as i32) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtDeviceGetBareTgid(pid: *mut i32) -> aclError {
    call("aclrtDeviceGetBareTgid", |state| {
        ensure(!pid.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { pid.write(state.attachment.pid()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtCreateStream(stream: *mut aclrtStream) -> aclError {
    call("aclrtCreateStream", |state| {
        ensure(!stream.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let device = state.device()?;
        let handle = state.handle();
        state.streams.insert(handle, Stream { device, running: None, waits: Vec::new() });
        state.attachment.created(Kind::Stream);
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { stream.write(handle as aclrtStream) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtDestroyStream(stream: aclrtStream) -> aclError {
    call("aclrtDestroyStream", |state| {
        let known = state.streams.remove(&(stream as usize)).is_some();
        ensure(known, ACL_ERROR_RT_PARAM_INVALID, "unknown stream")?;
        state.attachment.destroyed(Kind::Stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtSynchronizeStream(stream: aclrtStream) -> aclError {
    const NAME: &str = "aclrtSynchronizeStream";
    let code = call(NAME, |state| {
        let device = state.device()?;
        if current_context() == FOREIGN_CONTEXT {
            return refuse(ACL_ERROR_RT_AICPU_EXCEPTION, "the thread's context is HCCL's; restore it first");
        }
        match state.streams.get(&(stream as usize)) {
            None => return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown stream"),
            Some(of) => {
                ensure(of.device == device, ACL_ERROR_RT_STREAM_CONTEXT, "the stream is of another device")?;
            }
        }
        state.healthy(device)
    });
    if code == ACL_SUCCESS { answer(NAME, finish(stream)) } else { code }
}
