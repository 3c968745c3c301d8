//! Kernels: host shared objects that run in the calling thread.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::gate::{call, ensure, refuse};
use crate::state::Binary;
use cann_sim::Kind;
use comm_hccl::sys::*;
use std::ffi::{c_char, c_void};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtBinaryLoadFromFile(
    path: *const c_char,
    _options: *mut aclrtBinaryLoadOptions,
    binary: *mut aclrtBinHandle,
) -> aclError {
    call("aclrtBinaryLoadFromFile", |state| {
        ensure(!path.is_null() && !binary.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let device = state.device()?;
        // SAFETY: not null; the caller provides a text that ends in NUL. Constructors of a kernel run as they
        // would anywhere.
        let library = unsafe { libc::dlopen(path, libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return refuse(ACL_ERROR_RT_FILE_OPEN, dl_error());
        }
        let handle = state.handle();
        state.binaries.insert(handle, Binary { device, library });
        state.attachment.created(Kind::Binary);
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { binary.write(handle as aclrtBinHandle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtBinaryGetFunction(
    binary: aclrtBinHandle,
    name: *const c_char,
    function: *mut aclrtFuncHandle,
) -> aclError {
    call("aclrtBinaryGetFunction", |state| {
        ensure(!name.is_null() && !function.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let Some(found) = state.binaries.get(&(binary as usize)) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown binary");
        };
        // SAFETY: the library is open; the caller provides a text that ends in NUL.
        let entry = unsafe { libc::dlsym(found.library, name) };
        if entry.is_null() {
            return refuse(ACL_ERROR_RT_KERNEL_LOOKUP, dl_error());
        }
        let handle = state.handle();
        state.functions.insert(handle, (binary as usize, entry as usize));
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { function.write(handle as aclrtFuncHandle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtLaunchKernel(
    function: aclrtFuncHandle,
    blocks: u32,
    args: *const c_void,
    args_size: usize,
    stream: aclrtStream,
) -> aclError {
    let mut entry = 0;
    let mut block = Vec::new();
    let code = call("aclrtLaunchKernel", |state| {
        ensure(
            !args.is_null() && args_size.is_multiple_of(8),
            ACL_ERROR_INVALID_PARAM,
            "the arguments are not a block of 64-bit words",
        )?;
        ensure(blocks == 1, ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "the double runs kernels with one block")?;
        state.device()?;
        ensure(state.streams.contains_key(&(stream as usize)), ACL_ERROR_RT_PARAM_INVALID, "unknown stream")?;
        match state.functions.get(&(function as usize)) {
            Some((_, address)) => entry = *address,
            None => return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown kernel"),
        }
        block = vec![0_i64; args_size / 8];
        // SAFETY: not null; the caller provides `args_size` bytes, and `block` has as many.
        unsafe { std::ptr::copy_nonoverlapping(args.cast(), block.as_mut_ptr().cast::<u8>(), args_size) };
        Ok(())
    });
    if code == ACL_SUCCESS {
        // Without the state's lock: a kernel may wait long for a peer.
        // SAFETY: the address is that of a symbol which, as a kernel of this project, has the type of
        // `kernel_entry`; its binary is open, or the function would have been forgotten with it.
        unsafe {
            let kernel = std::mem::transmute::<usize, extern "C" fn(*mut i64)>(entry);
            kernel(block.as_mut_ptr());
        }
    }
    code
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtBinaryUnLoad(binary: aclrtBinHandle) -> aclError {
    call("aclrtBinaryUnLoad", |state| {
        let Some(found) = state.binaries.remove(&(binary as usize)) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown binary");
        };
        state.functions.retain(|_, (of, _)| *of != binary as usize);
        // SAFETY: opened by aclrtBinaryLoadFromFile, and forgotten just now with all its functions.
        unsafe { libc::dlclose(found.library) };
        state.attachment.destroyed(Kind::Binary);
        Ok(())
    })
}

fn dl_error() -> String {
    // SAFETY: returns null or a text of this thread that is valid until its next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "dlopen failed".into();
    }
    // SAFETY: not null, and just returned.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
