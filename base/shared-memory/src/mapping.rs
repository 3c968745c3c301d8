//! A range of addresses with shared memory behind it.
//!
//! # Safety
//! Maps and unmaps. A mapping never replaces another one (no `MAP_FIXED`), and the range that is unmapped
//! is the one that was mapped.
#![allow(unsafe_code)]

use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};

/// Where mappings are put that other processes may need at the same address: Linux places neither programs
/// nor their libraries, heaps and stacks here, on processors with 47 bits of address and more. The
/// addresses are free in another process of the same program too, whose libraries lie elsewhere at each
/// start.
#[cfg(not(tsan))]
const SHARED_ADDRESSES: Range<usize> = 0x3000_0000_0000..0x5000_0000_0000;
/// The thread sanitizer keeps its shadow memory there, and leaves these to programs.
#[cfg(tsan)]
const SHARED_ADDRESSES: Range<usize> = 0x5600_0000_0000..0x5680_0000_0000;
/// The alignment of large pages, should the system use them.
const ALIGN: usize = 2 << 20;
/// Addresses that are tried before the kernel may choose. The range is much larger than what is mapped, so
/// that the first is nearly always free.
const TRIES: u64 = 16;

#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: NonZeroUsize,
}

impl Mapping {
    /// Maps the first `len` bytes of `fd` at an address that the kernel chooses.
    pub(crate) fn anywhere(fd: BorrowedFd<'_>, len: NonZeroUsize) -> Result<Self, Errno> {
        Self::map(fd, len, None, MapFlags::empty())
    }

    /// Maps the first `len` bytes of `fd` at addresses that are most likely free in other processes too.
    pub(crate) fn at_shared_address(fd: BorrowedFd<'_>, len: NonZeroUsize) -> Result<Self, Errno> {
        let places = (SHARED_ADDRESSES.end - SHARED_ADDRESSES.start).saturating_sub(len.get()) / ALIGN;
        let random = RandomState::new();
        for try_number in 0..TRIES {
            let place = random.hash_one(try_number) as usize % places.max(1);
            let at = NonZeroUsize::new(SHARED_ADDRESSES.start + place * ALIGN);
            // Kernels that do not know the flag take the address as a hint, and any result will do.
            if let Ok(mapping) = Self::map(fd, len, at, MapFlags::MAP_FIXED_NOREPLACE) {
                return Ok(mapping);
            }
        }
        Self::anywhere(fd, len)
    }

    /// Maps the first `len` bytes of `fd` at `at`; `EEXIST` if something is mapped there.
    pub(crate) fn at(fd: BorrowedFd<'_>, len: NonZeroUsize, at: NonNull<u8>) -> Result<Self, Errno> {
        let mapping = Self::map(fd, len, Some(at.addr()), MapFlags::MAP_FIXED_NOREPLACE)?;
        // A kernel that does not know the flag maps elsewhere if the address is taken.
        if mapping.base.addr() == at.addr() { Ok(mapping) } else { Err(Errno::EEXIST) }
    }

    fn map(
        fd: BorrowedFd<'_>,
        len: NonZeroUsize,
        at: Option<NonZeroUsize>,
        flags: MapFlags,
    ) -> Result<Self, Errno> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: without `MAP_FIXED` a new mapping only takes addresses that are not mapped.
        let base = unsafe { mmap(at, len, access, MapFlags::MAP_SHARED | flags, fd.as_fd(), 0) }?;
        Ok(Self { base: base.cast(), len })
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped; references into it borrow from the owner of this value, which
        // is being dropped.
        let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
    }
}
