//! The double's `libascendcl.so`, found beside this library.
//!
//! # Safety
//! The functions are this project's own (`private.rs` of the sibling crate). Their types are declared here and there and
//! must agree.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Declares the functions of the sibling: a table of pointers, and how to find them.
macro_rules! sibling_functions {
    ($( $field:ident: $symbol:literal as $ty:ty; )*) => {
        /// The functions of the sibling that this library uses.
        pub(crate) struct Sibling { $( $field: $ty, )* }

        impl Sibling {
            /// # Safety
            /// `symbol` returns the address of the function with that name, of the type declared here.
            unsafe fn resolve(symbol: impl Fn(&CStr) -> Option<*mut c_void>) -> Option<Self> {
                // SAFETY: the caller's promise; a function pointer has the layout of an address.
                unsafe { Some(Self { $( $field: std::mem::transmute::<*mut c_void, $ty>(symbol($symbol)?), )* }) }
            }
        }
    };
}

sibling_functions! {
    has_device: c"cann_sim_has_device" as unsafe extern "C" fn() -> i32;
    switch_context: c"cann_sim_switch_context" as unsafe extern "C" fn();
    usable: c"cann_sim_usable" as unsafe extern "C" fn(*const c_void, usize) -> i32;
    stream: c"cann_sim_stream" as unsafe extern "C" fn(*const c_void) -> i32;
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
        // SAFETY: the path ends in NUL; the program has the library open already, so that no constructor runs.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is open and never closed; the name ends in NUL.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        // SAFETY: the sibling crate declares the functions with these types.
        unsafe { Self::resolve(symbol) }
    }

    /// Whether a device is set in the calling thread.
    pub(crate) fn has_device(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { (self.has_device)() == 1 }
    }

    /// Leaves the calling thread with HCCL's context.
    pub(crate) fn switch_context(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.switch_context)() }
    }

    /// Whether the current device can use a range.
    pub(crate) fn usable(&self, pointer: *const c_void, len: usize) -> bool {
        // SAFETY: the pointer is not dereferenced.
        unsafe { (self.usable)(pointer, len) == 1 }
    }

    /// Whether a stream exists.
    pub(crate) fn stream(&self, stream: *const c_void) -> bool {
        // SAFETY: the pointer is not dereferenced.
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
