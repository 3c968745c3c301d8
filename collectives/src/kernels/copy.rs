//! Copies into memory that another processor reads, and out of it.
//!
//! What takes long is not to move the bytes, but to get the lines of the target from the cache of the processor that read them last. Vectors ask
//! for them one by one, some way ahead. The string instruction of newer x86 processors does not fetch what it is going to overwrite: with it
//! 32 KiB to 1 MiB take a fifth to a half less, if the reader leaves the lines where they are; below 16 KiB, starting it takes longer.
//!
//! # Safety
//! The copies go through raw pointers; [`Copy`] says what a caller promises.
#![allow(unsafe_code)]

use super::processor::has_fast_strings;
use super::{BLOCK, Kernels};
use crate::table::{ANY, Table};

/// Copies `bytes` from one place to another.
///
/// # Safety
/// Source and target are valid for so many bytes, and apart. No other process writes the source meanwhile. The processor has what the
/// build of the kernel needs.
pub(crate) type Copy = unsafe fn(from: *const u8, to: *mut u8, bytes: usize);

/// So many bytes before it stores to a line, a copy by vectors asks for it: 32 KiB to 1 MiB take a fifth to a third less where the last
/// reader was another core.
const AHEAD: usize = 1024;

/// The copy of a group: by vectors, or from some size on by the string instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copier {
    vectors: Copy,
    strings_from: usize,
}

impl Copier {
    /// As the table says; without strings on a processor that is slow at them.
    pub(crate) fn new(kernels: &Kernels, table: &Table) -> Self {
        Self { vectors: kernels.copy, strings_from: strings_from(table) }
    }

    /// # Safety
    /// As [`Copy`].
    #[inline]
    pub(crate) unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        if bytes >= self.strings_from {
            // SAFETY: the caller's promises.
            unsafe { copy_string(from, to, bytes) };
        } else {
            // SAFETY: the caller's promises.
            unsafe { (self.vectors)(from, to, bytes) };
        }
    }
}

/// From how many bytes on copies are strings here: never, on a processor that is slow at them.
pub(crate) fn strings_from(table: &Table) -> usize {
    if table.strings_from == ANY || !has_fast_strings() { usize::MAX } else { table.strings_from as usize }
}

/// # Safety
/// As [`Copy`].
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promises; the direction flag is clear, as the calling convention has it.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's promises.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, bytes);
    }
}

/// The code of the copy by vectors: plain loads and stores. The C library's copy goes past the caches where it takes a copy for a large one, and
/// then takes several times as long.
///
/// # Safety
/// As [`Copy`].
#[inline(always)]
pub(super) unsafe fn copy_all(from: *const u8, to: *mut u8, bytes: usize) {
    let mut at = 0;
    // SAFETY: blocks within `bytes`; the caller's promises.
    unsafe {
        while at + AHEAD + BLOCK <= bytes {
            mailbox_atomics::prefetch_to_write(to.add(at + AHEAD), BLOCK);
            let block = from.add(at).cast::<[u64; BLOCK / 8]>().read_unaligned();
            to.add(at).cast::<[u64; BLOCK / 8]>().write_unaligned(block);
            at += BLOCK;
        }
        while at + BLOCK <= bytes {
            let block = from.add(at).cast::<[u64; BLOCK / 8]>().read_unaligned();
            to.add(at).cast::<[u64; BLOCK / 8]>().write_unaligned(block);
            at += BLOCK;
        }
        while at + 64 <= bytes {
            let block = from.add(at).cast::<[u64; 8]>().read_unaligned();
            to.add(at).cast::<[u64; 8]>().write_unaligned(block);
            at += 64;
        }
        while at + 16 <= bytes {
            let block = from.add(at).cast::<[u64; 2]>().read_unaligned();
            to.add(at).cast::<[u64; 2]>().write_unaligned(block);
            at += 16;
        }
        while at < bytes {
            to.add(at).write(from.add(at).read());
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte arrives, and none beyond, on both sides of the size from which copies are strings.
    #[test]
    fn copies_are_whole_by_vectors_and_by_strings() {
        let from: Vec<u8> = (0..40_000_u32).map(|at| (at * 31 % 251) as u8).collect();
        for strings_from in [1, 64, 16 << 10, usize::MAX] {
            let copier = Copier { vectors: Kernels::get().copy, strings_from };
            for (offset, bytes) in [(0, 0), (0, 1), (3, 63), (1, 64), (7, 1000), (5, 16 << 10), (9, 33_333)] {
                let mut to = vec![255; 40_000];
                // SAFETY: within both, which are apart.
                unsafe { copier.copy(from.as_ptr().add(offset), to.as_mut_ptr().add(offset), bytes) };
                assert_eq!(to[offset..offset + bytes], from[offset..offset + bytes]);
                assert!(to[..offset].iter().chain(&to[offset + bytes..]).all(|byte| *byte == 255));
            }
        }
    }

    #[test]
    fn a_table_may_forbid_strings() {
        let never = Table::default().with("strings_from", ANY).unwrap();
        assert_eq!(strings_from(&never), usize::MAX);
        let expected = if has_fast_strings() { 16 << 10 } else { usize::MAX };
        assert_eq!(strings_from(&Table::default()), expected);
    }
}
