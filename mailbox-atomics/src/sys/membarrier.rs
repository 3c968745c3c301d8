//! A memory barrier in every thread of the process.
//!
//! # Safety
//! The call takes a command and no address.
#![allow(unsafe_code)]

use std::sync::OnceLock;

/// Whether this process may ask for one; says so to the kernel the first time.
pub(crate) fn is_there() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // Miri has no such call.
    *REGISTERED.get_or_init(|| !cfg!(miri) && call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
}

/// Every thread passes a barrier before this returns, wherever it is just then. False if the kernel refuses.
pub(crate) fn in_every_thread() -> bool {
    call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn call(command: libc::c_int) -> bool {
    // SAFETY: see the head of the file.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
