//! The monotonic clock.
//!
//! # Safety
//! One call into libc with a pointer to a local.
#![allow(unsafe_code)]

pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a live local of the type that the call fills; CLOCK_MONOTONIC exists on every Linux, so the call
    // cannot fail, and if it did, `now` stays zero.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
