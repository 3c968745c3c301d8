//! The scenario of a Worker with chips that form a group, and a sub-worker: everything that a Worker does.

use crate::log::CallLog;
use crate::rounds::{Limits, WorkerScenario};
use comm_context::abi::DType;
use comm_context::comm::{Membership, Timeout};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use worker_orch::{
    Access, Args, ChipConfig, CollectivesOptions, ErrorCode, Failure, HostBuffer, Op, Program, Signature,
    Start, Task, TaskFn, Worker,
};

const CHIPS: usize = 3;
const COUNT: usize = 16;

/// What children run; those that are started by exec find it by name.
pub(crate) const FUNCTIONS: &[(&str, TaskFn)] =
    &[("add", add), ("barrier", barrier), ("sum", sum), ("reduce", reduce)];

/// Tensor 0 plus scalar 0.
pub(crate) fn add(task: &mut Task<'_>) -> Result<(), Failure> {
    let (mut data, more) = (task.read::<f32>(0)?, task.scalar(0)? as f32);
    data.iter_mut().for_each(|x| *x += more);
    task.write(0, &data)
}

/// Waits for the other ranks, through the communicator.
fn barrier(task: &mut Task<'_>) -> Result<(), Failure> {
    let within = Timeout::new(Duration::from_millis(task.scalar(0)?)).map_err(failure)?;
    let chip = task.chip().ok_or_else(|| wrong("this is not a chip"))?;
    let comm = chip.comm().ok_or_else(|| wrong("this chip has no communicator"))?;
    Ok(comm.barrier(within)?)
}

/// Sums the numbers of the members: of its group, or of the domain `pair` where scalar 0 is not 0.
fn reduce(task: &mut Task<'_>) -> Result<(), Failure> {
    let group = if task.scalar(0)? == 0 { task.collectives()? } else { task.collectives_of("pair")? };
    let mut values = [group.rank() as f32; 1000];
    group.all_reduce(&mut values, Op::Sum)?;
    let n = group.nranks() as f32;
    expect("the sum of the group", &values, &[n * (n - 1.0) / 2.0; 1000])
}

/// Tensor 1 becomes the sum of tensor 0.
fn sum(task: &mut Task<'_>) -> Result<(), Failure> {
    let total: f32 = task.read::<f32>(0)?.iter().sum();
    task.write(1, &[total])
}

/// Gives the first float of every rank plus one to the next, waiting for all before and after.
const KERNEL: &str = r#"
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    const CommSpan<float> data = comm_tensor<float>(args[0]);
    auto *ctx = comm_pointer<CommContext>(args[1]);
    auto *barrier = comm_pointer<CommPhaseBarrier>(args[2]);
    const float mine = data.data[0] + 1.0f;
    if (!comm_phase_barrier(ctx, barrier)) {
        return;
    }
    *CommRemotePtr(ctx, data.data, static_cast<int>((ctx->rankId + 1) % ctx->rankNum)) = mine;
    (void)!comm_phase_barrier(ctx, barrier);
}
"#;

/// Compiles the scenario's kernel, unless it is there.
pub(crate) fn kernel(folder: &Path) -> PathBuf {
    let (source, object) = (folder.join("pass_on.cpp"), folder.join("pass_on.so"));
    if !object.exists() {
        std::fs::write(&source, KERNEL).unwrap();
        let flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"];
        let built = Command::new("g++")
            .args(flags)
            .args(["-I", comm_context::INCLUDE_DIR, "-o"])
            .args([&object, &source])
            .status();
        assert!(built.is_ok_and(|status| status.success()), "g++ could not build the kernel of the scenario");
        // For the vendor double, which wants to know for which kind of core a kernel is.
        let json = r#"{"magic": "RT_DEV_BINARY_MAGIC_ELF_AIVEC"}"#;
        std::fs::write(object.with_extension("json"), json).unwrap();
    }
    object
}

/// A Worker of three chips and a sub-worker, with what it works on.
pub(crate) struct Chips {
    worker: Worker,
    kernel: PathBuf,
    pass_on: Program,
    add: Program,
    sum: Program,
    inputs: Vec<HostBuffer<f32>>,
    outputs: Vec<HostBuffer<f32>>,
    chain: HostBuffer<f32>,
    total: HostBuffer<f32>,
}

impl Chips {
    pub(crate) fn build(
        start: Start,
        limits: Limits,
        kernel: &Path,
        log: &CallLog,
    ) -> Result<Box<dyn WorkerScenario>, Failure> {
        log.call("build", None, || {
            let devices: Vec<i32> = (0..CHIPS as i32).collect();
            let within = |limit| Timeout::new(limit).map_err(failure);
            let mut worker = Worker::builder()
                .start(start)
                .devices(&devices)
                .sub_workers(1)
                .init_within(within(limits.call)?)
                .run_within(within(limits.call)?)
                .close_within(within(limits.close)?)
                .build()?;
            let buffers = || (0..CHIPS).map(|_| worker.host_buffer(COUNT)).collect::<Result<Vec<_>, _>>();
            let (inputs, outputs) = (buffers()?, buffers()?);
            let (chain, total) = (worker.host_buffer(COUNT)?, worker.host_buffer(1)?);
            let config = |rank: usize| -> Result<ChipConfig, Failure> {
                let member = Membership::new(rank as u32, CHIPS as u32).map_err(failure)?;
                let chip = ChipConfig::new(rank as i32).communicator(member).window(1 << 16);
                let data = chip.buffer("data", DType::Float32, COUNT);
                let data = data.load_from(&inputs[rank].span()).store_to(&outputs[rank].span());
                Ok(data.region("barrier", 4096))
            };
            let configs = (0..CHIPS).map(config).collect::<Result<_, _>>()?;
            worker.configure_chips(configs)?;
            let pass_on = worker.register_kernel(kernel)?;
            let (add, sum) = (worker.register_function("add", add), worker.register_function("sum", sum));
            let kernel = kernel.to_owned();
            Ok(Box::new(Self { worker, kernel, pass_on, add, sum, inputs, outputs, chain, total })
                as Box<dyn WorkerScenario>)
        })
    }

    /// A chain over all children, and a group with a barrier in a kernel.
    fn first_run(&mut self) -> Result<(), Failure> {
        let Self { worker, pass_on, add, sum, chain, total, .. } = self;
        let contexts = worker.chip_contexts()?.to_vec();
        worker.run(|orch| {
            let step = Args::new().tensor(&chain.tensor(), Access::InOut).scalar(1);
            (0..CHIPS).try_for_each(|chip| orch.submit_next_level(*add, &step, chip).map(drop))?;
            let ends = Args::new().tensor(&chain.tensor(), Access::Input);
            orch.submit_sub(*sum, &ends.tensor(&total.tensor(), Access::Output))?;
            let member = |(chip, context): (usize, &worker_orch::ChipContext)| {
                let (data, barrier) = (context.buffer("data")?.tensor()?, context.buffer("barrier")?.addr);
                let args = Args::new().tensor(&data, Access::InOut).scalar(context.device_ctx.0);
                Ok::<_, Failure>((chip, args.scalar(barrier.0)))
            };
            let members = contexts.iter().enumerate().map(member).collect::<Result<Vec<_>, _>>()?;
            orch.submit_group(*pass_on, &members).map(drop)
        })
    }

    /// A domain, a program that is registered late, and a barrier of the communicator.
    fn second_run(&mut self, limits: Limits) -> Result<(), Failure> {
        let Self { worker, add, .. } = self;
        let barrier = worker.register_function("barrier", barrier);
        worker.run(|orch| {
            let domain = orch.allocate_domain("pair", &[0, 2], 4096, &[("x", DType::Float32, COUNT)])?;
            for member in domain.contexts() {
                let x = worker_orch::flat_tensor(member.buffers["x"], DType::Float32, COUNT)?;
                let args = Args::new().tensor(&x, Access::InOut).scalar(3);
                orch.submit_next_level(*add, &args, member.chip)?;
            }
            let all = Args::new().scalar(limits.call.as_millis() as u64);
            (0..CHIPS).try_for_each(|chip| orch.submit_next_level(barrier, &all, chip).map(drop))
        })
    }

    /// Collectives of a domain and of all chips. A run of its own, so that the others pass their points as often as ever.
    fn third_run(&mut self, limits: Limits) -> Result<(), Failure> {
        let reduce = self.worker.register_function("reduce", reduce);
        let options = CollectivesOptions::new().pool(0).timeout(Timeout::new(limits.call).map_err(failure)?);
        let members = |chips: &[usize], scalar: u64| {
            chips.iter().map(|chip| (*chip, Args::new().scalar(scalar))).collect::<Vec<_>>()
        };
        self.worker.run(|orch| {
            let domain = orch.allocate_domain("pair", &[0, 2], 4096, &[])?;
            orch.domain_collectives(&domain, options)?;
            orch.submit_group(reduce, &members(&[0, 2], 1))?;
            orch.collectives(&[0, 1, 2], options)?;
            orch.submit_group(reduce, &members(&[0, 1, 2], 0)).map(drop)
        })?;
        self.last_run()
    }

    /// A kernel that is unloaded on the chips that have it, and a task that does not fit.
    fn last_run(&mut self) -> Result<(), Failure> {
        let Self { worker, add, pass_on, chain, .. } = self;
        worker.unregister(*pass_on)?;
        worker.set_signature(*add, Signature::new().tensor(Access::InOut, DType::Float32).scalars(1))?;
        let refused = worker.run(|orch| orch.submit_next_level(*add, &Args::new(), 0));
        if refused.is_ok() {
            return Err(wrong("a task that does not fit its signature was submitted"));
        }
        let step = Args::new().tensor(&chain.tensor(), Access::InOut).scalar(1);
        worker.run(|orch| (0..CHIPS).try_for_each(|chip| orch.submit_next_level(*add, &step, chip).map(drop)))
    }

    /// Memory of a chip, there and back.
    fn copies(&mut self, log: &CallLog) -> Result<(), Failure> {
        let worker = &mut self.worker;
        let memory = log.call("chip_alloc", None, || worker.chip_alloc(1, 256))?;
        log.call("copy_to", None, || worker.copy_to(1, memory.addr(), &[7; 256]))?;
        let mut back = [0; 256];
        log.call("copy_from", None, || worker.copy_from(1, memory.addr(), &mut back))?;
        expect("what was copied to chip 1 and back", &back, &[7; 256])
    }

    fn check_first_run(&self) -> Result<(), Failure> {
        let chips = CHIPS as f32;
        expect("the chain", &self.chain.to_vec(), &[chips; COUNT])?;
        expect("the sum", &self.total.to_vec(), &[chips * COUNT as f32])?;
        for (rank, output) in self.outputs.iter().enumerate() {
            let before = (rank + CHIPS - 1) % CHIPS;
            expect("what a rank was passed", &output.to_vec()[..1], &[before as f32 + 1.0])?;
        }
        Ok(())
    }
}

impl WorkerScenario for Chips {
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn run_all(&mut self, log: &CallLog, limits: Limits) -> Result<(), Failure> {
        for (rank, input) in self.inputs.iter().enumerate() {
            input.write(&[rank as f32; COUNT])?;
        }
        self.chain.write(&[0.0; COUNT])?;
        // The last round has unregistered it.
        self.pass_on = self.worker.register_kernel(&self.kernel)?;
        let limit = Some(limits.call);
        log.call("init", limit, || self.worker.init())?;
        log.call("run 1", limit, || {
            self.first_run()?;
            self.check_first_run()
        })?;
        self.copies(log)?;
        log.call("run 2", limit, || self.second_run(limits))?;
        log.call("run 3", limit, || self.third_run(limits))
    }
}

pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &[T],
    wanted: &[T],
) -> Result<(), Failure> {
    if found == wanted { Ok(()) } else { Err(wrong(&format!("{what} is {found:?}, not {wanted:?}"))) }
}

pub(crate) fn wrong(text: &str) -> Failure {
    Failure::new(ErrorCode::Internal, text)
}

pub(crate) fn failure(error: impl std::error::Error) -> Failure {
    Failure::new(ErrorCode::Internal, error.to_string())
}
