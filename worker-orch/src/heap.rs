//! Host memory of a Worker that all its children see at the same addresses, whenever it was made.

use crate::shared::CANARY;
use chip_bootstrap::{BUFFER_ALIGN, region_failure};
use comm_context::comm::AddressSpace;
use shared_memory::{Arena, PAGE, Region, RegionError, fitting_addresses};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use worker_errors::Failure;

/// Addresses for host buffers and for chip memory that lies in host memory, where there are enough; memory is
/// reserved by piece.
const PREFERRED: usize = 256 << 30;

/// Mapped before any child is started, so that a piece made later is there in every child already.
#[derive(Debug)]
pub(crate) struct Heap {
    region: Arc<Region>,
    /// The last run that was begun, and the last one that is over. Relaxed everywhere: they only say whether to keep a dropped piece for
    /// later, and the lock orders the rest.
    begun: AtomicU64,
    over: AtomicU64,
    guards: Guards,
    state: Mutex<HeapState>,
}

/// Whether pieces end at inaccessible pages, for the checks of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guards {
    Without,
    With,
}

#[derive(Debug)]
struct HeapState {
    arena: Arena,
    /// Dropped during a run, the last that may use them first: a task may still use them.
    dropped: Vec<(u64, Range<usize>)>,
    /// Where pieces with guards start and end, by the start of their pages.
    live: BTreeMap<usize, Range<usize>>,
}

impl Heap {
    /// A heap of `space`, or of as many addresses as there are.
    pub(crate) fn new(space: Option<AddressSpace>, guards: Guards) -> Result<Arc<Self>, Failure> {
        let bytes = space.map_or_else(|| fitting_addresses(PREFERRED, 1), AddressSpace::get);
        let bytes = bytes.next_multiple_of(PAGE);
        let region = Region::create_sparse("chipcomm-heap", bytes).map_err(|error| {
            let cause = region_failure(&error);
            match space {
                None => cause,
                Some(space) => {
                    let variable = AddressSpace::HEAP_ENV;
                    let text =
                        format!("no addresses for host buffers; {variable} or heap_space asks for {space}");
                    Failure::new(cause.code, text).in_phase("build").caused_by(cause)
                }
            }
        })?;
        let state = HeapState { arena: Arena::new(0..bytes), dropped: Vec::new(), live: BTreeMap::new() };
        Ok(Arc::new(Self {
            region: Arc::new(region),
            begun: AtomicU64::new(0),
            over: AtomicU64::new(0),
            guards,
            state: Mutex::new(state),
        }))
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// At least `bytes` bytes, zeroed.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Piece, Failure> {
        let bytes = bytes.max(1);
        let mut state = self.lock();
        self.free_dropped(&mut state);
        let taken = match self.guards {
            Guards::Without => state.arena.allocate(&self.region, bytes).map(|pages| {
                let range = pages.start..pages.start + bytes;
                (pages, range)
            }),
            Guards::With => self.take_guarded(&mut state, bytes),
        };
        let (pages, range) = taken.map_err(|error| region_failure(&error))?;
        Ok(Piece { heap: self.clone(), range, pages })
    }

    /// A piece at the end of its pages, with canaries beside it and a page on each side that is nobody's. Children close these pages
    /// while a task runs.
    fn take_guarded(
        &self,
        state: &mut HeapState,
        bytes: usize,
    ) -> Result<(Range<usize>, Range<usize>), RegionError> {
        let pages = state.arena.take(bytes.next_multiple_of(PAGE) + 2 * PAGE)?;
        let inner = pages.start + PAGE..pages.end - PAGE;
        let start = inner.end - bytes.next_multiple_of(BUFFER_ALIGN);
        let range = start..start + bytes;
        let written = self.region.reserve(inner.clone()).and_then(|()| {
            let sides = [inner.start..range.start, range.end..inner.end];
            sides.into_iter().try_for_each(|side| self.region.write(side.start, &vec![CANARY; side.len()]))
        });
        if let Err(error) = written {
            let _ = state.arena.free(&self.region, pages);
            return Err(error);
        }
        state.live.insert(pages.start, range.clone());
        Ok((pages, range))
    }

    /// Whether pieces have guards.
    pub(crate) fn guards(&self) -> Guards {
        self.guards
    }

    /// The addresses of the piece with guards that holds `addr`.
    pub(crate) fn piece_at(&self, addr: u64) -> Option<Range<u64>> {
        let base = self.region.base().as_ptr() as u64;
        let at = usize::try_from(addr.checked_sub(base)?).ok()?;
        let state = self.lock();
        let (_, piece) = state.live.range(..=at).next_back()?;
        piece.contains(&at).then(|| base + piece.start as u64..base + piece.end as u64)
    }

    /// Until `run` is over nothing is freed that is dropped from now on: a task of it may use it. Runs have growing numbers.
    pub(crate) fn run_begun(&self, run: u64) {
        // Relaxed: see the field.
        self.begun.store(run, Ordering::Relaxed);
    }

    /// `run` is over, and all before it. What was dropped meanwhile is freed with the next piece taken or dropped.
    pub(crate) fn run_over(&self, run: u64) {
        // Relaxed: see the field.
        self.over.store(run, Ordering::Relaxed);
    }

    fn free(&self, pages: Range<usize>) {
        let mut state = self.lock();
        // Relaxed: see the field.
        state.dropped.push((self.begun.load(Ordering::Relaxed), pages));
        self.free_dropped(&mut state);
    }

    /// Frees everything that was dropped: nothing that may use it is under way.
    pub(crate) fn free_all_dropped(&self) {
        self.free_dropped_until(&mut self.lock(), u64::MAX);
    }

    fn free_dropped(&self, state: &mut HeapState) {
        // Relaxed: see the field.
        self.free_dropped_until(state, self.over.load(Ordering::Relaxed));
    }

    /// Frees what was dropped in runs up to `over`.
    fn free_dropped_until(&self, state: &mut HeapState, over: u64) {
        let HeapState { arena, dropped, live } = state;
        dropped.retain(|(run, pages)| {
            let in_use = *run > over;
            if !in_use {
                live.remove(&pages.start);
                let _ = arena.free(&self.region, pages.clone());
            }
            in_use
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HeapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Some bytes of the heap; freed when dropped.
///
/// Children, and other threads, may write them at any time. They are copied in and out by the one copy for
/// shared bytes, so that a race gives old or new bytes and nothing worse.
#[derive(Debug)]
pub(crate) struct Piece {
    heap: Arc<Heap>,
    range: Range<usize>,
    /// Its pages, with those beside it.
    pages: Range<usize>,
}

impl Piece {
    pub(crate) fn addr(&self) -> u64 {
        self.heap.region.base().as_ptr() as u64 + self.range.start as u64
    }

    /// The region, and the range of this piece in it.
    pub(crate) fn span(&self) -> (&Arc<Region>, Range<usize>) {
        (&self.heap.region, self.range.clone())
    }

    /// Copies `bytes` in, from offset `at` on.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let at = self.offset(at, bytes.len());
        self.heap.region.write(at, bytes).map_err(|error| region_failure(&error))
    }

    /// Copies bytes out, from offset `at` on.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) -> Result<(), Failure> {
        let at = self.offset(at, into.len());
        self.heap.region.read(at, into).map_err(|error| region_failure(&error))
    }

    /// Callers stay inside the piece.
    fn offset(&self, at: usize, len: usize) -> usize {
        assert!(at + len <= self.range.len(), "{len} bytes at {at} of a piece of {}", self.range.len());
        self.range.start + at
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.heap.free(self.pages.clone());
    }
}
