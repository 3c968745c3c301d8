//! SIGKILL at every fault point that a rank passes, in every rank, forked and independent (F01, F20, F21).
//!
//! A first run of the scenario records the points; then one rank dies at each of them in turn. The others must get an error
//! that names it, nothing may be left behind (no process, no file, no descriptor), and the next run at the same path works.
#![allow(missing_docs)]

mod support;
#[path = "../../rendezvous/tests/support/unannounced_points.rs"]
mod unannounced_points;

use child_process::Child;
use comm_context::comm::{CommError, Membership, Timeout};
use comm_context::conformance::full_cycle;
use comm_sim::{Prepared, SimComm};
use deadline::{HowDied, monotonic_ns};
use fault_points::{Action, Plan};
use rendezvous::ranks_at;
use serial_test::serial;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::{Entry, Texts, descriptors, far, listing, millis, print_error, rendezvous_path, secs};
use unannounced_points::UNANNOUNCED_POINTS;

const NRANKS: u32 = 3;
/// Groups that run at the same time: they mostly wait for a death to be noticed.
const AT_ONCE: usize = 12;

/// One rank's part, from joining to leaving.
fn scenario(entry: Entry<'_>, rank: u32, within: Timeout) -> Result<(), CommError> {
    full_cycle(entry.open(rank, NRANKS, within)?, Membership::new(rank, NRANKS)?, within)
}

/// One death.
#[derive(Clone, Debug)]
struct Case {
    /// The rank that leads the rendezvous; `None` for ranks that are forked from prepared memory.
    leader: Option<u32>,
    victim: u32,
    point: &'static str,
    hit: u64,
    /// Whether it comes after the last thing that another rank needs of this one.
    harmless: bool,
}

/// A group that runs.
struct Group {
    prepared: Option<Prepared>,
    /// Where independent ranks join, with its folder.
    place: Option<(tempfile::TempDir, PathBuf)>,
    texts: Texts,
    ranks: Vec<(u32, Child)>,
    victim_died_ns: Option<u64>,
}

impl Group {
    /// Starts the ranks, the leader first. Each leaves the text that `body` returns.
    fn start(
        leader: Option<u32>,
        place: Option<(tempfile::TempDir, PathBuf)>,
        body: &dyn Fn(Entry<'_>, u32) -> String,
    ) -> Self {
        let prepared = leader.is_none().then(|| SimComm::prepare_group(NRANKS).unwrap());
        let place = leader.map(|_| place.unwrap_or_else(rendezvous_path));
        let texts = Texts::new(NRANKS as usize, 4096);
        let mut group = Self { prepared, place, texts, ranks: Vec::new(), victim_died_ns: None };
        let first = leader.unwrap_or(0);
        for rank in (0..NRANKS).map(|rank| (rank + first) % NRANKS) {
            let entry = group.entry();
            let child = entry.fork(|| {
                group.texts.write(rank as usize, &body(entry, rank));
                0
            });
            group.ranks.push((rank, child));
            if let (true, Some((_, path))) = (rank == first, &group.place) {
                await_leader(path, &group.ranks[0].1);
            }
        }
        group
    }

    fn entry(&self) -> Entry<'_> {
        match (&self.prepared, &self.place) {
            (Some(prepared), _) => Entry::Forked(prepared),
            (None, Some((_, path))) => Entry::Path(path),
            (None, None) => unreachable!("a group is forked or has a place"),
        }
    }

    fn child(&self, rank: u32) -> &Child {
        &self.ranks.iter().find(|(one, _)| *one == rank).unwrap().1
    }

    fn has_ended(&self) -> bool {
        self.ranks.iter().all(|(_, child)| child.try_reap().is_some())
    }
}

/// Returns when the leader accepts other ranks, or is dead.
fn await_leader(path: &Path, leader: &Child) {
    let end = far();
    while ranks_at(path, secs(5)).unwrap().is_none() && leader.watch().death().is_none() {
        assert!(!end.has_passed());
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The points that each rank passes when nothing goes wrong.
fn record(leader: Option<u32>) -> BTreeMap<u32, Vec<(&'static str, u64)>> {
    // The names are leaked once: a child cannot pass on its `'static` strings.
    let mut seen = BTreeMap::new();
    let group = Group::start(leader, None, &|entry, rank| {
        fault_points::record();
        scenario(entry, rank, secs(60)).unwrap();
        fault_points::passed().iter().map(|pass| format!("{} {}\n", pass.point, pass.hit)).collect()
    });
    for (rank, child) in &group.ranks {
        assert_eq!(child.reap(far()), Some(HowDied::Exited(0)));
        let text: &'static str = group.texts.read(*rank as usize).leak();
        let points =
            text.lines().map(|line| line.split_once(' ').map(|(point, hit)| (point, hit.parse().unwrap())));
        seen.insert(*rank, points.map(Option::unwrap).collect());
    }
    seen
}

fn cases(leader: Option<u32>) -> Vec<Case> {
    let mut cases = Vec::new();
    for (victim, points) in record(leader) {
        let last_needed = points.iter().rposition(|(point, _)| *point == "barrier.arrived").unwrap();
        for (at, (point, hit)) in points.iter().enumerate() {
            cases.push(Case { leader, victim, point, hit: *hit, harmless: at >= last_needed });
        }
    }
    assert!(cases.len() >= 60, "only {} points", cases.len());
    cases
}

impl Case {
    fn may_be_unknown(&self) -> bool {
        self.leader.is_some() && UNANNOUNCED_POINTS.contains(&self.point)
    }

    fn start(&self) -> Group {
        let within = if self.may_be_unknown() { millis(400) } else { secs(20) };
        Group::start(self.leader, None, &|entry, rank| {
            let before = descriptors();
            if rank == self.victim {
                fault_points::arm(Plan::one(self.point, self.victim, self.hit, Action::Kill));
            }
            let result = scenario(entry, rank, within);
            let now = monotonic_ns();
            let outcome = match result {
                Ok(()) => "ok",
                Err(error) => &self.outcome(&error),
            };
            let after = descriptors();
            let leak = if before == after { String::new() } else { format!("; {before} fds, then {after}") };
            format!("{now} {outcome}{leak}")
        })
    }

    /// `named` for an error that names the victim, `missing` for one that only says who is missing.
    fn outcome(&self, error: &CommError) -> String {
        let victim = self.victim;
        match error.root_cause() {
            CommError::PeerDied { rank, pid, .. } if *rank == victim => {
                // Only the parent knows of a rank that died before it joined, and it reports the rank without a pid.
                if pid.is_some() || self.point == "rendezvous.joining" { "named" } else { "no pid" }
                    .to_owned()
            }
            CommError::PeerLeft { reason, .. } if reason.contains(&format!("rank {victim} ")) => {
                "named".to_owned()
            }
            CommError::TimedOut { missing, .. } if self.may_be_unknown() && missing.contains(&victim) => {
                "missing".to_owned()
            }
            // Another survivor's deadline passed first.
            CommError::PeerLeft { reason, .. }
                if self.may_be_unknown() && (reason.contains("gave up") || reason.contains("timed out")) =>
            {
                "missing".to_owned()
            }
            other => format!("wrong: {other}"),
        }
    }

    /// Checks a group that has ended. Returns the longest time from the death to a survivor's error.
    fn check(&self, group: &Group) -> Result<Option<Duration>, String> {
        let died_ns = group.victim_died_ns.ok_or("the victim did not die")?;
        let mut longest = None;
        for rank in (0..NRANKS).filter(|rank| *rank != self.victim) {
            let text = group.texts.read(rank as usize);
            let end = group.child(rank).try_reap();
            let (at, outcome) = text.split_once(' ').ok_or(format!("rank {rank} ended with {end:?}"))?;
            match outcome {
                "named" => {
                    let at: u64 = at.parse().map_err(|_| format!("rank {rank}: {text}"))?;
                    longest = longest.max(Some(Duration::from_nanos(at.saturating_sub(died_ns))));
                }
                "missing" => {}
                "ok" if self.harmless => {}
                other => return Err(format!("rank {rank}: {other}")),
            }
        }
        if let Some((folder, _)) = &group.place
            && !listing(folder.path()).is_empty()
        {
            return Err(format!("left at the path: {:?}", listing(folder.path())));
        }
        Ok(longest)
    }
}

/// Lets the groups run to their end. The parent of forked ranks reports a death that only it can know of.
fn run(groups: &mut [(Case, Group)]) {
    let end = far();
    let mut running = true;
    while running {
        running = !groups.iter().all(|(_, group)| group.has_ended());
        for (case, group) in groups.iter_mut().filter(|(_, group)| group.victim_died_ns.is_none()) {
            if let Some(how @ HowDied::Signalled(_)) = group.child(case.victim).try_reap() {
                group.victim_died_ns = Some(monotonic_ns());
                if case.point == "rendezvous.joining" {
                    group.prepared.as_ref().unwrap().report_death(case.victim, how);
                }
            }
        }
        let hanging = groups.iter().filter(|(_, group)| !group.has_ended()).map(|(case, _)| case);
        assert!(!end.has_passed(), "these hang: {:#?}", hanging.collect::<Vec<_>>());
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Kills once in each case, and lets the next group run at the same path. Returns how long each death took to be noticed.
fn kill(cases: &[Case]) -> Vec<Duration> {
    let (total, mut failed, mut delays) = (cases.len(), Vec::new(), Vec::new());
    for some in cases.chunks(AT_ONCE) {
        let mut groups: Vec<(Case, Group)> = some.iter().map(|case| (case.clone(), case.start())).collect();
        run(&mut groups);
        let mut again = Vec::new();
        for (case, group) in groups {
            match case.check(&group) {
                Ok(longest) => delays.extend(longest),
                Err(why) => failed.push(format!("{case:?}: {why}")),
            }
            let place = group.place;
            let next = Group::start(case.leader, place, &|entry, rank| {
                scenario(entry, rank, secs(60)).map_or_else(|error| error.to_string(), |()| "ok".to_owned())
            });
            again.push((case, next));
        }
        for (case, group) in again {
            for (rank, child) in &group.ranks {
                let (end, text) = (child.reap(far()), group.texts.read(*rank as usize));
                if end != Some(HowDied::Exited(0)) || text != "ok" {
                    failed.push(format!("{case:?}: in the next run rank {rank} ended with {end:?}: {text}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {total} cases:\n{}", failed.len(), failed.join("\n"));
    delays
}

/// Kills at every point, and prints how many deaths that were and how long the slowest took to be noticed.
fn sweep(name: &str, cases: Vec<Case>) {
    let started = Instant::now();
    let (shm, temp) = (listing(Path::new("/dev/shm")), leftovers());
    let (total, mut delays) = (cases.len(), kill(&cases));
    assert_eq!(listing(Path::new("/dev/shm")), shm);
    assert_eq!(leftovers(), temp);
    let none = nix::sys::wait::waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG));
    assert_eq!(none, Err(nix::errno::Errno::ECHILD), "a process is left");
    delays.sort();
    let longest = delays.last().copied().unwrap_or_default();
    let p99 = delays[delays.len() * 99 / 100];
    print_error(&format!(
        "{name}: {total} deaths, noticed after at most {longest:.1?} (p99 {p99:.1?}), sweep {:.1?}",
        started.elapsed()
    ));
    assert!(longest < Duration::from_secs(5), "a death was noticed after {longest:?}");
}

/// Files in the temp folder that our tests and libraries could have left.
fn leftovers() -> Vec<String> {
    listing(&std::env::temp_dir())
        .into_iter()
        .filter(|name| name.contains("chipcomm") || name.contains("rootinfo"))
        .collect()
}

#[test]
#[serial]
fn cs_6_a_rank_that_is_killed_is_named_and_the_next_group_works() {
    // A sample of the sweeps below.
    for leader in [None, Some(1)] {
        kill(&cases(leader).into_iter().step_by(13).collect::<Vec<_>>());
    }
}

#[test]
#[serial]
#[ignore = "slow: cargo xtask ci slow"]
fn f20_f21_a_forked_rank_killed_at_any_point_is_named_and_nothing_is_left() {
    // CS-6, RV-3, RV-6
    sweep("forked", cases(None));
}

#[test]
#[serial]
#[ignore = "slow: cargo xtask ci slow"]
fn f20_f21_an_independent_rank_killed_at_any_point_is_named_and_nothing_is_left() {
    // CS-6, RV-3, RV-4: each rank in turn leads the rendezvous.
    for leader in 0..NRANKS {
        sweep(&format!("independent, rank {leader} leads"), cases(Some(leader)));
    }
}
