//! The double's `libascendcl.so`, found beside this library.
//!
//! # Safety
//! The four functions are this project's own (`private.rs` of the sibling crate); their types are written
//! down twice and must agree.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;

/// What this library asks its sibling.
pub(crate) struct Sibling {
    current_card: unsafe extern "C" fn() -> i32,
    switch_context: unsafe extern "C" fn(),
    usable: unsafe extern "C" fn(*const c_void, usize) -> i32,
    stream: unsafe extern "C" fn(*const c_void) -> i32,
}

impl Sibling {
    /// The sibling; `None` when it is not there or not the double's.
    pub(crate) fn get() -> Option<&'static Self> {
        static SIBLING: OnceLock<Option<Sibling>> = OnceLock::new();
        SIBLING.get_or_init(Self::find).as_ref()
    }

    fn find() -> Option<Self> {
        let path = own_path()?.with_file_name("libascendcl.so");
        let path = CString::new(path.into_os_string().into_vec()).ok()?;
        // SAFETY: a path that ends in NUL; the program has the library open already, so that no constructor
        // runs.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is open and never closed; the name ends in NUL.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        // SAFETY: the sibling crate declares the four functions with these types.
        unsafe {
            Some(Self {
                current_card: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(symbol(
                    c"cann_sim_current_card",
                )?),
                switch_context: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(symbol(
                    c"cann_sim_switch_context",
                )?),
                usable: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_void, usize) -> i32>(
                    symbol(c"cann_sim_usable")?,
                ),
                stream: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_void) -> i32>(
                    symbol(c"cann_sim_stream")?,
                ),
            })
        }
    }

    /// The card of the calling thread's context.
    pub(crate) fn current_card(&self) -> Option<u32> {
        // SAFETY: takes nothing.
        u32::try_from(unsafe { (self.current_card)() }).ok()
    }

    /// Leaves the calling thread with HCCL's context.
    pub(crate) fn switch_context(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.switch_context)() }
    }

    /// Whether the current device can use a range.
    pub(crate) fn usable(&self, pointer: *const c_void, len: usize) -> bool {
        // SAFETY: the pointer is not followed.
        unsafe { (self.usable)(pointer, len) == 1 }
    }

    /// Whether a stream exists.
    pub(crate) fn stream(&self, stream: *const c_void) -> bool {
        // SAFETY: the pointer is not followed.
        unsafe { (self.stream)(stream) == 1 }
    }
}

fn own_path() -> Option<PathBuf> {
    // SAFETY: all zero bytes are a valid Dl_info.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address inside this library, and a valid place for the answer.
    let found = unsafe { libc::dladdr(own_path as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null; the loader keeps the name as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}
