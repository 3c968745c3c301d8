//! The functions of `shim.cpp`, and those that it calls.
//!
//! # Safety
//! Declarations of functions in the C++ file beside this one, and calls of functions of loaded objects through it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn chipcomm_shim_call(
        function: unsafe extern "C-unwind" fn(*mut c_void),
        args: *mut c_void,
        text: *mut c_char,
        capacity: usize,
    ) -> c_int;
    fn chipcomm_shim_config(
        function: unsafe extern "C-unwind" fn(*const c_void) -> c_int,
        args: *const c_void,
        result: *mut c_int,
        text: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(super) fn chipcomm_shim_report_fatal(
        runtime: *mut c_void,
        code: i32,
        function: *const c_char,
        format: *const c_char,
        ...
    );
    pub(super) fn chipcomm_shim_log_error(function: *const c_char, format: *const c_char, ...);
    pub(super) fn chipcomm_shim_log_warn(function: *const c_char, format: *const c_char, ...);
    pub(super) fn chipcomm_shim_log_timing(function: *const c_char, format: *const c_char, ...);
    pub(super) fn chipcomm_shim_log_info(function: *const c_char, format: *const c_char, ...);
    pub(super) fn chipcomm_shim_log_debug(function: *const c_char, format: *const c_char, ...);
}

/// An entry or a kernel.
pub(super) type Function = unsafe extern "C-unwind" fn(*mut c_void);
/// A config function.
pub(super) type Config = unsafe extern "C-unwind" fn(*const c_void) -> c_int;

/// Room for what an exception says; longer texts are cut.
const TEXT: usize = 1024;

/// Calls an entry or a kernel. What it throws is an error in words.
///
/// # Safety
/// `function` is of this type, and `args` is what it expects.
pub(super) unsafe fn call(function: Function, args: *mut c_void) -> Result<(), String> {
    let mut text = [0; TEXT];
    // SAFETY: as the caller promises; `text` has room for so many bytes.
    match unsafe { chipcomm_shim_call(function, args, text.as_mut_ptr(), TEXT) } {
        0 => Ok(()),
        _ => Err(words(&text)),
    }
}

/// Calls a config function.
///
/// # Safety
/// `function` is of this type, and `args` is what it expects.
pub(super) unsafe fn config(function: Config, args: *const c_void) -> Result<c_int, String> {
    let (mut text, mut result) = ([0; TEXT], 0);
    // SAFETY: as the caller promises; `text` has room for so many bytes.
    match unsafe { chipcomm_shim_config(function, args, &mut result, text.as_mut_ptr(), TEXT) } {
        0 => Ok(result),
        _ => Err(words(&text)),
    }
}

fn words(text: &[c_char; TEXT]) -> String {
    let bytes: Vec<u8> = text.iter().map(|byte| *byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// A text of C's; empty for null.
///
/// # Safety
/// Null, or NUL-terminated.
pub(super) unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and NUL-terminated as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
