//! Device addresses: ranges of this process that hold nothing, so that a device address that is used on the host faults.
//!
//! # Safety
//! Reserves and releases ranges that this library alone uses.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The first device address of every process. Programs, heaps, stacks and libraries lie elsewhere, in the device's process
/// too. All processes begin here, as several devices may use one address for different memory.
const FIRST: usize = 0x1200_0000_0000;
/// Ranges start at multiples of this, with a gap between them.
const UNIT: usize = 2 << 20;

/// Reserves addresses. An address is not used a second time, so that the use of a stale one is noticed.
pub(crate) fn reserve(size: usize) -> io::Result<usize> {
    static NEXT: AtomicUsize = AtomicUsize::new(FIRST);
    let step = size.next_multiple_of(UNIT) + UNIT;
    loop {
        // Relaxed: only makes each candidate unique.
        let candidate = NEXT.fetch_add(step, Relaxed);
        // SAFETY: replaces no existing mapping.
        let base = unsafe {
            libc::mmap(
                candidate as *mut c_void,
                size,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if base != libc::MAP_FAILED {
            return Ok(base as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(error);
        }
    }
}

/// Releases what [`reserve`] returned.
pub(crate) fn release(base: usize, size: usize) {
    // SAFETY: this library reserved the range for the object that is being destroyed, and nothing lies there.
    unsafe { libc::munmap(base as *mut c_void, size) };
}
