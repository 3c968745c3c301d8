//! Anonymous memory that several processes map.
//!
//! # Safety
//! This file returns references into mapped memory, to types that consist of atomic words only
//! ([`Shared`]), and copies bytes in and out with [`copy_from_shared`] and [`copy_to_shared`] after
//! checking the range. No other references into the memory exist, so that every access by safe code
//! is atomic. The mapping lives as long as the [`Region`], and its size is sealed, so that no
//! process can remove pages from below it.
#![allow(unsafe_code)]

use crate::available;
use crate::copy::{copy_from_shared, copy_to_shared};
use crate::mapping::Mapping;
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use fault_points::fault_call;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why a region could not be created, attached or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Zero, or more than an address space holds.
    #[error("a shared region of {len} bytes is impossible; ask for 1 to {} bytes", isize::MAX)]
    BadLength {
        /// The length.
        len: usize,
    },
    /// The machine, or this process's share of it, has too little memory.
    #[error("shared memory for `{label}`: need {need} bytes, have {have}; {limit}")]
    OutOfMemory {
        /// What the memory was for.
        label: String,
        /// How many bytes it takes.
        need: u64,
        /// How many bytes are available.
        have: u64,
        /// Which limit that is, and how to raise it.
        limit: &'static str,
    },
    /// The descriptor is not an object of that size.
    #[error(
        "the shared object has {found} bytes, {expected} were expected: the two sides disagree on the layout"
    )]
    WrongSize {
        /// What the caller expects.
        expected: u64,
        /// What the object has.
        found: u64,
    },
    /// The object's size could still change.
    #[error("the shared object's size is not sealed; refusing to map what another process could shrink")]
    NotSealed,
    /// It must have the same addresses as in another process, and they are taken here.
    #[error(
        "the addresses {at:#x} to {end:#x} of `{label}` are taken in process {pid}; \
         the process cannot map it where the process that made it has it"
    )]
    AddressTaken {
        /// What the memory is for.
        label: String,
        /// Its first address.
        at: usize,
        /// The first address after it.
        end: usize,
        /// The process in which they are taken.
        pid: u32,
    },
    /// A range or word that is not inside the region.
    #[error("bytes {start}..{end} are outside the region of {len} bytes")]
    OutOfBounds {
        /// First byte.
        start: usize,
        /// First byte after it.
        end: usize,
        /// The region.
        len: usize,
    },
    /// A word at an offset that its type does not allow.
    #[error("offset {offset} is not a multiple of {align}")]
    Misaligned {
        /// The offset in the region.
        offset: usize,
        /// The alignment of its type.
        align: usize,
    },
    /// The system refused.
    #[error("{call} for shared memory: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// Types that may be placed in memory which other processes write at any time.
///
/// # Safety
/// The type consists of atomic integers only (and padding that is never read), every byte pattern is a
/// valid value, and the layout is `repr(C)` or `repr(transparent)`.
pub unsafe trait Shared {}

// SAFETY: an atomic integer; every byte pattern is a value of it.
unsafe impl Shared for AtomicI32 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU32 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU64 {}

/// Anonymous shared memory: no name, no file, freed with its last user, however that one ends.
///
/// It is inherited by a fork at the same address, or passed on as a descriptor.
#[derive(Debug)]
pub struct Region {
    map: Mapping,
    fd: OwnedFd,
    label: String,
}

// SAFETY: a mapping belongs to the process and not to a thread: any thread may use and unmap it.
unsafe impl Send for Region {}
// SAFETY: every access through a `&Region` is atomic: references are to types of atomics only, and
// bytes are copied by `copy_from_shared` and `copy_to_shared`. The other methods are system calls
// on the descriptor, which any number of threads may make.
unsafe impl Sync for Region {}

impl Region {
    /// Zero-filled memory of `len` bytes, all of it reserved. `label` names it in errors and in the
    /// process's memory map.
    pub fn create(label: &str, len: usize) -> Result<Self, RegionError> {
        let region = Self::create_sparse(label, len)?;
        region.reserve(0..len)?;
        Ok(region)
    }

    /// Like [`create`](Self::create), with addresses but no memory behind them until
    /// [`reserve`](Self::reserve).
    pub fn create_sparse(label: &str, len: usize) -> Result<Self, RegionError> {
        checked_len(len)?;
        available::check_file_size_limit(label, len)?;
        let fd = fault_call!("region.create")
            .and_then(|()| memfd_create(label, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING))
            .map_err(system("memfd_create"))?;
        nix::unistd::ftruncate(&fd, len as i64).map_err(system("ftruncate"))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(system("fcntl(F_ADD_SEALS)"))?;
        Self::over(fd, label, len, Mapping::at_shared_address)
    }

    /// Maps a region that another process created. Its size must be `len` and sealed.
    pub fn attach(fd: OwnedFd, label: &str, len: usize) -> Result<Self, RegionError> {
        check_sealed(&fd, len)?;
        // Not among the shared addresses, where it could take the place of a region that must be there.
        Self::over(fd, label, len, Mapping::anywhere)
    }

    /// Like [`attach`](Self::attach), at the address `at`, where the other process has it. Refused if
    /// something is mapped there in this process; nothing is ever replaced.
    pub fn attach_at(fd: OwnedFd, label: &str, len: usize, at: NonNull<u8>) -> Result<Self, RegionError> {
        check_sealed(&fd, len)?;
        Self::over(fd, label, len, |fd, len| Mapping::at(fd, len, at)).map_err(|error| match error {
            RegionError::System { errno: Errno::EEXIST, .. } => {
                let (at, pid) = (at.addr().get(), std::process::id());
                RegionError::AddressTaken { label: label.to_owned(), at, end: at.saturating_add(len), pid }
            }
            error => error,
        })
    }

    fn over(
        fd: OwnedFd,
        label: &str,
        len: usize,
        map: impl FnOnce(BorrowedFd<'_>, NonZeroUsize) -> Result<Mapping, Errno>,
    ) -> Result<Self, RegionError> {
        let bytes = checked_len(len)?;
        let mapped = fault_call!("region.map").and_then(|()| map(fd.as_fd(), bytes));
        let map = mapped.map_err(|errno| match errno {
            Errno::ENOMEM => available::address_space(label, len),
            errno => RegionError::System { call: "mmap", errno },
        })?;
        Ok(Self { map, fd, label: label.to_owned() })
    }

    /// Puts memory behind `range`, so that later writes cannot fail. Existing bytes stay; new ones are zero.
    pub fn reserve(&self, range: Range<usize>) -> Result<(), RegionError> {
        let len = self.check(&range)?;
        available::check_available(&self.label, len)?;
        let reserved = fault_call!("region.reserve")
            .and_then(|()| fallocate(&self.fd, FallocateFlags::empty(), range.start as i64, len as i64));
        reserved.map_err(|errno| match errno {
            Errno::ENOSPC | Errno::ENOMEM => available::exhausted(&self.label, len),
            errno => RegionError::System { call: "fallocate", errno },
        })
    }

    /// Returns the memory behind the pages of `range` to the system; they read as zero afterwards, in every
    /// process.
    pub(crate) fn release(&self, range: Range<usize>) -> Result<(), RegionError> {
        let len = self.check(&range)?;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&self.fd, flags, range.start as i64, len as i64).map_err(system("fallocate(PUNCH_HOLE)"))
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Its address in this process.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.map.base()
    }

    /// The descriptor, to pass on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The words of type `T` at `offset`.
    #[inline]
    pub fn words<T: Shared>(&self, offset: usize) -> Result<&T, RegionError> {
        self.word_slice(offset, 1).map(|slice| &slice[0])
    }

    /// `count` values of type `T` from `offset` on.
    #[inline]
    pub fn word_slice<T: Shared>(&self, offset: usize, count: usize) -> Result<&[T], RegionError> {
        let bytes = size_of::<T>().checked_mul(count).and_then(|bytes| offset.checked_add(bytes));
        let end =
            bytes.ok_or(RegionError::OutOfBounds { start: offset, end: usize::MAX, len: self.len() })?;
        self.check(&(offset..end))?;
        // The mapping starts at a page, so alignment within it is alignment in memory.
        if !offset.is_multiple_of(align_of::<T>()) {
            return Err(RegionError::Misaligned { offset, align: align_of::<T>() });
        }
        // SAFETY: inside the mapping (checked), aligned (checked), lives as long as `self`; `T:
        // Shared` consists of atomics for which any bytes are valid, so writes by other processes
        // at any time are fine.
        Ok(unsafe { core::slice::from_raw_parts(self.base().as_ptr().add(offset).cast(), count) })
    }

    /// Copies bytes out, each of them once. They may be torn or hostile: check and decode the copy,
    /// never the memory.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RegionError> {
        self.check(&range_of(offset, into.len()))?;
        // SAFETY: the range is inside the mapping (checked), which is readable, writable,
        // initialized by the kernel, and lives as long as `self`. References into it are to atomics
        // only (`word_slice`).
        unsafe { copy_from_shared(self.base().as_ptr().add(offset), into) };
        Ok(())
    }

    /// Copies bytes in. To be published afterwards by a release store of a word.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.check(&range_of(offset, bytes.len()))?;
        // SAFETY: as in `read`.
        unsafe { copy_to_shared(bytes, self.base().as_ptr().add(offset)) };
        Ok(())
    }

    /// The length of `range`, if it is inside the region.
    #[inline]
    fn check(&self, range: &Range<usize>) -> Result<usize, RegionError> {
        if range.start <= range.end && range.end <= self.len() {
            Ok(range.end - range.start)
        } else {
            Err(RegionError::OutOfBounds { start: range.start, end: range.end, len: self.len() })
        }
    }
}

fn checked_len(len: usize) -> Result<NonZeroUsize, RegionError> {
    NonZeroUsize::new(len)
        .filter(|len| len.get() <= isize::MAX as usize)
        .ok_or(RegionError::BadLength { len })
}

/// Checks that the object behind `fd` has `len` bytes, and that no process can change that.
fn check_sealed(fd: &OwnedFd, len: usize) -> Result<(), RegionError> {
    let found = nix::sys::stat::fstat(fd).map_err(system("fstat"))?.st_size as u64;
    if found != len as u64 {
        return Err(RegionError::WrongSize { expected: len as u64, found });
    }
    // Descriptors without seals (plain files) answer EINVAL here.
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_or(SealFlag::empty(), SealFlag::from_bits_truncate);
    if !seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW) {
        return Err(RegionError::NotSealed);
    }
    Ok(())
}

#[inline]
fn range_of(offset: usize, len: usize) -> Range<usize> {
    offset..offset.saturating_add(len)
}

fn system(call: &'static str) -> impl FnOnce(Errno) -> RegionError {
    move |errno| RegionError::System { call, errno }
}

// Miri knows no memfd.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn impossible_lengths_are_refused_before_anything_is_made() {
        assert_eq!(Region::create("t", 0).unwrap_err(), RegionError::BadLength { len: 0 });
        assert_eq!(Region::create("t", usize::MAX).unwrap_err(), RegionError::BadLength { len: usize::MAX });
    }

    /// SM-2
    #[test]
    fn f22_more_memory_than_there_is_says_need_and_have() {
        let need = 1 << 50;
        let region = Region::create_sparse("huge", need);
        // Without an address space of that size the mapping itself is refused, with the same error.
        let error = region.and_then(|region| region.reserve(0..need)).unwrap_err();
        let RegionError::OutOfMemory { need: reported, have, .. } = error else { panic!("{error}") };
        assert_eq!(reported, need as u64);
        assert!(have > 0 && have < reported, "have {have}");
    }

    /// SM-1
    #[test]
    fn f24_no_process_can_resize_a_region() {
        let region = Region::create("t", 4096).unwrap();
        assert_eq!(nix::unistd::ftruncate(region.fd(), 0), Err(Errno::EPERM));
        assert_eq!(nix::unistd::ftruncate(region.fd(), 8192), Err(Errno::EPERM));
    }

    #[test]
    fn f24_objects_of_another_size_or_without_seals_are_not_mapped() {
        let region = Region::create("t", 4096).unwrap();
        let fd = || region.fd().try_clone_to_owned().unwrap();
        assert_eq!(
            Region::attach(fd(), "t", 8192).unwrap_err(),
            RegionError::WrongSize { expected: 8192, found: 4096 }
        );
        let unsealed = memfd_create("u", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&unsealed, 4096).unwrap();
        assert_eq!(Region::attach(unsealed, "u", 4096).unwrap_err(), RegionError::NotSealed);
        Region::attach(fd(), "t", 4096).unwrap();
    }

    #[test]
    fn two_mappings_of_one_region_share_their_words_and_bytes() {
        let one = Region::create("t", 8192).unwrap();
        let two = Region::attach(one.fd().try_clone_to_owned().unwrap(), "t", 8192).unwrap();
        one.words::<AtomicU64>(64).unwrap().store(77, Ordering::Relaxed);
        one.write(100, b"payload").unwrap();
        let mut copy = [0; 7];
        two.read(100, &mut copy).unwrap();
        assert_eq!(two.words::<AtomicU64>(64).unwrap().load(Ordering::Relaxed), 77);
        assert_eq!(&copy, b"payload");
    }

    /// SM-3
    #[test]
    fn a_region_attached_at_an_address_has_it_and_taken_addresses_are_refused() {
        let one = Region::create("t", 8192).unwrap();
        let (at, fd) = (one.base(), one.fd().try_clone_to_owned().unwrap());
        let again = || fd.try_clone().unwrap();
        let taken = Region::attach_at(again(), "t", 8192, at).unwrap_err();
        assert!(matches!(taken, RegionError::AddressTaken { end, .. } if end == at.addr().get() + 8192));
        one.write(0, b"still there").unwrap();
        drop(one);
        let two = Region::attach_at(again(), "t", 8192, at).unwrap();
        let mut copy = [0; 11];
        two.read(0, &mut copy).unwrap();
        assert_eq!((two.base(), &copy), (at, b"still there"));
        let wrong = Region::attach_at(again(), "t", 4096, at).unwrap_err();
        assert_eq!(wrong, RegionError::WrongSize { expected: 4096, found: 8192 });
    }

    /// SM-3
    #[test]
    fn regions_of_all_sizes_do_not_overlap() {
        let regions: Vec<Region> =
            (0..40).map(|step| Region::create_sparse("t", (1 << step) + 1).unwrap()).collect();
        for (index, region) in regions.iter().enumerate() {
            let range =
                |region: &Region| (region.base().addr().get(), region.base().addr().get() + region.len());
            let (start, end) = range(region);
            let apart = regions
                .iter()
                .enumerate()
                .all(|(other, apart)| other == index || range(apart).1 <= start || end <= range(apart).0);
            assert!(apart);
        }
    }

    #[test]
    fn words_outside_or_misaligned_are_refused() {
        let region = Region::create("t", 4096).unwrap();
        assert!(matches!(region.words::<AtomicU64>(4096), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(region.words::<AtomicU64>(4092), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(region.words::<AtomicU64>(usize::MAX), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(
            region.word_slice::<AtomicU64>(8, usize::MAX),
            Err(RegionError::OutOfBounds { .. })
        ));
        assert!(matches!(region.words::<AtomicU64>(4), Err(RegionError::Misaligned { offset: 4, align: 8 })));
        assert!(matches!(region.read(4090, &mut [0; 7]), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(region.write(usize::MAX, &[1]), Err(RegionError::OutOfBounds { .. })));
    }

    /// SM-4
    #[test]
    fn released_memory_reads_as_zero() {
        let region = Region::create("t", 8192).unwrap();
        region.write(0, &[1; 8192]).unwrap();
        region.release(4096..8192).unwrap();
        let mut copy = [9; 8192];
        region.read(0, &mut copy).unwrap();
        assert_eq!((copy[4095], copy[4096], copy[8191]), (1, 0, 0));
    }
}
