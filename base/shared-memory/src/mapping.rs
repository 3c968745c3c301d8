//! A range of addresses with shared memory behind it.
//!
//! # Safety
//! Maps and unmaps. A mapping never replaces another one: `MAP_FIXED` is used only inside a range that the same
//! [`Mapping`] has reserved, and the range that is unmapped is the one that was mapped.
#![allow(unsafe_code)]

use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;

/// Where mappings are put that other processes may need at the same address: Linux places neither programs
/// nor their libraries, heaps and stacks here, on processors with 47 bits of address and more. The
/// addresses are free in another process of the same program too, whose libraries lie elsewhere at each
/// start.
#[cfg(not(tsan))]
const SHARED_ADDRESSES: Range<usize> = 0x3000_0000_0000..0x5000_0000_0000;
/// The thread sanitizer keeps its shadow memory there, and leaves these to programs.
#[cfg(tsan)]
const SHARED_ADDRESSES: Range<usize> = 0x5600_0000_0000..0x5680_0000_0000;
/// The same place where a process has 39 bits of address.
const SHARED_ADDRESSES_39: Range<usize> = SHARED_ADDRESSES.start >> 8..SHARED_ADDRESSES.end >> 8;
/// The alignment of large pages, should the system use them.
const ALIGN: usize = 2 << 20;
/// Addresses that are tried before the kernel may choose. The range is much larger than what is mapped, so
/// that the first is nearly always free.
const TRIES: u64 = 16;

/// Where a mapping goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Where the kernel chooses.
    Anywhere,
    /// At addresses that are most likely free in other processes too.
    SharedAddresses,
    /// There, or `EEXIST` if something is mapped there.
    At(NonNull<u8>),
}

/// What this process may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

impl Access {
    fn flags(self) -> ProtFlags {
        match self {
            Self::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            Self::ReadOnly => ProtFlags::PROT_READ,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: NonZeroUsize,
}

impl Mapping {
    /// Maps the first `len` bytes of `fd`.
    pub(crate) fn of_object(
        fd: BorrowedFd<'_>,
        len: NonZeroUsize,
        place: Place,
        access: Access,
    ) -> Result<Self, Errno> {
        let mapping = Self::new(len, place, |at, flags| {
            // SAFETY: without `MAP_FIXED` a new mapping only takes addresses that are not mapped.
            unsafe { mmap(at, len, access.flags(), MapFlags::MAP_SHARED | flags, fd, 0) }.map(NonNull::cast)
        })?;
        mapping.leave_out_of_dumps();
        Ok(mapping)
    }

    /// Takes `len` bytes of addresses, and maps objects at some of them. The rest cannot be accessed.
    pub(crate) fn of_objects<'fd>(
        objects: impl Iterator<Item = (BorrowedFd<'fd>, Range<usize>)>,
        len: NonZeroUsize,
        place: Place,
    ) -> Result<Self, Errno> {
        let reserved = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        let mapping = Self::new(len, place, |at, flags| {
            // SAFETY: without `MAP_FIXED` a new mapping only takes addresses that are not mapped.
            unsafe { mmap_anonymous(at, len, ProtFlags::PROT_NONE, reserved | flags) }.map(NonNull::cast)
        })?;
        for (fd, range) in objects {
            let inside = range.start < range.end && range.end <= len.get();
            let Some(bytes) = NonZeroUsize::new(range.len()).filter(|_| inside) else {
                return Err(Errno::EINVAL);
            };
            let at = mapping.base.addr().checked_add(range.start);
            let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
            // SAFETY: replaces pages of the range reserved above (checked), which nobody else knows of yet.
            unsafe { mmap(at, bytes, Access::ReadWrite.flags(), flags, fd, 0) }?;
        }
        mapping.leave_out_of_dumps();
        Ok(mapping)
    }

    /// Calls `map` with the addresses and flags to try.
    fn new(
        len: NonZeroUsize,
        place: Place,
        map: impl Fn(Option<NonZeroUsize>, MapFlags) -> Result<NonNull<u8>, Errno>,
    ) -> Result<Self, Errno> {
        let mapped = |at, flags| map(at, flags).map(|base| Self { base, len });
        match place {
            Place::Anywhere => mapped(None, MapFlags::empty()),
            Place::At(at) => {
                let mapping = mapped(Some(at.addr()), MapFlags::MAP_FIXED_NOREPLACE)?;
                // A kernel that does not know the flag maps elsewhere if the address is taken.
                if mapping.base.addr() == at.addr() { Ok(mapping) } else { Err(Errno::EEXIST) }
            }
            Place::SharedAddresses => {
                let places = candidates(SHARED_ADDRESSES, len).chain(candidates(SHARED_ADDRESSES_39, len));
                // Kernels that do not know the flag take the address as a hint, and any result will do.
                let first =
                    places.map(|at| mapped(Some(at), MapFlags::MAP_FIXED_NOREPLACE)).find_map(Result::ok);
                first.map_or_else(|| mapped(None, MapFlags::empty()), Ok)
            }
        }
    }

    /// A core dump would read the holes of sparse memory, which puts memory behind them. It is advice: a kernel
    /// that does not know it dumps them.
    fn leave_out_of_dumps(&self) {
        // SAFETY: the whole of the mapping; what is read from it and written to it stays the same.
        let _ = unsafe { madvise(self.base.cast(), self.len(), MmapAdvise::MADV_DONTDUMP) };
    }

    /// Changes whether this process may access the pages of `range`, which is inside.
    pub(crate) fn set_accessible(&self, range: Range<usize>, accessible: bool) -> Result<(), Errno> {
        debug_assert!(range.start <= range.end && range.end <= self.len());
        let access = if accessible { Access::ReadWrite.flags() } else { ProtFlags::PROT_NONE };
        // SAFETY: inside the mapping (the caller checked), so that no other mapping changes.
        unsafe { mprotect(self.base.add(range.start).cast(), range.len(), access) }
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

/// Random addresses at which `len` bytes are inside `within`; none where they do not fit.
fn candidates(within: Range<usize>, len: NonZeroUsize) -> impl Iterator<Item = NonZeroUsize> {
    let places = within.len().saturating_sub(len.get()) / ALIGN;
    let random = RandomState::new();
    let tries = if places == 0 { 0 } else { TRIES };
    (0..tries).filter_map(move |try_number| {
        NonZeroUsize::new(within.start + random.hash_one(try_number) as usize % places * ALIGN)
    })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; references into it borrow from the owner of this value, which
        // is being dropped.
        let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_their_range_or_not_tried_at_all() {
        let len = NonZeroUsize::new(1 << 30).unwrap();
        for range in [SHARED_ADDRESSES, SHARED_ADDRESSES_39] {
            assert_eq!(candidates(range.clone(), len).count(), TRIES as usize);
            assert!(candidates(range.clone(), len).all(|at| {
                range.contains(&at.get())
                    && at.get() + len.get() <= range.end
                    && at.get().is_multiple_of(ALIGN)
            }));
            assert_eq!(candidates(range.clone(), NonZeroUsize::new(range.len()).unwrap()).count(), 0);
        }
        // A process with 39 bits of address has the lower half of them to itself.
        const { assert!(SHARED_ADDRESSES_39.end <= 1 << 39) };
    }
}
