//! The suite that every backend passes, on the simulation: forked ranks, and independent ranks that start in random order.
#![allow(missing_docs)]

mod support;

use comm_context::comm::{CommError, Communicator, Membership};
use comm_context::conformance::{self, Case, TestRank};
use comm_sim::SimComm;
use serial_test::serial;
use std::time::Duration;
use support::{Entry, in_processes_started, listing, rendezvous_path, secs};

/// Far above what a case takes on a busy machine.
const TIMEOUT_S: u64 = 60;

/// Runs one case as every rank, each in its own process.
fn run(case: &Case, order: &[u32], entry: Entry<'_>, delays: &[Duration]) {
    println!("{} with {} ranks", case.name, order.len());
    let nranks = order.len() as u32;
    in_processes_started(order, entry, |rank| {
        std::thread::sleep(delays.get(rank as usize).copied().unwrap_or_default());
        let open = |me: Membership| -> Result<Box<dyn Communicator>, CommError> {
            entry.open(me.rank(), me.nranks(), secs(TIMEOUT_S))
        };
        (case.run)(&TestRank { rank, nranks, open: &open, timeout: secs(TIMEOUT_S) })
    });
}

fn forked(nranks: u32) {
    let mut ran = 0;
    for case in conformance::cases(nranks) {
        let prepared = SimComm::prepare_group(nranks).unwrap();
        let order: Vec<u32> = (0..nranks).collect();
        run(case, &order, Entry::Forked(&prepared), &[]);
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
    let (folder, path) = rendezvous_path();
    let mut ran = 0;
    for case in conformance::cases(nranks).filter(|case| only.is_none_or(|name| case.name == name)) {
        let mut order: Vec<u32> = (0..nranks).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, next(last as u64 + 1) as usize);
        }
        let delays: Vec<Duration> =
            order.iter().map(|_| Duration::from_millis(next(skew.as_millis() as u64))).collect();
        run(case, &order, Entry::Path(&path), &delays);
        ran += 1;
    }
    assert!(ran >= if only.is_some() { 1 } else { 14 }, "only {ran} cases");
    assert!(listing(folder.path()).is_empty(), "something was left at the path");
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
#[ignore = "slow: cargo xtask ci slow"]
#[serial]
fn f05_two_seconds_of_skew_at_start_up_fail_no_rank() {
    // One case for each size: what follows the start does not depend on the skew.
    for nranks in [2, 3, 4, 8, 16] {
        let case = "what_a_rank_writes_every_rank_reads_after_the_barrier";
        independent(nranks, Duration::from_millis(2000), Some(case));
    }
}

/// The whole suite with that skew; it sleeps for minutes: `cargo test -p comm-sim -- --ignored two_seconds`.
#[test]
#[serial]
#[ignore = "sleeps for minutes"]
fn the_whole_suite_passes_with_two_seconds_of_skew() {
    for nranks in [2, 3, 4, 8, 16] {
        independent(nranks, Duration::from_millis(2000), None);
    }
}
