//! The tasks of a graph, and in which order their kernels are.

use crate::args::Predicate;
use crate::kernel::Lane;
use crate::signals::{Signal, Wait};
use crate::task::{KernelId, Site};
use comm_context::abi::TensorDesc;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// A stream, by the kind of cores that its kernels run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Cube = 0,
    Vector = 1,
}

impl Queue {
    /// What stands for it in a recording.
    pub(super) fn lane(self) -> Lane {
        match self {
            Self::Cube => Lane::Aic,
            Self::Vector => Lane::Aiv0,
        }
    }
}

/// A task of a graph.
#[derive(Debug)]
pub(super) struct DeviceTask {
    /// Its stream and kernel; none if it only orders others.
    pub(super) launch: Option<(Queue, KernelId)>,
    pub(super) tensors: Vec<TensorDesc>,
    pub(super) scalars: Vec<u64>,
    pub(super) blocks: u32,
    pub(super) site: Site,
    pub(super) predicate: Option<Predicate>,
    pub(super) waits: Vec<Wait>,
    pub(super) signals: Vec<Signal>,
    /// Where the tensors lie that it makes, and whether they may be used.
    pub(super) memory: Range<u64>,
    pub(super) scope_open: bool,
    /// Tasks that it comes after.
    pub(super) after: BTreeSet<usize>,
    /// Of these, the ones with kernels; those of tasks without one are in their place.
    pub(super) before: BTreeSet<usize>,
    /// Whether one on the other stream comes after it.
    pub(super) is_awaited_elsewhere: bool,
    /// Whether the host has something to do when it has ended.
    pub(super) is_watched: bool,
}

impl DeviceTask {
    /// Whether its kernel runs on the other stream.
    pub(super) fn is_elsewhere(&self, queue: Queue) -> bool {
        self.launch.is_some_and(|(of, _)| of != queue)
    }
}

/// Whether `task` is `other` or comes after it.
pub(super) fn comes_after(tasks: &[DeviceTask], task: usize, other: usize) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![task]);
    while let Some(task) = open.pop() {
        if task == other {
            return true;
        }
        if seen.insert(task) {
            open.extend(&tasks[task].after);
        }
    }
    false
}

/// Finds for each task, when all edges are known, which kernels it comes after, and which of them somebody watches.
pub(super) fn resolve(tasks: &mut [DeviceTask]) {
    for index in in_order(tasks) {
        let mut all = BTreeSet::new();
        for before in &tasks[index].after {
            match tasks[*before].launch {
                Some(_) => drop(all.insert(*before)),
                None => all.extend(tasks[*before].before.iter().copied()),
            }
        }
        let task = &tasks[index];
        let queue = task.launch.map(|(queue, _)| queue);
        // The host itself comes after them: it looks at an element, or signals that they have ended.
        let is_host = if queue.is_some() { task.predicate.is_some() } else { task.is_watched };
        for before in &all {
            let before = &mut tasks[*before];
            before.is_awaited_elsewhere |= queue.is_some_and(|queue| before.is_elsewhere(queue));
            before.is_watched |= is_host;
        }
        tasks[index].before = all;
    }
}

/// The tasks, each behind those that it comes after. No edges close a cycle.
fn in_order(tasks: &[DeviceTask]) -> Vec<usize> {
    let mut left: Vec<usize> = tasks.iter().map(|task| task.after.len()).collect();
    let mut next = vec![Vec::new(); tasks.len()];
    for (index, task) in tasks.iter().enumerate() {
        task.after.iter().for_each(|before| next[*before].push(index));
    }
    let mut ready: VecDeque<usize> = (0..tasks.len()).filter(|index| left[*index] == 0).collect();
    let mut order = Vec::with_capacity(tasks.len());
    while let Some(index) = ready.pop_front() {
        order.push(index);
        for after in &next[index] {
            left[*after] -= 1;
            if left[*after] == 0 {
                ready.push_back(*after);
            }
        }
    }
    order
}
