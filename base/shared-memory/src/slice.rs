//! Typed values in shared memory, copied in and out.
//!
//! # Safety
//! Accesses a range of shared memory that its owner has checked, by atomics of the size of an element or by the one
//! copy for shared bytes. No reference to an element is ever made: others may write it at any time.
#![allow(unsafe_code)]

use crate::copy::{copy_from_shared, copy_to_shared};
use crate::error::RegionError;
use core::marker::PhantomData;
use core::mem::{MaybeUninit, transmute_copy};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Types whose values are their bytes.
///
/// # Safety
/// Every byte pattern is a value, and there is no padding.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($name:ty),+) => { $(
        // SAFETY: a number without padding, for which every byte pattern is a value.
        unsafe impl Plain for $name {}
    )+ };
}
plain!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);
// SAFETY: elements without padding, one after the other.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Values of type `T` in shared memory, to be read. Others may write them at any time.
#[derive(Clone, Copy, Debug)]
pub struct SharedReadSlice<'a, T> {
    base: NonNull<u8>,
    len: usize,
    memory: PhantomData<(&'a [AtomicU8], T)>,
}

/// Values of type `T` in shared memory, to be read and written.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'a, T> {
    read: SharedReadSlice<'a, T>,
}

/// Where `count` values of `T` from `offset` on end, in a region of `len` bytes; refused where their alignment does
/// not allow them.
pub(crate) fn slice_end<T: Plain>(offset: usize, count: usize, len: usize) -> Result<usize, RegionError> {
    // A mapping starts at a page, so alignment within it is alignment in memory.
    if !offset.is_multiple_of(align_of::<T>()) {
        return Err(RegionError::Misaligned { offset, align: align_of::<T>() });
    }
    let end = size_of::<T>().checked_mul(count).and_then(|bytes| offset.checked_add(bytes));
    end.ok_or(RegionError::OutOfBounds { start: offset, end: usize::MAX, len })
}

impl<T: Plain> SharedReadSlice<'_, T> {
    /// # Safety
    /// `len` values of `T` at `base`, aligned for it, are initialized, mapped for reading for the life of the value,
    /// and accessed through no reference other than to atomics.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, memory: PhantomData }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy of value number `index`; `None` after the last. A number is copied whole: it is one that somebody
    /// stored. An array may hold elements from before and after a store.
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        (index < self.len).then(|| {
            let at = self.at(index);
            // SAFETY: element `index` is inside (checked), initialized, aligned and mapped for reading; a relaxed load
            // of at most eight bytes does not write on any supported processor. The size of `T` is that of the
            // atomic, and every byte pattern is a `T` (`Plain`). Relaxed: the value publishes nothing.
            unsafe {
                match (size_of::<T>(), align_of::<T>()) {
                    (1, 1) => transmute_copy(&AtomicU8::from_ptr(at).load(Ordering::Relaxed)),
                    (2, 2) => transmute_copy(&AtomicU16::from_ptr(at.cast()).load(Ordering::Relaxed)),
                    (4, 4) => transmute_copy(&AtomicU32::from_ptr(at.cast()).load(Ordering::Relaxed)),
                    (8, 8) => transmute_copy(&AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed)),
                    _ => {
                        let mut value = MaybeUninit::<T>::zeroed();
                        copy_from_shared(at, bytes_of_mut(core::slice::from_mut(&mut value)));
                        value.assume_init()
                    }
                }
            }
        })
    }

    /// Copies `into.len()` values out, from number `from` on. One that others write meanwhile may be torn.
    pub fn read(&self, from: usize, into: &mut [T]) -> Result<(), RegionError> {
        self.check(from, into.len())?;
        // SAFETY: inside (checked), initialized and mapped for reading; every byte pattern is a `T`.
        unsafe { copy_from_shared(self.at(from), bytes_of_mut(into)) };
        Ok(())
    }

    /// Copies of all values, one by one.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        (0..self.len).filter_map(|index| self.get(index))
    }

    fn at(&self, index: usize) -> *mut u8 {
        // Callers have checked that it is inside.
        self.base.as_ptr().wrapping_add(index * size_of::<T>())
    }

    fn check(&self, from: usize, count: usize) -> Result<(), RegionError> {
        let end = from.saturating_add(count);
        if end <= self.len {
            return Ok(());
        }
        Err(RegionError::OutOfBounds {
            start: from.saturating_mul(size_of::<T>()),
            end: end.saturating_mul(size_of::<T>()),
            len: self.len * size_of::<T>(),
        })
    }
}

impl<T: Plain> SharedSlice<'_, T> {
    /// # Safety
    /// As [`SharedReadSlice::new`], mapped for writing too.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { read: unsafe { SharedReadSlice::new(base, len) } }
    }

    /// Stores value number `index`. A number is stored whole, and publishes nothing: store a word with release
    /// afterwards.
    #[inline]
    pub fn set(&self, index: usize, value: T) -> Result<(), RegionError> {
        self.check(index, 1)?;
        let at = self.at(index);
        // SAFETY: element `index` is inside (checked), aligned and mapped for writing. The size of `T` is that of the
        // atomic, and it has no padding (`Plain`). Relaxed: see above.
        unsafe {
            match (size_of::<T>(), align_of::<T>()) {
                (1, 1) => AtomicU8::from_ptr(at).store(transmute_copy(&value), Ordering::Relaxed),
                (2, 2) => AtomicU16::from_ptr(at.cast()).store(transmute_copy(&value), Ordering::Relaxed),
                (4, 4) => AtomicU32::from_ptr(at.cast()).store(transmute_copy(&value), Ordering::Relaxed),
                (8, 8) => AtomicU64::from_ptr(at.cast()).store(transmute_copy(&value), Ordering::Relaxed),
                _ => copy_to_shared(bytes_of(core::slice::from_ref(&value)), at),
            }
        }
        Ok(())
    }

    /// Copies `values` in, from number `to` on.
    pub fn write(&self, to: usize, values: &[T]) -> Result<(), RegionError> {
        self.check(to, values.len())?;
        // SAFETY: inside (checked) and mapped for writing.
        unsafe { copy_to_shared(bytes_of(values), self.at(to)) };
        Ok(())
    }
}

impl<'a, T> Deref for SharedSlice<'a, T> {
    type Target = SharedReadSlice<'a, T>;

    fn deref(&self) -> &Self::Target {
        &self.read
    }
}

fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: values without padding are initialized bytes.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of values that may hold any, or are initialized (zero) and do not yet count as `T`.
fn bytes_of_mut<T: Copy + 'static>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: called with `Plain` values, or with zeroed ones, whose bytes are all initialized, and any bytes may be
    // stored to them.
    unsafe { core::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

// Miri knows no memfd.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::{ReadOnlyRegion, Region};

    #[test]
    fn numbers_and_arrays_come_back_as_they_went_in() {
        let region = Region::create("t", 4096).unwrap();
        let numbers = region.slice::<f32>(64, 10).unwrap();
        numbers.write(1, &[1.5, -2.0, 3.25]).unwrap();
        numbers.set(9, f32::MAX).unwrap();
        assert_eq!(
            numbers.iter().collect::<Vec<_>>(),
            [0.0, 1.5, -2.0, 3.25, 0.0, 0.0, 0.0, 0.0, 0.0, f32::MAX]
        );
        let mut some = [0.0; 3];
        numbers.read(1, &mut some).unwrap();
        assert_eq!((some, numbers.len(), numbers.is_empty()), ([1.5, -2.0, 3.25], 10, false));
        let arrays = region.slice::<[u16; 3]>(256, 4).unwrap();
        arrays.set(2, [1, 2, 3]).unwrap();
        assert_eq!((arrays.get(2), arrays.get(3), arrays.get(4)), (Some([1, 2, 3]), Some([0; 3]), None));
        let wide = region.slice::<u64>(512, 1).unwrap();
        wide.set(0, u64::MAX - 1).unwrap();
        assert_eq!(region.slice::<u8>(512, 8).unwrap().get(0), Some(0xfe));
    }

    #[test]
    fn values_outside_or_misaligned_are_refused() {
        let region = Region::create("t", 4096).unwrap();
        assert!(matches!(region.slice::<u32>(2, 1), Err(RegionError::Misaligned { offset: 2, align: 4 })));
        assert!(matches!(region.slice::<u32>(4092, 2), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(region.slice::<u64>(8, usize::MAX), Err(RegionError::OutOfBounds { .. })));
        let values = region.slice::<u32>(0, 4).unwrap();
        assert!(matches!(values.set(4, 1), Err(RegionError::OutOfBounds { start: 16, end: 20, len: 16 })));
        assert!(matches!(values.write(3, &[1, 2]), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(values.read(usize::MAX, &mut [0]), Err(RegionError::OutOfBounds { .. })));
        assert_eq!(values.get(4), None);
    }

    /// SM-8
    #[test]
    fn a_read_only_region_follows_its_writer_and_cannot_be_made_writable() {
        let region = Region::create("t", 4096).unwrap();
        let fd = region.read_only_fd().unwrap();
        assert!(Region::attach(fd.try_clone().unwrap(), "t", 4096).is_err());
        let reader = ReadOnlyRegion::attach(fd, "t", 4096).unwrap();
        region.slice::<u32>(0, 4).unwrap().set(3, 77).unwrap();
        let values = reader.slice::<u32>(0, 4).unwrap();
        assert_eq!((values.get(3), values.get(4), reader.len()), (Some(77), None, 4096));
        let mut bytes = [0; 4];
        reader.read(12, &mut bytes).unwrap();
        assert_eq!(bytes, 77_u32.to_ne_bytes());
        assert!(matches!(reader.read(4093, &mut bytes), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(reader.slice::<u32>(4096, 1), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(
            ReadOnlyRegion::attach(region.read_only_fd().unwrap(), "t", 8192),
            Err(RegionError::WrongSize { .. })
        ));
    }
}
