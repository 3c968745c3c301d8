//! Asks for cache lines before they are written.
//!
//! # Safety
//! One instruction that changes nothing and cannot fault, whatever the address.
#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the `bytes` from `at` on, to write them soon. A line that peers have read is then taken back from their caches while this
/// thread does something else, and not when it stores to it.
#[inline(always)]
pub fn prefetch_to_write(at: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(LINE) {
        prefetch_line(at.wrapping_add(offset));
    }
}

#[inline(always)]
#[cfg_attr(
    any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))),
    expect(unused_variables, reason = "not known here")
)]
fn prefetch_line(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; processors without it take it for no operation.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}
