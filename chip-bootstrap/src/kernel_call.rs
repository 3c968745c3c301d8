//! The call of a kernel, which ends when the kernel returns and when it throws.
//!
//! Rust catches no exceptions of other languages, and a C++ compiler must not be needed to build this crate. So
//! kernels are called by a function in assembly with a personality routine of its own: what the system's
//! unwinder asks each frame (Itanium C++ ABI, part I). It catches everything, and the exception is what the
//! call returns.
//!
//! # Safety
//! Declares functions of the system's unwinder, and a function in assembly whose frame they walk. The unwind
//! information beside each instruction says where the caller's registers are; a test throws through it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::NonNull;

/// By contract, the function of a kernel.
pub(crate) type KernelEntry = unsafe extern "C-unwind" fn(*mut i64);

/// What was thrown, as the unwinder knows it.
#[repr(C)]
pub(crate) struct Exception {
    /// Vendor and language, in ASCII.
    pub(crate) class: u64,
}

/// Calls a kernel. `Some` when it threw; the exception is then the caller's, to delete.
///
/// # Safety
/// `entry` is a function of this type, and `args` what it expects.
pub(crate) unsafe fn call(entry: KernelEntry, args: *mut i64) -> Option<NonNull<Exception>> {
    // SAFETY: as the caller promises. Nothing unwinds out of it but a thread that is being ended.
    NonNull::new(unsafe { call_and_catch(entry, args) })
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn call_and_catch(entry: KernelEntry, args: *mut i64) -> *mut Exception {
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        ".cfi_lsda 0x1b, .Lchipcomm_kernel_threw",
        // The stack is a multiple of 16 at a call.
        "sub rsp, 8",
        ".cfi_def_cfa_offset 16",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        // From here the unwinder continues after a throw, with the exception in the register of the result.
        ".Lchipcomm_kernel_threw:",
        "add rsp, 8",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn call_and_catch(entry: KernelEntry, args: *mut i64) -> *mut Exception {
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        ".cfi_lsda 0x1b, .Lchipcomm_kernel_threw",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset 29, -16",
        ".cfi_offset 30, -8",
        "mov x29, sp",
        "mov x8, x0",
        "mov x0, x1",
        "blr x8",
        "mov x0, xzr",
        // From here the unwinder continues after a throw, with the exception in the register of the result.
        ".Lchipcomm_kernel_threw:",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore 29",
        ".cfi_restore 30",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
    )
}

/// Elsewhere a kernel that throws ends its process.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn call_and_catch(entry: KernelEntry, args: *mut i64) -> *mut Exception {
    // SAFETY: as the caller promises.
    unsafe { entry(args) };
    std::ptr::null_mut()
}

/// A frame, as the unwinder shows it to its personality routine.
#[repr(C)]
struct Frame {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn _Unwind_SetGR(frame: *mut Frame, register: c_int, value: usize);
    fn _Unwind_SetIP(frame: *mut Frame, address: usize);
    fn _Unwind_GetLanguageSpecificData(frame: *mut Frame) -> usize;
}

// What the unwinder is doing, and the answers to it.
const SEARCHES: c_int = 1;
const FORCED: c_int = 8;
const HANDLER_FOUND: c_int = 6;
const INSTALL_CONTEXT: c_int = 7;
const CONTINUE_UNWIND: c_int = 8;

/// The result's register, by its DWARF number on both processors.
const RESULT: c_int = 0;

/// Asked by the unwinder about the frame of [`call_and_catch`]. The "language-specific data" of that frame is the
/// address to continue at.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    _class: u64,
    exception: *mut Exception,
    frame: *mut Frame,
) -> c_int {
    match actions {
        // A thread that ends (pthread_exit, pthread_cancel) cannot be stopped.
        actions if actions & FORCED != 0 => CONTINUE_UNWIND,
        actions if actions & SEARCHES != 0 => HANDLER_FOUND,
        _ => {
            // SAFETY: the unwinder passes a frame of `call_and_catch`; its functions may be called from here.
            unsafe {
                _Unwind_SetGR(frame, RESULT, exception.expose_provenance());
                _Unwind_SetIP(frame, _Unwind_GetLanguageSpecificData(frame));
            }
            INSTALL_CONTEXT
        }
    }
}
