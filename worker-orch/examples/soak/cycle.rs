//! One cycle: a Worker or a group of ranks comes up, works, perhaps loses somebody, and goes.

use crate::killer::{Killer, Order};
use crate::leftovers::Orphans;
use crate::random::Random;
use crate::{group, levels};
use comm_context::abi::DType;
use comm_context::comm::{Membership, Timeout};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use worker_orch::{
    Access, Args, ChipConfig, ErrorCode, Failure, Orchestrator, Program, Start, Task, TaskFn, Worker,
};

/// What hands that were started by exec can run.
pub(crate) const FUNCTIONS: &[(&str, TaskFn)] = &[("add", add), ("meet", meet)];

/// In this part of the cycles somebody is killed.
const KILL_PERCENT: u64 = 35;
/// Longer than anything takes on a busy machine; a wait that ends by it is a violation.
const LIMIT: Duration = Duration::from_secs(60);

/// What is being done when somebody is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Phase {
    Init,
    Run,
    Control,
    Close,
}

const PHASES: [Phase; 4] = [Phase::Init, Phase::Run, Phase::Control, Phase::Close];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Forked,
    Executed,
    Levels,
    Group,
}

const KINDS: [Kind; 4] = [Kind::Forked, Kind::Executed, Kind::Levels, Kind::Group];

/// What happened so far.
#[derive(Default)]
pub(crate) struct Tally {
    cycles: [u64; KINDS.len()],
    kills: [u64; PHASES.len()],
    /// Kills of ranks of a group, which have no such phases.
    group_kills: u64,
    /// Cycles in which a kill came too late or too early to hit anybody.
    missed: u64,
    /// Cycles that ended with an error, which named a kill.
    told: u64,
}

/// Everything that outlives a cycle.
pub(crate) struct Soak {
    killer: Killer,
    folder: tempfile::TempDir,
    barrier: PathBuf,
    /// A Worker that is closed and initialised again; others live for one cycle.
    kept: Option<Unit>,
    /// How long each phase usually takes: a kill falls somewhere into it.
    usual: [Duration; PHASES.len()],
    tally: Tally,
    orphans: Orphans,
}

/// A cycle's plan to kill, and whom it hit.
pub(crate) struct Fate {
    at: Option<(Phase, u32, usize)>,
    pub(crate) victim: Option<i32>,
}

impl Fate {
    /// The phase in which somebody is to be killed.
    pub(crate) fn phase(&self) -> Phase {
        self.at.map_or(Phase::Run, |(phase, ..)| phase)
    }
}

/// A Worker with chips that form a group, and what runs on them.
struct Unit {
    worker: Worker,
    chips: usize,
    subs: usize,
    add: Program,
    meet: Program,
    barrier: Program,
}

pub(crate) fn limit() -> Timeout {
    Timeout::new(LIMIT).unwrap_or_default()
}

impl Soak {
    pub(crate) fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let barrier = compile(folder.path())?;
        Ok(Self {
            killer: Killer::start()?,
            folder,
            barrier,
            kept: None,
            usual: [Duration::from_millis(2); PHASES.len()],
            tally: Tally::default(),
            orphans: Orphans::None,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether the last cycle may have killed a process that had children.
    pub(crate) fn may_leave_orphans(&self) -> Orphans {
        self.orphans
    }

    /// One cycle. What is wrong with it, if something is.
    pub(crate) fn cycle(&mut self, random: &mut Random) -> Result<(), String> {
        let kind = match random.among(0, 99) {
            0..=7 => Kind::Executed,
            8..=19 => Kind::Levels,
            20..=39 => Kind::Group,
            _ => Kind::Forked,
        };
        let kill = random.chance(KILL_PERCENT);
        // Up to half as long again as the phase takes: some come when it is over.
        let at = (random.one(&PHASES), random.among(0, 150) as u32, random.among(0, 1000));
        let mut fate = Fate { at: kill.then_some(at), victim: None };
        let outcome = match kind {
            Kind::Group => group::live(self, &mut fate, random),
            Kind::Levels => levels::live(self, &mut fate, random),
            Kind::Forked | Kind::Executed => self.live(kind, &mut fate, random),
        };
        self.tally.cycles[kind as usize] += 1;
        self.orphans =
            if kind == Kind::Levels && fate.victim.is_some() { Orphans::Expected } else { Orphans::None };
        match fate.victim {
            Some(_) if kind == Kind::Group => self.tally.group_kills += 1,
            Some(_) => self.tally.kills[at.0 as usize] += 1,
            None => self.tally.missed += u64::from(kill),
        }
        match (outcome, fate.victim) {
            (Ok(()), _) => Ok(()),
            (Err(failure), Some(_)) if names_death(&failure.to_string()) => {
                self.tally.told += 1;
                Ok(())
            }
            (Err(failure), Some(pid)) => {
                let phase = at.0;
                Err(format!(
                    "{kind:?}: process {pid} was killed during {phase:?}, and the error is: {failure}"
                ))
            }
            (Err(failure), None) => Err(format!("{kind:?}: nobody was killed, and the error is: {failure}")),
        }
    }

    /// Makes one step of a cycle, and kills somebody in it when that is its fate.
    pub(crate) fn step<T>(&mut self, phase: Phase, fate: &mut Fate, step: impl FnOnce() -> T) -> T {
        let usual = &mut self.usual[phase as usize];
        if let Some((_, percent, pick)) = fate.at.filter(|(at, ..)| *at == phase && fate.victim.is_none()) {
            let after = *usual * percent / 100;
            let (result, victim) = self.killer.during(Order { after, pick }, step);
            fate.victim = victim;
            return result;
        }
        let start = Instant::now();
        let result = step();
        // Kinds differ by far; half of the old keeps it among them.
        *usual = (*usual + start.elapsed()) / 2;
        result
    }

    fn live(&mut self, kind: Kind, fate: &mut Fate, random: &mut Random) -> Result<(), Failure> {
        let kept = self.kept.take().filter(|_| kind == Kind::Forked && random.chance(90));
        let mut unit = match kept {
            Some(unit) => unit,
            None => Unit::new(kind, &self.barrier, random)?,
        };
        let lived = self.use_up(&mut unit, fate, random);
        let closed = if random.chance(75) {
            let closed = self.step(Phase::Close, fate, || unit.worker.close());
            if kind == Kind::Forked {
                self.kept = Some(unit);
            }
            closed
        } else {
            self.step(Phase::Close, fate, || drop(unit));
            Ok(())
        };
        lived.and(closed)
    }

    fn use_up(&mut self, unit: &mut Unit, fate: &mut Fate, random: &mut Random) -> Result<(), Failure> {
        self.step(Phase::Init, fate, || unit.worker.init())?;
        for _ in 0..random.among(1, 4) {
            self.step(Phase::Run, fate, || unit.run(random))?;
            unit.copy(random)?;
            if random.chance(40) {
                self.step(Phase::Control, fate, || unit.domains(random))?;
            }
        }
        Ok(())
    }
}

/// Whether a text says that somebody was killed: by its parent's word, or by its peers'.
pub(crate) fn names_death(text: &str) -> bool {
    text.contains("SIGKILL") || text.contains("signal 9")
}

impl Unit {
    fn new(kind: Kind, barrier: &Path, random: &mut Random) -> Result<Self, Failure> {
        let (chips, subs) = (random.among(2, 4), random.among(0, 1));
        let devices: Vec<i32> = (0..chips as i32).collect();
        let start = if kind == Kind::Executed { Start::Exec } else { Start::Fork };
        let builder = Worker::builder().devices(&devices).sub_workers(subs).start(start);
        let mut worker = builder.init_within(limit()).run_within(limit()).build()?;
        let configs = (0..chips).map(|rank| {
            let member = Membership::new(rank as u32, chips as u32);
            let member = member.map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))?;
            let config = ChipConfig::new(rank as i32).communicator(member).window(65536);
            Ok(config.buffer("data", DType::Float32, 1024).region("barrier", 4096))
        });
        worker.configure_chips(configs.collect::<Result<_, Failure>>()?)?;
        let (add, meet) = (worker.register_function("add", add), worker.register_function("meet", meet));
        let barrier = worker.register_kernel(barrier)?;
        Ok(Self { worker, chips, subs, add, meet, barrier })
    }

    /// Tasks in chains, tasks that meet in the window, host buffers that come and go.
    fn run(&mut self, random: &mut Random) -> Result<(), Failure> {
        let contexts = self.worker.chip_contexts()?.to_vec();
        let x = self.worker.host_buffer::<f32>(random.among(1, 5000))?;
        let adds = random.among(1, 40);
        let (add, meet, barrier, subs) = (self.add, self.meet, self.barrier, self.subs);
        self.worker.run(|orch| {
            let args = Args::new().tensor(&x.tensor(), Access::InOut).scalar(1);
            for _ in 0..adds {
                if subs > 0 && random.chance(20) {
                    orch.submit_sub(add, &args)?;
                } else {
                    orch.submit_next_level(add, &args, random.among(0, contexts.len() - 1))?;
                }
            }
            for _ in 0..random.among(0, 3) {
                let members = contexts.iter().map(|context| {
                    let at = context.buffer("barrier")?.addr.0;
                    Ok(Args::new().scalar(context.device_ctx.0).scalar(at))
                });
                let members = members.collect::<Result<Vec<_>, Failure>>()?;
                let members: Vec<(usize, Args)> = members.into_iter().enumerate().collect();
                orch.submit_group(if random.chance(70) { barrier } else { meet }, &members)?;
            }
            Ok(())
        })?;
        expect(&x.to_vec(), adds)
    }

    /// Memory of a chip and its window, written and read back by the parent.
    fn copy(&mut self, random: &mut Random) -> Result<(), Failure> {
        let chip = random.among(0, self.chips - 1);
        let memory = self.worker.chip_alloc(chip, random.among(1, 100_000))?;
        let window = self.worker.chip_contexts()?[chip].buffer("data")?.addr;
        for (at, len) in [(memory.addr(), memory.len()), (window, 4096)] {
            let bytes = vec![random.next() as u8; len];
            let mut back = vec![0; len];
            self.worker.copy_to(chip, at, &bytes)?;
            self.worker.copy_from(chip, at, &mut back)?;
            if back != bytes {
                return Err(Failure::new(ErrorCode::Internal, "other bytes came back"));
            }
        }
        Ok(())
    }

    fn domains(&mut self, random: &mut Random) -> Result<(), Failure> {
        let chips = self.chips;
        self.worker.run(|orch| {
            for number in 0..random.among(1, 3) {
                let members: Vec<usize> = (random.among(0, chips - 2)..chips).collect();
                let size = random.among(1, 100_000).next_multiple_of(4096);
                let domain = orch.allocate_domain(
                    &format!("d{number}"),
                    &members,
                    size,
                    &[("x", DType::Float32, 256)],
                )?;
                if domain.contexts().len() != members.len() {
                    return Err(Failure::new(ErrorCode::Internal, "a member has no context"));
                }
            }
            Ok(())
        })
    }
}

/// That every element was added to `adds` times.
pub(crate) fn expect(x: &[f32], adds: usize) -> Result<(), Failure> {
    if x.iter().all(|x| *x == adds as f32) {
        return Ok(());
    }
    Err(Failure::new(ErrorCode::Internal, format!("{adds} were added, and the sum is {}", x[0])))
}

/// Adds the scalar to every element.
pub(crate) fn add(task: &mut Task<'_>) -> Result<(), Failure> {
    let amount = task.scalar(0)? as f32;
    let sum: Vec<f32> = task.read::<f32>(0)?.iter().map(|x| x + amount).collect();
    task.write(0, &sum)
}

/// Meets the other chips in the group's own barrier.
fn meet(task: &mut Task<'_>) -> Result<(), Failure> {
    let comm = task.chip().and_then(|chip| chip.comm());
    let comm = comm.ok_or_else(|| Failure::new(ErrorCode::Invalid, "no communicator"))?;
    comm.barrier(limit()).map_err(|error| Failure::new(ErrorCode::Task, error.to_string()))
}

/// Gives every chip of a Worker of the next level one task in a chain: scalar 0 is the program, scalar 1 how often.
pub(crate) fn spread(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let program = Program::from_number(task.scalar(0)? as u32);
    let args =
        task.tensors().iter().fold(Args::new(), |args, tensor| args.tensor(tensor, Access::InOut)).scalar(1);
    (0..task.scalar(1)? as usize)
        .try_for_each(|step| orch.submit_next_level(program, &args, step % orch.chips()).map(drop))
}

/// A kernel that waits for all chips in their windows.
fn compile(folder: &Path) -> Result<PathBuf, Box<dyn std::error::Error>> {
    const BARRIER: &str = r#"
#include "comm_kernel.h"
COMM_KERNEL void kernel_entry(int64_t *args) {
    auto *ctx = comm_pointer<CommContext>(args[0]);
    (void)!comm_phase_barrier(ctx, comm_pointer<CommPhaseBarrier>(args[1]));
}
"#;
    let (cpp, so) = (folder.join("barrier.cpp"), folder.join("barrier.so"));
    std::fs::write(&cpp, BARRIER)?;
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-I", comm_context::INCLUDE_DIR, "-o"]);
    let built = compiler.arg(&so).arg(&cpp).status().map_err(|error| format!("g++: {error}"))?;
    if built.success() { Ok(so) } else { Err("g++ could not compile the kernel".into()) }
}

impl Tally {
    pub(crate) fn kills(&self) -> u64 {
        self.kills.iter().sum::<u64>() + self.group_kills
    }

    pub(crate) fn json(&self, cycles: u64) -> String {
        let named = |names: &[String], counts: &[u64]| {
            let mut text = String::new();
            for (name, count) in names.iter().zip(counts) {
                let _ = write!(text, "{}\"{name}\": {count}", if text.is_empty() { "" } else { ", " });
            }
            text
        };
        let kinds = KINDS.map(|kind| format!("{kind:?}").to_lowercase());
        let phases = PHASES.map(|phase| format!("{phase:?}").to_lowercase());
        let (by_kind, by_phase) = (named(&kinds, &self.cycles), named(&phases, &self.kills));
        let (in_group, missed, told) = (self.group_kills, self.missed, self.told);
        format!(
            r#"{{"event": "end", "cycles": {cycles}, "kinds": {{{by_kind}}}, "kills": {{{by_phase}, "in a group": {in_group}}}, "missed": {missed}, "told": {told}}}"#
        )
    }
}
