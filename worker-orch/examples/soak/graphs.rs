//! A Worker whose chips run graphs on their cores for one cycle: sums over their windows, with waits and signals
//! between the chips.

use crate::cycle::{KillPlan, Phase, Soak, limit};
use crate::random::Random;
use comm_context::abi::DType;
use comm_context::comm::Membership;
use worker_orch::runtime::signals::{Domain, NamedBuffer, Signal, SignalOp, Signaller, Wait};
use worker_orch::runtime::{FrontEnd, KernelId, Kernels, Limits, TaskArgs};
use worker_orch::{Access, Args, ChipConfig, ErrorCode, Failure, Task, Worker, flat_tensor};

const COUNT: usize = 300;
const COPY: KernelId = KernelId(0);
const SUM: KernelId = KernelId(1);
/// From the words that count what a chip has written to those that count what it has read.
const READ_WORDS: u64 = 256;

pub(crate) fn run(soak: &mut Soak, plan: &mut KillPlan, random: &mut Random) -> Result<(), Failure> {
    let chips = random.among(2, 4);
    let devices: Vec<i32> = (0..chips as i32).collect();
    let builder = Worker::builder().devices(&devices);
    let mut worker = builder.init_within(limit()).run_within(limit()).build()?;
    let configs = (0..chips).map(|rank| {
        let member = Membership::new(rank as u32, chips as u32).map_err(failed)?;
        let config = ChipConfig::new(rank as i32).communicator(member).window(COUNT * 4 + 8192);
        Ok(config.buffer("data", DType::Float32, COUNT).region("words", 4096))
    });
    worker.configure_chips(configs.collect::<Result<_, Failure>>()?)?;
    let program = worker.register_graph("sum of all", sum_of_all)?;
    let used = use_worker(&mut worker, soak, plan, (chips, random.among(1, 6)), program);
    let closed = soak.step(Phase::Close, plan, || worker.close());
    used.and(closed)
}

fn use_worker(
    worker: &mut Worker,
    soak: &mut Soak,
    plan: &mut KillPlan,
    (chips, rounds): (usize, usize),
    program: worker_orch::Program,
) -> Result<(), Failure> {
    let buffers = |worker: &Worker| -> Result<Vec<_>, Failure> {
        (0..chips).map(|_| worker.host_buffer::<f32>(COUNT)).collect()
    };
    let (inputs, outputs) = (buffers(worker)?, buffers(worker)?);
    soak.step(Phase::Init, plan, || worker.init())?;
    let context = &worker.chip_contexts()?[0];
    let at = |name| Ok::<_, Failure>(context.buffer(name)?.addr.0 - context.window_base.0);
    let (words, data) = (at("words")?, at("data")?);
    for round in 1..=rounds {
        for (chip, input) in inputs.iter().enumerate() {
            input.write(&[((chip + 1) * round) as f32; COUNT])?;
        }
        let members = inputs.iter().zip(&outputs).map(|(input, output)| {
            let args = Args::new().tensor(&input.tensor(), Access::Input);
            let args = args.tensor(&output.tensor(), Access::Output);
            args.scalar(round as u64).scalar(words).scalar(data)
        });
        let members: Vec<(usize, Args)> = members.enumerate().collect();
        let phase = if round == 1 { Phase::Run } else { Phase::Control };
        soak.step(phase, plan, || worker.run(|orch| orch.submit_group(program, &members).map(drop)))?;
        let sum = (chips * (chips + 1) / 2 * round) as f32;
        if outputs.iter().any(|output| output.to_vec() != [sum; COUNT]) {
            return Err(Failure::new(ErrorCode::Internal, format!("a wrong sum in round {round} of graphs")));
        }
    }
    Ok(())
}

/// Sums tensor 0 of all chips into tensor 1 of each. Scalars: round, where the words and the data are in the window.
fn sum_of_all(task: &mut Task<'_>) -> Result<(), Failure> {
    let (round, words, data) = (task.scalar(0)? as u32, task.scalar(1)?, task.scalar(2)?);
    let front_end = FrontEnd::ALL[round as usize % FrontEnd::ALL.len()];
    let mut graphs = task.graphs(&Limits { clusters: 2, slots: 64, heap: 1 << 20, ..Limits::default() })?;
    graphs.runtime().set_kernel(COPY, "copy", |block| Ok(block.write(1, &block.read::<f32>(0)?)?));
    graphs.runtime().set_kernel(SUM, "sum", |block| {
        let last = block.tensors().len() - 1;
        let mut sum = vec![0.0; COUNT];
        for tensor in 0..last {
            block.read::<f32>(tensor)?.iter().zip(&mut sum).for_each(|(value, sum)| *sum += value);
        }
        Ok(block.write(last, &sum)?)
    });
    let signals = graphs.signals().clone();
    let named = NamedBuffer { name: "data".into(), offset: data, count: COUNT as u64, element: 4 };
    signals.name_buffer(Domain::BASE, named).map_err(failed)?;
    let (me, chips) = signals.table().place(Domain::BASE).map_err(failed)?;
    let window = |rank: u32| {
        let at = signals.table().address(Domain::BASE, rank, "data", 0).map_err(failed)?;
        flat_tensor(at, DType::Float32, COUNT)
    };
    let windows = (0..chips).map(window).collect::<Result<Vec<_>, _>>()?;
    let peers = || (0..chips).filter(|rank| *rank != me);
    let written = |by: u32| words + 4 * u64::from(by);
    let read = |by: u32| written(by) + READ_WORDS;
    let wait = |offset, at_least, from| {
        let from = Signaller::Rank(from);
        Wait { domain: Domain::BASE, offset, at_least, from }
    };
    let signal = |rank, offset| Signal { domain: Domain::BASE, rank, offset, op: SignalOp::Add(1) };
    let (input, output) = (graphs.tensor(0)?, graphs.tensor(1)?);
    graphs.run(front_end, |graph| {
        let mut copy = TaskArgs::new().input(&input).output_existing(&windows[me as usize]);
        for peer in peers() {
            copy = copy.wait(wait(read(peer), round - 1, peer)).signal(signal(peer, written(me)));
        }
        let copied = graph.submit(Kernels::aiv(COPY), &copy)?.task;
        let mut sum = windows.iter().fold(TaskArgs::new(), |args, window| args.input(window));
        sum = sum.output_existing(&output).after(copied);
        for peer in peers() {
            sum = sum.wait(wait(written(peer), round, peer)).signal(signal(peer, read(me)));
        }
        graph.submit(Kernels::aiv(SUM), &sum).map(drop)
    })
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::Task, error.to_string())
}
