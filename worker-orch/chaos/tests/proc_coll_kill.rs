//! SIGKILL at every fault point that a rank passes, in every rank (F02, F20): the others learn who it was.
//!
//! A first run of the scenario records the points; then each of them is the place where one rank dies.
//!
//! # Safety
//! Forks ranks that use the communicator and the group only.
#![allow(missing_docs, unsafe_code)]

mod coll_family;
#[path = "../../../collectives/tests/support/mod.rs"]
mod support;

use child_process::Child;
use coll_family::{every_call, judge_times};
use collectives::{CollError, Collectives, Options};
use comm_context::comm::{CommError, Communicator};
use comm_sim::{Prepared, SimComm};
use deadline::{HowDied, monotonic_ns};
use fault_points::{Action, Plan};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use support::{Texts, far, secs};

const NRANKS: usize = 3;
/// Groups that run at a time: they mostly wait for a death to be noticed. `AT_ONCE=1` shows how long that takes where nothing else runs.
fn at_once() -> usize {
    std::env::var("AT_ONCE").map_or(12, |text| text.parse().expect("AT_ONCE=1"))
}

/// One rank's part: a group, its calls, and a part of it.
fn scenario(comm: &SimComm) -> Result<(), CollError> {
    let group = Collectives::new(comm, Options::new().timeout(secs(30)).pool(256 << 10))?;
    every_call(&group)?;
    let me = group.rank();
    let part = group.split(Some(me as u32 / 2), 0)?;
    if let Some(part) = part {
        part.barrier()?;
        part.close()?;
    }
    group.close()
}

/// One death.
#[derive(Clone, Debug)]
struct Case {
    victim: usize,
    point: &'static str,
    hit: u64,
    /// Whether it comes after the last thing that another rank needs of this one.
    is_last: bool,
}

struct Group {
    _prepared: Prepared,
    texts: Texts,
    children: Vec<Child>,
    victim_died_ns: Option<u64>,
}

fn start(body: &dyn Fn(SimComm) -> String) -> Group {
    let prepared = SimComm::prepare_group(NRANKS as u32).unwrap();
    let texts = Texts::new(NRANKS);
    let children = (0..NRANKS).map(|rank| {
        let run = || {
            let comm = SimComm::join(&prepared, rank as u32, secs(60)).unwrap();
            texts.write(rank, &body(comm));
            0
        };
        // SAFETY: see the head of the file.
        unsafe { Child::fork(&prepared.fds().collect::<Vec<_>>(), run) }.unwrap()
    });
    let children = children.collect();
    Group { _prepared: prepared, texts, children, victim_died_ns: None }
}

/// The points of this crate that each rank passes when nothing goes wrong.
fn record() -> BTreeMap<usize, Vec<(&'static str, u64)>> {
    let group = start(&|comm| {
        fault_points::record();
        scenario(&comm).unwrap();
        let passed = fault_points::passed();
        passed
            .iter()
            .filter(|pass| pass.point.starts_with("coll."))
            .map(|pass| format!("{} {}\n", pass.point, pass.hit))
            .collect()
    });
    let mut seen = BTreeMap::new();
    for (rank, child) in group.children.iter().enumerate() {
        assert_eq!(child.reap(far()), Some(HowDied::Exited(0)));
        // Leaked once: a child cannot pass on its `'static` strings.
        let text: &'static str = group.texts.read(rank).leak();
        let points = text.lines().map(|line| line.split_once(' ').unwrap());
        seen.insert(rank, points.map(|(point, hit)| (point, hit.parse().unwrap())).collect());
    }
    seen
}

impl Case {
    fn start(&self) -> Group {
        start(&|comm| {
            if comm.rank() as usize == self.victim {
                fault_points::arm(Plan::one(self.point, self.victim as u32, self.hit, Action::Kill));
            }
            let outcome = scenario(&comm);
            let now = monotonic_ns();
            format!("{now} {}", outcome.map_or_else(|error| self.judge(&error), |()| "ok".to_owned()))
        })
    }

    /// Whether the error names the victim.
    fn judge(&self, error: &CollError) -> String {
        let cause = match error.root_cause() {
            CollError::Wait { cause, .. } | CollError::Setup { cause, .. } => cause.root_cause(),
            other => return format!("wrong: {other}"),
        };
        let victim = self.victim as u32;
        match cause {
            CommError::PeerDied { rank, pid: Some(_), .. } if *rank == victim => "told".to_owned(),
            CommError::PeerLeft { reason, .. } if reason.contains(&format!("rank {victim} ")) => {
                "told".to_owned()
            }
            other => format!("wrong: {other}"),
        }
    }

    fn check(&self, group: &Group) -> Result<Option<Duration>, String> {
        let died_ns = match group.victim_died_ns {
            // How often a rank waits differs from run to run.
            None if self.point == "coll.waiting" => return Ok(None),
            died => died.ok_or("the victim did not die")?,
        };
        let mut longest = None;
        for rank in (0..NRANKS).filter(|rank| *rank != self.victim) {
            let said = group.texts.read(rank);
            let (at, outcome) = said.split_once(' ').ok_or(format!("rank {rank} said {said:?}"))?;
            match outcome {
                "told" => {
                    let at: u64 = at.parse().map_err(|_| said.clone())?;
                    longest = longest.max(Some(Duration::from_nanos(at.saturating_sub(died_ns))));
                }
                "ok" if self.is_last => {}
                other => return Err(format!("rank {rank}: {other}")),
            }
        }
        Ok(longest)
    }
}

/// Lets the groups run to their end, and notes when each victim died.
fn run(groups: &mut [(Case, Group)]) {
    let end = far();
    loop {
        let mut running = false;
        for (case, group) in groups.iter_mut() {
            if group.victim_died_ns.is_none()
                && group.children[case.victim].try_reap() == Some(HowDied::Signalled(9))
            {
                group.victim_died_ns = Some(monotonic_ns());
            }
            running |= !group.children.iter().all(|child| child.try_reap().is_some());
        }
        if !running {
            return;
        }
        let hanging =
            groups.iter().filter(|(_, group)| !group.children.iter().all(|child| child.try_reap().is_some()));
        assert!(!end.has_passed(), "these hang: {:#?}", hanging.map(|(case, _)| case).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn sweep(cases: &[Case]) {
    let started = Instant::now();
    let (mut failed, mut told) = (Vec::new(), Vec::new());
    for some in cases.chunks(at_once()) {
        let mut groups: Vec<(Case, Group)> = some.iter().map(|case| (case.clone(), case.start())).collect();
        run(&mut groups);
        for (case, group) in groups {
            match case.check(&group) {
                Ok(longest) => told.extend(longest),
                Err(why) => failed.push(format!("{case:?}: {why}")),
            }
        }
    }
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
    eprintln!("{} deaths, sweep {:.1?}", cases.len(), started.elapsed());
    judge_times(told, Duration::from_millis(200));
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (victim, points) in record() {
        let last = points.len() - 1;
        for (at, (point, hit)) in points.into_iter().enumerate() {
            cases.push(Case { victim, point, hit, is_last: at == last });
        }
    }
    let mut names: Vec<_> = cases.iter().map(|case| case.point).collect();
    names.sort_unstable();
    names.dedup();
    eprintln!("{} points by {} names: {names:?}", cases.len(), names.len());
    assert!(names.len() >= 15, "only {names:?}");
    cases
}

/// Every name of a point in every rank, at some of its passes.
// CO-4
#[test]
fn f02_f20_a_rank_killed_at_a_point_of_a_call_is_named() {
    let mut seen = BTreeMap::<(usize, &str), u64>::new();
    let some = |case: &Case| {
        let count = seen.entry((case.victim, case.point)).or_default();
        *count += 1;
        matches!(*count, 1 | 2) || count.is_multiple_of(19) || case.is_last
    };
    let cases: Vec<Case> = cases();
    let mut some = some;
    sweep(&cases.into_iter().filter(|case| some(case)).collect::<Vec<_>>());
}

/// All of them. `ASSERT_P99=1 AT_ONCE=1` asks for the 200 ms of the contract, on a machine that does nothing else.
// CO-4
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn f02_f20_a_rank_killed_at_any_point_of_any_call_is_named() {
    sweep(&cases());
}
