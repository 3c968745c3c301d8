//! A layer of a model on several chips (tensor parallelism), as a graph of tasks:
//!
//! ```text
//! chip r:      linear              allreduce              ffn                 host: collect
//!        x[:, r] W[r, :] ──> partial ──┬──> y ──> max(0, y V[:, r]) ──> out[:, r] ──┬──> out
//!            other chips' partials ────┘          other chips' columns ─────────────┘
//! ```
//!
//! The order of the tasks is given nowhere: it follows from the tensors that they read and write. The kernels
//! are `kernels/tp_ffn.cpp` and `kernels/allreduce.cpp`; the result is checked against plain Rust.
//!
//! With `--runtime` the layer is one graph on each chip: linear and ffn are tasks of the graph, allreduce is tasks that wait for the
//! partial sums of peers and signal them, and the parent does nothing between start and end. Both ways are run and timed.

use chipcomm_examples::{
    CommandLine, DOT_FLAG, Error, FLAGS, Flag, GraphOptions, Job, KERNEL_NOTE, Options, Peers, Rows,
    SIGNAL_BYTES, Style, UNTOUCHED, data_len, main as run, print_line, rows_that_fit, usage, window_bytes,
};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use worker_orch::runtime::{Block, Create, KernelId, KernelResult, Kernels, TaskArgs};
use worker_orch::{
    Access, Args, ChipConfig, DType, DeviceAddr, ErrorCode, Failure, Membership, Orchestrator, Program, Task,
    TensorDesc,
};

const LINE: CommandLine = CommandLine {
    program: "tp_ffn",
    about: "Linear, AllReduce, FFN on two to eight chips; each has 16 of the layer's columns, or --count",
    flags: &[
        FLAGS,
        &[
            Flag::with_value(
                "runtime",
                "NAME",
                "Also as one graph on each chip: prebuilt, explicit or inferred; prints the time of both ways",
            ),
            DOT_FLAG,
        ],
    ],
    examples: "Example: a layer spread over four chips\n  cargo run --release --bin tp_ffn -- -d 0-3 --iters 100",
    notes: &[KERNEL_NOTE, "It takes the place of allreduce in the layer; the other kernels stay."],
};

/// Rows of x, and so of everything that is computed from it.
const TOKENS: usize = 8;
/// Columns of y.
const HIDDEN: usize = 64;
/// Odd iterations have another x, so that stale output of the last iteration is not right.
const VARIANTS: usize = 2;
/// All numbers are small and whole, so that sums are exact in any order; more columns would round.
const MOST_COLUMNS: usize = 4096;

/// A matrix of small pseudo-random whole numbers.
struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, seed: usize) -> Self {
        let value = |at: usize| {
            let mixed = ((at + 1) as u32)
                .wrapping_mul(2_654_435_761)
                .wrapping_add((seed as u32).wrapping_mul(0x9e37_79b9));
            ((mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b) >> 16) as f32 % 5.0 - 2.0
        };
        Self { columns, values: (0..rows * columns).map(value).collect() }
    }

    /// The plain product, for the reference.
    fn times(&self, other: &Self) -> Self {
        let mut values = Vec::new();
        for row in self.values.chunks(self.columns) {
            for column in 0..other.columns {
                let line = other.values.iter().skip(column).step_by(other.columns);
                values.push(row.iter().zip(line).map(|(a, b)| a * b).sum());
            }
        }
        Self { columns: other.columns, values }
    }

    fn some_columns(&self, first: usize, count: usize) -> Vec<f32> {
        self.values.chunks(self.columns).flat_map(|row| &row[first..first + count]).copied().collect()
    }
}

/// On the host: puts the chips' columns side by side. The last tensor is the whole matrix.
fn collect(task: &mut Task<'_>) -> Result<(), Failure> {
    let parts = (0..task.tensors().len() - 1).map(|part| task.read::<f32>(part));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let columns = parts.first().map_or(0, |part| part.len() / TOKENS);
    let rows =
        (0..TOKENS).flat_map(|row| parts.iter().flat_map(move |part| &part[row * columns..][..columns]));
    task.write(parts.len(), &rows.copied().collect::<Vec<f32>>())
}

/// A tensor of two dimensions.
fn matrix(addr: DeviceAddr, rows: usize, columns: usize) -> Result<TensorDesc, Failure> {
    let bytes = (rows * columns * size_of::<f32>()) as u64;
    TensorDesc::builder(addr, bytes, DType::Float32, &[rows as u32, columns as u32])
        .build()
        .map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))
}

const LINEAR: KernelId = KernelId(0);
const ADD: KernelId = KernelId(1);
const FFN: KernelId = KernelId(2);

/// The product of tensors 0 and 1 into tensor 2, with `last` applied to each element.
fn product(block: &Block<'_>, last: fn(f32) -> f32) -> KernelResult {
    let (a, b) = (block.read::<f32>(0)?, block.read::<f32>(1)?);
    let inner = block.tensors()[0].shapes[1] as usize;
    let columns = block.tensors()[1].shapes[1] as usize;
    let mut product = vec![0.0_f32; a.len() / inner * columns];
    for (row, out) in a.chunks(inner).zip(product.chunks_mut(columns)) {
        for (value, line) in row.iter().zip(b.chunks(columns)) {
            out.iter_mut().zip(line).for_each(|(out, b)| *out += value * b);
        }
        out.iter_mut().for_each(|out| *out = last(*out));
    }
    Ok(block.write(2, &product)?)
}

/// The whole layer once, as a graph of each chip. Tensors: x, w, v, out; scalars: where "partial" and "signals" are in the window.
fn layer_graph(
    GraphOptions { front_end, limits, dot }: GraphOptions,
) -> impl Fn(&mut Task<'_>) -> Result<(), Failure> + Send + Sync + 'static {
    // Every chip has a copy of its own, and counts alike.
    let rounds = AtomicU32::new(0);
    move |task| {
        let (partial, signals) = (task.scalar(0)?, task.scalar(1)?);
        let mut graphs = task.graphs(&limits)?;
        // Relaxed: only this thread uses it.
        let round = rounds.fetch_add(1, Ordering::Relaxed) + 1;
        if round == 1 {
            let runtime = graphs.runtime();
            runtime.set_kernel(LINEAR, "linear", |block| product(block, |value| value));
            runtime.set_kernel(FFN, "ffn", |block| product(block, |value| value.max(0.0)));
            runtime.set_kernel(ADD, "add", |block| {
                let (mut sum, theirs) = (block.read::<f32>(0)?, block.read::<f32>(1)?);
                sum.iter_mut().zip(&theirs).for_each(|(sum, theirs)| *sum += theirs);
                Ok(block.write(2, &sum)?)
            });
            if dot.is_some() {
                runtime.record();
            }
        }
        let peers = Peers::new(&graphs, partial, signals, TOKENS * HIDDEN, round)?;
        let mine = matrix(DeviceAddr(partial), TOKENS, HIDDEN)?;
        let theirs = |rank: u32| matrix(DeviceAddr(peers.data[rank as usize].addr), TOKENS, HIDDEN);
        let theirs = peers.others().map(|rank| Ok((rank, theirs(rank)?)));
        let theirs = theirs.collect::<Result<Vec<_>, Failure>>()?;
        let [x, w, v, out] = [0, 1, 2, 3].map(|index| graphs.tensor(index));
        let (x, w, v, out) = (x?, w?, v?, out?);
        graphs.run(front_end, |graph| {
            let mut linear = TaskArgs::new().input(&x).input(&w).output_existing(&mine);
            for peer in peers.others() {
                linear = linear.wait(peers.until_read(peer)).signal(peers.written(peer));
            }
            let mut last = graph.submit(Kernels::aic(LINEAR), &linear)?.task;
            let mut sum = mine;
            for (peer, theirs) in &theirs {
                // The edge is named for the front end that infers none.
                let add = TaskArgs::new().input(&sum).input(theirs).after(last);
                let add = add.output(Create::of::<f32>(&[TOKENS as u32, HIDDEN as u32]));
                let add = add.wait(peers.until_written(*peer)).signal(peers.read(*peer));
                let added = graph.submit(Kernels::aiv(ADD), &add)?;
                (last, sum) = (added.task, added.outputs[0]);
            }
            let ffn = TaskArgs::new().input(&sum).input(&v).output_existing(&out).after(last);
            graph.submit(Kernels::aic(FFN), &ffn).map(drop)
        })?;
        dot.as_ref().filter(|_| round == 1).map_or(Ok(()), |file| graphs.write_dot(file, 0))
    }
}

/// The layer once, each chip's part as one graph.
fn submit_graphs(
    orch: &mut Orchestrator<'_>,
    programs: &Programs,
    parts: &[Part],
    variant: usize,
    whole: &TensorDesc,
) -> Result<(), Failure> {
    let Some(graph) = programs.graph else { return Ok(()) };
    let members = parts.iter().map(|part| {
        Args::new()
            .tensor(&part.x[variant], Access::Input)
            .tensor(&part.w, Access::Input)
            .tensor(&part.v, Access::Input)
            .tensor(&part.out, Access::Output)
            .scalar(part.partial.addr)
            .scalar(part.window[1] + SIGNAL_BYTES as u64)
    });
    orch.submit_group(graph, &members.enumerate().collect::<Vec<_>>())?;
    let gather = parts.iter().fold(Args::new(), |args, part| args.tensor(&part.out, Access::Input));
    orch.submit_sub(programs.collect, &gather.tensor(whole, Access::Output)).map(drop)
}

/// The three kernels and the function that make the layer, and the graph that is all kernels at once.
struct Programs {
    graph: Option<Program>,
    linear: Program,
    allreduce: Program,
    ffn: Program,
    collect: Program,
}

/// What one chip has of the layer, as tensors.
struct Part {
    /// Its columns of x, for each variant.
    x: Vec<TensorDesc>,
    /// Its rows of the weights before the sum, its columns of those after.
    w: TensorDesc,
    v: TensorDesc,
    /// Its share of the sum, in its window, and the sum, in its memory.
    partial: TensorDesc,
    sum: TensorDesc,
    /// Its columns of the output.
    out: TensorDesc,
    /// The window's data and signals, and the context.
    window: [u64; 3],
}

/// How the layer is submitted once.
type Submit = fn(&mut Orchestrator<'_>, &Programs, &[Part], usize, &TensorDesc) -> Result<(), Failure>;

/// The whole layer once. The order of its tasks follows from their tensors.
fn submit_layer(
    orch: &mut Orchestrator<'_>,
    programs: &Programs,
    parts: &[Part],
    variant: usize,
    whole: &TensorDesc,
) -> Result<(), Failure> {
    for (chip, part) in parts.iter().enumerate() {
        let args = Args::new()
            .tensor(&part.x[variant], Access::Input)
            .tensor(&part.w, Access::Input)
            .tensor(&part.partial, Access::Output);
        orch.submit_next_level(programs.linear, &args, chip)?;
    }
    let summing = parts.iter().map(|part| {
        let args = Args::new().tensor(&part.partial, Access::Input).tensor(&part.sum, Access::Output);
        part.window.iter().fold(args, |args, scalar| args.scalar(*scalar))
    });
    orch.submit_group(programs.allreduce, &summing.enumerate().collect::<Vec<_>>())?;
    let mut gather = Args::new();
    for (chip, part) in parts.iter().enumerate() {
        let args = Args::new()
            .tensor(&part.sum, Access::Input)
            .tensor(&part.v, Access::Input)
            .tensor(&part.out, Access::Output);
        orch.submit_next_level(programs.ffn, &args, chip)?;
        gather = gather.tensor(&part.out, Access::Input);
    }
    orch.submit_sub(programs.collect, &gather.tensor(whole, Access::Output)).map(drop)
}

fn main() -> ExitCode {
    run(&LINE, |arguments| {
        let options = Options::read(arguments)?;
        let (devices, count) = (options.devices_or(2)?, options.count_or(16));
        let n = devices.ids().len();
        if !(2..=8).contains(&n) || count > MOST_COLUMNS {
            return Err(usage(format!(
                "it runs on 2 to 8 chips with 1 to {MOST_COLUMNS} columns each, not on {n} with {count}"
            )));
        }
        let (columns, sum_len) = (n * count, TOKENS * HIDDEN);
        let xs: Vec<Matrix> = (0..VARIANTS).map(|variant| Matrix::new(TOKENS, columns, variant)).collect();
        let (w, v) = (Matrix::new(columns, HIDDEN, 7), Matrix::new(HIDDEN, columns, 11));
        let reference: Vec<Matrix> = xs.iter().map(|x| x.times(&w).times(&v)).collect();

        let mut job = Job::new(LINE.program, &options, devices, count)?;
        let mut worker = job.worker().sub_workers(1).build().map_err(Error::before_start)?;
        let graph = GraphOptions::read(arguments)?;
        let graph = graph.map(|options| worker.register_graph("layer", layer_graph(options)));
        let programs = Programs {
            graph: graph.transpose().map_err(Error::before_start)?,
            linear: job.own_kernel(&mut worker, "tp_ffn", "linear")?,
            allreduce: job.kernel(&mut worker, "allreduce")?,
            ffn: job.own_kernel(&mut worker, "tp_ffn", "ffn")?,
            collect: worker.register_function("collect", collect),
        };
        let chip = |(rank, device): (usize, &i32)| {
            let member = Membership::new(rank as u32, n as u32).map_err(usage)?;
            let data = data_len(n, sum_len);
            Ok(ChipConfig::new(*device)
                .communicator(member)
                .window(window_bytes(data + sum_len) + SIGNAL_BYTES)
                // Those of the kernel, then those of the graph.
                .region("signals", 2 * SIGNAL_BYTES)
                .buffer("data", DType::Float32, data)
                .buffer("partial", DType::Float32, sum_len))
        };
        let chips = job.devices().iter().enumerate().map(chip).collect::<Result<Vec<_>, Error>>()?;
        worker.configure_chips(chips).map_err(Error::before_start)?;

        job.bring_up(&mut worker)?;
        let contexts = worker.chip_contexts()?.to_vec();
        let most = rows_that_fit(TOKENS * columns * size_of::<f32>()).min(options.iters.get());
        let outputs = Rows::new(&worker, most, TOKENS * columns)?;
        // The memory behind the tensors of the parts, which is freed on drop.
        let (mut on_host, mut on_chip) = (Vec::new(), Vec::new());
        let mut parts = Vec::with_capacity(n);
        for (chip, context) in contexts.iter().enumerate() {
            let mut host = |values: &[f32], rows: usize| -> Result<TensorDesc, Failure> {
                let buffer = worker.host_buffer::<f32>(values.len())?;
                buffer.write(values)?;
                let tensor = matrix(DeviceAddr(buffer.tensor().addr), rows, values.len() / rows);
                on_host.push(buffer);
                tensor
            };
            let mine = |matrix: &Matrix| matrix.some_columns(chip * count, count);
            let x = xs.iter().map(|x| host(&mine(x), TOKENS)).collect::<Result<Vec<_>, _>>()?;
            let w = host(&w.values[chip * count * HIDDEN..][..count * HIDDEN], count)?;
            let v = host(&mine(&v), HIDDEN)?;
            let out = host(&vec![0.0; TOKENS * count], TOKENS)?;
            let partial = matrix(context.buffer("partial")?.addr, TOKENS, HIDDEN)?;
            on_chip.push(worker.chip_alloc(chip, sum_len * size_of::<f32>())?);
            let sum = matrix(on_chip[chip].addr(), TOKENS, HIDDEN)?;
            let [data, signals] = [context.buffer("data")?.addr.0, context.buffer("signals")?.addr.0];
            parts.push(Part { x, w, v, partial, sum, out, window: [data, signals, context.device_ctx.0] });
        }

        // From the Worker's tasks, then, where it was asked for, from a graph on each chip.
        let ways: &[(&str, Submit)] = if programs.graph.is_some() {
            &[("tasks", submit_layer), ("graphs", submit_graphs)]
        } else {
            &[("tasks", submit_layer)]
        };
        let mut times = vec![Duration::ZERO; ways.len()];
        job.batches(most, |job, batch| {
            for ((_, submit), time) in ways.iter().zip(&mut times) {
                outputs.reset(UNTOUCHED)?;
                let begun = Instant::now();
                job.run(&mut worker, |orch| {
                    for iteration in batch.clone() {
                        let whole = outputs.tensor(iteration - batch.start)?;
                        submit(orch, &programs, &parts, iteration as usize % VARIANTS, &whole)?;
                    }
                    Ok(())
                })?;
                *time += begun.elapsed();
                for (iteration, got) in batch.clone().zip(outputs.to_vec().chunks(TOKENS * columns)) {
                    let expected = &reference[iteration as usize % VARIANTS];
                    let got = Matrix { columns, values: got.to_vec() };
                    for chip in 0..n {
                        let expected = expected.some_columns(chip * count, count);
                        let expected = |i: usize| Some(f64::from(expected[i].max(0.0)));
                        let got = got.some_columns(chip * count, count);
                        job.checked(chip).check(iteration, &got, expected, 0.0);
                    }
                }
            }
            Ok(())
        })?;
        if ways.len() > 1 && options.style == Style::Text {
            for ((way, _), time) in ways.iter().zip(&times) {
                let each = *time / options.iters.get();
                print_line(format_args!("  as {way}: {each:.1?} for each layer"))?;
            }
        }
        job.finish(worker)
    })
}
