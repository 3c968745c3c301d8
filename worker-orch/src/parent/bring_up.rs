//! Bring-up: shared memory, then processes, then the wait for all of them.

use super::address_spaces::AddressSpaces;
use super::bring_up_error::explain;
use super::children::{Children, IN_A_GROUP, NamedMemory};
use super::chips::context;
use super::fork::fork_all;
use super::orchestrator::BaseGroup;
use super::progress::Progress;
use super::spawn::spawn_all;
use super::trace::{Trace, TraceFile};
use super::up::Up;
use crate::chip_context::ChipContext;
use crate::heap::Heap;
use crate::log;
use crate::shared::{ChildMain, ChipTrace, ControlBlock, MAX_CHILDREN, Programs};
use crate::{Start, Worker};
use bootstrap_channel::{ChannelSet, Success};
use chip_bootstrap::{ChipConfig, ChipGroup, ChipMemoryKind, Platform, region_failure};
use comm_context::comm::{AddressSpace, Membership, Timeout};
use deadline::Deadline;
use fault_points::fault_point;
use mailbox_atomics::Wait;
use shared_memory::Region;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// What is to be brought up.
pub(crate) struct Plan<'a> {
    pub(crate) start: Start,
    pub(crate) platform: Platform,
    /// Addresses for the windows of each chip.
    pub(crate) windows: Option<AddressSpace>,
    pub(crate) chips: &'a [ChipConfig],
    /// Workers of the next level, by name.
    pub(crate) workers: &'a mut [(String, Worker)],
    pub(crate) sub_workers: usize,
    pub(crate) programs: &'a Programs,
    pub(crate) heap: &'a Arc<Heap>,
    /// The heaps of the levels above, which the children see too.
    pub(crate) heaps_above: &'a [Arc<Region>],
    pub(crate) init_within: Timeout,
    pub(crate) close_within: Timeout,
    pub(crate) trace: Option<&'a TraceFile>,
    /// Children record when their tasks ran.
    pub(crate) measured: bool,
    /// What a forked child runs.
    pub(crate) child_main: ChildMain,
}

impl Plan<'_> {
    /// The names of the children by number: chips, then Workers of the next level, then sub-workers.
    fn child_names(&self) -> Vec<String> {
        let chips = (0..self.chips.len()).map(|chip| format!("chip {chip}"));
        let workers = self.workers.iter().map(|(name, _)| name.clone());
        let subs = (0..self.sub_workers).map(|sub| format!("sub-worker {sub}"));
        chips.chain(workers).chain(subs).collect()
    }

    /// The number of a child in its name: among the chips, the Workers of the next level, or the sub-workers.
    pub(super) fn number_of_kind(&self, child: usize) -> usize {
        let before = [0, self.chips.len(), self.chips.len() + self.workers.len()];
        before.into_iter().rev().find_map(|first| child.checked_sub(first)).unwrap_or(child)
    }

    /// The rank of each chip in the group of all chips.
    fn ranks(&self) -> Vec<u32> {
        let ranks = self.chips.iter().enumerate();
        ranks.map(|(number, chip)| chip.member().map_or(number as u32, Membership::rank)).collect()
    }

    /// All heaps that the children see.
    fn heaps(&self) -> Vec<Arc<Region>> {
        self.heaps_above.iter().chain([self.heap.region()]).cloned().collect()
    }

    /// Has the Workers below write their tasks into the same file, and the chips, whose parts are returned, what their cores did.
    fn share_trace(&mut self, trace: &mut Trace) -> Vec<ChipTrace> {
        let Some(file) = trace.file().cloned() else { return Vec::new() };
        let chips = self.chip_traces(&file);
        let workers = self.workers.iter_mut().filter_map(|(name, worker)| {
            let part = file.part(name);
            let path = part.path().to_owned();
            worker.set_trace_part(part).then_some(path)
        });
        trace.set_parts(chips.iter().map(|chip| chip.path.clone()).chain(workers).collect());
        chips
    }

    fn chip_traces(&self, file: &TraceFile) -> Vec<ChipTrace> {
        (0..self.chips.len()).map(|chip| file.chip_part(chip)).collect()
    }

    fn up(&self, children: Children, contexts: Vec<ChipContext>, heaps: &[Arc<Region>]) -> Up {
        let joined = self.chips.iter().any(|chip| chip.member().is_some());
        let (next_level, kind) = (self.chips.len() + self.workers.len(), self.platform.chip_memory());
        let (base, spaces) = (BaseGroup::new(joined), AddressSpaces::new(kind, heaps));
        Up::new(children, contexts, base, next_level, self.heap.clone(), kind, spaces)
    }
}

/// The memory that a Worker shares with its children while they come up. Made before any of them is started.
pub(super) struct Memory {
    pub(super) names: Vec<String>,
    pub(super) channels: ChannelSet,
    pub(super) block: Arc<ControlBlock>,
    pub(super) group: Option<ChipGroup>,
    pub(super) heaps: Vec<Arc<Region>>,
    /// Where each chip writes what its cores did; empty without a trace.
    pub(super) chip_traces: Vec<ChipTrace>,
}

impl Memory {
    fn new(plan: &Plan<'_>, names: Vec<String>) -> Result<Self, Failure> {
        let channels = channels(names.len())?;
        fault_point!("worker.init.channels");
        let block = control_block(names.len())?;
        fault_point!("worker.init.control-block");
        let group = match plan.chips.len() {
            0 => None,
            chips => {
                let prepared = ChipGroup::prepare_with(plan.platform, chips as u32, plan.windows);
                Some(prepared.map_err(|error| Failure::from(error).in_phase("init"))?)
            }
        };
        fault_point!("worker.init.group");
        Ok(Self { names, channels, block, group, heaps: plan.heaps(), chip_traces: Vec::new() })
    }
}

/// Brings everything up, or leaves nothing behind.
pub(crate) fn bring_up(mut plan: Plan<'_>) -> Result<Up, Failure> {
    let names = plan.child_names();
    if names.is_empty() {
        // Without children a Worker is up at once, and its runs are empty.
        let children = Children::new(control_block(0)?, Vec::new(), None, Vec::new(), plan.programs, None);
        return Ok(plan.up(children, Vec::new(), &[]));
    }
    if names.len() > MAX_CHILDREN {
        let text = format!(
            "{} processes are asked for; the most is {MAX_CHILDREN}: use fewer chips and sub-workers",
            names.len()
        );
        return Err(Failure::new(ErrorCode::Invalid, text).in_phase("init"));
    }
    let deadline = Deadline::after(plan.init_within.get())
        .map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))?;
    let mut memory = Memory::new(&plan, names)?;
    let all: Vec<usize> = (0..memory.names.len()).collect();
    let mut trace = Trace::wanted(plan.trace, memory.names.len());
    if let Some(trace) = &mut trace {
        memory.chip_traces = plan.share_trace(trace);
    }
    if trace.is_some() || plan.measured {
        memory.block.parent().set_measured();
    }
    let (processes, inherited) = match plan.start {
        Start::Fork => (fork_all(&mut plan, &memory, deadline, &all)?, Some(plan.programs.inherited())),
        Start::Exec => (spawn_all(&plan, &memory, &all)?, None),
    };
    fault_point!("worker.init.started");
    let Memory { names, channels, block, group, heaps, .. } = memory;
    let mut children = Children::new(block, processes, group, plan.ranks(), plan.programs, inherited);
    let progress = Progress::new(&children, &channels);
    let gathered = channels.gather(&Wait::until(deadline).watching(&progress));
    progress.finish();
    fault_point!("worker.init.gathered");
    // Dropping the children kills and reaps all of them.
    let reports = gathered.map_err(|error| explain(error, plan.start, &children, &channels))?;
    let shared = children.group().and_then(ChipGroup::windows);
    let mut contexts = contexts(plan.chips, &reports, &names, shared)?;
    for (context, handle) in contexts.iter_mut().zip(children.handles()) {
        context.pid = handle.pid();
    }
    for (chip, context) in contexts.iter().enumerate() {
        let (device, rank, window) = (context.device, context.rank, context.window_size);
        log::event!(info, chip, device, rank, window, "chip is up");
    }
    children.name_memory(contexts.iter().flat_map(NamedMemory::of_chip));
    children.set_trace(trace);
    children.watch_deaths();
    if plan.chips.iter().any(|chip| chip.member().is_some()) {
        children.keep_chips(IN_A_GROUP);
    } else if plan.platform.chip_memory() == ChipMemoryKind::Device {
        children.keep_chips("what its memory on the device held is gone with it");
    }
    fault_point!("worker.init.up");
    Ok(plan.up(children, contexts, &heaps))
}

/// Starts another process for each child that did not come back from a run and was ended.
pub(crate) fn replace_ended(mut plan: Plan<'_>, up: &mut Up) -> Result<(), Failure> {
    let children = up.children();
    let ended = children.ended();
    if ended.is_empty() {
        return Ok(());
    }
    let deadline = Deadline::after(plan.init_within.get())
        .map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))?;
    let names = plan.child_names();
    let channels = channels(names.len())?;
    let (block, group) = (children.shared_block(), children.group().cloned());
    let chip_traces = children.trace_file().map_or_else(Vec::new, |file| plan.chip_traces(file));
    let memory = Memory { names, channels, block, group, heaps: plan.heaps(), chip_traces };
    let processes = match plan.start {
        Start::Fork => fork_all(&mut plan, &memory, deadline, &ended)?,
        Start::Exec => spawn_all(&plan, &memory, &ended)?,
    };
    for (child, (_, process)) in ended.iter().zip(processes) {
        let pid = process.pid();
        up.children().replace(*child, process, plan.programs);
        up.set_pid(*child, pid);
    }
    let children = up.children();
    let gathered = memory.channels.gather_from(&ended, &Wait::until(deadline).watching(children));
    let Err(error) = gathered else {
        children.watch_deaths();
        return Ok(());
    };
    let failure = explain(error, plan.start, children, &memory.channels);
    Err(children.lose(failure))
}

fn channels(count: usize) -> Result<ChannelSet, Failure> {
    ChannelSet::create(count)
        .map_err(|error| Failure::new(ErrorCode::System, error.to_string()).in_phase("init"))
}

fn control_block(children: usize) -> Result<Arc<ControlBlock>, Failure> {
    ControlBlock::create(children).map(Arc::new).map_err(|error| region_failure(&error).in_phase("init"))
}

fn contexts(
    chips: &[ChipConfig],
    reports: &[Success],
    names: &[String],
    shared: Option<&Region>,
) -> Result<Vec<ChipContext>, Failure> {
    let reported = chips.iter().zip(reports).zip(names);
    let checked = reported.map(|((config, report), name)| {
        context(config, report, shared).ok_or_else(|| {
            let text = format!(
                "{name} bootstrap failed: the window or buffers that it reported are not those of its configuration; run one \
                 build in all processes"
            );
            Failure::new(ErrorCode::Protocol, text).in_phase("init")
        })
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f29_a_chip_that_reports_something_else_than_was_asked_for_is_named() {
        let report = Success { window_base: 4096, window_size: 4096, ..Success::default() };
        let refused = contexts(&[ChipConfig::new(0)], &[report], &["chip 0".to_owned()], None).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "in init: protocol error: chip 0 bootstrap failed: the window or buffers that it reported are not those of its \
             configuration; run one build in all processes"
        );
    }
}
