//! A Worker that is up.

mod allocations;
mod chip_memory;
mod in_flight;
mod run;
mod tasks;

pub(crate) use chip_memory::Call;
pub use chip_memory::ChipMemory;
pub(super) use chip_memory::{CommandOf, Memories};

use super::address_spaces::AddressSpaces;
use super::children::Children;
use super::dependencies::Tracker;
use super::first_cause::Event;
use super::orchestrator::BaseGroup;
use super::trace::Trace;
use crate::chip_context::ChipContext;
use crate::heap::Heap;
use crate::metrics::Metrics;
use crate::program::Program;
use crate::shared::{Definition, Programs, RunAbove, first_of};
use allocations::Allocations;
use chip_bootstrap::ChipMemoryKind;
use comm_context::comm::Timeout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use worker_errors::{ErrorCode, Failure};

/// How many Workers this process has brought up.
static BROUGHT_UP: AtomicU64 = AtomicU64::new(0);

/// The children of a Worker, and what the parent knows of them.
#[derive(Debug)]
pub(crate) struct Up {
    children: Children,
    contexts: Vec<ChipContext>,
    base: BaseGroup,
    /// Children `0..next_level` are chips or Workers, the others are sub-workers.
    next_level: usize,
    heap: Arc<Heap>,
    chip_memory: ChipMemoryKind,
    spaces: AddressSpaces,
    allocations: Allocations,
    /// Which Worker of this process it is; another one after each bring-up.
    id: u64,
    flights: u64,
    /// What the runs in flight touch.
    tracker: Tracker,
    /// The run in flight that its caller cancelled.
    cancelled: Option<u64>,
    /// A run in flight failed, and no call has returned that yet.
    untold: Option<(u64, Failure)>,
}

impl Up {
    pub(super) fn new(
        children: Children,
        contexts: Vec<ChipContext>,
        base: BaseGroup,
        next_level: usize,
        heap: Arc<Heap>,
        chip_memory: ChipMemoryKind,
        spaces: AddressSpaces,
    ) -> Self {
        let allocations = Allocations::default();
        // Relaxed: each gets another number, whatever else they see of each other.
        let id = BROUGHT_UP.fetch_add(1, Ordering::Relaxed);
        let (flights, tracker, cancelled, untold) = (0, Tracker::default(), None, None);
        Self {
            children,
            contexts,
            base,
            next_level,
            heap,
            chip_memory,
            spaces,
            allocations,
            id,
            flights,
            tracker,
            cancelled,
            untold,
        }
    }

    /// Fails with the first cause when a child was lost.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.children.check()
    }

    /// Whether a child did not come back from a run and has no process.
    pub(crate) fn has_ended_children(&self) -> bool {
        self.children.has_ended()
    }

    /// What was lost, as the call that noticed it reported it.
    pub(crate) fn loss(&self) -> Option<&Failure> {
        self.children.loss()
    }

    pub(crate) fn set_above(&mut self, above: RunAbove) {
        self.children.set_above(above);
    }

    pub(super) fn children(&mut self) -> &mut Children {
        &mut self.children
    }

    /// Bytes that a chip has: its window, and what is allocated.
    pub(crate) fn chip_bytes(&self, chip: usize) -> Option<u64> {
        let window = self.contexts.get(chip)?.window_size as u64;
        Some(window + self.allocations.bytes_of(chip))
    }

    pub(crate) fn metrics(&self) -> Metrics {
        self.children.metrics()
    }

    pub(super) fn set_pid(&mut self, chip: usize, pid: i32) {
        if let Some(context) = self.contexts.get_mut(chip) {
            context.pid = pid;
        }
    }

    pub(crate) fn contexts(&self) -> &[ChipContext] {
        &self.contexts
    }

    /// The number of a run, or of its clean-up, which is not skipped when it failed.
    fn next_run(&mut self) -> u64 {
        self.flights += 1;
        first_of(self.flights)
    }

    /// A number that is not below that of any run.
    fn last_run(&self) -> u64 {
        first_of(self.flights + 1) - 1
    }

    /// Ends all children and writes the trace.
    pub(crate) fn close(mut self, programs: &Programs, within: Timeout) -> Result<(), Failure> {
        self.give_up_flight();
        let trace = self.children.take_trace();
        let names = self.names();
        let mut problems = self.children.close(within.get());
        // Now Workers below have written theirs.
        let written = trace.map_or(Ok(()), |trace| write_trace(&trace, &names, programs));
        if let Err(failure) = written {
            problems.add(Event::CleanUp, failure);
        }
        problems.into_result()
    }

    /// Writes the trace, once.
    pub(crate) fn write_trace(&mut self, programs: &Programs) -> Result<(), Failure> {
        let trace = self.children.take_trace();
        trace.map_or(Ok(()), |trace| write_trace(&trace, &self.names(), programs))
    }

    fn names(&self) -> Vec<String> {
        self.children.handles().iter().map(|handle| handle.name().to_owned()).collect()
    }
}

fn write_trace(trace: &Trace, names: &[String], programs: &Programs) -> Result<(), Failure> {
    let program =
        |number| programs.get(Program::from_number(number)).map_or_else(|_| "?".to_owned(), Definition::name);
    trace.write(names, program).map_err(|error| {
        Failure::new(
            ErrorCode::System,
            format!("the trace could not be written: {error}; see that its folder exists and has room"),
        )
        .in_phase("close")
    })
}
