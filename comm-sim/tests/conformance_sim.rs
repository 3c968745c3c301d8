//! The suite that every backend passes, on the simulation: ranks forked, and ranks that start by themselves in random order.
//!
//! # Safety
//! Forks; the children use the communicator only, and no lock of the test harness.
#![allow(unsafe_code, missing_docs)]

use child_process::Child;
use comm_context::comm::Timeout;
use comm_context::conformance::{self, Case, Seat};
use comm_sim::{SimComm, prepare};
use deadline::{Deadline, HowDied};
use serial_test::serial;
use shared_memory::Region;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use worker_errors::clip;

const TEXT: usize = 4096;

fn patience() -> Timeout {
    Timeout::new(Duration::from_secs(60)).unwrap()
}

/// Runs `body` as every rank, each in its own process, and fails with what the ranks say.
fn in_processes(
    case: &Case,
    nranks: u32,
    order: &[u32],
    keep: &[BorrowedFd<'_>],
    body: &dyn Fn(u32) -> Result<(), String>,
) {
    let texts = Region::create("texts", nranks as usize * TEXT).unwrap();
    let children: Vec<(u32, Child)> = order
        .iter()
        .map(|&rank| {
            let run = || match body(rank) {
                Ok(()) => 0,
                Err(text) => {
                    texts.write(rank as usize * TEXT, clip(&text, TEXT).as_bytes()).unwrap();
                    1
                }
            };
            // SAFETY: see the head of the file.
            (rank, unsafe { Child::fork(keep, run) }.unwrap())
        })
        .collect();
    let end = Deadline::after(Duration::from_secs(120)).unwrap();
    let failed: Vec<String> = children
        .iter()
        .filter(|(_, child)| child.reap(end) != Some(HowDied::Exited(0)))
        .map(|(rank, child)| {
            let mut text = vec![0; TEXT];
            texts.read(*rank as usize * TEXT, &mut text).unwrap();
            let text = String::from_utf8_lossy(&text);
            format!("rank {rank} {:?}: {}", child.try_reap(), text.trim_end_matches('\0'))
        })
        .collect();
    assert!(failed.is_empty(), "{} with {nranks} ranks:\n{}", case.name, failed.join("\n"));
}

fn forked(nranks: u32) {
    let mut ran = 0;
    for case in conformance::cases(nranks) {
        let prepared = prepare(nranks).unwrap();
        let order: Vec<u32> = (0..nranks).collect();
        in_processes(case, nranks, &order, &[prepared.region().fd()], &|rank| {
            let open = |_| Ok(Box::new(SimComm::join(&prepared, rank, patience())?) as Box<_>);
            (case.run)(&Seat { rank, nranks, open: &open, timeout: patience() })
        });
        ran += 1;
    }
    assert!(ran >= 14, "only {ran} cases");
}

fn independent(nranks: u32, skew: Duration, only: Option<&str>) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(nranks);
    let mut next = move |below: u64| {
        // xorshift: any spread of orders will do, as long as it is the same in every run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below.max(1)
    };
    let folder = tempfile::tempdir().unwrap();
    let mut ran = 0;
    for case in conformance::cases(nranks).filter(|case| only.is_none_or(|name| case.name == name)) {
        let path = folder.path().join("rootinfo");
        let mut order: Vec<u32> = (0..nranks).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, next(last as u64 + 1) as usize);
        }
        let delays: Vec<Duration> =
            order.iter().map(|_| Duration::from_millis(next(skew.as_millis() as u64))).collect();
        in_processes(case, nranks, &order, &[], &|rank| {
            std::thread::sleep(delays[rank as usize]);
            let open = |me| Ok(Box::new(SimComm::rendezvous(&path, me, patience())?) as Box<_>);
            (case.run)(&Seat { rank, nranks, open: &open, timeout: patience() })
        });
        ran += 1;
    }
    assert!(ran >= if only.is_some() { 1 } else { 14 }, "only {ran} cases");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was left at the path");
}

macro_rules! sizes {
    ($($name:ident: $nranks:literal;)+) => {
        mod forked_ranks { $(
            #[test]
            #[super::serial]
            fn $name() {
                super::forked($nranks);
            }
        )+ }
        mod independent_ranks { $(
            #[test]
            #[super::serial]
            fn $name() {
                super::independent($nranks, std::time::Duration::from_millis(30), None);
            }
        )+ }
    };
}

sizes! {
    one: 1;
    two: 2;
    three: 3;
    four: 4;
    eight: 8;
    sixteen: 16;
}

#[test]
#[serial]
fn f05_two_seconds_of_skew_at_start_up_are_nobodys_failure() {
    // One case for each size: what comes after the start does not know of the skew.
    for nranks in [2, 3, 4, 8, 16] {
        let case = "what_a_rank_writes_every_rank_reads_after_the_barrier";
        independent(nranks, Duration::from_millis(2000), Some(case));
    }
}

/// The whole suite with that skew; it sleeps for minutes, so it is run by hand: `cargo test -p comm-sim -- --ignored two_seconds`.
#[test]
#[serial]
#[ignore = "sleeps for minutes"]
fn the_whole_suite_stands_two_seconds_of_skew() {
    for nranks in [2, 3, 4, 8, 16] {
        independent(nranks, Duration::from_millis(2000), None);
    }
}
