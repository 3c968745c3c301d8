//! Parking in the kernel on a word that several processes map.
//!
//! The operations are the *shared* ones (no `FUTEX_PRIVATE_FLAG`): a private futex in shared memory
//! is never woken by another process.
//!
//! # Safety
//! The kernel reads 4 aligned bytes at the address it is given; the address always comes from a
//! live reference to an atomic.
#![allow(unsafe_code)]

use core::sync::atomic::AtomicU32;

/// Sleeps while `word` holds `expected`, at most until `until_ns` on the monotonic clock. May return
/// early and does not say why it returned: the caller checks again.
pub(crate) fn wait(word: &AtomicU32, expected: u32, until_ns: u64) {
    let until = libc::timespec {
        tv_sec: (until_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (until_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `word` is borrowed for the whole call, so the address stays mapped and aligned to 4;
    // `until` is a live local that the kernel only reads; FUTEX_WAIT_BITSET ignores the second
    // address, which is null.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET,
            expected,
            &until,
            core::ptr::null::<u32>(),
            libc::FUTEX_BITSET_MATCH_ANY,
        )
    };
}

/// Wakes every process that sleeps on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: `word` is borrowed for the whole call; FUTEX_WAKE only uses the address as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
