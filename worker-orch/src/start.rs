//! Bring-up: shared memory, then processes, then the wait for all of them.
//!
//! # Safety
//! Forks the hands. What runs in them between the fork and their end is this crate's own code, the registered functions, and kernels; it takes
//! no lock that another thread of the parent may have held: it does not print through the standard library, does not log, and uses only memory
//! that the forking thread owns.
#![allow(unsafe_code)]

use crate::board::{Board, MAX_HANDS};
use crate::context::{ChipBuffer, ChipContext};
use crate::domain::Base;
use crate::execute::{ChipExecutor, SubExecutor, WorkerExecutor};
use crate::hands::{Hands, bring_up_table, death_code};
use crate::memory::region_failure;
use crate::progress::Progress;
use crate::serve::serve;
use crate::trace::Trace;
use crate::worker::{Worker, deadline};
use bootstrap_channel::{ChannelSet, GatherError, Success};
use chip_bootstrap::{BringUpPhase, ChipConfig, Entry, PartKind, bring_up_and_publish, comm_failure};
use comm_context::abi::DeviceAddr;
use comm_context::comm::Membership;
use mailbox_atomics::{Child, Region, Wait, WaitError};
use rendezvous::Prepared;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// What a hand ends with when it could not be brought up; the reason is on its channel.
const NOT_UP: i32 = 3;

/// Brings the Worker up, or leaves it as it was.
pub(crate) fn start(worker: &mut Worker) -> Result<(), Failure> {
    let names = hand_names(worker);
    if names.is_empty() {
        // A Worker without hands is up at once, and its runs are empty.
        worker.hands = Some(Hands::new(board(0)?, Vec::new(), None, &worker.programs));
        return Ok(());
    }
    if names.len() > MAX_HANDS {
        let text = format!("{} processes are asked for, {MAX_HANDS} is the most", names.len());
        return Err(Failure::new(ErrorCode::Invalid, text).in_phase("init"));
    }
    let deadline = deadline(worker.init_within)?;
    let channels = ChannelSet::create(names.len())
        .map_err(|error| Failure::new(ErrorCode::System, error.to_string()).in_phase("init"))?;
    let board = board(names.len())?;
    let group = prepare_group(worker)?;
    let trace = Trace::wanted(worker.settings.trace.as_deref(), names.len());
    board.parent().trace.store(trace.is_some().into());
    let children = fork_all(worker, &names, &channels, &board, group.as_ref())?;
    let mut hands = Hands::new(board, children, group, &worker.programs);
    let progress = Progress::new(&hands, &channels, &names);
    let gathered = channels.gather(&Wait::until(deadline).watching(&progress));
    progress.finish();
    match gathered {
        Ok(ready) => {
            hands.trace = trace;
            worker.contexts =
                worker.chips.iter().zip(&ready).map(|(config, chip)| context(config, chip)).collect();
            worker.base = base_of(&worker.chips);
            for (chip, context) in worker.contexts.iter().enumerate() {
                let (device, rank, window) = (context.device, context.rank, context.window_size);
                tracing::info!(chip, device, rank, window, "chip is up");
            }
            worker.hands = Some(hands);
            Ok(())
        }
        // Dropping the hands kills and reaps all of them.
        Err(error) => Err(explain(error, &hands, &channels, &names)),
    }
}

fn hand_names(worker: &Worker) -> Vec<String> {
    let chips = (0..worker.chips.len()).map(|chip| format!("chip {chip}"));
    let workers = worker.workers.iter().map(|(name, _)| name.clone());
    let subs = (0..worker.settings.sub_workers).map(|sub| format!("sub-worker {sub}"));
    chips.chain(workers).chain(subs).collect()
}

fn board(hands: usize) -> Result<Board, Failure> {
    Board::create(hands).map_err(|error| region_failure(&error).in_phase("init"))
}

/// The memory of the chips' group, before anybody is forked, so that it has one address in all of them.
fn prepare_group(worker: &Worker) -> Result<Option<Prepared>, Failure> {
    if worker.chips.is_empty() {
        return Ok(None);
    }
    let prepared = comm_sim::prepare(worker.chips.len() as u32);
    prepared.map(Some).map_err(|error| comm_failure(&error).in_phase("init"))
}

fn base_of(chips: &[ChipConfig]) -> Base {
    let joined = chips.iter().any(|chip| chip.member().is_some());
    let ranks =
        chips.iter().enumerate().map(|(number, chip)| chip.member().map_or(number as u32, Membership::rank));
    Base { ranks: ranks.collect(), joined, next_id: 0 }
}

fn fork_all(
    worker: &mut Worker,
    names: &[String],
    channels: &ChannelSet,
    board: &Board,
    group: Option<&Prepared>,
) -> Result<Vec<(String, Child)>, Failure> {
    let mut heaps: Vec<Arc<Region>> = worker.heaps_above.clone();
    heaps.push(worker.heap.region().clone());
    let mut children = Vec::with_capacity(names.len());
    let (chips, workers) = (worker.chips.len(), worker.workers.len());
    for (number, name) in names.iter().enumerate() {
        let mut keep: Vec<BorrowedFd<'_>> = Vec::new();
        let heap_fds: Vec<Arc<Region>>;
        if number < chips {
            keep.extend(group.map(|group| group.region().fd()));
        } else if number < chips + workers {
            heap_fds = worker.workers[number - chips].1.own_heaps();
            keep.extend(heap_fds.iter().map(|heap| heap.fd()));
        }
        let body = || match number {
            chip if chip < chips => chip_main(worker, chip, channels, board, group, &heaps),
            below if below < chips + workers => {
                worker_main(worker, below - chips, below, channels, board, &heaps)
            }
            _ => sub_main(worker, number, channels, board, &heaps),
        };
        // SAFETY: see the head of this file. Values with closed descriptors (the parent's other children) are not touched by the bodies, and
        // the child ends without running destructors.
        let child = unsafe { Child::fork(&keep, body) }.map_err(|errno| {
            let text =
                format!("{name} could not be started: fork: {errno}; see ulimit -u and the machine's memory");
            Failure::new(ErrorCode::System, text).in_phase("init")
        })?;
        children.push((name.clone(), child));
    }
    Ok(children)
}

impl Worker {
    /// The heaps that this Worker and those below it hand out buffers from.
    fn own_heaps(&self) -> Vec<Arc<Region>> {
        let below = self.workers.iter().flat_map(|(_, child)| child.own_heaps());
        std::iter::once(self.heap.region().clone()).chain(below).collect()
    }
}

/// The life of a chip's process.
fn chip_main(
    worker: &Worker,
    chip: usize,
    channels: &ChannelSet,
    board: &Board,
    group: Option<&Prepared>,
    heaps: &[Arc<Region>],
) -> i32 {
    let Ok(mut channel) = channels.writer(chip) else { return NOT_UP };
    let entry = group.map(|group| Entry::Forked(group.clone()));
    let config = &worker.chips[chip];
    let brought = bring_up_and_publish(
        worker.settings.platform,
        config,
        entry.as_ref(),
        worker.init_within,
        &mut channel,
    );
    let Ok(up) = brought else { return NOT_UP };
    let me = Membership::new(chip as u32, worker.chips.len() as u32).ok();
    let mut executor = ChipExecutor::new(up, &worker.programs, heaps.to_vec(), entry.zip(me));
    serve(board, chip, &mut executor);
    i32::from(executor.chip.tear_down().is_err())
}

/// The life of a sub-worker's process.
fn sub_main(
    worker: &Worker,
    hand: usize,
    channels: &ChannelSet,
    board: &Board,
    heaps: &[Arc<Region>],
) -> i32 {
    let Ok(mut channel) = channels.writer(hand) else { return NOT_UP };
    channel.set_phase(BringUpPhase::Ready as u32);
    if channel.publish_success(&Success::default()).is_err() {
        return NOT_UP;
    }
    serve(board, hand, &mut SubExecutor::new(&worker.programs, heaps.to_vec()));
    0
}

/// The life of the process of a Worker of the next level.
fn worker_main(
    worker: &mut Worker,
    below: usize,
    hand: usize,
    channels: &ChannelSet,
    board: &Board,
    heaps: &[Arc<Region>],
) -> i32 {
    let Ok(mut channel) = channels.writer(hand) else { return NOT_UP };
    channel.set_phase(BringUpPhase::Configuration as u32);
    let programs = worker.programs.clone();
    let child = &mut worker.workers[below].1;
    if let Err(failure) = child.init() {
        let _ = channel.publish_error(failure.root_cause().code, &failure.to_string());
        return NOT_UP;
    }
    channel.set_phase(BringUpPhase::Ready as u32);
    if channel.publish_success(&Success::default()).is_err() {
        return NOT_UP;
    }
    serve(board, hand, &mut WorkerExecutor::new(child, &programs, heaps.to_vec()));
    i32::from(child.close().is_err())
}

/// What the parent knows of a chip from its configuration and its word.
fn context(config: &ChipConfig, said: &Success) -> ChipContext {
    let parts = config.parts_by_name().zip(&said.buffers);
    ChipContext {
        device: config.device(),
        rank: config.member().map_or(0, Membership::rank),
        nranks: config.member().map_or(0, Membership::nranks),
        device_ctx: DeviceAddr(said.device_ctx),
        window_base: DeviceAddr(said.window_base),
        window_size: said.window_size as usize,
        buffers: parts
            .map(|((name, kind), addr): ((&str, PartKind), _)| ChipBuffer {
                name: name.to_owned(),
                kind,
                addr: DeviceAddr(*addr),
            })
            .collect(),
    }
}

/// Why bring-up failed: the first cause, with everybody's phase. A process that died explains what the others then said.
fn explain(error: GatherError, hands: &Hands, channels: &ChannelSet, names: &[String]) -> Failure {
    let table = bring_up_table(channels, names);
    let dead = hands.hands.iter().enumerate().find_map(|(number, hand)| {
        let how = hand.child.lifeline().death()?;
        let how = hand.child.try_reap().unwrap_or(how);
        (how != mailbox_atomics::HowDied::Exited(NOT_UP)).then_some((number, how))
    });
    let phase_of = |number: usize| {
        let code = channels.reader(number).map_or(0, |reader| reader.phase());
        BringUpPhase::from_code(code).map_or("?", BringUpPhase::name)
    };
    let (code, text) = match (dead, error) {
        (Some((number, how)), _) => {
            let pid = hands.hands[number].child.pid();
            let text = format!(
                "{} bootstrap failed: its process {pid} died ({how}) in phase {}",
                names[number],
                phase_of(number)
            );
            (death_code(how), text)
        }
        (None, GatherError::Failed { chip, failed }) => {
            let code = failed.error_code().unwrap_or(ErrorCode::Internal);
            (code, format!("{} bootstrap failed: {}", names[chip], failed.message))
        }
        (None, GatherError::Malformed { chip, cause }) => {
            (ErrorCode::Protocol, format!("{} bootstrap failed: {cause}", names[chip]))
        }
        (None, GatherError::NoReply { silent, cause: WaitError::TimedOut { waited, limit } }) => {
            let who: Vec<&str> = silent.iter().map(|silent| names[silent.chip].as_str()).collect();
            (
                ErrorCode::TimedOut,
                format!("bootstrap timed out after {waited:.1?} of {limit:?}; not ready: {}", who.join(", ")),
            )
        }
        (None, GatherError::NoReply { cause, .. }) => {
            (ErrorCode::PeerDied, format!("bootstrap failed: {cause}"))
        }
    };
    Failure::new(code, format!("{text}\n{table}")).in_phase("init")
}
