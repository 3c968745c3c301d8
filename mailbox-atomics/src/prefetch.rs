//! Asks for cache lines before they are written or read.
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

/// Asks for the `bytes` from `at` on, to read them soon. Their owner keeps what it has.
#[inline(always)]
pub fn prefetch_to_read(at: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(LINE) {
        prefetch_line_to_read(at.wrapping_add(offset));
    }
}

macro_rules! hint {
    ($name:ident, $x86_64:literal, $aarch64:literal) => {
        #[inline(always)]
        #[cfg_attr(
            any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))),
            expect(unused_variables, reason = "not known here")
        )]
        fn $name(at: *const u8) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: a hint; processors without it take it for no operation.
            unsafe {
                core::arch::asm!($x86_64, in(reg) at, options(nostack, preserves_flags, readonly));
            }
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            // SAFETY: a hint.
            unsafe {
                core::arch::asm!($aarch64, in(reg) at, options(nostack, preserves_flags, readonly));
            }
        }
    };
}

hint!(prefetch_line, "prefetchw [{}]", "prfm pstl1keep, [{}]");
hint!(prefetch_line_to_read, "prefetcht0 [{}]", "prfm pldl1keep, [{}]");
