//! SIGKILL at fault points that a chip passes inside collective calls, in every chip of a Worker (F02, F20): the run fails and names it.
//!
//! A first run records the points; then each of them is the place where one chip dies.
#![allow(missing_docs)]

mod coll_family;
#[path = "../../../collectives/tests/support/mod.rs"]
mod support;

use child_process::ProcessWatch;
use coll_family::{every_call, judge_times};
use deadline::monotonic_ns;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Texts, far, secs};
use worker_orch::{Args, CollectivesOptions, Failure, Task, Worker};

const CHIPS: usize = 3;
/// What a victim says that came to its end alive; longer than a pid, which it replaces.
const DONE: &str = "came to its end";

/// Runs the calls on all chips of a new Worker, each of which does `before` and `after` around them.
fn run(
    before: impl Fn(usize) + Send + Sync + 'static,
    after: impl Fn(usize) + Send + Sync + 'static,
    meanwhile: impl FnOnce() -> u64 + Send,
) -> (Result<(), Failure>, u64, u64) {
    let mut worker =
        Worker::builder().devices(&[0, 1, 2]).init_within(secs(60)).run_within(secs(60)).build().unwrap();
    let calls = move |task: &mut Task<'_>| {
        let group = task.collectives()?;
        before(group.rank());
        every_call(group)?;
        after(group.rank());
        Ok(())
    };
    let calls = worker.register_closure("calls", calls).unwrap();
    worker.init().unwrap();
    let chips: Vec<usize> = (0..CHIPS).collect();
    let ran = std::thread::scope(|scope| {
        let seen = scope.spawn(meanwhile);
        let ran = worker.run(|orch| {
            orch.collectives(&chips, CollectivesOptions::new().pool(256 << 10).timeout(secs(30)))?;
            let members: Vec<_> = chips.iter().map(|chip| (*chip, Args::new())).collect();
            orch.submit_group(calls, &members).map(drop)
        });
        let told_ns = monotonic_ns();
        (ran, told_ns, seen.join().unwrap())
    });
    // A Worker that lost a chip says so again.
    let _ = worker.close();
    ran
}

/// The points of collectives that each chip passes when nothing goes wrong.
fn record() -> BTreeMap<usize, Vec<(String, u64)>> {
    let texts = Arc::new(Texts::new(CHIPS));
    let write = {
        let texts = Arc::clone(&texts);
        move |rank: usize| {
            let passed = fault_points::passed();
            let passed = passed.iter().filter(|pass| pass.point.starts_with("coll."));
            texts.write(
                rank,
                &passed.map(|pass| format!("{} {}\n", pass.point, pass.hit)).collect::<String>(),
            );
        }
    };
    run(|_| fault_points::record(), write, || 0).0.unwrap();
    let points = |rank: usize| {
        let text = texts.read(rank);
        let lines = text.lines().map(|line| line.split_once(' ').unwrap());
        lines.map(|(point, hit)| (point.to_owned(), hit.parse().unwrap())).collect()
    };
    (0..CHIPS).map(|rank| (rank, points(rank))).collect()
}

/// How long after the death of `victim` the run failed; nothing where it did not come to this pass of the point.
fn told_after(victim: usize, point: &str, hit: u64) -> Option<Duration> {
    // What the victim says, and what is said to it.
    let texts = Arc::new(Texts::new(2));
    let (here, plan) = (Arc::clone(&texts), format!("{point}#{hit}=kill"));
    let begin = move |rank: usize| {
        if rank == victim {
            here.write(0, &std::process::id().to_string());
            // A process that is dead and reaped cannot be watched any more.
            while here.read(1).is_empty() {
                std::thread::sleep(Duration::from_micros(100));
            }
            fault_points::arm(plan.parse().unwrap());
        }
    };
    let over = Arc::clone(&texts);
    let watch = || {
        let (end, mut victim) = (far(), None);
        while !end.has_passed() {
            let said = texts.read(0);
            if said == DONE {
                return 0;
            }
            if let (None, Ok(pid)) = (&victim, said.parse()) {
                victim = Some(ProcessWatch::of_process(pid).unwrap());
                texts.write(1, "watched");
            }
            if victim.as_ref().is_some_and(|victim| victim.death().is_some()) {
                return monotonic_ns();
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        panic!("the victim neither died nor came to its end");
    };
    let after = move |rank: usize| {
        if rank == victim {
            over.write(0, DONE);
        }
    };
    let (ran, told_ns, died_ns) = run(begin, after, watch);
    if ran.is_ok() {
        return None;
    }
    let said = ran.map_err(|failure| failure.to_string()).unwrap_err();
    assert!(
        said.contains(&format!("chip {victim}")) && said.contains("SIGKILL"),
        "{victim} died at {point}#{hit}: {said}"
    );
    Some(Duration::from_nanos(told_ns.saturating_sub(died_ns)))
}

/// Kills at those passes of a point that `wants` picks by their number, from 1, in every chip.
fn sweep(wants: impl Fn(u64) -> bool) {
    let (started, mut told, mut names) = (Instant::now(), Vec::new(), BTreeMap::<String, u64>::new());
    let mut missed = 0;
    for (victim, points) in record() {
        let mut seen = BTreeMap::<String, u64>::new();
        for (point, hit) in points {
            let count = seen.entry(point.clone()).or_default();
            *count += 1;
            if !wants(*count) {
                continue;
            }
            match told_after(victim, &point, hit) {
                Some(after) => {
                    told.push(after);
                    *names.entry(point).or_default() += 1;
                }
                // How often a rank waits differs from run to run.
                None if point == "coll.waiting" => missed += 1,
                None => panic!("chip {victim} did not die at {point}#{hit}"),
            }
        }
    }
    eprintln!(
        "{} deaths at {} points, {missed} not reached, sweep {:.1?}",
        told.len(),
        names.len(),
        started.elapsed()
    );
    assert!(names.len() >= 10, "only {names:?}");
    judge_times(told, Duration::from_millis(100));
}

/// Every name of a point in every chip, at some of its passes.
// CO-4, WO-2
#[test]
fn f02_f20_a_chip_killed_at_a_point_of_a_collective_call_is_named() {
    sweep(|pass| matches!(pass, 1 | 2) || pass.is_multiple_of(19));
}

/// All of them. `ASSERT_P99=1` asks for the 100 ms of a Worker, on a machine that does nothing else.
// CO-4, WO-2
#[test]
#[ignore = "takes some minutes"]
fn f02_f20_a_chip_killed_at_any_point_of_any_collective_call_is_named() {
    sweep(|_| true);
}
