//! Names of tasks, kernels and places.

use comm_context::abi::TensorDesc;
use std::fmt;
use std::panic::Location;

/// A task of a graph: the ring of its slot, and its number in that ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

impl TaskId {
    /// No task: the owner of a tensor that the graph did not make.
    pub const NONE: Self = Self(u64::MAX);

    pub(crate) fn new(ring: usize, local: u32) -> Self {
        Self((ring as u64) << 32 | u64::from(local))
    }

    /// The ring of its slot.
    pub fn ring(self) -> usize {
        (self.0 >> 32) as usize
    }

    /// Its number in the ring; it wraps round after 2^32 tasks.
    pub fn local(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("no task");
        }
        write!(f, "task {}.{}", self.ring(), self.local())
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u32);

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The kernels of a task: up to one for each core of a cluster.
///
/// One kernel runs on a core of its kind. Several need their cores of one cluster at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernels {
    /// On the cube core.
    pub aic: Option<KernelId>,
    /// On the first vector core, or on any if it is the only kernel.
    pub aiv0: Option<KernelId>,
    /// On the second vector core, or on any if it is the only kernel.
    pub aiv1: Option<KernelId>,
}

impl Kernels {
    /// One kernel, on a cube core.
    pub fn aic(kernel: KernelId) -> Self {
        Self { aic: Some(kernel), ..Self::default() }
    }

    /// One kernel, on a vector core.
    pub fn aiv(kernel: KernelId) -> Self {
        Self { aiv0: Some(kernel), ..Self::default() }
    }

    pub(crate) fn lanes(self) -> [Option<KernelId>; 3] {
        [self.aic, self.aiv0, self.aiv1]
    }
}

/// A place in the source of an orchestration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The file.
    pub file: &'static str,
    /// The line.
    pub line: u32,
}

impl Site {
    pub(crate) fn of(location: &'static Location<'static>) -> Self {
        Self { file: location.file(), line: location.line() }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// What a submit returns: the task, and the tensors that it makes, in the order of its outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Submitted {
    /// The task.
    pub task: TaskId,
    /// Its new tensors.
    pub outputs: Vec<TensorDesc>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_id_is_its_ring_and_its_number() {
        let task = TaskId::new(3, 0xffff_fff0);
        assert_eq!((task.0, task.ring(), task.local()), (3 << 32 | 0xffff_fff0, 3, 0xffff_fff0));
        assert_eq!(
            (task.to_string(), TaskId::NONE.to_string()),
            ("task 3.4294967280".into(), "no task".into())
        );
    }
}
