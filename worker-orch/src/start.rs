//! Bring-up: shared memory, then processes, then the wait for all of them.
//!
//! # Safety
//! Forks the hands. What runs in them between the fork and their end is this crate's own code, the registered functions, and kernels; it takes
//! no lock that another thread of the parent may have held: it does not print through the standard library, does not log, and uses only memory
//! that the forking thread owns.
#![allow(unsafe_code)]

use crate::board::{Board, MAX_HANDS};
use crate::context::{ChipBuffer, ChipContext, window_fits};
use crate::domain::Base;
use crate::exec::{self, Start};
use crate::hands::{Hands, bring_up_table, death_code};
use crate::life::{ChipPost, NOT_UP, Post, chip_main, sub_main, worker_main};
use crate::memory::region_failure;
use crate::progress::Progress;
use crate::trace::Trace;
use crate::worker::{Worker, deadline};
use bootstrap_channel::{ChannelSet, GatherError, Success};
use child_process::Child;
use chip_bootstrap::{BringUpPhase, ChipConfig, ChipGroup, PartKind};
use comm_context::abi::DeviceAddr;
use comm_context::comm::Membership;
use deadline::Deadline;
use fault_points::{fault_child, fault_point};
use mailbox_atomics::{Wait, WaitError};
use shared_memory::Region;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// Brings the Worker up, or leaves it as it was.
pub(crate) fn start(worker: &mut Worker) -> Result<(), Failure> {
    let how = worker.settings.start;
    exec::check(how)?;
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
    fault_point!("worker.init.channels");
    let board = board(names.len())?;
    fault_point!("worker.init.board");
    let group = prepare_group(worker)?;
    fault_point!("worker.init.group");
    let trace = Trace::wanted(worker.settings.trace.as_deref(), names.len());
    board.parent().trace.store(trace.is_some().into());
    let heaps: Vec<Arc<Region>> = worker.heaps_above.iter().chain([worker.heap.region()]).cloned().collect();
    let children = match how {
        Start::Fork => fork_all(worker, &names, &channels, &board, group.as_ref(), &heaps, deadline),
        Start::Exec => exec::spawn_all(worker, &names, &channels, &board, group.as_ref(), &heaps),
    }?;
    fault_point!("worker.init.started");
    let mut hands = Hands::new(board, children, group, &worker.programs);
    let progress = Progress::new(&hands, &channels, &names);
    let gathered = channels.gather(&Wait::until(deadline).watching(&progress));
    progress.finish();
    fault_point!("worker.init.gathered");
    match gathered {
        Ok(ready) => {
            hands.trace = trace;
            let shared = hands.group.as_ref().and_then(ChipGroup::windows);
            let chips = worker.chips.iter().zip(&ready).zip(&names);
            worker.contexts = chips
                .map(|((config, said), name)| context(config, said, shared).ok_or_else(|| nonsense(name)))
                .collect::<Result<_, _>>()?;
            worker.base = base_of(&worker.chips);
            for (chip, context) in worker.contexts.iter().enumerate() {
                let (device, rank, window) = (context.device, context.rank, context.window_size);
                tracing::info!(chip, device, rank, window, "chip is up");
            }
            worker.hands = Some(hands);
            fault_point!("worker.init.up");
            Ok(())
        }
        // Dropping the hands kills and reaps all of them.
        Err(error) => Err(explain(error, how, &hands, &channels, &names)),
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
fn prepare_group(worker: &Worker) -> Result<Option<ChipGroup>, Failure> {
    if worker.chips.is_empty() {
        return Ok(None);
    }
    let prepared = ChipGroup::prepare(worker.settings.platform, worker.chips.len() as u32);
    prepared.map(Some).map_err(|error| Failure::from(error).in_phase("init"))
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
    group: Option<&ChipGroup>,
    heaps: &[Arc<Region>],
    until: Deadline,
) -> Result<Vec<(String, Child)>, Failure> {
    let programs = worker.programs.clone();
    let mut children = Vec::with_capacity(names.len());
    let (chips, workers) = (worker.chips.len(), worker.workers.len());
    for (number, name) in names.iter().enumerate() {
        let mut keep: Vec<BorrowedFd<'_>> = Vec::new();
        let heap_fds: Vec<Arc<Region>>;
        if number < chips {
            keep.extend(group.map(|group| group.region().fd()));
        } else if number < chips + workers {
            heap_fds = worker.workers[number - chips].1.own_heaps();
            // Those above too: that Worker may start its own hands by exec.
            keep.extend(heap_fds.iter().chain(heaps).map(|heap| heap.fd()));
        }
        let post = Post { number, channels, board, programs: &programs, heaps };
        let body = || {
            fault_child!(number as u32);
            match number {
                chip if chip < chips => {
                    let (platform, within) = (worker.settings.platform, worker.init_within);
                    let config = &worker.chips[chip];
                    chip_main(&post, &ChipPost { platform, config, chips, group, within })
                }
                below if below < chips + workers => {
                    let close_within = worker.settings.close_within;
                    worker_main(&post, &mut worker.workers[below - chips].1, until, close_within)
                }
                _ => sub_main(&post),
            }
        };
        // SAFETY: see the head of this file. Values with closed descriptors (the parent's other children) are not touched by the bodies, and
        // the child ends without running destructors.
        let child = unsafe { Child::fork(&keep, body) }.map_err(|errno| {
            let text =
                format!("{name} could not be started: fork: {errno}; see ulimit -u and the machine's memory");
            Failure::new(ErrorCode::System, text).in_phase("init")
        })?;
        children.push((name.clone(), child));
        fault_point!("worker.init.hand-started");
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

/// What the parent knows of a chip from its configuration and its word; `None` when the one does not fit the other.
fn context(config: &ChipConfig, said: &Success, shared: Option<&Region>) -> Option<ChipContext> {
    let (base, size) = (said.window_base, said.window_size);
    let wanted = config.member().map_or(0, |_| config.window_size());
    let fits = if wanted > 0 { window_fits(base, size, wanted, shared) } else { (base, size) == (0, 0) };
    // Inside the configured size, hence inside the window.
    let expected = config.carve().ok()?.into_iter().map(|offset| base.wrapping_add(offset as u64));
    if !fits || !said.buffers.iter().copied().eq(expected) {
        return None;
    }
    let parts = config.parts_by_name().zip(&said.buffers);
    Some(ChipContext {
        device: config.device(),
        rank: config.member().map_or(0, Membership::rank),
        nranks: config.member().map_or(0, Membership::nranks),
        device_ctx: DeviceAddr(said.device_ctx),
        window_base: DeviceAddr(base),
        window_size: size as usize,
        buffers: parts
            .map(|((name, kind), addr): ((&str, PartKind), _)| ChipBuffer {
                name: name.to_owned(),
                kind,
                addr: DeviceAddr(*addr),
            })
            .collect(),
    })
}

fn nonsense(name: &str) -> Failure {
    let text = format!(
        "{name} bootstrap failed: the window and buffers that it tells of are not those it was asked for"
    );
    Failure::new(ErrorCode::Protocol, text).in_phase("init")
}

/// Why bring-up failed: the first cause, with everybody's phase. A process that died explains what the others then said.
fn explain(
    error: GatherError,
    start: Start,
    hands: &Hands,
    channels: &ChannelSet,
    names: &[String],
) -> Failure {
    let table = bring_up_table(channels, names);
    let dead = hands.hands.iter().enumerate().find_map(|(number, hand)| {
        let how = hand.child.watch().death()?;
        let how = hand.child.try_reap().unwrap_or(how);
        (how != deadline::HowDied::Exited(NOT_UP)).then_some((number, how))
    });
    let phase_of =
        |number: usize| BringUpPhase::from_code(channels.reader(number).map_or(0, |reader| reader.phase()));
    // A hand that was started by exec and never said a word has most likely not been asked to.
    let advice = |number: usize| match (start, phase_of(number)) {
        (Start::Exec, Some(BringUpPhase::NotStarted)) => format!("; {}", exec::ADVICE),
        _ => String::new(),
    };
    let (code, text) = match (dead, error) {
        (Some((number, how)), _) => {
            let pid = hands.hands[number].child.pid();
            let text = format!(
                "{} bootstrap failed: its process {pid} died ({how}) in phase {}{}",
                names[number],
                phase_of(number).map_or("?", BringUpPhase::name),
                advice(number)
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
                format!(
                    "bootstrap timed out after {waited:.1?} of {limit:?}; not ready: {}{}",
                    who.join(", "),
                    silent.first().map_or_else(String::new, |silent| advice(silent.chip))
                ),
            )
        }
        (None, GatherError::NoReply { cause, .. }) => {
            (ErrorCode::PeerDied, format!("bootstrap failed: {cause}"))
        }
    };
    Failure::new(code, format!("{text}\n{table}")).in_phase("init")
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::abi::DType;

    #[test]
    fn f29_a_chip_that_tells_of_another_window_than_it_was_asked_for_is_not_up() {
        let shared = Region::create("t", 16384).unwrap();
        let base = shared.base().as_ptr() as u64;
        let config = ChipConfig::new(0)
            .communicator(Membership::new(0, 1).unwrap())
            .window(4096)
            .buffer("x", DType::Float32, 16)
            .region("signals", 128);
        let said = Success {
            device_ctx: 1,
            window_base: base + 4096,
            window_size: 8192,
            buffers: vec![base + 4096, base + 4160],
        };
        let up = context(&config, &said, Some(&shared)).unwrap();
        assert_eq!((up.window_size, up.buffers.len()), (8192, 2));
        let wrong = |change: fn(&mut Success)| {
            let mut wrong = said.clone();
            change(&mut wrong);
            context(&config, &wrong, Some(&shared))
        };
        assert_eq!(wrong(|said| said.window_base = u64::MAX), None);
        assert_eq!(wrong(|said| said.window_size = u64::MAX), None);
        assert_eq!(wrong(|said| said.window_size = 4095), None);
        assert_eq!(wrong(|said| said.buffers.truncate(1)), None);
        assert_eq!(wrong(|said| said.buffers[1] += 1), None);
        assert_eq!(wrong(|said| said.buffers.push(0)), None);
        let bare = ChipConfig::new(0);
        assert!(context(&bare, &Success::default(), Some(&shared)).is_some());
        assert_eq!(context(&bare, &said, Some(&shared)), None);
    }
}
