//! One cycle: a Worker or a group of ranks comes up, works, perhaps loses a process, and ends.

use crate::killer::{Kill, Killer};
use crate::leftovers::Orphans;
use crate::random::Random;
use crate::unit::{Unit, compile};
use crate::{graphs, group, hosts, levels, python};
use comm_context::comm::Timeout;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use worker_orch::Failure;

/// In so many percent of the cycles a process is killed.
const KILL_PERCENT: u64 = 35;
/// Longer than anything takes on a busy machine; a wait that ends by it is a violation.
const LIMIT: Duration = Duration::from_secs(60);

/// What is being done when a process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Phase {
    Init,
    Run,
    Control,
    Close,
}

const PHASES: [Phase; 4] = [Phase::Init, Phase::Run, Phase::Control, Phase::Close];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Forked,
    Executed,
    Levels,
    Group,
    /// Graphs on the cores of chips.
    Graphs,
    /// A group of ranks that find each other over TCP.
    Hosts,
    /// Ranks in Python.
    Python,
}

const KINDS: [Kind; 7] =
    [Kind::Forked, Kind::Executed, Kind::Levels, Kind::Group, Kind::Graphs, Kind::Hosts, Kind::Python];

/// What happened so far.
#[derive(Default)]
pub(crate) struct Tally {
    cycles: [u64; KINDS.len()],
    kills: [u64; PHASES.len()],
    /// Kills of ranks of a group, on one host or over TCP, which have no such phases.
    group_kills: u64,
    /// Cycles in which no process was there to be killed.
    missed: u64,
    /// Cycles that ended with an error that named the kill.
    reported: u64,
}

/// Everything that outlives a cycle.
pub(crate) struct Soak {
    killer: Killer,
    folder: tempfile::TempDir,
    barrier: PathBuf,
    /// A Python that has the package, if there is one.
    python: Option<PathBuf>,
    /// A Worker that is closed and initialised again; others live for one cycle.
    kept: Option<Unit>,
    /// How long each phase usually takes; a kill falls somewhere into it.
    usual: [Duration; PHASES.len()],
    tally: Tally,
    orphans: Orphans,
}

/// A cycle's plan to kill a process, and which one it hit.
pub(crate) struct KillPlan {
    at: Option<(Phase, u32, usize)>,
    pub(crate) victim: Option<i32>,
}

impl KillPlan {
    /// The phase of the kill.
    pub(crate) fn phase(&self) -> Phase {
        self.at.map_or(Phase::Run, |(phase, ..)| phase)
    }
}

pub(crate) fn limit() -> Timeout {
    Timeout::new(LIMIT).unwrap_or_default()
}

impl Soak {
    pub(crate) fn new(python: Option<PathBuf>) -> Result<Self, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let barrier = compile(folder.path())?;
        Ok(Self {
            killer: Killer::start()?,
            folder,
            barrier,
            python,
            kept: None,
            usual: [Duration::from_millis(2); PHASES.len()],
            tally: Tally::default(),
            orphans: Orphans::None,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A Python that has the package.
    pub(crate) fn python(&self) -> Option<&Path> {
        self.python.as_deref()
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether the last cycle may have killed a process that had children.
    pub(crate) fn may_leave_orphans(&self) -> Orphans {
        self.orphans
    }

    /// What a cycle is. The first ones are each of another kind, so that a short soak leaves none out.
    fn kind(&self, number: u64, drawn: usize) -> Kind {
        let first = number.checked_sub(1).and_then(|at| KINDS.get(usize::try_from(at).ok()?));
        match (first, drawn) {
            (Some(Kind::Python), _) if self.python.is_none() => Kind::Forked,
            (Some(kind), _) => *kind,
            (None, 0..=7) => Kind::Executed,
            (None, 8..=19) => Kind::Levels,
            (None, 20..=34) => Kind::Group,
            (None, 35..=49) => Kind::Graphs,
            (None, 50..=59) => Kind::Hosts,
            // An interpreter takes as long to start as twenty of the others.
            (None, 60) if self.python.is_some() => Kind::Python,
            (None, _) => Kind::Forked,
        }
    }

    /// One cycle. What is wrong with it, if something is.
    pub(crate) fn cycle(&mut self, number: u64, random: &mut Random) -> Result<(), String> {
        let kind = self.kind(number, random.among(0, 99));
        let kill = random.chance(KILL_PERCENT);
        // Up to half as long again as the phase takes: some come when it is over.
        let at = (random.one(&PHASES), random.among(0, 150) as u32, random.among(0, 1000));
        let mut plan = KillPlan { at: kill.then_some(at), victim: None };
        let outcome = match kind {
            Kind::Group => group::run(self, &mut plan, random),
            Kind::Levels => levels::run(self, &mut plan, random),
            Kind::Graphs => graphs::run(self, &mut plan, random),
            Kind::Hosts => hosts::run(self, &mut plan, random),
            Kind::Python => python::run(self),
            Kind::Forked | Kind::Executed => self.run(kind, &mut plan, random),
        };
        self.tally.cycles[kind as usize] += 1;
        self.orphans =
            if kind == Kind::Levels && plan.victim.is_some() { Orphans::Expected } else { Orphans::None };
        match plan.victim {
            Some(_) if matches!(kind, Kind::Group | Kind::Hosts) => self.tally.group_kills += 1,
            Some(_) => self.tally.kills[at.0 as usize] += 1,
            None => self.tally.missed += u64::from(kill),
        }
        match (outcome, plan.victim) {
            (Ok(()), _) => Ok(()),
            (Err(failure), Some(_)) if names_death(&failure.to_string()) => {
                self.tally.reported += 1;
                Ok(())
            }
            (Err(failure), Some(pid)) => {
                let phase = at.0;
                Err(format!(
                    "{kind:?}: process {pid} was killed during {phase:?}, and the error is: {failure}"
                ))
            }
            (Err(failure), None) => {
                Err(format!("{kind:?}: no process was killed, and the error is: {failure}"))
            }
        }
    }

    /// Makes one step of a cycle, and kills a process in it when that is planned.
    pub(crate) fn step<T>(&mut self, phase: Phase, plan: &mut KillPlan, step: impl FnOnce() -> T) -> T {
        let usual = &mut self.usual[phase as usize];
        if let Some((_, percent, pick)) = plan.at.filter(|(at, ..)| *at == phase && plan.victim.is_none()) {
            let after = *usual * percent / 100;
            let (result, victim) = self.killer.during(Kill { after, pick }, step);
            plan.victim = victim;
            return result;
        }
        let start = Instant::now();
        let result = step();
        // Kinds differ much; an average keeps it among them.
        *usual = (*usual + start.elapsed()) / 2;
        result
    }

    fn run(&mut self, kind: Kind, plan: &mut KillPlan, random: &mut Random) -> Result<(), Failure> {
        let kept = self.kept.take().filter(|_| kind == Kind::Forked && random.chance(90));
        let mut unit = match kept {
            Some(unit) => unit,
            None => Unit::new(kind, &self.barrier, random)?,
        };
        let used = self.use_worker(&mut unit, plan, random);
        let closed = if random.chance(75) {
            let closed = self.step(Phase::Close, plan, || unit.worker().close());
            if kind == Kind::Forked {
                self.kept = Some(unit);
            }
            closed
        } else {
            self.step(Phase::Close, plan, || drop(unit));
            Ok(())
        };
        used.and(closed)
    }

    fn use_worker(
        &mut self,
        unit: &mut Unit,
        plan: &mut KillPlan,
        random: &mut Random,
    ) -> Result<(), Failure> {
        self.step(Phase::Init, plan, || unit.worker().init())?;
        for _ in 0..random.among(1, 4) {
            self.step(Phase::Run, plan, || unit.run(random))?;
            unit.copy(random)?;
            if random.chance(40) {
                self.step(Phase::Control, plan, || unit.domains(random))?;
            }
        }
        Ok(())
    }
}

/// Whether a text says that a process was killed, as its parent or as its peers put it.
pub(crate) fn names_death(text: &str) -> bool {
    text.contains("SIGKILL") || text.contains("signal 9")
}

impl Tally {
    /// How many processes were killed.
    pub(crate) fn kills(&self) -> u64 {
        self.kills.iter().sum::<u64>() + self.group_kills
    }

    /// Cycles that ended with an error that named the kill.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    /// Cycles in which no process was there to be killed.
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// Cycles by what ran in them.
    pub(crate) fn cycles_by_kind(&self) -> Vec<(String, u64)> {
        KINDS
            .iter()
            .zip(self.cycles)
            .map(|(kind, count)| (format!("{kind:?}").to_lowercase(), count))
            .collect()
    }

    /// Kills by what was being done.
    pub(crate) fn kills_by_phase(&self) -> Vec<(String, u64)> {
        let phases = PHASES.iter().map(|phase| format!("{phase:?}").to_lowercase()).zip(self.kills);
        phases.chain([("in a group".to_owned(), self.group_kills)]).collect()
    }
}
