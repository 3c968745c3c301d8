//! Host code in the shape of torch.distributed: a process group, tensors in shards, `all_reduce`.
//!
//! One controller drives all ranks, as in kernbench2: there is no process per rank, and
//! [`ProcessGroup::get_rank`] is the controller's.

use crate::config::{DType, Fabric, Grid, Settings, Topology};
use crate::data;
use crate::engine::Engine;
use crate::placement::{Part, Placement, PlacementError};
use crate::probe::NoProbe;
use crate::sim::{Outcome, Simulation, SimulationError, build};
use crate::units::Ps;
use ccl_schedule::Goal;
use thiserror::Error;

/// The only backend.
pub const BACKEND: &str = "ipcq";

/// Shards start at multiples of this, so that no two share a page.
pub const PAGE: u64 = 4096;

/// The most bytes of data that a run carries through memory.
pub const DATA_LIMIT: u64 = 1 << 30;

/// The most messages whose data is logged and replayed.
pub const LOG_LIMIT: u64 = 20_000_000;

/// The most bytes that these messages may move; a few seconds of work.
pub const MOVE_LIMIT: u64 = 1 << 31;

/// Whether the data of a planned run is within the limits: bytes in memory, messages, bytes moved.
pub(crate) fn data_fits(simulation: &Simulation<'_>) -> Result<(), DistError> {
    let plan = &simulation.plan;
    let (bytes, messages) = (simulation.memory_size(), plan.program.messages());
    let moved = messages.saturating_mul(plan.cut.sizes()[0]);
    if bytes > DATA_LIMIT || messages > LOG_LIMIT || moved > MOVE_LIMIT {
        return Err(DistError::TooMuchData { bytes, messages, moved });
    }
    Ok(())
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
    #[error("copy_ of {given} elements into a tensor of {rows} x {cols}")]
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
    /// The data is too large to be carried.
    #[error(
        "the data needs {bytes} bytes of memory and {messages} messages that move {moved} bytes; the limits are \
         {DATA_LIMIT}, {LOG_LIMIT} and {MOVE_LIMIT}"
    )]
    TooMuchData {
        /// Bytes needed.
        bytes: u64,
        /// Messages.
        messages: u64,
        /// Bytes that they move.
        moved: u64,
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

/// All ranks, and the algorithm that serves them.
#[derive(Clone, Debug)]
pub struct ProcessGroup {
    topology: Topology,
    settings: Settings,
    world_size: u32,
    engine: Engine,
}

/// Makes a group of `settings.world_size` ranks, or of all PEs.
pub fn init_process_group(
    backend: &str,
    topology: &Topology,
    settings: &Settings,
    engine: Engine,
) -> Result<ProcessGroup, DistError> {
    if backend != BACKEND {
        return Err(DistError::Backend(backend.to_owned()));
    }
    let world_size = settings.world_size.unwrap_or_else(|| topology.pe_count());
    let settings = Settings { world_size: Some(world_size), ..settings.clone() };
    Ok(ProcessGroup { topology: *topology, settings, world_size, engine })
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

    /// The hierarchy that tensors are placed on; with a wire per channel, that is one flat row of PEs.
    pub fn places(&self) -> Topology {
        let flat = Grid { w: 1, h: 1, wraps: false };
        match self.topology.fabric {
            Fabric::Cubes => self.topology,
            Fabric::Direct => Topology { sips: flat, cubes: flat, pes: self.world_size, ..self.topology },
        }
    }

    /// Reduces the shards of all ranks, element by element; every shard holds the result.
    ///
    /// The schedule is timed, its log replayed on the data, and the replay compared with direct execution.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: ReduceOp) -> Result<Outcome, DistError> {
        let ReduceOp::Sum = op;
        let settings = Settings { n_elem: tensor.shard_len(), dtype: tensor.dtype, ..self.settings.clone() };
        let program = build(&settings, &self.topology)?;
        if program.goal() != Goal::AllReduce {
            return Err(DistError::NotAllReduce(settings.algorithm));
        }
        let simulation = Simulation::new(&*program, &self.topology, &settings)?;
        data_fits(&simulation)?;
        let mut start = simulation.memory();
        for rank in 0..self.world_size {
            start.tensor_mut(rank).copy_from_slice(tensor.shard(rank));
        }
        let (outcome, memory) = simulation.time_with_data(self.engine, start, None, &mut NoProbe)?;
        for rank in 0..self.world_size {
            self.check_overflow(tensor, rank, memory.tensor(rank))?;
        }
        for rank in 0..self.world_size {
            tensor.shard_mut(rank).copy_from_slice(memory.tensor(rank));
        }
        Ok(outcome)
    }

    fn check_overflow(&self, tensor: &Tensor, rank: u32, result: &[u8]) -> Result<(), DistError> {
        let values = data::decode(tensor.dtype, result);
        let Some(element) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
        let finite = |rank| data::decode(tensor.dtype, tensor.shard(rank))[element].is_finite();
        if !(0..self.world_size).all(finite) {
            return Ok(());
        }
        Err(DistError::Overflow {
            rank,
            element: element as u64,
            dtype: tensor.dtype.name(),
            largest: data::largest(tensor.dtype),
        })
    }

    /// Returns when every rank has reached it: the time of a tree all-reduce of one element.
    pub fn barrier(&self) -> Result<Ps, DistError> {
        let settings = Settings {
            algorithm: "tree_allreduce".to_owned(),
            n_elem: 1,
            split: 1,
            mesh: None,
            ..self.settings.clone()
        };
        let program = build(&settings, &self.topology)?;
        let simulation = Simulation::new(&*program, &self.topology, &settings)?;
        let outcome = simulation.time(self.engine, &mut NoProbe).map_err(SimulationError::from)?;
        Ok(outcome.report.time_ps)
    }
}

/// A tensor of two dimensions, one shard per rank.
#[derive(Clone, Debug)]
pub struct Tensor {
    rows: u64,
    cols: u64,
    dtype: DType,
    parts: Vec<Part>,
    /// Where each shard starts, in a memory that all shards share.
    addresses: Vec<u64>,
    memory: Vec<u8>,
}

impl Tensor {
    /// All zero, placed over the ranks of a group.
    pub fn zeros(
        group: &ProcessGroup,
        rows: u64,
        cols: u64,
        dtype: DType,
        placement: &Placement,
    ) -> Result<Tensor, DistError> {
        let parts = placement.parts(&group.places(), group.world_size, rows, cols)?;
        let mut addresses = Vec::with_capacity(parts.len());
        let mut end = 0;
        for part in &parts {
            addresses.push(end);
            end = (end + part.rows * part.cols * dtype.bytes()).next_multiple_of(PAGE);
        }
        let tensor = Tensor { rows, cols, dtype, parts, addresses, memory: Vec::new() };
        if end > DATA_LIMIT {
            return Err(DistError::TooMuchData { bytes: end, messages: 0, moved: 0 });
        }
        Ok(Tensor { memory: vec![0; end as usize], ..tensor })
    }

    /// Elements of a shard; all shards have as many.
    pub fn shard_len(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.rows * part.cols)
    }

    fn range(&self, rank: u32) -> std::ops::Range<usize> {
        let start = self.addresses[rank as usize] as usize;
        start..start + (self.shard_len() * self.dtype.bytes()) as usize
    }

    /// The bytes of a rank's shard.
    pub fn shard(&self, rank: u32) -> &[u8] {
        &self.memory[self.range(rank)]
    }

    fn shard_mut(&mut self, rank: u32) -> &mut [u8] {
        let range = self.range(rank);
        &mut self.memory[range]
    }

    /// The numbers of a rank's shard.
    pub fn values(&self, rank: u32) -> Vec<f32> {
        data::decode(self.dtype, self.shard(rank))
    }

    /// Scatters host data, row by row, into the shards.
    pub fn copy_(&mut self, host: &[f32]) -> Result<(), DistError> {
        if host.len() as u64 != self.rows * self.cols {
            return Err(DistError::HostSize { given: host.len(), rows: self.rows, cols: self.cols });
        }
        for rank in 0..self.parts.len() as u32 {
            let part = self.parts[rank as usize];
            let rows = part.row..part.row + part.rows;
            let values: Vec<f32> = rows
                .flat_map(|row| &host[(row * self.cols + part.col) as usize..][..part.cols as usize])
                .copied()
                .collect();
            let bytes = data::encode(self.dtype, &values);
            self.shard_mut(rank).copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// The whole tensor on the host, row by row; where shards are replicas, the first one counts.
    pub fn gather(&self) -> Vec<f32> {
        let mut host = vec![0.0; (self.rows * self.cols) as usize];
        for rank in (0..self.parts.len() as u32).rev() {
            let part = self.parts[rank as usize];
            for (i, row) in self.values(rank).chunks(part.cols.max(1) as usize).enumerate() {
                let start = ((part.row + i as u64) * self.cols + part.col) as usize;
                host[start..start + row.len()].copy_from_slice(row);
            }
        }
        host
    }
}
