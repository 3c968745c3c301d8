//! What a child works with, however it was started: the parent fills it in, the child uses it.

use super::{ControlBlock, Definition, Functions};
use crate::Worker;
use bootstrap_channel::ChannelSet;
use chip_bootstrap::{ChipConfig, ChipGroup, Platform};
use comm_context::comm::Timeout;
use deadline::Deadline;
use shared_memory::Region;
use std::path::PathBuf;
use std::sync::Arc;

/// The exit code of a child that could not be brought up; the reason is on its channel.
pub(crate) const NOT_UP: i32 = 3;

/// The exit code of a Worker of the next level that has lost a process below it; what it was is recorded.
pub(crate) const LOST: i32 = 5;

/// What every child has.
pub(crate) struct ChildContext<'a> {
    pub(crate) number: usize,
    /// Its number among the children that are what it is, which is in its name.
    pub(crate) number_of_kind: usize,
    pub(crate) channels: &'a ChannelSet,
    pub(crate) block: &'a Arc<ControlBlock>,
    pub(crate) programs: &'a [Definition],
    pub(crate) functions: Functions<'a>,
    pub(crate) heaps: &'a [Arc<Region>],
}

/// A run of the Worker above, of which a run of a nested Worker is a task.
#[derive(Clone, Debug)]
pub(crate) struct RunAbove {
    pub(crate) block: Arc<ControlBlock>,
    pub(crate) run: u64,
}

impl RunAbove {
    /// Whether that run was cancelled, or all children stop.
    pub(crate) fn is_over(&self) -> bool {
        self.block.parent().is_aborted() || self.block.parent().is_cancelled(self.run)
    }
}

/// What a child is.
pub(crate) enum Role<'a> {
    Chip(ChipRole<'a>),
    SubWorker,
    /// A Worker of the next level. It is up, or reports why not, before `init_until`, and closes within
    /// `close_within`.
    Worker {
        worker: &'a mut Worker,
        init_until: Deadline,
        close_within: Timeout,
    },
}

/// What a chip has besides.
pub(crate) struct ChipRole<'a> {
    pub(crate) platform: Platform,
    pub(crate) config: &'a ChipConfig,
    /// How many chips the Worker has.
    pub(crate) chips: usize,
    pub(crate) group: Option<&'a ChipGroup>,
    pub(crate) within: Timeout,
    /// Where it writes what its cores did.
    pub(crate) trace: Option<&'a ChipTrace>,
}

/// A chip's part of a trace: what its cores did in graphs.
#[derive(Clone, Debug)]
pub(crate) struct ChipTrace {
    pub(crate) path: PathBuf,
    /// Its name in the file.
    pub(crate) name: String,
    /// The name of its Worker in the file.
    pub(crate) group: String,
    /// Time 0 of the file, on the monotonic clock.
    pub(crate) origin_ns: u64,
}

/// A child's process from bring-up to its end; the result is its exit code.
pub(crate) type ChildMain = fn(&ChildContext<'_>, Role<'_>) -> i32;
