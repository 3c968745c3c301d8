//! Memory of the caller's that graphs read and write.
//!
//! # Safety
//! A buffer's memory is a boxed slice of cells, which its owner and the kernels of a graph access at different times:
//! the owner only while no graph uses it.
#![allow(unsafe_code)]

use crate::error::{ArgumentError, RuntimeError};
use crate::tensor::{Create, Element, Tensor};
use comm_context::abi::{DeviceAddr, TensorDesc};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A tensor that outlives graphs: their input, and where their results are.
///
/// While a graph uses it, from its [import](crate::Graph::import) to the end of the run, its values cannot be read or
/// written from outside. After a run that ended with a kernel still running it stays in use until that kernel has
/// returned.
#[derive(Debug)]
pub struct Buffer<T> {
    memory: Arc<Memory>,
    shape: Vec<u32>,
    len: usize,
    element: PhantomData<T>,
}

/// The memory of a buffer.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Whole words: aligned for every element.
    words: Box<[UnsafeCell<u64>]>,
    bytes: usize,
    /// Graphs that use it.
    users: AtomicU32,
}

// SAFETY: the cells are accessed by the owner of the one `Buffer` while `users` is 0, which it becomes with a release
// when the last kernel has returned, and otherwise by kernels, with atomics or as the graph orders them.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn range(&self) -> Range<u64> {
        let start = self.words.as_ptr() as u64;
        start..start + self.bytes as u64
    }

    pub(crate) fn begin_use(&self) {
        // Relaxed: the caller has the buffer to itself, and kernels see it through the engine's mutex.
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end_use(&self) {
        // Release: pairs with the acquire in `Buffer::unused`, so that its owner sees what kernels wrote.
        self.users.fetch_sub(1, Ordering::Release);
    }
}

impl<T: Element> Buffer<T> {
    /// A tensor of this shape with all elements zero.
    ///
    /// # Panics
    /// If it has more than five dimensions or more bytes than a process can have.
    pub fn zeroed(shape: &[u32]) -> Self {
        let len = Create::of::<T>(shape).elements().and_then(|len| usize::try_from(len).ok());
        let bytes = len.and_then(|len| len.checked_mul(size_of::<T>())).expect("a tensor fits in memory");
        let words = (0..bytes.div_ceil(8).max(1)).map(|_| UnsafeCell::new(0)).collect();
        let memory = Arc::new(Memory { words, bytes, users: AtomicU32::new(0) });
        Self { memory, shape: shape.to_vec(), len: bytes / size_of::<T>(), element: PhantomData }
    }

    /// A vector with these elements.
    ///
    /// # Panics
    /// If there are more than 2^32 - 1.
    pub fn of(values: &[T]) -> Self {
        let len = u32::try_from(values.len()).expect("a dimension has less than 2^32 elements");
        let mut buffer = Self::zeroed(&[len]);
        buffer.write(values).expect("a new buffer is not in use and has this length");
        buffer
    }

    /// The elements in row-major order, a copy.
    pub fn to_vec(&self) -> Result<Vec<T>, RuntimeError> {
        self.unused()?;
        // SAFETY: the words hold `len` elements of plain old data, aligned; nobody writes them: no graph uses the
        // buffer, and its owner would need it mutably.
        Ok(unsafe { std::slice::from_raw_parts(self.memory.words.as_ptr().cast::<T>(), self.len) }.to_vec())
    }

    /// Replaces all elements.
    pub fn write(&mut self, values: &[T]) -> Result<(), RuntimeError> {
        self.unused()?;
        if values.len() != self.len {
            return Err(ArgumentError::TooLong { end: values.len(), have: self.len }.into());
        }
        let to = UnsafeCell::raw_get(self.memory.words.as_ptr()).cast::<T>();
        // SAFETY: room for `len` elements, aligned; nobody else accesses them: no graph uses the buffer, and this is
        // its owner.
        unsafe { to.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        Ok(())
    }

    /// Acquire: pairs with the release in `Memory::end_use`.
    fn unused(&self) -> Result<(), RuntimeError> {
        if self.memory.users.load(Ordering::Acquire) != 0 {
            return Err(ArgumentError::BufferInUse.into());
        }
        Ok(())
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn tensor(&self) -> Result<Tensor<T>, RuntimeError> {
        let range = self.memory.range();
        let desc =
            TensorDesc::builder(DeviceAddr(range.start), range.end - range.start, T::DTYPE, &self.shape);
        Tensor::new(desc.build().map_err(|source| ArgumentError::Tensor { index: 0, source })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_in_use_is_not_accessible() {
        let mut buffer = Buffer::of(&[1i16, 2, 3]);
        assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
        assert_eq!(buffer.tensor().unwrap().desc().extent, 3);
        buffer.memory().begin_use();
        assert!(buffer.to_vec().is_err() && buffer.write(&[0; 3]).is_err());
        buffer.memory().end_use();
        buffer.write(&[4, 5, 6]).unwrap();
        assert!(buffer.write(&[1]).is_err());
        assert_eq!(buffer.to_vec().unwrap(), [4, 5, 6]);
        assert_eq!(Buffer::<f32>::zeroed(&[2, 0]).to_vec().unwrap(), []);
    }
}
