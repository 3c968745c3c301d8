//! Host memory that users share with all chips.

use crate::heap::{Heap, Piece};
use bytemuck::Pod;
use chip_bootstrap::HostSpan;
use collectives::{bf16, f16};
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use std::marker::PhantomData;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// Element types of host buffers.
pub trait Element: Pod {
    /// The type in tensor descriptors.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),+ $(,)?) => { $(impl Element for $type { const DTYPE: DType = DType::$dtype; })+ };
}

elements! {
    f32 => Float32, f16 => Float16, bf16 => Bfloat16, i32 => Int32, i16 => Int16, i8 => Int8, u8 => Uint8, i64 => Int64, u64 => Uint64, u16 => Uint16, u32 => Uint32,
}

/// `len` elements of host memory, shared with every chip, before and after `init`. It is freed when dropped,
/// but not before the runs end that were submitted before.
///
/// Chips, and other threads that have a reference, may write it at any time, so it is read and written by
/// copying. What is copied while another writes is a mix of old and new bytes, never undefined behaviour.
#[derive(Debug)]
pub struct HostBuffer<T> {
    piece: Piece,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Element> HostBuffer<T> {
    pub(crate) fn new(heap: &Arc<Heap>, len: usize) -> Result<Self, Failure> {
        // A tensor's dimension has 32 bits.
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0 && u32::try_from(len).is_ok());
        let bytes = bytes.ok_or_else(|| {
            let text = format!("a host buffer of {len} elements cannot be made; ask for 1 to {}", u32::MAX);
            Failure::new(ErrorCode::Invalid, text)
        })?;
        Ok(Self { piece: heap.take(bytes)?, len, of: PhantomData })
    }

    /// How many elements.
    #[expect(clippy::len_without_is_empty, reason = "a host buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies all elements out.
    pub fn to_vec(&self) -> Vec<T> {
        let mut elements = vec![T::zeroed(); self.len];
        // Inside the piece by construction.
        let _ = self.piece.read(0, bytemuck::cast_slice_mut(&mut elements));
        elements
    }

    /// Copies `elements` in, from the start.
    pub fn write(&self, elements: &[T]) -> Result<(), Failure> {
        if elements.len() > self.len {
            let text = format!(
                "{} elements do not fit into a host buffer of {}; write fewer, or make it longer",
                elements.len(),
                self.len
            );
            return Err(Failure::new(ErrorCode::Invalid, text));
        }
        self.piece.write(0, bytemuck::cast_slice(elements))
    }

    /// The whole buffer as a tensor of one dimension.
    pub fn tensor(&self) -> TensorDesc {
        // Aligned to a cache line and of at most 2^32 elements: checked when the buffer was made.
        flat_tensor(DeviceAddr(self.piece.addr()), T::DTYPE, self.len)
            .unwrap_or_else(|error| panic!("a host buffer's tensor: {error}"))
    }

    /// The whole buffer as a tensor of another shape.
    pub fn tensor_of_shape(&self, shape: &[u32]) -> Result<TensorDesc, Failure> {
        let bytes = (self.len * size_of::<T>()) as u64;
        TensorDesc::builder(DeviceAddr(self.piece.addr()), bytes, T::DTYPE, shape)
            .build()
            .map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))
    }

    /// The bytes, as a chip's configuration takes them.
    pub fn span(&self) -> HostSpan {
        let (region, range) = self.piece.span();
        // The piece is inside the region by construction.
        HostSpan::new(region.clone(), range)
            .unwrap_or_else(|error| panic!("a host buffer outside its heap: {error}"))
    }
}

/// `count` elements at `addr` as a tensor of one dimension.
pub fn flat_tensor(addr: DeviceAddr, dtype: DType, count: usize) -> Result<TensorDesc, Failure> {
    let shape = u32::try_from(count).unwrap_or(u32::MAX);
    TensorDesc::builder(addr, (count as u64).saturating_mul(dtype.size()), dtype, &[shape])
        .build()
        .map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Guards;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn buffers_hold_what_is_written_and_are_reused_when_dropped() {
        let heap = Heap::new(None, Guards::Without).unwrap();
        let buffer = HostBuffer::<f32>::new(&heap, 3).unwrap();
        buffer.write(&[1.0, 2.0]).unwrap();
        assert_eq!(buffer.to_vec(), [1.0, 2.0, 0.0]);
        assert!(buffer.write(&[0.0; 4]).is_err());
        let first = buffer.piece.addr();
        drop(buffer);
        let again = HostBuffer::<u8>::new(&heap, 10).unwrap();
        assert_eq!((again.piece.addr(), again.to_vec()), (first, vec![0; 10]));
    }

    #[test]
    fn a_buffer_dropped_in_a_run_stays_until_the_run_is_over() {
        let heap = Heap::new(None, Guards::Without).unwrap();
        heap.run_begun(1);
        let first = HostBuffer::<u8>::new(&heap, 1).unwrap();
        let addr = first.piece.addr();
        drop(first);
        assert_ne!(HostBuffer::<u8>::new(&heap, 1).unwrap().piece.addr(), addr);
        // With two runs in flight: one that was dropped in the first is free when that is over.
        heap.run_begun(2);
        let second = HostBuffer::<u8>::new(&heap, 1).unwrap();
        let addr_of_second = second.piece.addr();
        drop(second);
        heap.run_over(1);
        let again = HostBuffer::<u8>::new(&heap, 1).unwrap();
        assert_eq!(again.piece.addr(), addr);
        assert_ne!(HostBuffer::<u8>::new(&heap, 1).unwrap().piece.addr(), addr_of_second);
        heap.run_over(2);
        let all: Vec<_> = (0..4).map(|_| HostBuffer::<u8>::new(&heap, 1).unwrap()).collect();
        assert!(all.iter().any(|buffer| buffer.piece.addr() == addr_of_second));
    }

    #[test]
    fn with_guards_a_buffer_ends_at_a_page_and_is_known_by_its_addresses() {
        let heap = Heap::new(None, Guards::With).unwrap();
        for len in [1, 63, 64, 4096, 4097, 10_000] {
            let (one, other) =
                (HostBuffer::<u8>::new(&heap, len).unwrap(), HostBuffer::<u8>::new(&heap, len).unwrap());
            let (start, end) = (one.piece.addr(), one.piece.addr() + len as u64);
            assert!(start.is_multiple_of(64) && end.next_multiple_of(4096) - end < 64, "{len}");
            assert_eq!(one.to_vec(), vec![0; len]);
            assert_eq!((heap.piece_at(start), heap.piece_at(end - 1)), (Some(start..end), Some(start..end)));
            assert!(heap.piece_at(start - 1).is_none() && heap.piece_at(end).is_none());
            assert!(other.piece.addr() - end >= 2 * 4096, "a page beside each");
            drop(one);
            assert_eq!(heap.piece_at(start), None);
        }
    }

    #[test]
    fn sizes_that_cannot_be_made_are_refused() {
        let heap = Heap::new(None, Guards::Without).unwrap();
        assert!(HostBuffer::<f32>::new(&heap, 0).is_err());
        assert!(HostBuffer::<f32>::new(&heap, usize::MAX).is_err());
    }

    /// The thread sanitizer runs this too.
    #[test]
    fn f49_two_threads_may_use_one_buffer_and_no_element_is_torn() {
        let heap = Heap::new(None, Guards::Without).unwrap();
        let buffer = HostBuffer::<u64>::new(&heap, 64).unwrap();
        let (rounds, over) = (if cfg!(debug_assertions) { 2_000 } else { 200_000 }, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    let value = if round % 2 == 0 { u64::MAX } else { 0 };
                    buffer.write(&[value; 64]).unwrap();
                }
                over.store(true, Ordering::Release);
            });
            while !over.load(Ordering::Acquire) {
                let copy = buffer.to_vec();
                assert!(copy.iter().all(|value| [0, u64::MAX].contains(value)), "{copy:x?}");
            }
        });
    }
}
