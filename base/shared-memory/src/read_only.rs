//! Shared memory that this process only reads.
//!
//! # Safety
//! Copies bytes out with [`copy_from_shared`] after checking the range. The mapping lives as long as the
//! [`ReadOnlyRegion`], and its size is sealed, so that no process can remove pages from below it.
#![allow(unsafe_code)]

use crate::copy::copy_from_shared;
use crate::error::RegionError;
use crate::mapping::{Access, Mapping, Place};
use crate::region::{check_sealed, checked_len, not_mapped, range_of};
use crate::slice::{Plain, SharedReadSlice, slice_end};
use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A [`Region`](crate::Region) that this process can read and not write: for observers, which cannot damage what
/// they look at.
#[derive(Debug)]
pub struct ReadOnlyRegion {
    map: Mapping,
    fd: OwnedFd,
}

// SAFETY: a mapping belongs to the process and not to a thread: any thread may use and unmap it.
unsafe impl Send for ReadOnlyRegion {}
// SAFETY: every access through a `&ReadOnlyRegion` is an atomic load, or a copy by `copy_from_shared`.
unsafe impl Sync for ReadOnlyRegion {}

impl ReadOnlyRegion {
    /// Maps a region that another process created, for reading. Its size must be `len` and sealed. `fd` may be any
    /// descriptor of it; with one of [`read_only_fd`](crate::Region::read_only_fd) the system makes sure that this
    /// process cannot write.
    pub fn attach(fd: OwnedFd, label: &str, len: usize) -> Result<Self, RegionError> {
        check_sealed(&fd, len)?;
        let mapped = Mapping::of_object(fd.as_fd(), checked_len(len)?, Place::Anywhere, Access::ReadOnly);
        let map = mapped.map_err(|errno| not_mapped(errno, label, len, Place::Anywhere))?;
        Ok(Self { map, fd })
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Its address in this process.
    pub fn base(&self) -> NonNull<u8> {
        self.map.base()
    }

    /// Copies bytes out, each of them once. They may be torn or hostile: check and decode the copy, never
    /// the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RegionError> {
        let range = range_of(offset, into.len());
        self.check(offset, range.end)?;
        // SAFETY: the range is inside the mapping (checked), which is readable, initialized by the kernel, and lives
        // as long as `self`. No references into it are made.
        unsafe { copy_from_shared(self.base().as_ptr().add(offset), into) };
        Ok(())
    }

    /// `count` values of type `T` from `offset` on, to copy out.
    pub fn slice<T: Plain>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<SharedReadSlice<'_, T>, RegionError> {
        self.check(offset, slice_end::<T>(offset, count, self.len())?)?;
        // SAFETY: inside the mapping (checked), aligned (checked), readable, initialized by the kernel, and it lives as
        // long as `self`. No references into it are made.
        Ok(unsafe { SharedReadSlice::new(self.base().add(offset), count) })
    }

    fn check(&self, start: usize, end: usize) -> Result<(), RegionError> {
        if end <= self.len() { Ok(()) } else { Err(RegionError::OutOfBounds { start, end, len: self.len() }) }
    }
}

impl AsFd for ReadOnlyRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
