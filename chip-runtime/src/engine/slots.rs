//! The slots of tasks: rings, from which tasks are reclaimed in the order of their submit.

use crate::args::Predicate;
use crate::heap::Heap;
use crate::kernel::Kernel;
use crate::limits::Limits;
use crate::signals::{Resolved, Signal, Wait};
use crate::task::{Site, TaskId};
use comm_context::abi::TensorDesc;
use std::ptr::NonNull;

/// How far a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Submitted, and not to be started yet.
    #[default]
    Unpublished,
    /// Waits for prerequisites, is ready, or runs.
    Published,
    /// Ended; its successors know.
    Done,
}

/// Which cores a block needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    /// None: it only orders others.
    #[default]
    Dummy,
    /// A cube core.
    Aic,
    /// A vector core.
    Aiv,
    /// Several cores of one cluster.
    Mix,
}

/// A task.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) stage: Stage,
    pub(super) shape: Shape,
    pub(super) scope_open: bool,
    pub(super) sync_start: bool,
    /// Its waits are armed, or were.
    pub(super) armed: bool,
    /// Prerequisites that are not met; one of them is to be published.
    pub(super) unmet: u32,
    /// What keeps its tensors: its scope while that is open, and tasks that use them.
    pub(super) holds: u32,
    pub(super) blocks: u32,
    /// The next block to start.
    pub(super) next_block: u32,
    /// Kernels that have not returned, over all blocks, and words that its completion waits for.
    pub(super) unfinished: u32,
    /// The number of its submit.
    pub(super) seq: u64,
    /// The last task that has an edge from this one: an edge is entered once.
    pub(super) linked: u64,
    /// Its tensors end here in the heap of its ring; `None` if it made none.
    pub(super) heap_end: Option<u64>,
    /// Where they are.
    pub(super) memory: std::ops::Range<u64>,
    pub(super) kernels: [Option<NonNull<Kernel>>; 3],
    pub(super) fanout: Vec<TaskId>,
    /// Tasks whose tensors it uses.
    pub(super) owners: Vec<TaskId>,
    pub(super) tensors: Vec<TensorDesc>,
    pub(super) writable: u32,
    pub(super) scalars: Vec<u64>,
    pub(super) predicate: Option<Box<Predicate>>,
    pub(super) waits: Vec<Wait>,
    pub(super) signals: Vec<(Signal, Resolved)>,
    pub(super) site: Option<Site>,
}

impl Slot {
    /// For the next task, with the memory of its lists. In its place: a slot is some hundred bytes.
    fn reset(&mut self) {
        let Self {
            stage,
            shape,
            scope_open,
            sync_start,
            armed,
            unmet,
            holds,
            blocks,
            next_block,
            unfinished,
            seq,
            linked,
            heap_end,
            memory,
            kernels,
            fanout,
            owners,
            tensors,
            writable,
            scalars,
            predicate,
            waits,
            signals,
            site,
        } = self;
        (*stage, *shape) = (Stage::default(), Shape::default());
        (*scope_open, *sync_start, *armed) = (false, false, false);
        (*unmet, *holds, *blocks, *next_block, *unfinished) = (0, 0, 0, 0, 0);
        (*seq, *linked, *writable) = (0, 0, 0);
        (*heap_end, *memory, *kernels) = (None, 0..0, [None; 3]);
        (*predicate, *site) = (None, None);
        fanout.clear();
        owners.clear();
        tensors.clear();
        scalars.clear();
        waits.clear();
        signals.clear();
    }

    /// The cores that a block needs: one bit for each lane that has a kernel.
    pub(super) fn lanes(&self) -> usize {
        self.kernels.iter().flatten().count()
    }
}

/// The slots and the heap of the scopes of one depth.
#[derive(Debug)]
pub(super) struct Ring {
    /// Made as they are needed; a power of two at the most.
    slots: Vec<Slot>,
    mask: u32,
    capacity: u32,
    head: u32,
    tail: u32,
    pub(super) heap: Heap,
}

impl Ring {
    pub(super) fn new(limits: &Limits) -> Self {
        let mask = limits.slots.next_power_of_two() as u32 - 1;
        Self {
            slots: Vec::new(),
            mask,
            capacity: limits.slots as u32,
            head: 0,
            tail: 0,
            heap: Heap::new(limits.heap),
        }
    }

    /// The number of the next task.
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// The number of the oldest task that has its slot, if there is one.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.head != self.tail).then_some(self.tail)
    }

    pub(super) fn is_full(&self) -> bool {
        self.head.wrapping_sub(self.tail) >= self.capacity
    }

    /// Whether the task has its slot.
    pub(super) fn holds(&self, local: u32) -> bool {
        local.wrapping_sub(self.tail) < self.head.wrapping_sub(self.tail)
    }

    /// Numbers of all tasks that have slots.
    pub(super) fn locals(&self) -> impl Iterator<Item = u32> + use<> {
        let (tail, count) = (self.tail, self.head.wrapping_sub(self.tail));
        (0..count).map(move |step| tail.wrapping_add(step))
    }

    pub(super) fn slot(&self, local: u32) -> &Slot {
        &self.slots[(local & self.mask) as usize]
    }

    pub(super) fn slot_mut(&mut self, local: u32) -> &mut Slot {
        &mut self.slots[(local & self.mask) as usize]
    }

    /// Takes the next slot; there is one.
    pub(super) fn take(&mut self) -> (u32, &mut Slot) {
        let local = self.head;
        self.head = self.head.wrapping_add(1);
        let index = (local & self.mask) as usize;
        if index == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        slot.reset();
        (local, slot)
    }

    /// Reclaims tasks from the oldest on, as far as they have ended and nothing keeps their tensors. Says whether
    /// there was one.
    pub(super) fn reclaim(&mut self) -> bool {
        let before = self.tail;
        while self.head != self.tail {
            let slot = &self.slots[(self.tail & self.mask) as usize];
            if slot.stage != Stage::Done || slot.holds > 0 {
                break;
            }
            if let Some(end) = slot.heap_end {
                self.heap.give_back(end);
            }
            self.tail = self.tail.wrapping_add(1);
        }
        self.tail != before
    }

    /// Forgets all tasks.
    pub(super) fn clear(&mut self) {
        self.heap.give_back(self.heap.head());
        (self.head, self.tail) = (0, 0);
    }
}
