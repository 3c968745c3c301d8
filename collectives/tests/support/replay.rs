//! Cases with a plan: what the ranks begin with, and what a replay of the schedule in `ipcq-sim` makes of it.
#![allow(dead_code, unreachable_pub)]

use crate::support::{Random, in_groups, options};
use ccl_schedule::{Expect, Goal, Program};
use collectives::{Collectives, Element, Op, Passing, Plan, PlanError, Sums, bf16, f16};
use ipcq_sim::config::{DType, Fabric, Settings, Topology};
use ipcq_sim::data;
use ipcq_sim::engine::{Engine, run};
use ipcq_sim::memory::Memory;
use ipcq_sim::oplog::OpLog;

/// A plan, the tensors that the ranks begin with, and what a replay makes of them.
pub struct Case {
    pub what: String,
    plan: Plan,
    dtype: DType,
    count: usize,
    given: Vec<Vec<u8>>,
    wanted: Vec<Vec<u8>>,
    /// For every rank, the bytes that the goal says something about.
    defined: Vec<Vec<std::ops::Range<usize>>>,
}

/// Numbers of which sums are neither exact, of two already, nor too large.
fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    let mut number = || {
        let scale = 0.5_f32.powi((random.next() >> 61) as i32);
        ((random.next() >> 40) as f32 / 4096.0 - 2048.0) * scale
    };
    (0..count).map(|_| number()).collect()
}

impl Case {
    /// `None` where the prover refuses the schedule.
    pub fn new(
        program: &dyn Program,
        passing: Passing,
        dtype: DType,
        count: usize,
        random: &mut Random,
    ) -> Option<Self> {
        let sums = if dtype == DType::F32 { Sums::RoundedOnce } else { Sums::RoundedEach };
        let what =
            format!("{} of {} ranks, {passing:?}, {dtype:?} × {count}", program.name(), program.ranks());
        let plan = match Plan::new(program, passing, sums) {
            Ok(plan) => plan,
            Err(PlanError::Refused { why, .. }) if why.contains("deadlock") => return None,
            Err(error) => panic!("{what}: {error}"),
        };
        let n_slots = if let Passing::Value { slots } = passing { slots } else { 64 };
        let topology = Topology { fabric: Fabric::Direct, ..Topology::default() };
        let settings =
            Settings { n_elem: count as u64, n_slots, dtype, slot_size: 1 << 30, ..Settings::default() };
        let timed = ipcq_sim::plan::Plan::new(program, &topology, &settings, u64::MAX)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut memory = Memory::new(program, timed.cut, dtype);
        let (ranks, size) = (program.ranks(), dtype.bytes() as usize);
        let (mut given, mut defined) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let mut tensor = data::encode(dtype, &numbers(random, count));
            let mut results = Vec::new();
            for chunk in 0..program.chunks() {
                let start = timed.cut.start(chunk) as usize * size;
                let bytes = start..start + timed.cut.len(chunk) as usize * size;
                if !program.goal().contributes(ranks, rank, chunk) {
                    tensor[bytes.clone()].fill(0);
                }
                if program.goal() == Goal::Any || program.goal().expect(ranks, rank, chunk) != Expect::Any {
                    results.push(bytes);
                }
            }
            memory.tensor_mut(rank).copy_from_slice(&tensor);
            given.push(tensor);
            defined.push(results);
        }
        let mut log = OpLog::new(&timed, memory, None);
        run(&timed, Engine::A, &mut log).unwrap_or_else(|error| panic!("{what}: {error}"));
        let replayed = log.finish().unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
        let wanted = (0..ranks).map(|rank| replayed.tensor(rank).to_vec()).collect();
        Some(Self { what, plan, dtype, count, given, wanted, defined })
    }

    /// Runs it as one rank, in place and from one tensor to another.
    fn run(&self, group: &Collectives<'_>) -> Result<(), String> {
        match self.dtype {
            DType::F32 => self.run_as::<f32>(group, |bytes| f32::from_le_bytes(bytes.try_into().unwrap())),
            DType::F16 => self.run_as::<f16>(group, |bytes| f16::from_le_bytes(bytes.try_into().unwrap())),
            DType::Bf16 => self.run_as::<bf16>(group, |bytes| bf16::from_le_bytes(bytes.try_into().unwrap())),
        }
    }

    fn run_as<T: Element>(&self, group: &Collectives<'_>, from: fn(&[u8]) -> T) -> Result<(), String> {
        let (me, size) = (group.rank(), self.dtype.bytes() as usize);
        let decode = |bytes: &[u8]| -> Vec<T> { bytes.chunks_exact(size).map(from).collect() };
        let op = self.plan.combines().then_some(Op::Sum);
        let input = decode(&self.given[me]);
        let mut apart = input.clone();
        group
            .run_plan_into(&self.plan, &input, &mut apart, op)
            .map_err(|error| format!("{}: {error}", self.what))?;
        let mut tensor = input.clone();
        group.run_plan(&self.plan, &mut tensor, op).map_err(|error| format!("{}: {error}", self.what))?;
        let wanted = decode(&self.wanted[me]);
        for bytes in &self.defined[me] {
            let range = bytes.start / size..bytes.end / size;
            for (place, got) in [("apart", &apart), ("in place", &tensor)] {
                if got[range.clone()] != wanted[range.clone()] {
                    let at = range.clone().find(|at| got[*at] != wanted[*at]).unwrap_or(0);
                    return Err(format!("{} {place}: rank {me} element {at} of {}", self.what, self.count));
                }
            }
        }
        Ok(())
    }
}

/// Runs all of them as every rank of a group.
pub fn all_run(nranks: usize, cases: &[Case]) {
    in_groups(nranks, options(), |group| {
        for case in cases {
            case.run(group)?;
        }
        group.barrier().map_err(|error| error.to_string())
    });
}
