//! A Worker with chips that form a group, and what runs on it in a cycle.

use crate::cycle::{Kind, limit};
use crate::random::Random;
use comm_context::abi::DType;
use comm_context::comm::Membership;
use std::path::{Path, PathBuf};
use std::process::Command;
use worker_orch::{
    Access, Args, ChipConfig, ErrorCode, Failure, Orchestrator, Program, Start, Task, TaskFn, Worker,
};

/// What children that are started by exec can run.
pub(crate) const FUNCTIONS: &[(&str, TaskFn)] = &[("add", add), ("comm_barrier", comm_barrier)];

/// A Worker with chips that form a group, and what runs on them.
pub(crate) struct Unit {
    worker: Worker,
    chips: usize,
    subs: usize,
    add: Program,
    comm_barrier: Program,
    kernel_barrier: Program,
}

impl Unit {
    pub(crate) fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    pub(crate) fn new(kind: Kind, barrier: &Path, random: &mut Random) -> Result<Self, Failure> {
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
        let add = worker.register_function("add", add);
        let comm_barrier = worker.register_function("comm_barrier", comm_barrier);
        let kernel_barrier = worker.register_kernel(barrier)?;
        Ok(Self { worker, chips, subs, add, comm_barrier, kernel_barrier })
    }

    /// Tasks in chains, tasks with a barrier in the window, host buffers that come and go.
    pub(crate) fn run(&mut self, random: &mut Random) -> Result<(), Failure> {
        let contexts = self.worker.chip_contexts()?.to_vec();
        let x = self.worker.host_buffer::<f32>(random.among(1, 5000))?;
        let adds = random.among(1, 40);
        let (add, subs) = (self.add, self.subs);
        let (comm_barrier, kernel_barrier) = (self.comm_barrier, self.kernel_barrier);
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
                orch.submit_group(if random.chance(70) { kernel_barrier } else { comm_barrier }, &members)?;
            }
            Ok(())
        })?;
        expect(&x.to_vec(), adds)
    }

    /// Memory of a chip and its window, written and read back by the parent.
    pub(crate) fn copy(&mut self, random: &mut Random) -> Result<(), Failure> {
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

    pub(crate) fn domains(&mut self, random: &mut Random) -> Result<(), Failure> {
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

/// Checks that every element was added to `adds` times.
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

/// Waits for the other chips in the barrier of the communicator.
fn comm_barrier(task: &mut Task<'_>) -> Result<(), Failure> {
    let comm = task.chip().and_then(|chip| chip.comm());
    let comm = comm.ok_or_else(|| Failure::new(ErrorCode::Invalid, "no communicator"))?;
    comm.barrier(limit()).map_err(|error| Failure::new(ErrorCode::Task, error.to_string()))
}

/// Gives every chip of a Worker of the next level one task in a chain: scalar 0 is the program, scalar 1 how
/// often.
pub(crate) fn spread(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let program = Program::from_number(task.scalar(0)? as u32);
    let args =
        task.tensors().iter().fold(Args::new(), |args, tensor| args.tensor(tensor, Access::InOut)).scalar(1);
    (0..task.scalar(1)? as usize)
        .try_for_each(|step| orch.submit_next_level(program, &args, step % orch.chips()).map(drop))
}

/// A kernel that waits for all chips in their windows.
pub(crate) fn compile(folder: &Path) -> Result<PathBuf, Box<dyn std::error::Error>> {
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
