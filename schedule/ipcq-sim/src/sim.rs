//! One run from settings to a report: build, prove, route, time, bound, and the data.

use crate::bound::{Bounds, bounds};
use crate::config::{Settings, Topology};
use crate::engine::{self, Engine, SimError, Timing};
use crate::memory::{Memory, Overflow};
use crate::oplog::{OpLog, ReplayError};
use crate::plan::{Before, MESSAGE_LIMIT, Plan, PlanError};
use crate::probe::Probe;
use crate::schedule_file;
use crate::stats::Stats;
use crate::units::Ps;
use ccl_schedule::algo::{self, Shape};
use ccl_schedule::{Goal, Program, Proof, ProofError, prove};
use serde::Serialize;
use std::io::Write;
use thiserror::Error;

/// Why a simulation has no report.
#[derive(Debug, Error)]
pub enum SimulationError {
    /// It cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The schedule is wrong.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The run ended early.
    #[error(transparent)]
    Run(#[from] SimError),
    /// The replay found a use after credit.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The log cannot be written.
    #[error("the log of data movements cannot be written: {0}")]
    Log(std::io::Error),
    /// A result of a kernel exceeds its format.
    #[error(transparent)]
    Overflow(#[from] Overflow),
    /// Replay and direct execution differ.
    #[error("replayed data differs from executed data, first on rank {rank}")]
    ReplayDiffers {
        /// The first rank that differs.
        rank: u32,
    },
}

/// Builds the schedule that settings ask for, on a topology.
pub fn build(settings: &Settings, topology: &Topology) -> Result<Box<dyn Program>, PlanError> {
    if let Some(file) = &settings.schedule {
        let program = schedule_file::load(file)?;
        let ranks = program.ranks();
        return match settings.world_size {
            Some(wanted) if wanted != ranks => {
                Err(PlanError::OtherRanks { file: file.clone(), ranks, wanted })
            }
            _ => Ok(Box::new(program)),
        };
    }
    let ranks = settings.world_size.unwrap_or_else(|| topology.pe_count());
    let shape = Shape {
        mesh: settings.mesh,
        levels: levels(topology, ranks),
        split: settings.split,
        window: settings.n_slots,
    };
    Ok(algo::build(&settings.algorithm, ranks, &shape)?)
}

/// PEs per cube, cubes per SIP and SIPs that `ranks` fill, if they fill whole ones.
fn levels(topology: &Topology, ranks: u32) -> Option<[u32; 3]> {
    let [pes, cubes, _] = topology.levels();
    let pe = ranks.min(pes);
    let cube = (ranks / pe.max(1)).clamp(1, cubes);
    let sip = ranks / (pe * cube).max(1);
    Some([pe, cube, sip.max(1)])
}

/// What a run is reported as.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The entry of `ccl.yaml`.
    pub entry: String,
    /// The schedule.
    pub algorithm: String,
    /// Ranks.
    pub ranks: u32,
    /// Elements per rank.
    pub n_elem: u64,
    /// Their format.
    pub dtype: &'static str,
    /// Bytes per rank.
    pub bytes: u64,
    /// `A` or `B`.
    pub engine: &'static str,
    /// When the last rank finished.
    pub time_ps: Ps,
    /// Bytes per rank over the time, in GB/s.
    pub algorithm_gbps: f64,
    /// The same times what the goal makes every port carry.
    pub bus_gbps: f64,
    /// No schedule is faster.
    pub lower_bound_ps: Ps,
    /// Which bound it is.
    pub bound_by: &'static str,
    /// Bound over time.
    pub efficiency: f64,
    /// Messages sent.
    pub messages: u64,
    /// Hop events (0 with engine A).
    pub events: u64,
    /// Most slots of one queue in use at one time.
    pub most_slots: u32,
    /// Time that a rank waited, on average over the ranks.
    pub blocked_mean_ps: Ps,
    /// The longest that one rank waited.
    pub blocked_max_ps: Ps,
    /// Differs when any rank's time differs.
    pub hash: String,
}

/// A finished run.
pub struct Outcome {
    /// The numbers.
    pub report: Report,
    /// Per rank.
    pub timing: Timing,
    /// Per link and over time.
    pub stats: Stats,
    /// Every bound.
    pub bounds: Bounds,
}

/// A schedule on a topology, ready to be proved, timed and executed.
pub struct Simulation<'p> {
    settings: &'p Settings,
    /// What the engines read.
    pub plan: Plan<'p>,
}

impl<'p> Simulation<'p> {
    /// Plans a program.
    pub fn new(
        program: &'p dyn Program,
        topology: &Topology,
        settings: &'p Settings,
    ) -> Result<Simulation<'p>, PlanError> {
        let plan = Plan::new(program, topology, settings, MESSAGE_LIMIT)?;
        Ok(Simulation { settings, plan })
    }

    /// The same, from the state that an earlier run on the same clock left.
    pub(crate) fn after(mut self, before: Before) -> Self {
        self.plan.before = Some(before);
        self
    }

    /// Proves contributions and the absence of deadlock for the configured slots.
    pub fn prove(&self) -> Result<Proof, ProofError> {
        prove(self.plan.program, self.plan.slots, self.settings.credit_point())
    }

    /// Times the schedule and reports to `probe`.
    pub fn time<P: Probe>(&self, engine: Engine, probe: &mut P) -> Result<Outcome, SimError> {
        let mut stats = Stats::new(&self.plan);
        let timing = engine::run(&self.plan, engine, &mut (&mut stats, probe))?;
        let bounds = bounds(&self.plan);
        let report = self.report(&timing, &mut stats, &bounds);
        Ok(Outcome { report, timing, stats, bounds })
    }

    fn report(&self, timing: &Timing, stats: &mut Stats, bounds: &Bounds) -> Report {
        let (program, time) = (self.plan.program, timing.time() - self.plan.earliest());
        let bytes = self.plan.cut.elems * self.plan.cut.elem_bytes;
        let n = f64::from(program.ranks());
        let share = match program.goal() {
            Goal::AllReduce => 2.0 * (n - 1.0) / n,
            Goal::ReduceScatter { .. } | Goal::AllGather { .. } => (n - 1.0) / n,
            Goal::Gather { .. } | Goal::Scatter { .. } | Goal::AllToAll => (n - 1.0) / n,
            Goal::Shift | Goal::Broadcast { .. } | Goal::Reduce { .. } => 1.0,
            Goal::Any => 0.0,
        };
        let gbps = if time > 0 { bytes as f64 * 1000.0 / time as f64 } else { 0.0 };
        Report {
            entry: self.settings.entry.clone(),
            algorithm: program.name().to_owned(),
            ranks: program.ranks(),
            n_elem: self.plan.cut.elems,
            dtype: self.settings.dtype.name(),
            bytes,
            engine: if timing.engine == Engine::A { "A" } else { "B" },
            time_ps: time,
            algorithm_gbps: gbps,
            bus_gbps: gbps * share,
            lower_bound_ps: bounds.most(),
            bound_by: bounds.reason(),
            efficiency: if time > 0 { bounds.most() as f64 / time as f64 } else { 1.0 },
            messages: timing.messages,
            events: timing.events,
            most_slots: stats.most_slots(),
            blocked_mean_ps: timing.blocked.iter().sum::<Ps>() / u64::from(program.ranks()),
            blocked_max_ps: timing.blocked.iter().copied().max().unwrap_or(0),
            hash: format!("{:016x}", timing.hash()),
        }
    }

    /// Memory for the data, all zero.
    pub fn memory(&self) -> Memory {
        Memory::new(self.plan.program, self.plan.cut, self.settings.dtype)
    }

    /// Bytes that the data of all ranks needs.
    pub fn memory_size(&self) -> u64 {
        Memory::size(self.plan.program, &self.plan.cut)
    }

    /// Times the schedule and carries data along: `start` is what the ranks begin with, the result is what
    /// they end with.
    ///
    /// Every movement of data is logged (and written to `csv`) and replayed in the order of time. Meanwhile
    /// another thread runs the program on the same data without time; both must end with the same bytes.
    pub fn time_with_data<P: Probe>(
        &self,
        engine: Engine,
        start: Memory,
        csv: Option<Box<dyn Write>>,
        probe: &mut P,
    ) -> Result<(Outcome, Memory), SimulationError> {
        let mut log = OpLog::new(&self.plan, start.clone(), csv);
        let mut executed = start;
        let replayed = std::thread::scope(|scope| {
            let execution = scope.spawn(|| executed.execute(&self.plan));
            let outcome = self.time(engine, &mut (&mut log, probe))?;
            let replayed = log.finish().map_err(SimulationError::Log)??;
            // Joined last: a panic there is a panic here.
            execution.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<_, SimulationError>((outcome, replayed))
        });
        let (outcome, replayed) = replayed?;
        match (0..self.plan.program.ranks()).find(|&rank| replayed.tensor(rank) != executed.tensor(rank)) {
            Some(rank) => Err(SimulationError::ReplayDiffers { rank }),
            None => Ok((outcome, replayed)),
        }
    }
}
