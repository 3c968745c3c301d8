//! Tensors in a rank's own window.
//!
//! # Safety
//! Slices of the pool. The range belongs to the tensor alone in this process; other processes write to it only in a call that got
//! `&mut` to it, and after a call that failed nothing borrows it any more ([`CollError::Poisoned`]).
#![allow(unsafe_code)]

use crate::element::Element;
use crate::error::CollError;
use crate::group::Local;
use std::fmt;
use std::ops::Range;

/// Memory in this rank's window, made by [`Collectives::alloc`](crate::Collectives::alloc): an all-reduce of such tensors goes from window to window, without
/// staging, when every rank passes one.
///
/// It is not a slice: after a call on the group failed, a slow peer may still write to it. From then on
/// [`as_slice`](Self::as_slice) and [`as_mut_slice`](Self::as_mut_slice) fail, and [`copy_out`](Self::copy_out) is what is left.
pub struct WindowTensor<'g, T: Element> {
    group: &'g Local,
    at: *mut T,
    len: usize,
    range: Range<usize>,
}

impl<'g, T: Element> WindowTensor<'g, T> {
    pub(crate) fn new(group: &'g Local, at: *mut u8, len: usize, range: Range<usize>) -> Self {
        // SAFETY: the range has room for `len` elements and belongs to this tensor; zero is a value of every element type.
        unsafe { core::ptr::write_bytes(at.cast::<T>(), 0, len) };
        Self { group, at: at.cast(), len, range }
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements.
    pub fn as_slice(&self) -> Result<&[T], CollError> {
        self.check()?;
        // SAFETY: initialized elements of our own range, which nobody writes while `self` is borrowed.
        Ok(unsafe { core::slice::from_raw_parts(self.at, self.len) })
    }

    /// The elements, to write.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], CollError> {
        self.check()?;
        // SAFETY: as above, borrowed exclusively.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.at, self.len) })
    }

    /// Copies the elements out, also after a failed call: then they may be of the input, of the result, or of neither.
    ///
    /// # Panics
    /// When `into` has another length.
    pub fn copy_out(&self, into: &mut [T]) {
        assert_eq!(into.len(), self.len, "a tensor is copied whole");
        // SAFETY: `into` is viewed as the bytes that it consists of, and the source has as many. Words that a peer writes meanwhile are
        // whatever they are; a `bool` is made one.
        unsafe {
            let bytes = core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), size_of_val(into));
            shared_memory::copy_from_shared(self.at.cast(), bytes);
            if T::DTYPE == crate::element::DType::Bool {
                bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        }
    }

    fn check(&self) -> Result<(), CollError> {
        if self.group.has_failed() { Err(CollError::Poisoned) } else { Ok(()) }
    }
}

impl<T: Element> Drop for WindowTensor<'_, T> {
    fn drop(&mut self) {
        // Where a peer may still write nothing else shall be.
        if !self.group.has_failed() {
            self.group.pool.borrow_mut().put(self.range.clone());
        }
    }
}

impl<T: Element> fmt::Debug for WindowTensor<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowTensor<{}>({} elements at {:?})", T::DTYPE, self.len, self.range)
    }
}

/// What a call reads: a slice, or a tensor in the window, which peers may read where it stands.
pub trait Input: private::Sealed {
    /// The type of its elements.
    type Item: Element;

    #[doc(hidden)]
    const SHARED: bool;

    #[doc(hidden)]
    fn view(&self) -> (*const Self::Item, usize);
}

/// What a call writes: a slice, or a tensor in the window, which peers may write where it stands.
pub trait Buffer: Input {
    #[doc(hidden)]
    fn view_mut(&mut self) -> (*mut Self::Item, usize);
}

mod private {
    pub trait Sealed {}
}

macro_rules! buffers {
    ($(($($of:tt)*) $name:ty: $shared:literal, |$this:ident| $at:expr, $at_mut:expr, $len:expr;)+) => { $(
        impl<$($of)*> private::Sealed for $name {}
        impl<$($of)*> Input for $name {
            type Item = T;
            const SHARED: bool = $shared;

            #[inline]
            fn view(&self) -> (*const T, usize) {
                let $this = self;
                ($at, $len)
            }
        }
        impl<$($of)*> Buffer for $name {
            #[inline]
            fn view_mut(&mut self) -> (*mut T, usize) {
                let $this = self;
                ($at_mut, $len)
            }
        }
    )+ };
}

buffers! {
    (T: Element) [T]: false, |this| this.as_ptr(), this.as_mut_ptr(), this.len();
    (T: Element) Vec<T>: false, |this| this.as_ptr(), this.as_mut_ptr(), this.len();
    (T: Element, const N: usize) [T; N]: false, |this| this.as_ptr(), this.as_mut_ptr(), N;
    (T: Element) WindowTensor<'_, T>: true, |this| this.at.cast_const(), this.at, this.len;
}
