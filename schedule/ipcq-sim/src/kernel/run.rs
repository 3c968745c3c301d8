//! A recorded kernel, executed with data and timed.

use super::Space;
use super::error::{KernelError, KernelFault};
use super::program::KernelProgram;
use crate::config::{DType, Settings, Topology};
use crate::data;
use crate::engine::Engine;
use crate::memory::{Memory, Overflow};
use crate::probe::NoProbe;
use crate::sim::{Outcome, Simulation, SimulationError};
use ccl_schedule::{Op, Program};

/// A kernel that has run.
pub struct KernelRun {
    /// Its times.
    pub outcome: Outcome,
    /// The memory of all ranks at the end.
    pub memory: Memory,
    dtype: DType,
}

impl KernelRun {
    /// The tensor of a rank.
    pub fn values(&self, rank: u32) -> Vec<f32> {
        data::decode(self.dtype, self.memory.tensor(rank))
    }

    /// Other memory of a rank.
    pub fn read(&self, rank: u32, space: Space, address: u64, dtype: DType, len: usize) -> Option<Vec<f32>> {
        self.memory.read(rank, space, address, dtype, len)
    }
}

impl KernelProgram {
    /// Memory for a run, all zero.
    pub fn memory(&self) -> Memory {
        Memory::new(self, self.map.cut, self.map.dtype)
    }

    /// Executes and times the kernel; `start` holds the tensor of every rank, and memory that is not given is zero.
    pub fn run(
        &self,
        topology: &Topology,
        settings: &Settings,
        engine: Engine,
        start: &[Vec<f32>],
    ) -> Result<KernelRun, KernelError> {
        let mut memory = self.memory();
        for (rank, values) in (0..self.ranks()).zip(start) {
            let bytes = data::encode(self.map.dtype, values);
            let to = memory.tensor_mut(rank);
            let len = to.len().min(bytes.len());
            to[..len].copy_from_slice(&bytes[..len]);
        }
        self.run_on(topology, settings, engine, memory)
    }

    /// The same with all memory of all ranks given.
    pub fn run_on(
        &self,
        topology: &Topology,
        settings: &Settings,
        engine: Engine,
        memory: Memory,
    ) -> Result<KernelRun, KernelError> {
        self.check_slots(settings.slot_size)?;
        let failed = |error: SimulationError| match error {
            SimulationError::Overflow(Overflow { rank, step }) => self.overflow(rank, step),
            SimulationError::Proof(error) => self.explain(&error),
            error => KernelError::new(self.name(), None, None, KernelFault::Simulation(Box::new(error))),
        };
        let simulation = Simulation::new(self, topology, settings).map_err(|error| failed(error.into()))?;
        let run = simulation.time_with_data(engine, memory, None, &mut NoProbe);
        let (outcome, memory) = run.map_err(failed)?;
        Ok(KernelRun { outcome, memory, dtype: self.map.dtype })
    }

    fn overflow(&self, rank: u32, step: u32) -> KernelError {
        let (function, to) = match self.op(rank, step) {
            Some(Op::Math { number, to }) => {
                (self.math(rank, number).map_or("math", |math| math.function.name()), to)
            }
            Some(Op::Reduce { to, .. } | Op::Recv { tile: to, .. }) => ("add", to),
            _ => ("math", 0),
        };
        let dtype = self.map.tile(rank, to).dtype;
        let what = KernelFault::Overflow { function, dtype: dtype.name(), largest: data::largest(dtype) };
        self.fault(rank, step, what)
    }
}
