//! The monotonic clock.
//!
//! # Safety
//! One call into libc with a pointer to a local.
#![allow(unsafe_code)]

pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

pub(crate) fn coarse_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a live local of the type that the call fills; both clocks exist on every
    // Linux, so the call cannot fail, and if it did, `now` stays zero.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
