//! The scenarios without a Worker: ranks that are started one by one and rendezvous at a path, or at an address.
//!
//! # Safety
//! Forks the ranks, from a program of one thread; they use the communicator or the group only.
#![allow(unsafe_code)]

use crate::log::{Call, CallLog, ErrorReport, Holdings, Report};
use crate::rounds::{Limits, forget_plan};
use child_process::Child;
use comm_context::comm::{CommError, Membership, Phase, Timeout};
use comm_context::conformance::full_cycle;
use comm_sim::SimComm;
use deadline::{Deadline, HowDied, monotonic_ns};
use rendezvous::{Group, Tag, ranks_at};
use shared_memory::Region;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use worker_errors::clip;

const NRANKS: u32 = 3;
const LOG_BYTES: usize = 1 << 14;

/// Where ranks find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path, where they share memory.
    Path,
    /// An address, where each has a copy, and TCP between them.
    Address,
}

/// Two rounds at one place.
pub(crate) fn two_rounds(limits: Limits, place: Place) -> Report {
    let before = Holdings::now();
    let folder = tempfile::tempdir().unwrap();
    let path = match place {
        Place::Path => folder.path().join("rootinfo"),
        Place::Address => free_address(),
    };
    let log = CallLog::default();
    for round in [1, 2] {
        log.round.set(round);
        one_round(place, &path, if round == 1 { limits } else { Limits::PATIENT }, &log);
        forget_plan();
    }
    let mut left: Vec<String> = std::fs::read_dir(folder.path())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| format!("{:?}", entry.path()))
        .collect();
    drop(folder);
    left.extend(Holdings::now().beyond(&before));
    Report { calls: log.calls.take(), panicked: None, left }
}

fn one_round(place: Place, path: &Path, limits: Limits, log: &CallLog) {
    let logged = Region::create("log", NRANKS as usize * LOG_BYTES).unwrap();
    let within = Timeout::new(limits.call).unwrap();
    // Only for a rank that is stopped; whether the others keep their deadlines is checked from what they log.
    let end = Deadline::after(limits.call + Duration::from_secs(10)).unwrap();
    let mut ranks: Vec<Child> = Vec::new();
    for rank in 0..NRANKS {
        let body = || {
            fault_points::set_rank(rank);
            let begin_ns = monotonic_ns();
            let used = match place {
                Place::Path => full(path, rank, within),
                Place::Address => exchanges(path, rank, within),
            };
            let error = used
                .err()
                .map(|error| ErrorReport { code: kind(error.root_cause()), text: error.to_string() });
            let call = Call {
                round: log.round.get(),
                name: format!("rank {rank}"),
                begin_ns,
                end_ns: monotonic_ns(),
                limit_ms: Some(limits.call.as_millis() as u64),
                error,
            };
            let text = serde_json::to_string(&call).unwrap_or_default();
            let _ = logged.write(rank as usize * LOG_BYTES, clip(&text, LOG_BYTES).as_bytes());
            0
        };
        // SAFETY: see the head of the file.
        ranks.push(unsafe { Child::fork(&[], body) }.unwrap());
        if rank == 0 {
            await_leader(path, &ranks[0]);
        }
    }
    for (rank, child) in ranks.iter().enumerate() {
        let ended = child.reap(end);
        let mut text = vec![0; LOG_BYTES];
        logged.read(rank * LOG_BYTES, &mut text).unwrap();
        let text = String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned();
        match serde_json::from_str::<Call>(&text) {
            Ok(call) if ended == Some(HowDied::Exited(0)) => log.calls.borrow_mut().push(call),
            // The watcher knows which rank ends so, and that it logs nothing.
            _ => {
                let how = ended.map_or_else(|| "was stopped".to_owned(), |how| how.to_string());
                log.calls.borrow_mut().push(Call {
                    round: log.round.get(),
                    name: format!("rank {rank} itself"),
                    begin_ns: 0,
                    end_ns: 0,
                    limit_ms: None,
                    error: Some(ErrorReport { code: "Ended".to_owned(), text: how }),
                });
            }
        }
    }
}

/// Returns when the leader waits for joiners, or will not any more.
fn await_leader(path: &Path, leader: &Child) {
    let (second, probe) = (Duration::from_secs(1), Timeout::new(Duration::from_secs(1)).unwrap());
    let end = Deadline::after(second).unwrap();
    while !matches!(ranks_at(path, probe), Ok(Some(_)))
        && leader.watch().death().is_none()
        && !end.has_passed()
    {
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn full(path: &Path, rank: u32, within: Timeout) -> Result<(), CommError> {
    let me = Membership::new(rank, NRANKS)?;
    full_cycle(Box::new(SimComm::rendezvous(path, me, within)?), me, within)
}

/// What ranks on several hosts do: everybody gets a message of everybody, twice.
fn exchanges(address: &Path, rank: u32, within: Timeout) -> Result<(), CommError> {
    let group = Group::rendezvous(address, Membership::new(rank, NRANKS)?, 1 << 20, within)?;
    let everybody: Vec<u32> = (0..NRANKS).collect();
    for id in 1..=2 {
        let step = group.step(Phase::Barrier, within)?;
        let messages = group.exchange(&step, Tag { kind: 1, id }, &everybody, &[rank as u8, id as u8])?;
        assert!((0..).zip(&messages).all(|(rank, message)| *message == [rank, id as u8]), "{messages:?}");
        group.barrier(&step)?;
    }
    Ok(())
}

/// An address of this host whose port nobody has.
fn free_address() -> PathBuf {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    PathBuf::from(format!("tcp://127.0.0.1:{port}"))
}

fn kind(error: &CommError) -> String {
    let text = format!("{error:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
