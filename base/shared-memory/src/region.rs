//! Anonymous memory that several processes map.
//!
//! # Safety
//! This file returns references into mapped memory, to types that consist of atomic words only
//! ([`Shared`]), and copies bytes in and out with [`copy_from_shared`] and [`copy_to_shared`] after
//! checking the range. No other references into the memory exist, so that every access by safe code
//! is atomic. The mapping lives as long as the [`Region`], and its size is sealed, so that no
//! process can remove pages from below it.
#![allow(unsafe_code)]

use crate::copy::{copy_from_shared, copy_to_shared};
use crate::error::RegionError;
use crate::mapping::{Access, Mapping, Place};
use crate::parts::Parts;
use crate::slice::{Plain, SharedSlice, slice_end};
use crate::{addresses, available};
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use fault_points::fault_call;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

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
    /// One for each object.
    fds: Vec<OwnedFd>,
    parts: Parts,
    label: String,
}

/// How much is reserved before the others learn how much is left.
const STEP: usize = 16 << 20;

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
        let fd = create_object(label, len)?;
        Self::of_object(fd, label, len, Place::SharedAddresses)
    }

    /// Like [`create_sparse`](Self::create_sparse), made of several objects.
    pub fn create_sparse_parts(label: &str, parts: Parts) -> Result<Self, RegionError> {
        checked_total(&parts)?;
        let fds = (0..parts.objects()).map(|index| create_object(label, parts.object(index).len()));
        Self::of_objects(fds.collect::<Result<_, _>>()?, label, parts, Place::SharedAddresses)
    }

    /// Maps a region that another process created. Its size must be `len` and sealed.
    ///
    /// ```
    /// # use shared_memory::{Region, RegionError};
    /// let region = Region::create("example", 4096)?;
    /// // The descriptor crosses processes by a fork, or through a Unix socket.
    /// let fd = region.fd().try_clone_to_owned().expect("a free descriptor");
    /// let theirs = Region::attach(fd, "example", 4096)?;
    /// theirs.slice::<f32>(0, 4)?.set(3, 1.5);
    /// assert_eq!(region.slice::<f32>(0, 4)?.get(3), Some(1.5));
    /// # Ok::<_, RegionError>(())
    /// ```
    pub fn attach(fd: OwnedFd, label: &str, len: usize) -> Result<Self, RegionError> {
        check_sealed(&fd, len)?;
        // Not among the shared addresses, where it could take the place of a region that must be there.
        Self::of_object(fd, label, len, Place::Anywhere)
    }

    /// Like [`attach`](Self::attach), at the address `at`, where the other process has it. Refused if
    /// something is mapped there in this process; nothing is ever replaced.
    pub fn attach_at(fd: OwnedFd, label: &str, len: usize, at: NonNull<u8>) -> Result<Self, RegionError> {
        check_sealed(&fd, len)?;
        Self::of_object(fd, label, len, Place::At(at))
    }

    /// Maps a region of several objects that another process created: the descriptors are those of its
    /// [`fds`](Self::fds), in that order. With `at`, at that address.
    pub fn attach_parts(
        fds: Vec<OwnedFd>,
        label: &str,
        parts: Parts,
        at: Option<NonNull<u8>>,
    ) -> Result<Self, RegionError> {
        checked_total(&parts)?;
        if fds.len() != parts.objects() {
            return Err(RegionError::WrongCount { expected: parts.objects(), found: fds.len() });
        }
        fds.iter().enumerate().try_for_each(|(index, fd)| check_sealed(fd, parts.object(index).len()))?;
        Self::of_objects(fds, label, parts, at.map_or(Place::Anywhere, Place::At))
    }

    fn of_object(fd: OwnedFd, label: &str, len: usize, place: Place) -> Result<Self, RegionError> {
        let bytes = checked_len(len)?;
        let mapped = fault_call!("region.map")
            .map_err(Errno::from_raw)
            .and_then(|()| Mapping::of_object(fd.as_fd(), bytes, place, Access::ReadWrite));
        let map = mapped.map_err(|errno| not_mapped(errno, label, len, place))?;
        Ok(Self { map, fds: vec![fd], parts: Parts::one(len), label: label.to_owned() })
    }

    fn of_objects(fds: Vec<OwnedFd>, label: &str, parts: Parts, place: Place) -> Result<Self, RegionError> {
        let total = checked_total(&parts)?;
        let objects = fds.iter().enumerate().map(|(index, fd)| (fd.as_fd(), parts.object(index)));
        let mapped = fault_call!("region.map")
            .map_err(Errno::from_raw)
            .and_then(|()| Mapping::of_objects(objects, total, place));
        let map = mapped.map_err(|errno| not_mapped(errno, label, total.get(), place))?;
        Ok(Self { map, fds, parts, label: label.to_owned() })
    }

    /// Puts memory behind `range`, so that later writes cannot fail. Existing bytes stay; new ones are zero.
    pub fn reserve(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.reserve_announced(range, &|_| 0)
    }

    /// Like [`reserve`](Self::reserve), with respect to others that reserve at the same time: together they
    /// could take more than there is, although each alone finds enough.
    ///
    /// `announce` tells the others how many bytes this process is still about to take, zero at the end, and
    /// returns how many they are. It is not called for a few pages.
    pub fn reserve_announced(
        &self,
        range: Range<usize>,
        announce: &dyn Fn(u64) -> u64,
    ) -> Result<(), RegionError> {
        let len = self.check(&range)?;
        let (fd, at) = self.object(&range)?;
        let announced = available::check_available(&self.label, len, announce)?;
        let mut done = 0;
        let mut reserved = fault_call!("region.reserve").map_err(Errno::from_raw);
        // What the limits show as gone by now must not be announced as well.
        while reserved.is_ok() && done < len {
            let step = (len - done).min(STEP);
            reserved = fallocate(fd, FallocateFlags::empty(), at + done as i64, step as i64);
            done += step;
            if announced {
                announce((len - done) as u64);
            }
        }
        if announced && done < len {
            announce(0);
        }
        reserved.map_err(|errno| match errno {
            Errno::ENOSPC | Errno::ENOMEM => available::exhausted(&self.label, len),
            errno => RegionError::System { call: "fallocate", errno: errno as i32 },
        })
    }

    /// Returns the memory behind the pages of `range` to the system; they read as zero afterwards, in every
    /// process.
    pub fn release(&self, range: Range<usize>) -> Result<(), RegionError> {
        let len = self.check(&range)?;
        let (fd, at) = self.object(&range)?;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(fd, flags, at, len as i64).map_err(system("fallocate(PUNCH_HOLE)"))
    }

    /// Makes the pages of `range` inaccessible to this process, until [`unguard`](Self::unguard): any access there,
    /// also through this region, ends it with SIGSEGV. Other processes are not affected.
    pub fn guard(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.set_accessible(range, false)
    }

    /// Makes the pages of `range` accessible to this process again.
    pub fn unguard(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.set_accessible(range, true)
    }

    fn set_accessible(&self, range: Range<usize>, accessible: bool) -> Result<(), RegionError> {
        let len = self.check(&range)?;
        self.map.set_accessible(range, accessible).map_err(|errno| match errno {
            Errno::ENOMEM => addresses::too_few(&self.label, len),
            errno => RegionError::System { call: "mprotect", errno: errno as i32 },
        })
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

    /// The descriptor of its one object, or of the first, to pass on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fds[0].as_fd()
    }

    /// The descriptors of all its objects.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd)
    }

    /// A descriptor through which the region can be read and not written, to pass on to a process that shall
    /// not write. Of its one object, or of the first.
    pub fn read_only_fd(&self) -> Result<OwnedFd, RegionError> {
        let path = format!("/proc/self/fd/{}", self.fds[0].as_raw_fd());
        nix::fcntl::open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(system("open"))
    }

    /// `count` values of type `T` from `offset` on, to copy in and out.
    pub fn slice<T: Plain>(&self, offset: usize, count: usize) -> Result<SharedSlice<'_, T>, RegionError> {
        let end = slice_end::<T>(offset, count, self.len())?;
        self.check(&(offset..end))?;
        // SAFETY: inside the mapping (checked), which is readable, writable, initialized by the kernel, and lives
        // as long as `self`. References into it are to atomics only (`word_slice`).
        Ok(unsafe { SharedSlice::new(self.base().add(offset), count) })
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

    /// The length of `range`, if it is inside one object of the region.
    #[inline]
    fn check(&self, range: &Range<usize>) -> Result<usize, RegionError> {
        match self.parts.of(range) {
            Some(_) => Ok(range.end - range.start),
            None => Err(RegionError::OutOfBounds { start: range.start, end: range.end, len: self.len() }),
        }
    }

    /// The object that `range` is in, and where it starts there.
    fn object(&self, range: &Range<usize>) -> Result<(BorrowedFd<'_>, i64), RegionError> {
        let outside = RegionError::OutOfBounds { start: range.start, end: range.end, len: self.len() };
        let index = self.parts.of(range).ok_or(outside)?;
        Ok((self.fds[index].as_fd(), (range.start - self.parts.object(index).start) as i64))
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// An object of `len` bytes without memory, whose size no process can change.
fn create_object(label: &str, len: usize) -> Result<OwnedFd, RegionError> {
    checked_len(len)?;
    available::check_file_size_limit(label, len)?;
    let fd = fault_call!("region.create")
        .map_err(Errno::from_raw)
        .and_then(|()| memfd_create(label, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING))
        .map_err(system("memfd_create"))?;
    nix::unistd::ftruncate(&fd, len as i64).map_err(system("ftruncate"))?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(system("fcntl(F_ADD_SEALS)"))?;
    Ok(fd)
}

pub(crate) fn checked_len(len: usize) -> Result<NonZeroUsize, RegionError> {
    NonZeroUsize::new(len)
        .filter(|len| len.get() <= isize::MAX as usize)
        .ok_or(RegionError::BadLength { len })
}

fn checked_total(parts: &Parts) -> Result<NonZeroUsize, RegionError> {
    checked_len(parts.total().unwrap_or(usize::MAX))
}

/// The error of a mapping that was refused with `errno`.
pub(crate) fn not_mapped(errno: Errno, label: &str, len: usize, place: Place) -> RegionError {
    match (errno, place) {
        (Errno::ENOMEM, _) => addresses::too_few(label, len),
        (Errno::EEXIST, Place::At(at)) => {
            let (at, pid) = (at.addr().get(), std::process::id());
            RegionError::AddressTaken { label: label.to_owned(), at, end: at.saturating_add(len), pid }
        }
        (errno, _) => RegionError::System { call: "mmap", errno: errno as i32 },
    }
}

/// Checks that the object behind `fd` has `len` bytes, and that no process can change that.
pub(crate) fn check_sealed(fd: &OwnedFd, len: usize) -> Result<(), RegionError> {
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
pub(crate) fn range_of(offset: usize, len: usize) -> Range<usize> {
    offset..offset.saturating_add(len)
}

pub(crate) fn system(call: &'static str) -> impl FnOnce(Errno) -> RegionError {
    move |errno| RegionError::System { call, errno: errno as i32 }
}

// Miri knows no memfd.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::arena::PAGE;
    use crate::error::Limit;
    use std::sync::atomic::Ordering;

    /// Each error that a region gives, as its user reads it.
    #[test]
    fn what_the_errors_of_regions_say() {
        let said = |error: RegionError| error.to_string();
        let region = Region::create("t", 4096).unwrap();
        let fd = || region.fd().try_clone_to_owned().unwrap();
        let parts = Region::create_sparse_parts("t", PARTS).unwrap();
        let one_fd = parts.fds().take(1).map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let unsealed = memfd_create("u", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&unsealed, 4096).unwrap();
        let (at, pid) = (region.base().addr().get(), std::process::id());
        for (error, text) in [
            (
                Region::create("t", 0).unwrap_err(),
                format!("a shared region of 0 bytes is impossible; ask for 1 to {} bytes", isize::MAX),
            ),
            (
                Region::attach(fd(), "t", 8192).unwrap_err(),
                "the shared object has 4096 bytes, 8192 were expected: the two sides disagree on the layout; run \
                 one build on both"
                    .to_owned(),
            ),
            (
                Region::attach_parts(one_fd, "t", PARTS, None).unwrap_err(),
                "1 descriptors came for shared memory of 3 objects; pass one for each, in their order".to_owned(),
            ),
            (
                Region::attach(unsealed, "u", 4096).unwrap_err(),
                "the shared object's size is not sealed, so that another process could shrink it; pass one that \
                 this library made"
                    .to_owned(),
            ),
            (
                Region::attach_at(fd(), "t", 4096, region.base()).unwrap_err(),
                format!(
                    "`t` must have the same addresses in all processes, and {at:#x} to {:#x} are taken in process {pid}; \
                     attach it before other memory is mapped",
                    at + 4096
                ),
            ),
            (
                region.write(4090, &[0; 7]).unwrap_err(),
                "bytes 4090..4097 are outside the region of 4096 bytes; stay inside, or make it larger".to_owned(),
            ),
            (
                region.words::<AtomicU64>(4).unwrap_err(),
                "offset 4 is not a multiple of 8, the alignment of the type; choose one that is".to_owned(),
            ),
        ] {
            assert_eq!(said(error), text);
        }
        let huge = said(
            Region::create_sparse("huge", 1 << 62).and_then(|region| region.reserve(0..1 << 62)).unwrap_err(),
        );
        assert!(
            huge.starts_with("shared memory for `huge`: need 4611686018427387904 bytes, have "),
            "{huge}"
        );
    }

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

    /// SM-7
    #[test]
    fn f51_what_is_left_to_reserve_is_announced_until_it_is_zero() {
        let region = Region::create_sparse("t", 64 << 20).unwrap();
        let told = std::cell::RefCell::new(Vec::<u64>::new());
        let announce = |bytes| {
            told.borrow_mut().push(bytes >> 20);
            0
        };
        region.reserve_announced(0..40 << 20, &announce).unwrap();
        assert_eq!(told.take(), [40_u64, 24, 8, 0]);
        // Others take nearly all.
        let announce = |bytes| {
            told.borrow_mut().push(bytes >> 20);
            u64::MAX / 2
        };
        let refused = region.reserve_announced(40 << 20..64 << 20, &announce).unwrap_err();
        let RegionError::OutOfMemory { limit, .. } = refused else { panic!("{refused}") };
        assert!(matches!(limit, Limit::Promised { .. }), "{limit}");
        assert_eq!(told.take(), [24_u64, 0]);
    }

    /// Objects are mapped at multiples of the system's pages, whatever their size.
    const PARTS: Parts = Parts { head: PAGE, first: 2 * PAGE, part: 2 * PAGE, stride: 4 * PAGE, count: 2 };

    #[test]
    fn a_region_of_several_objects_is_one_range_of_addresses() {
        let one = Region::create_sparse_parts("t", PARTS).unwrap();
        assert_eq!((one.len(), one.fds().count()), (10 * PAGE, 3));
        one.reserve(2 * PAGE..4 * PAGE).unwrap();
        one.write(0, b"head").unwrap();
        one.write(4 * PAGE - 4, b"part").unwrap();
        let fds = || one.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect::<Vec<_>>();
        let two = Region::attach_parts(fds(), "t", PARTS, None).unwrap();
        let mut copy = [0; 4];
        for (at, bytes) in [(0, b"head"), (4 * PAGE - 4, b"part")] {
            two.read(at, &mut copy).unwrap();
            assert_eq!(&copy, bytes);
        }
        // Over the end of an object, or between two.
        for at in [PAGE - 3, PAGE, 4 * PAGE - 3, 4 * PAGE, 5 * PAGE, 10 * PAGE] {
            assert!(matches!(one.write(at, b"none"), Err(RegionError::OutOfBounds { .. })), "{at}");
            assert!(one.reserve(at..at + 4).is_err() && one.guard(at..at + 4).is_err(), "{at}");
        }
        one.release(2 * PAGE..4 * PAGE).unwrap();
        two.read(4 * PAGE - 4, &mut copy).unwrap();
        assert_eq!(copy, [0; 4]);
        let mut few = fds();
        few.pop();
        let refused = Region::attach_parts(few, "t", PARTS, None).unwrap_err();
        assert_eq!(refused, RegionError::WrongCount { expected: 3, found: 2 });
        let taken = Region::attach_parts(fds(), "t", PARTS, Some(one.base())).unwrap_err();
        assert!(matches!(taken, RegionError::AddressTaken { .. }), "{taken}");
        let other = Parts { part: PAGE, ..PARTS };
        assert!(matches!(Region::attach_parts(fds(), "t", other, None), Err(RegionError::WrongSize { .. })));
        let overlapping = Parts { stride: PAGE, ..PARTS };
        assert!(matches!(Region::create_sparse_parts("t", overlapping), Err(RegionError::BadLength { .. })));
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
