//! A group of ranks without a Worker for one cycle: forked into prepared memory, or with a rendezvous at a
//! path.
//!
//! # Safety
//! Forks the ranks. They use the communicator and shared memory, print straight to standard error, and take
//! no lock of another thread.
#![allow(unsafe_code)]

use crate::cycle::{KillPlan, Soak, limit};
use crate::random::Random;
use child_process::Child;
use collectives::{Collectives, Op, Options};
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec, Membership};
use comm_sim::{Prepared, SimComm};
use deadline::{Deadline, HowDied};
use mailbox_atomics::WordU32;
use nix::sys::signal::Signal;
use shared_memory::Region;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;
use worker_orch::{ErrorCode, Failure};

/// A rank's exit codes besides 0.
const REPORTED_DEATH: i32 = 10;
const OTHER_ERROR: i32 = 11;

const KILLED: HowDied = HowDied::Signalled(Signal::SIGKILL as i32);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// How the ranks find each other.
enum Entry {
    Forked(Prepared),
    Path(PathBuf),
}

/// One rank of a group.
pub(crate) struct Member<'a> {
    pub(crate) rank: u32,
    pub(crate) nranks: u32,
    words: &'a Region,
}

impl Member<'_> {
    /// Says that this rank knows the others.
    pub(crate) fn joined(&self) {
        if let Ok(word) = self.words.words::<WordU32>(4 * self.rank as usize) {
            word.store_and_wake(1);
        }
    }
}

pub(crate) fn run(soak: &mut Soak, plan: &mut KillPlan, random: &mut Random) -> Result<(), Failure> {
    let nranks = random.among(2, 4) as u32;
    let entry = if random.chance(50) {
        Entry::Forked(SimComm::prepare_group(nranks).map_err(|error| failure(&error))?)
    } else {
        Entry::Path(soak.folder().join("rootinfo"))
    };
    let prepared = if let Entry::Forked(group) = &entry { Some(group) } else { None };
    ranks(soak, plan, nranks, prepared, &|member| work(&entry, member))
}

/// What each rank of a group does.
type Work<'a> = dyn Fn(&Member<'_>) -> Result<(), Box<dyn Error>> + 'a;

/// Forks ranks that do `work`, kills one of them if that is planned, and judges how they ended.
pub(crate) fn ranks(
    soak: &mut Soak,
    plan: &mut KillPlan,
    nranks: u32,
    prepared: Option<&Prepared>,
    work: &Work<'_>,
) -> Result<(), Failure> {
    let words = Region::create("chipcomm-soak", 4096);
    let words = words.map_err(|error| Failure::new(ErrorCode::System, error.to_string()))?;
    let mut ranks = Vec::new();
    for rank in 0..nranks {
        let body = || match work(&Member { rank, nranks, words: &words }) {
            Ok(()) => 0,
            Err(error) if names_death(error.as_ref()) => REPORTED_DEATH,
            Err(error) => {
                eprintln!("rank {rank}: {error}");
                OTHER_ERROR
            }
        };
        let keep: Vec<_> = prepared.iter().flat_map(|group| group.fds()).collect();
        // SAFETY: see the head of this file.
        let child = unsafe { Child::fork(&keep, body) };
        ranks.push(child.map_err(|errno| Failure::new(ErrorCode::System, format!("fork: {errno}")))?);
    }
    // Ranks are unknown to each other until they have joined: only then may one be killed.
    if prepared.is_none() {
        let has_joined =
            |rank: u32| words.words::<WordU32>(4 * rank as usize).is_ok_and(|word| word.load() == 1);
        while !(0..nranks).all(has_joined) && ranks.iter().all(|rank| rank.try_reap().is_none()) {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    let ends = soak.step(plan.phase(), plan, || reap(&ranks, prepared));
    let good = |end: &Option<HowDied>| matches!(end, Some(HowDied::Exited(0 | REPORTED_DEATH) | KILLED));
    if let Some(rank) = ends.iter().position(|end| !good(end)) {
        return Err(Failure::new(ErrorCode::Internal, format!("rank {rank} ended with {:?}", ends[rank])));
    }
    if ends.contains(&Some(KILLED)) {
        return Err(Failure::new(ErrorCode::PeerDied, KILLED.to_string()));
    }
    match ends.iter().position(|end| *end != Some(HowDied::Exited(0))) {
        Some(rank) => {
            Err(Failure::new(ErrorCode::Internal, format!("rank {rank} reported a death, and no rank died")))
        }
        None => Ok(()),
    }
}

/// A peer's death, or a peer that left because of one.
fn names_death(error: &(dyn Error + 'static)) -> bool {
    let died = |error: &CommError| matches!(error.root_cause(), CommError::PeerDied { .. });
    let mut next = Some(error);
    while let Some(cause) = next {
        if cause.downcast_ref().is_some_and(died) {
            return true;
        }
        next = cause.source();
    }
    error.to_string().contains("died (")
}

fn failure(error: &CommError) -> Failure {
    Failure::new(ErrorCode::System, error.to_string())
}

/// What one rank does with its group.
fn work(entry: &Entry, member: &Member<'_>) -> Result<(), Box<dyn Error>> {
    let (rank, nranks) = (member.rank, member.nranks);
    let comm = match entry {
        Entry::Forked(group) => SimComm::join(group, rank, limit())?,
        Entry::Path(path) => SimComm::rendezvous(path, Membership::new(rank, nranks)?, limit())?,
    };
    member.joined();
    let window = comm.alloc_windows(1 << 16, limit())?;
    comm.write(window.base, &[rank as u8; 64])?;
    let all: Vec<u32> = (0..nranks).collect();
    for round in 0..8 {
        comm.barrier(limit())?;
        let id = AllocationId(round);
        let spec = DomainSpec { id, ranks: &all, domain_rank: rank, window_size: 8192 };
        let domain = comm.alloc_domain(&spec, limit())?;
        comm.write(domain.base, &[round as u8; 64])?;
        comm.release_domain(id, limit())?;
    }
    make_calls(&comm, nranks)?;
    comm.barrier(limit())?;
    Ok(Box::new(comm).destroy(limit())?)
}

/// A group of collectives for some calls, from memory of the process and in its window.
fn make_calls(comm: &SimComm, nranks: u32) -> Result<(), Box<dyn Error>> {
    let group = Collectives::new(comm, Options::new().timeout(limit()))?;
    let mut tensor = group.alloc::<f32>(4096)?;
    for round in 1..=8_u16 {
        let (mine, sum) = (f32::from(round), f32::from(round) * nranks as f32);
        let mut staged = vec![mine; 300 * usize::from(round)];
        group.all_reduce(&mut staged, Op::Sum)?;
        tensor.as_mut_slice()?.fill(mine);
        group.all_reduce(&mut tensor, Op::Sum)?;
        if staged.iter().chain(tensor.as_slice()?).any(|value| *value != sum) {
            return Err(format!("a wrong sum in round {round}").into());
        }
    }
    drop(tensor);
    Ok(group.close()?)
}

/// Waits for all. The first death is reported to the others, as a parent of forked ranks does.
fn reap(ranks: &[Child], prepared: Option<&Prepared>) -> Vec<Option<HowDied>> {
    let mut ends: Vec<Option<HowDied>> = vec![None; ranks.len()];
    let Ok(deadline) = Deadline::after(limit().get()) else { return ends };
    while ends.contains(&None) && !deadline.has_passed() {
        for (rank, child) in ranks.iter().enumerate() {
            let end = child.try_reap();
            if let (Some(how @ HowDied::Signalled(_)), Some(group)) = (end, prepared) {
                group.report_death(rank as u32, how);
            }
            ends[rank] = end;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    ends
}
