//! Host code in the shape of torch.distributed: a process group, tensors in shards, `all_reduce`.
//!
//! One controller drives all ranks, as in kernbench2: there is no process per rank, and
//! [`ProcessGroup::get_rank`] is the controller's.

mod tensor;
mod work;

pub use tensor::Tensor;
pub use work::Work;

use crate::config::{Fabric, Grid, Settings, Topology};
use crate::data;
use crate::engine::{Engine, Timing, with_known};
use crate::memory::Memory;
use crate::oplog::OpLog;
use crate::placement::PlacementError;
use crate::plan::Before;
use crate::probe::NoProbe;
use crate::sim::{Outcome, Simulation, SimulationError, build};
use crate::units::Ps;
use ccl_schedule::{Goal, Program, ProofError, completes, prove};
use std::fmt;
use thiserror::Error;
use work::Pending;

/// The only backend.
pub const BACKEND: &str = "ahbm";

/// Shards start at multiples of this, so that no two share a page.
pub const PAGE: u64 = 4096;

/// The most bytes of data that a run carries through memory.
pub const DATA_LIMIT: u64 = 1 << 30;

/// The most messages whose data is logged and replayed.
pub const LOG_LIMIT: u64 = 20_000_000;

/// The most messages of a collective that is started and not yet waited for: its log is kept.
pub const KEPT_LIMIT: u64 = 1_000_000;

/// The most bytes that these messages may move; a few seconds of work.
pub const MOVE_LIMIT: u64 = 1 << 31;

/// Whether the data of a planned run is within the limits: bytes in memory, messages, bytes moved.
pub(crate) fn data_fits(simulation: &Simulation<'_>) -> Result<(), DistError> {
    let plan = &simulation.plan;
    let (bytes, messages) = (simulation.memory_size(), plan.program.messages());
    let moved = messages.saturating_mul(plan.cut.sizes()[0]);
    at_most("bytes of memory", bytes, DATA_LIMIT)?;
    at_most("messages", messages, LOG_LIMIT)?;
    at_most("bytes moved", moved, MOVE_LIMIT)
}

fn at_most(what: &'static str, needed: u64, most: u64) -> Result<(), DistError> {
    if needed > most { Err(DistError::TooMuchData { what, needed, most }) } else { Ok(()) }
}

/// Why a call of the group fails.
#[derive(Debug, Error)]
pub enum DistError {
    /// An unknown backend.
    #[error("unknown backend {0:?}; use \"{BACKEND}\"")]
    Backend(String),
    /// The tensor cannot be placed.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Host data of another size.
    #[error("copy_ of {given} elements into a tensor of {rows} x {cols}; pass as many as it has")]
    HostSize {
        /// Elements given.
        given: usize,
        /// Rows of the tensor.
        rows: u64,
        /// Columns.
        cols: u64,
    },
    /// The group's algorithm is another collective.
    #[error("{0} is not an all-reduce; choose another algorithm")]
    NotAllReduce(String),
    /// The tensor is in use by a collective that was started.
    #[error("the tensor is in use by a collective that was started on it; wait for that one first")]
    Busy,
    /// The data is too large to be carried.
    #[error("the data needs {needed} {what}, and the limit is {most}; use fewer ranks or elements")]
    TooMuchData {
        /// What there is too much of.
        what: &'static str,
        /// How much the data needs.
        needed: u64,
        /// The limit.
        most: u64,
    },
    /// A sum exceeds the format.
    #[error(
        "dtype = {dtype}: the sum of rank {rank}, element {element} exceeds the largest number {largest}; use fewer ranks, \
         smaller values, or bf16 or f32"
    )]
    Overflow {
        /// The first rank.
        rank: u32,
        /// The first element.
        element: u64,
        /// The format.
        dtype: &'static str,
        /// Its largest number.
        largest: f64,
    },
    /// A sum that cannot fit the format.
    #[error(
        "dtype = {dtype}: the sum 1 + ... + {ranks} = {sum} exceeds its largest number {largest}; use f32 or fewer ranks"
    )]
    Range {
        /// The format.
        dtype: &'static str,
        /// Ranks.
        ranks: u32,
        /// The sum.
        sum: u64,
        /// The format's largest number.
        largest: f64,
    },
    /// The simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

impl From<ProofError> for DistError {
    fn from(error: ProofError) -> Self {
        DistError::Simulation(error.into())
    }
}

impl From<crate::plan::PlanError> for DistError {
    fn from(error: crate::plan::PlanError) -> Self {
        DistError::Simulation(error.into())
    }
}

/// How `all_reduce` combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Adds.
    Sum,
}

/// All ranks, the algorithm that serves them, and their clock.
pub struct ProcessGroup {
    topology: Topology,
    settings: Settings,
    world_size: u32,
    engine: Engine,
    program: Box<dyn Program>,
    /// The host's clock.
    now: Ps,
    /// When PEs and links are free.
    before: Before,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { world_size, now, .. } = self;
        f.debug_struct("ProcessGroup")
            .field("world_size", world_size)
            .field("now", now)
            .finish_non_exhaustive()
    }
}

/// Makes a group of `settings.world_size` ranks, or of all PEs, and installs its queues: what the topology cannot hold, a
/// queue with two senders, and a schedule that deadlocks with the slots given are refused here.
pub fn init_process_group(
    backend: &str,
    topology: &Topology,
    settings: &Settings,
    engine: Engine,
) -> Result<ProcessGroup, DistError> {
    if backend != BACKEND {
        return Err(DistError::Backend(backend.to_owned()));
    }
    let program = build(settings, topology)?;
    let world_size = program.ranks();
    let settings = Settings { world_size: Some(world_size), ..settings.clone() };
    Simulation::new(&*program, topology, &settings)?;
    let (slots, credit) = (settings.n_slots, settings.credit_point());
    if !with_known!(&*program, known => completes(known, slots, credit))? {
        prove(&*program, slots, credit)?;
    }
    let before = Before { pes: vec![0; world_size as usize], links: Vec::new() };
    Ok(ProcessGroup { topology: *topology, settings, world_size, engine, program, now: 0, before })
}

impl ProcessGroup {
    /// Ranks.
    pub fn get_world_size(&self) -> u32 {
        self.world_size
    }

    /// The controller's rank.
    pub fn get_rank(&self) -> u32 {
        0
    }

    /// The backend's name.
    pub fn get_backend(&self) -> &'static str {
        BACKEND
    }

    /// The host's time since the group was made. Waiting for a collective takes it to the end of that collective.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Lets time pass on the host.
    pub fn sleep(&mut self, time: Ps) {
        self.now += time;
    }

    /// The hierarchy that tensors are placed on; with a wire per channel, that is one flat row of PEs.
    pub fn places(&self) -> Topology {
        let flat = Grid { w: 1, h: 1, wraps: false };
        match self.topology.fabric {
            Fabric::Cubes => self.topology,
            Fabric::Direct | Fabric::Memory => {
                Topology { sips: flat, cubes: flat, pes: self.world_size, ..self.topology }
            }
        }
    }

    /// Reduces the shards of all ranks, element by element; every shard holds the result.
    ///
    /// The schedule is timed, its log replayed on the data, and the replay compared with direct execution.
    pub fn all_reduce(&mut self, tensor: &mut Tensor, op: ReduceOp) -> Result<Outcome, DistError> {
        if !tensor.pending.is_empty() {
            let work = self.all_reduce_async(tensor, op)?;
            return self.wait(work, tensor);
        }
        let settings = self.all_reduce_settings(tensor, op)?;
        let (simulation, start) = self.simulation(&settings, tensor)?;
        let (outcome, memory) = simulation.time_with_data(self.engine, start, None, &mut NoProbe)?;
        self.check_overflow(tensor, &memory)?;
        self.occupied(&outcome.timing);
        self.now = outcome.timing.time();
        for rank in 0..self.world_size {
            tensor.shard_mut(rank).copy_from_slice(memory.tensor(rank));
        }
        Ok(outcome)
    }

    /// Starts a reduction and goes on. Every PE begins when it is done with what was started before; the host sees the
    /// tensor change as its clock goes on ([`Self::observe`]), and has the result after [`Self::wait`].
    pub fn all_reduce_async(&mut self, tensor: &mut Tensor, op: ReduceOp) -> Result<Work, DistError> {
        let settings = self.all_reduce_settings(tensor, op)?;
        let (simulation, start) = self.simulation(&settings, tensor)?;
        at_most("messages", simulation.plan.program.messages(), KEPT_LIMIT)?;
        let mut end = start.clone();
        let mut log = OpLog::kept(&simulation.plan, start);
        let outcome = simulation.time(self.engine, &mut log).map_err(SimulationError::from)?;
        end.execute(&simulation.plan).map_err(SimulationError::from)?;
        self.check_overflow(tensor, &end)?;
        let starts = (0..self.world_size).map(|rank| simulation.plan.start(rank)).collect();
        let finish = outcome.timing.time();
        self.occupied(&outcome.timing);
        tensor.pending.push(Pending { starts, log, end });
        Ok(Work { outcome, finish })
    }

    /// Waits for a collective: the clock goes on to its end, and the tensor holds what it held then.
    pub fn wait(&mut self, work: Work, tensor: &mut Tensor) -> Result<Outcome, DistError> {
        self.now = self.now.max(work.finish);
        self.observe(tensor)?;
        Ok(work.outcome)
    }

    /// Updates the host's view of a tensor to what has been written to its shards until now.
    pub fn observe(&self, tensor: &mut Tensor) -> Result<(), DistError> {
        work::replay(tensor, self.world_size, self.now)
    }

    fn all_reduce_settings(&self, tensor: &Tensor, op: ReduceOp) -> Result<Settings, DistError> {
        let ReduceOp::Sum = op;
        if self.program.goal() != Goal::AllReduce {
            return Err(DistError::NotAllReduce(self.settings.algorithm.clone()));
        }
        Ok(Settings { n_elem: tensor.shard_len(), dtype: tensor.dtype, ..self.settings.clone() })
    }

    /// The run on a tensor from now on, and the data that it starts with.
    fn simulation<'a>(
        &'a self,
        settings: &'a Settings,
        tensor: &Tensor,
    ) -> Result<(Simulation<'a>, Memory), DistError> {
        let simulation = Simulation::new(&*self.program, &self.topology, settings)?;
        let simulation = simulation.after(self.state());
        data_fits(&simulation)?;
        let mut start = simulation.memory();
        for rank in 0..self.world_size {
            let shard = match tensor.pending.last() {
                Some(pending) => pending.end.tensor(rank),
                None => tensor.shard(rank),
            };
            start.tensor_mut(rank).copy_from_slice(shard);
        }
        Ok((simulation, start))
    }

    /// When PEs and links are free: not before now.
    fn state(&self) -> Before {
        let pes = self.before.pes.iter().map(|&free| free.max(self.now)).collect();
        Before { pes, links: self.before.links.clone() }
    }

    fn occupied(&mut self, timing: &Timing) {
        self.before = Before { pes: timing.finish.clone(), links: timing.links.clone() };
    }

    fn check_overflow(&self, tensor: &Tensor, result: &Memory) -> Result<(), DistError> {
        let decoded = |bytes: &[u8]| data::decode(tensor.dtype, bytes);
        for rank in 0..self.world_size {
            let values = decoded(result.tensor(rank));
            let Some(element) = values.iter().position(|value| !value.is_finite()) else { continue };
            if (0..self.world_size).all(|rank| decoded(tensor.shard(rank))[element].is_finite()) {
                return Err(DistError::Overflow {
                    rank,
                    element: element as u64,
                    dtype: tensor.dtype.name(),
                    largest: data::largest(tensor.dtype),
                });
            }
        }
        Ok(())
    }

    /// Returns when every rank has reached it: the time of a tree all-reduce of one element.
    pub fn barrier(&mut self) -> Result<Ps, DistError> {
        let settings = Settings {
            algorithm: "tree_allreduce".to_owned(),
            schedule: None,
            n_elem: 1,
            split: 1,
            mesh: None,
            ..self.settings.clone()
        };
        let program = build(&settings, &self.topology)?;
        let mut before = self.state();
        // With a wire per channel, the tree has wires of its own.
        if self.topology.has_wires() {
            before.links.clear();
        }
        let simulation = Simulation::new(&*program, &self.topology, &settings)?.after(before);
        let outcome = simulation.time(self.engine, &mut NoProbe).map_err(SimulationError::from)?;
        let links =
            if self.topology.has_wires() { self.before.links.clone() } else { outcome.timing.links.clone() };
        self.before = Before { pes: outcome.timing.finish.clone(), links };
        self.now = outcome.timing.time();
        Ok(outcome.report.time_ps)
    }
}
