//! The scene without a Worker: ranks that are started one by one and meet at a path.
//!
//! # Safety
//! Forks the ranks, from a program of one thread; they use the communicator only.
#![allow(unsafe_code)]

use crate::life::{Limits, forget_plan};
use crate::report::{Call, Diary, Holdings, Report, Told};
use child_process::Child;
use comm_context::comm::{CommError, Membership, Timeout};
use comm_context::conformance::full_cycle;
use comm_sim::SimComm;
use deadline::{Deadline, HowDied, monotonic_ns};
use rendezvous::ranks_at;
use shared_memory::Region;
use std::path::Path;
use std::time::Duration;
use worker_errors::clip;

const NRANKS: u32 = 3;
const SAYS: usize = 1 << 14;

/// Two lives at one path.
pub(crate) fn two_lives(limits: Limits) -> Report {
    let before = Holdings::now();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    let diary = Diary::default();
    for life in [1, 2] {
        diary.life.set(life);
        live(&path, if life == 1 { limits } else { Limits::PATIENT }, &diary);
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
    Report { calls: diary.calls.take(), panicked: None, left }
}

fn live(path: &Path, limits: Limits, diary: &Diary) {
    let says = Region::create("says", NRANKS as usize * SAYS).unwrap();
    let within = Timeout::new(limits.call).unwrap();
    // Only for a rank that stands still; whether the others keep their deadlines is judged by what they say.
    let end = Deadline::after(limits.call + Duration::from_secs(10)).unwrap();
    let mut ranks: Vec<Child> = Vec::new();
    for rank in 0..NRANKS {
        let body = || {
            fault_points::set_rank(rank);
            let begin_ns = monotonic_ns();
            let told = scene(path, rank, within)
                .err()
                .map(|error| Told { code: kind(error.root_cause()), text: error.to_string() });
            let call = Call {
                life: diary.life.get(),
                name: format!("rank {rank}"),
                begin_ns,
                end_ns: monotonic_ns(),
                limit_ms: Some(limits.call.as_millis() as u64),
                error: told,
            };
            let text = serde_json::to_string(&call).unwrap_or_default();
            let _ = says.write(rank as usize * SAYS, clip(&text, SAYS).as_bytes());
            0
        };
        // SAFETY: see the head of the file.
        ranks.push(unsafe { Child::fork(&[], body) }.unwrap());
        if rank == 0 {
            await_host(path, &ranks[0]);
        }
    }
    for (rank, child) in ranks.iter().enumerate() {
        let ended = child.reap(end);
        let mut text = vec![0; SAYS];
        says.read(rank * SAYS, &mut text).unwrap();
        let text = String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned();
        match serde_json::from_str::<Call>(&text) {
            Ok(call) if ended == Some(HowDied::Exited(0)) => diary.calls.borrow_mut().push(call),
            // The watcher knows which rank was to end so, and that it says nothing.
            _ => {
                let how = ended.map_or_else(|| "stood still".to_owned(), |how| how.to_string());
                diary.calls.borrow_mut().push(Call {
                    life: diary.life.get(),
                    name: format!("rank {rank} itself"),
                    begin_ns: 0,
                    end_ns: 0,
                    limit_ms: None,
                    error: Some(Told { code: "Ended".to_owned(), text: how }),
                });
            }
        }
    }
}

/// Returns when there is a meeting, or when its host is not going to hold one.
fn await_host(path: &Path, host: &Child) {
    let (second, probe) = (Duration::from_secs(1), Timeout::new(Duration::from_secs(1)).unwrap());
    let end = Deadline::after(second).unwrap();
    while !matches!(ranks_at(path, probe), Ok(Some(_))) && host.watch().death().is_none() && !end.has_passed()
    {
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn scene(path: &Path, rank: u32, within: Timeout) -> Result<(), CommError> {
    let me = Membership::new(rank, NRANKS)?;
    full_cycle(Box::new(SimComm::rendezvous(path, me, within)?), me, within)
}

fn kind(error: &CommError) -> String {
    let text = format!("{error:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
