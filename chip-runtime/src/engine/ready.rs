//! What may start, and the cores that it can start on.

use super::slots::{Ring, Shape, Slot};
use crate::kernel::{Kernel, Lane};
use crate::limits::{MAX_SCALARS, MAX_TENSORS, RINGS};
use crate::task::TaskId;
use comm_context::abi::TensorDesc;
use std::collections::VecDeque;
use std::ptr::NonNull;

/// A core: which cluster, which of its cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Core {
    pub(crate) cluster: u8,
    pub(crate) lane: Lane,
}

impl Core {
    /// Its place among all cores.
    pub(crate) fn index(self) -> usize {
        3 * usize::from(self.cluster) + self.lane as usize
    }
}

impl std::fmt::Display for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cluster {} {}", self.cluster, self.lane.name())
    }
}

/// One kernel of one block, with the core that it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) task: TaskId,
    pub(super) core: Core,
    /// The kernel's own lane: a kernel for the second vector core, alone, may run on the first.
    pub(super) kernel: NonNull<Kernel>,
    pub(super) block: u32,
    pub(super) blocks: u32,
    pub(super) writable: u32,
    /// Two lists of the slot, as less than slices: a launch is given to a thread in one line.
    tensors: NonNull<TensorDesc>,
    scalars: NonNull<u64>,
    tensor_count: u8,
    scalar_count: u8,
}

const _: () = assert!(MAX_TENSORS <= u8::MAX as usize);
const _: () = assert!(MAX_SCALARS <= u8::MAX as usize);

impl Launch {
    fn new(task: TaskId, slot: &Slot, block: u32, kernel: NonNull<Kernel>, core: Core) -> Self {
        Self {
            task,
            core,
            kernel,
            block,
            blocks: slot.blocks,
            writable: slot.writable,
            tensors: NonNull::from(&slot.tensors[..]).cast(),
            scalars: NonNull::from(&slot.scalars[..]).cast(),
            tensor_count: slot.tensors.len() as u8,
            scalar_count: slot.scalars.len() as u8,
        }
    }

    pub(super) fn tensors(&self) -> NonNull<[TensorDesc]> {
        NonNull::slice_from_raw_parts(self.tensors, usize::from(self.tensor_count))
    }

    pub(super) fn scalars(&self) -> NonNull<[u64]> {
        NonNull::slice_from_raw_parts(self.scalars, usize::from(self.scalar_count))
    }
}

/// Free cores: for each lane one bit for each cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cores {
    free: [u64; 3],
}

impl Cores {
    pub(super) fn new(clusters: usize) -> Self {
        Self { free: [u64::MAX >> (64 - clusters); 3] }
    }

    pub(super) fn release(&mut self, core: Core) {
        self.free[core.lane as usize] |= 1 << core.cluster;
    }

    /// Clusters in which all these lanes are free.
    fn clusters(&self, slot: &Slot) -> u64 {
        let free =
            |(lane, kernel): (usize, &Option<_>)| if kernel.is_some() { self.free[lane] } else { u64::MAX };
        slot.kernels.iter().enumerate().map(free).fold(u64::MAX, |all, free| all & free)
    }

    /// How many blocks of the task could start now.
    fn blocks(&self, slot: &Slot) -> u32 {
        match slot.shape {
            Shape::Dummy => u32::MAX,
            Shape::Aic => self.free[0].count_ones(),
            Shape::Aiv => self.free[1].count_ones() + self.free[2].count_ones(),
            Shape::Mix => self.clusters(slot).count_ones(),
        }
    }

    /// Whether a block of the task could start now.
    fn have_room(&self, slot: &Slot) -> bool {
        match slot.shape {
            Shape::Dummy => true,
            Shape::Aic => self.free[0] != 0,
            Shape::Aiv => self.free[1] | self.free[2] != 0,
            Shape::Mix => self.clusters(slot) != 0,
        }
    }

    fn take(&mut self, lane: Lane, clusters: u64) -> Core {
        let cluster = clusters.trailing_zeros() as u8;
        self.free[lane as usize] &= !(1 << cluster);
        Core { cluster, lane }
    }
}

/// Tasks whose prerequisites are met, with blocks that have not started.
#[derive(Debug, Default)]
pub(super) struct Ready {
    aic: VecDeque<TaskId>,
    aiv: VecDeque<TaskId>,
    mix: VecDeque<TaskId>,
    /// Those whose blocks start together. They stand apart, so that nothing waits behind one that does not fit.
    together: VecDeque<TaskId>,
    /// Launches that have their core. They run whatever happens: a kernel may wait for the other lanes of its block.
    pub(super) committed: VecDeque<Launch>,
}

impl Ready {
    pub(super) fn push(&mut self, task: TaskId, slot: &Slot) {
        match slot.shape {
            _ if slot.sync_start => self.together.push_back(task),
            Shape::Aic => self.aic.push_back(task),
            Shape::Mix => self.mix.push_back(task),
            Shape::Aiv | Shape::Dummy => self.aiv.push_back(task),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.queues().iter().all(|queue| queue.is_empty())
    }

    /// How many tasks stand in it.
    pub(super) fn len(&self) -> usize {
        self.queues().iter().map(|queue| queue.len()).sum()
    }

    fn queues(&self) -> [&VecDeque<TaskId>; 4] {
        [&self.together, &self.mix, &self.aic, &self.aiv]
    }

    /// Nothing of it will start; what has its core still does.
    pub(super) fn give_up(&mut self) {
        self.aic.clear();
        self.aiv.clear();
        self.mix.clear();
        self.together.clear();
    }

    /// Whether `take` would find something.
    pub(super) fn can_start<'s>(&self, cores: &Cores, slot: impl Fn(TaskId) -> &'s Slot) -> bool {
        if !self.committed.is_empty() {
            return true;
        }
        self.queues().into_iter().any(|queue| {
            queue.front().is_some_and(|task| {
                let slot = slot(*task);
                if slot.sync_start { cores.blocks(slot) >= slot.blocks } else { cores.have_room(slot) }
            })
        })
    }

    /// The next launch for which there is a core, and takes the core.
    pub(super) fn take(&mut self, cores: &mut Cores, rings: &mut [Ring; RINGS]) -> Option<Launch> {
        if let Some(launch) = self.committed.pop_front() {
            return Some(launch);
        }
        if let Some(task) = self.together.front().copied() {
            let slot = slot_of(rings, task);
            if cores.blocks(slot) >= slot.blocks {
                self.together.pop_front();
                while slot.next_block < slot.blocks {
                    commit(&mut self.committed, cores, task, slot);
                }
                return self.committed.pop_front();
            }
        }
        if let Some(task) = self.mix.front().copied() {
            let slot = slot_of(rings, task);
            if cores.have_room(slot) {
                commit(&mut self.committed, cores, task, slot);
                if slot.next_block == slot.blocks {
                    self.mix.pop_front();
                }
                return self.committed.pop_front();
            }
        }
        // The older of the two.
        let aic = self.aic.front().copied().filter(|_| cores.free[0] != 0);
        let aiv = self.aiv.front().copied().filter(|_| cores.free[1] | cores.free[2] != 0);
        let queue = match (aic, aiv) {
            (Some(aic), Some(aiv)) if slot_of(rings, aic).seq > slot_of(rings, aiv).seq => &mut self.aiv,
            (Some(_), _) => &mut self.aic,
            (None, Some(_)) => &mut self.aiv,
            (None, None) => return None,
        };
        let task = *queue.front()?;
        let slot = slot_of(rings, task);
        commit(&mut self.committed, cores, task, slot);
        if slot.next_block == slot.blocks {
            queue.pop_front();
        }
        self.committed.pop_front()
    }
}

fn slot_of(rings: &mut [Ring; RINGS], task: TaskId) -> &mut Slot {
    rings[task.ring()].slot_mut(task.local())
}

/// Takes the cores of the next block, which are free.
fn commit(committed: &mut VecDeque<Launch>, cores: &mut Cores, task: TaskId, slot: &mut Slot) {
    let clusters = cores.clusters(slot);
    let block = slot.next_block;
    slot.next_block += 1;
    for (lane, kernel) in slot.kernels.iter().enumerate() {
        let Some(kernel) = *kernel else { continue };
        let core = match (slot.shape, cores.free[1]) {
            (Shape::Aiv, 0) => cores.take(Lane::Aiv1, cores.free[2]),
            (Shape::Aiv, first) => cores.take(Lane::Aiv0, first),
            _ => cores.take(Lane::ALL[lane], clusters),
        };
        committed.push_back(Launch::new(task, slot, block, kernel, core));
    }
}
