//! Host memory that all hands of a Worker see at the same address, whenever it was made.

use crate::device_memory::Remote;
use bytemuck::Pod;
use chip_bootstrap::HostSpan;
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use shared_memory::{Arena, Region, RegionError};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use worker_errors::{ErrorCode, Failure};

/// Addresses for host buffers and simulated chip memory; memory is reserved by buffer.
const HEAP_BYTES: usize = 256 << 30;

/// The memory itself. Mapped before any hand is forked, so a buffer made later is there in every hand already.
#[derive(Debug)]
pub(crate) struct Heap {
    region: Arc<Region>,
    /// Relaxed everywhere: it only says whether to put a dropped piece aside, and the lock orders the rest.
    in_run: AtomicBool,
    state: Mutex<HeapState>,
}

#[derive(Debug)]
struct HeapState {
    arena: Arena,
    /// Dropped while a run was on: a task may still use them.
    dropped: Vec<Range<usize>>,
}

impl Heap {
    pub(crate) fn new() -> Result<Arc<Self>, Failure> {
        let region =
            Region::create_sparse("chipcomm-heap", HEAP_BYTES).map_err(|error| region_failure(&error))?;
        let state = HeapState { arena: Arena::new(0..HEAP_BYTES), dropped: Vec::new() };
        Ok(Arc::new(Self {
            region: Arc::new(region),
            in_run: AtomicBool::new(false),
            state: Mutex::new(state),
        }))
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Piece, Failure> {
        let bytes = bytes.max(1);
        let mut state = self.lock();
        // Relaxed: see the field.
        if !self.in_run.load(Ordering::Relaxed) {
            self.sweep(&mut state);
        }
        let taken = state.arena.allocate(&self.region, bytes).map_err(|error| region_failure(&error))?;
        Ok(Piece { heap: self.clone(), range: taken.start..taken.start + bytes })
    }

    /// While a run is on, nothing is given back: a task may still use it. What was dropped meanwhile goes with the next piece.
    pub(crate) fn set_in_run(&self, in_run: bool) {
        // Relaxed: see the field.
        self.in_run.store(in_run, Ordering::Relaxed);
    }

    fn give_back(&self, pages: Range<usize>) {
        let mut state = self.lock();
        state.dropped.push(pages);
        // Relaxed: see the field.
        if !self.in_run.load(Ordering::Relaxed) {
            self.sweep(&mut state);
        }
    }

    fn sweep(&self, state: &mut HeapState) {
        for pages in std::mem::take(&mut state.dropped) {
            let _ = state.arena.free(&self.region, pages);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HeapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Some bytes of the heap; given back when dropped.
#[derive(Debug)]
pub(crate) struct Piece {
    heap: Arc<Heap>,
    pub(crate) range: Range<usize>,
}

impl Piece {
    pub(crate) fn addr(&self) -> u64 {
        self.heap.region.base().as_ptr() as u64 + self.range.start as u64
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let pages = self.range.start..self.range.end.next_multiple_of(shared_memory::PAGE);
        self.heap.give_back(pages);
    }
}

/// Element types of host buffers.
pub trait Element: Pod {
    /// The type's name in tensor descriptors.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),+ $(,)?) => { $(impl Element for $type { const DTYPE: DType = DType::$dtype; })+ };
}

elements! {
    f32 => Float32, i32 => Int32, i16 => Int16, i8 => Int8, u8 => Uint8, i64 => Int64, u64 => Uint64, u16 => Uint16, u32 => Uint32,
}

/// `len` elements of host memory, shared with every chip, before and after `init`. Given back when dropped, not before the run that is on ends.
///
/// Chips may write it while a run is on, so it is read and written by copying.
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
        let bytes = bytemuck::cast_slice_mut(&mut elements);
        // Inside the piece by construction.
        let _ = self.piece.heap.region.read(self.piece.range.start, bytes);
        elements
    }

    /// Copies `elements` in, from the start.
    pub fn write(&self, elements: &[T]) -> Result<(), Failure> {
        if elements.len() > self.len {
            let text = format!("{} elements do not fit into a host buffer of {}", elements.len(), self.len);
            return Err(Failure::new(ErrorCode::Invalid, text));
        }
        let bytes = bytemuck::cast_slice(elements);
        self.piece.heap.region.write(self.piece.range.start, bytes).map_err(|error| region_failure(&error))
    }

    /// The whole buffer as a tensor of one dimension.
    pub fn tensor(&self) -> TensorDesc {
        // Aligned to a page and of at most 2^32 elements: checked when the buffer was made.
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
        // The piece is inside the region by construction.
        HostSpan::new(self.piece.heap.region.clone(), self.piece.range.clone())
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

/// Memory of one chip, made by the parent. It goes when this is dropped; a device is told so with the next call.
#[derive(Debug)]
pub struct ChipMemory {
    pub(crate) backing: Backing,
    pub(crate) chip: usize,
}

/// Where a chip's memory is.
#[derive(Debug)]
pub(crate) enum Backing {
    /// In the heap, which simulated chips share with the host.
    Heap(Piece),
    /// On the device.
    Device(Remote),
}

impl ChipMemory {
    /// Where it is, as the chip sees it.
    pub fn addr(&self) -> DeviceAddr {
        match &self.backing {
            Backing::Heap(piece) => DeviceAddr(piece.addr()),
            Backing::Device(remote) => DeviceAddr(remote.addr),
        }
    }

    /// How many bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory of no bytes is never made")]
    pub fn len(&self) -> usize {
        match &self.backing {
            Backing::Heap(piece) => piece.range.len(),
            Backing::Device(remote) => remote.len,
        }
    }

    /// Which chip.
    pub fn chip(&self) -> usize {
        self.chip
    }
}

pub(crate) fn region_failure(error: &RegionError) -> Failure {
    let code = match error {
        RegionError::OutOfMemory { .. } => ErrorCode::OutOfMemory,
        RegionError::System { .. } => ErrorCode::System,
        _ => ErrorCode::Invalid,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_what_is_written_and_come_back_when_dropped() {
        let heap = Heap::new().unwrap();
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
        let heap = Heap::new().unwrap();
        heap.set_in_run(true);
        let first = HostBuffer::<u8>::new(&heap, 1).unwrap();
        let addr = first.piece.addr();
        drop(first);
        assert_ne!(HostBuffer::<u8>::new(&heap, 1).unwrap().piece.addr(), addr);
        heap.set_in_run(false);
        assert_eq!(HostBuffer::<u8>::new(&heap, 1).unwrap().piece.addr(), addr);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let heap = Heap::new().unwrap();
        assert!(HostBuffer::<f32>::new(&heap, 0).is_err());
        assert!(HostBuffer::<f32>::new(&heap, usize::MAX).is_err());
    }
}
