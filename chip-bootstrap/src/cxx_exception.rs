//! What a kernel threw, in words: `std::runtime_error: no such file`.
//!
//! The functions of the C++ runtime are looked up in the kernel's library, which has loaded it. They are those of
//! the Itanium C++ ABI, which both runtimes on Linux have (libstdc++ and libc++abi).
//!
//! # Safety
//! Calls functions of the C++ runtime that the kernel was linked with, and follows the pointers in its objects
//! as the ABI lays them out.
#![allow(unsafe_code)]

use crate::kernel_call::Exception;
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

/// Classes of C++ exceptions. The last byte is 1 for one that was stored and is thrown again.
const GNU: u64 = u64::from_be_bytes(*b"GNUCC++\0");
const GNU_AGAIN: u64 = GNU | 1;
const LLVM: u64 = u64::from_be_bytes(*b"CLNGC++\0");
const LLVM_AGAIN: u64 = LLVM | 1;

/// The unwinder's header is directly before the object that is thrown, and has so many bytes.
const HEADER: usize = 32;
/// So far before the header of an exception that is thrown again, libstdc++ has the address of the object.
const AGAIN: usize = 80;

/// Where `std::type_info` has the function that answers whether a handler of that type catches an exception.
const CATCHES: usize = 4;
/// Where `std::exception` has `what`. Before it are the two destructors.
const WHAT: usize = 2;

#[repr(C)]
struct TypeInfo {
    functions: *const *const c_void,
    name: *const c_char,
}

type Catches = unsafe extern "C" fn(*const TypeInfo, *const TypeInfo, *mut *mut c_void, c_uint) -> bool;
type What = unsafe extern "C" fn(*mut c_void) -> *const c_char;

/// What the C++ runtime has to have, for an exception to be named.
struct Runtime {
    begin_catch: unsafe extern "C" fn(*mut Exception) -> *mut c_void,
    end_catch: unsafe extern "C" fn(),
    thrown_type: unsafe extern "C" fn() -> *const TypeInfo,
    demangle: unsafe extern "C" fn(*const c_char, *mut c_char, *mut usize, *mut c_int) -> *mut c_char,
    free: unsafe extern "C" fn(*mut c_void),
    std_exception: *const TypeInfo,
}

impl Runtime {
    fn of(kernel: &Library) -> Option<Self> {
        // SAFETY: the ABI defines the types of these symbols.
        unsafe {
            Some(Self {
                begin_catch: *kernel.get(b"__cxa_begin_catch").ok()?,
                end_catch: *kernel.get(b"__cxa_end_catch").ok()?,
                thrown_type: *kernel.get(b"__cxa_current_exception_type").ok()?,
                demangle: *kernel.get(b"__cxa_demangle").ok()?,
                free: *kernel.get(b"free").ok()?,
                std_exception: kernel.get::<*const c_void>(b"_ZTISt9exception").ok()?.into_raw().cast(),
            })
        }
    }

    /// Type and text of the exception that is being handled.
    ///
    /// # Safety
    /// One is, and `object` is what was thrown, if that is known.
    unsafe fn describe(&self, object: Option<*mut c_void>) -> String {
        // SAFETY: an exception is being handled; its type lives as long as the library that threw it, which this
        // process keeps loaded.
        unsafe {
            let kind = (self.thrown_type)();
            if kind.is_null() {
                return UNNAMED.to_owned();
            }
            let name = self.name(kind);
            match object.and_then(|object| self.text(kind, object)) {
                Some(text) => format!("{name}: {text}"),
                None => name,
            }
        }
    }

    /// # Safety
    /// `kind` is a type of a loaded library.
    unsafe fn name(&self, kind: *const TypeInfo) -> String {
        // SAFETY: `kind` is valid, and its name NUL-terminated. What `demangle` returns is the caller's to free.
        unsafe {
            let mangled = (*kind).name;
            let mut status = 0;
            let readable = (self.demangle)(mangled, null_mut(), null_mut(), &mut status);
            if readable.is_null() {
                return CStr::from_ptr(mangled).to_string_lossy().into_owned();
            }
            let name = CStr::from_ptr(readable).to_string_lossy().into_owned();
            (self.free)(readable.cast());
            name
        }
    }

    /// What a `std::exception` says, and the value of an `int` or a `const char *`.
    ///
    /// # Safety
    /// `object` is a live object of type `kind`.
    unsafe fn text(&self, kind: *const TypeInfo, object: *mut c_void) -> Option<String> {
        // SAFETY: the two functions are where the ABI has them, in the tables of live objects. `catches` moves
        // `base` to the part of the object that is a `std::exception`.
        unsafe {
            let function = |table: *const *const c_void, number: usize| *table.add(number);
            let catches: Catches = std::mem::transmute(function((*self.std_exception).functions, CATCHES));
            let mut base = object;
            if catches(self.std_exception, kind, &mut base, 1) {
                let what: What = std::mem::transmute(function(*base.cast(), WHAT));
                return owned(what(base));
            }
            match CStr::from_ptr((*kind).name).to_bytes() {
                b"i" => Some(object.cast::<c_int>().read().to_string()),
                b"PKc" => owned(object.cast::<*const c_char>().read()),
                _ => None,
            }
        }
    }
}

const UNNAMED: &str = "a C++ exception whose type is not known";

/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn owned(text: *const c_char) -> Option<String> {
    // SAFETY: not null, and NUL-terminated as the caller promises.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// What `kernel` threw, in words. Deletes the exception.
///
/// # Safety
/// `exception` came out of a function of `kernel`, is deleted by nobody else, and `kernel` stays loaded.
pub(crate) unsafe fn take(kernel: &Library, exception: NonNull<Exception>) -> String {
    let header = exception.as_ptr();
    // SAFETY: the header is alive; for each class the object is where its runtime has it.
    let object = unsafe {
        match (*header).class {
            GNU | LLVM => Some(header.byte_add(HEADER).cast()),
            GNU_AGAIN => Some(header.byte_sub(AGAIN).cast::<*mut c_void>().read()),
            LLVM_AGAIN => None,
            _ => return "an exception that is none of C++".to_owned(),
        }
    };
    // Without the runtime's functions it cannot be deleted either.
    let Some(runtime) = Runtime::of(kernel) else { return UNNAMED.to_owned() };
    // SAFETY: the exception is a C++ one that nobody handles; it is handled from begin to end of the catch.
    unsafe {
        (runtime.begin_catch)(header);
        let words = runtime.describe(object);
        (runtime.end_catch)();
        words
    }
}
