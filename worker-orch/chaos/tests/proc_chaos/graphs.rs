//! The scenario of chips whose graphs wait for each other: signals, blocks, completions that wait, and a deadlock, in all front
//! ends and on 2 to 4 chips.
//!
//! # Safety
//! A kernel behind the C entry names a word of its chip's window, which stays as long as the communicator.
#![allow(unsafe_code)]

use crate::chips::{expect, failure, wrong};
use crate::log::CallLog;
use crate::rounds::{Limits, WorkerScenario};
use comm_context::abi::{
    CompletionEntry, DType, DeviceAddr, KERNEL_ARGS, KERNEL_LOCAL_CONTEXT_ARG, LocalContext,
};
use comm_context::comm::{Membership, Timeout};
use worker_orch::runtime::signals::{Domain, NamedBuffer, Signal, SignalOp, Signaller, Wait};
use worker_orch::runtime::{self, Block, FrontEnd, KernelId, KernelResult, Kernels, ScopeMode, TaskArgs};
use worker_orch::{Access, Args, ChipConfig, Failure, HostBuffer, Program, Task, Worker, flat_tensor};

const CHIPS: usize = 4;
const COUNT: usize = 48;
const FILL: KernelId = KernelId(0);
const ADD: KernelId = KernelId(1);
const LATER: KernelId = KernelId(2);
const CHECK: KernelId = KernelId(3);

/// A Worker of four chips, with what their graphs compute.
pub(crate) struct Graphs {
    worker: Worker,
    ring: Program,
    stuck: Program,
    outputs: Vec<HostBuffer<f32>>,
}

fn limits() -> runtime::Limits {
    runtime::Limits { clusters: 2, slots: 16, heap: 1 << 16, ..runtime::Limits::default() }
}

/// Each block writes its part of the first tensor.
fn fill(block: &Block<'_>) -> KernelResult {
    let (value, elements) = (block.scalar(0)? as f32, block.elements::<f32>(0)?);
    let parts = (block.index() as usize..elements.len()).step_by(block.count() as usize);
    for at in parts {
        elements.write(at, &[value])?;
    }
    Ok(())
}

fn add(block: &Block<'_>) -> KernelResult {
    let (a, b) = (block.read::<f32>(0)?, block.read::<f32>(1)?);
    Ok(block.write(2, &a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<f32>>())?)
}

/// Doubles the first tensor.
fn check(block: &Block<'_>) -> KernelResult {
    let doubled: Vec<f32> = block.read::<f32>(0)?.iter().map(|x| 2.0 * x).collect();
    Ok(block.write(0, &doubled)?)
}

/// Asks for its task to be complete when the word of scalar 0 has reached scalar 1.
fn later(args: *mut i64) -> Result<(), String> {
    // SAFETY: the argument list of a kernel, with its context at its place and a slab behind it; the task has no tensors.
    unsafe {
        let args = std::slice::from_raw_parts(args, KERNEL_ARGS);
        let local = &*(args[KERNEL_LOCAL_CONTEXT_ARG] as *const LocalContext);
        let (address, expected) = (args[0] as u64, args[1] as u32);
        let entry = CompletionEntry { address, cookie: 0, expected, engine: 0, kind: 0, reserved: 0 };
        (local.completion_entries as *mut CompletionEntry).write(entry);
        (local.completion_count as *mut u32).write(1);
    }
    Ok(())
}

/// Scalars: front end, round, where words and data are in the window, and how many chips take part. Chips are a ring: each
/// adds what the one before it wrote to its own.
fn ring(task: &mut Task<'_>) -> Result<(), Failure> {
    let &[front_end, round, words, data, n] = task.scalars() else { return Err(wrong("scalars")) };
    let mut graphs = task.graphs(&limits())?;
    graphs.runtime().set_kernel(FILL, "fill", fill);
    graphs.runtime().set_kernel(ADD, "add", add);
    graphs.runtime().set_kernel(CHECK, "check", check);
    // SAFETY: see the top of the file.
    unsafe { graphs.runtime().set_raw_kernel(LATER, "later", later) };
    let (signals, domain) = (graphs.signals().clone(), Domain::BASE);
    let me = signals.rank();
    let (before, after) = ((me + n as u32 - 1) % n as u32, (me + 1) % n as u32);
    for (name, offset, count) in [("data", data, COUNT as u64), ("words", words, 64)] {
        let named = NamedBuffer { name: name.into(), offset, count, element: 4 };
        signals.name_buffer(domain, named).map_err(failure)?;
    }
    let address = |rank, name, index| signals.table().address(domain, rank, name, index).map_err(failure);
    let window = |rank| flat_tensor(address(rank, "data", 0)?, DType::Float32, COUNT);
    let (mine, theirs, output) = (window(me)?, window(before)?, graphs.tensor(0)?);
    // Words count the rounds of so many chips: written, read, and what a completion waits for.
    let word = |kind: u64| 4 * n + kind;
    let DeviceAddr(completes) = address(me, "words", word(2))?;
    let offset = |kind: u64| words + 4 * word(kind);
    let wait = |kind, from| Wait {
        domain,
        offset: offset(kind),
        at_least: round as u32,
        from: Signaller::Rank(from),
    };
    let signal = |rank, kind| Signal { domain, rank, offset: offset(kind), op: SignalOp::Add(1) };
    graphs.run(FrontEnd::ALL[front_end as usize], |graph| {
        let publish = |graph: &mut runtime::Graph<'_>, kernel, args: &TaskArgs| {
            let task = graph.submit(Kernels::aiv(kernel), args)?.task;
            graph.publish(task)?;
            Ok::<_, runtime::RuntimeError>(task)
        };
        let value = (u64::from(me) + 1) * round;
        let fills = TaskArgs::new().output_existing(&mine).scalar(value).blocks(3).signal(signal(after, 0));
        let filled = publish(graph, FILL, &fills)?;
        let added = graph.scope(ScopeMode::Auto, |graph| {
            let adds = TaskArgs::new().input(&mine).input(&theirs).output_existing(&output).after(filled);
            let adds = adds.wait(wait(0, before)).signal(signal(before, 1)).signal(signal(before, 2));
            publish(graph, ADD, &adds)
        })?;
        let waits = TaskArgs::new().scalar(completes).scalar(round).wait(wait(1, after));
        let complete = publish(graph, LATER, &waits)?;
        publish(graph, CHECK, &TaskArgs::new().inout(&output).after(added).after(complete)).map(drop)
    })
}

/// Two chips, each of which waits for the other.
fn stuck(task: &mut Task<'_>) -> Result<(), Failure> {
    let words = task.scalar(0)?;
    let mut graphs = task.graphs(&limits())?;
    let other = 1 - graphs.signals().rank();
    let wait = Wait { domain: Domain::BASE, offset: words + 240, at_least: 1, from: Signaller::Rank(other) };
    graphs.run(FrontEnd::Inferred, |graph| graph.submit_dummy(&TaskArgs::new().wait(wait)).map(drop))
}

impl Graphs {
    pub(crate) fn build(limits: Limits, log: &CallLog) -> Result<Box<dyn WorkerScenario>, Failure> {
        log.call("build", None, || {
            let devices: Vec<i32> = (0..CHIPS as i32).collect();
            let within = |limit| Timeout::new(limit).map_err(failure);
            let mut worker = Worker::builder()
                .devices(&devices)
                .init_within(within(limits.call)?)
                .run_within(within(limits.call)?)
                .close_within(within(limits.close)?)
                .build()?;
            let config = |rank: usize| -> Result<ChipConfig, Failure> {
                let member = Membership::new(rank as u32, CHIPS as u32).map_err(failure)?;
                let chip = ChipConfig::new(rank as i32).communicator(member).window(1 << 14);
                Ok(chip.buffer("data", DType::Float32, COUNT).region("words", 1024))
            };
            worker.configure_chips((0..CHIPS).map(config).collect::<Result<_, _>>()?)?;
            let outputs = (0..CHIPS).map(|_| worker.host_buffer(COUNT)).collect::<Result<_, _>>()?;
            let ring = worker.register_graph("ring", ring)?;
            let stuck = worker.register_graph("stuck", stuck)?;
            Ok(Box::new(Self { worker, ring, stuck, outputs }) as Box<dyn WorkerScenario>)
        })
    }

    /// Where the words and the data are in every window.
    fn places(&mut self) -> Result<(u64, u64), Failure> {
        let context = &self.worker.chip_contexts()?[0];
        let at = |name| Ok::<_, Failure>(context.buffer(name)?.addr.0 - context.window_base.0);
        Ok((at("words")?, at("data")?))
    }

    /// All front ends on the first `n` chips.
    fn rings(&mut self, n: usize) -> Result<(), Failure> {
        let (words, data) = self.places()?;
        let Self { worker, ring, outputs, .. } = self;
        for front_end in 0..3u64 {
            let round = front_end + 1;
            let member = |chip: usize| {
                let args = Args::new().tensor(&outputs[chip].tensor(), Access::InOut);
                let scalars = [front_end, round, words, data, n as u64];
                (chip, scalars.iter().fold(args, |args, scalar| args.scalar(*scalar)))
            };
            let members: Vec<(usize, Args)> = (0..n).map(member).collect();
            worker.run(|orch| orch.submit_group(*ring, &members).map(drop))?;
            for (chip, output) in outputs[..n].iter().enumerate() {
                let sum = (chip + 1 + (chip + n - 1) % n + 1) as f32 * round as f32;
                expect("what a graph computed", &output.to_vec(), &[2.0 * sum; COUNT])?;
            }
        }
        Ok(())
    }

    /// Chips that wait for each other: that this is found is what is expected.
    fn deadlock(&mut self) -> Result<(), Failure> {
        let (words, _) = self.places()?;
        let members = [0, 1].map(|chip| (chip, Args::new().scalar(words)));
        let is_proof = |text: &str| text.contains("no chip can go on") && !text.contains(" died");
        match self.worker.run(|orch| orch.submit_group(self.stuck, &members).map(drop)) {
            // A chip that does not come back from it is reported by the next call.
            Err(failure) if is_proof(&failure.to_string()) => {
                self.worker.run(|_| Ok(())).map_err(|failure| failure.in_phase("run"))
            }
            Err(failure) => Err(failure),
            Ok(()) => Err(wrong("chips that wait for each other ended well")),
        }
    }
}

impl WorkerScenario for Graphs {
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn run_all(&mut self, log: &CallLog, limits: Limits) -> Result<(), Failure> {
        let limit = Some(limits.call);
        log.call("init", limit, || self.worker.init())?;
        for n in 2..=CHIPS {
            log.call(&format!("graphs on {n} chips"), limit, || self.rings(n))?;
        }
        log.call("deadlock", limit, || self.deadlock())?;
        log.call("a domain", limit, || self.once_more())
    }
}
