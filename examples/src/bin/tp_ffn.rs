//! A layer of a model on several chips (tensor parallelism), as a graph of tasks:
//!
//! ```text
//! chip r:      linear              allreduce              ffn                 host: collect
//!        x[:, r] W[r, :] ──> partial ──┬──> y ──> max(0, y V[:, r]) ──> out[:, r] ──┬──> out
//!            other chips' partials ────┘          other chips' columns ─────────────┘
//! ```
//!
//! Nobody says who waits for whom: it follows from the tensors that the tasks read and write. The kernels are
//! `kernels/tp_ffn.cpp` and `kernels/allreduce.cpp`; the result is checked against plain Rust.

use chipcomm_examples::{Job, Options, Rows, SIGNAL_BYTES, Stop, UNTOUCHED, main as run, rows_that_fit};
use clap::Parser;
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use comm_context::comm::Membership;
use std::process::ExitCode;
use worker_orch::{Access, Args, ChipConfig, ErrorCode, Failure, Task};

/// Linear, AllReduce, FFN on two to eight chips; each has 16 of the layer's columns, or --count
#[derive(Parser)]
#[command(after_help = "Example: a layer spread over four chips\n  \
    cargo run --release --bin tp_ffn -- -d 0-3 --iters 100")]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// Rows of x, and so of everything that is computed from it.
const TOKENS: usize = 8;
/// Columns of y.
const HIDDEN: usize = 64;
/// Odd iterations have another x, so that what is left of the last iteration cannot pass for the next.
const VARIANTS: usize = 2;
/// All numbers are small and whole, so that any order of summing gives the same; with more columns they would round.
const MOST_COLUMNS: usize = 4096;

/// A matrix of small whole numbers that looks random and is not.
struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, seed: usize) -> Self {
        let value = |at: usize| ((at * 7919 + seed * 104_729) % 5) as f32 - 2.0;
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

/// On the host: the chips' columns beside each other. The last tensor is the whole.
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

fn main() -> ExitCode {
    run(|cli: &Cli| {
        let (devices, count) = (cli.options.devices_or(2)?, cli.options.count_or(16));
        let n = devices.ids().len();
        if !(2..=8).contains(&n) || count > MOST_COLUMNS {
            let text = format!(
                "{n} chips with {count} columns each; give 2 to 8 chips and 1 to {MOST_COLUMNS} columns"
            );
            return Err(Stop::Usage(text));
        }
        let xs: Vec<Matrix> = (0..VARIANTS).map(|variant| Matrix::new(TOKENS, n * count, variant)).collect();
        let (w, v) = (Matrix::new(n * count, HIDDEN, 7), Matrix::new(HIDDEN, n * count, 11));
        let reference: Vec<Matrix> = xs.iter().map(|x| x.times(&w).times(&v)).collect();

        let mut job = Job::new("tp_ffn", &cli.options, devices, count)?;
        let mut worker = job.worker().sub_workers(1).build().map_err(Stop::before_start)?;
        let linear = job.own_kernel(&mut worker, "tp_ffn", "linear")?;
        let allreduce = job.kernel(&mut worker, "allreduce")?;
        let ffn = job.own_kernel(&mut worker, "tp_ffn", "ffn")?;
        let collect = worker.register_function("collect", collect);
        let sum_len = TOKENS * HIDDEN;
        let chip = |(rank, device): (usize, &i32)| {
            let member =
                Membership::new(rank as u32, n as u32).map_err(|error| Stop::Usage(error.to_string()))?;
            let chip = ChipConfig::new(*device).communicator(member);
            let chip = chip.window(SIGNAL_BYTES + 3 * sum_len * size_of::<f32>());
            let chip = chip.region("signals", SIGNAL_BYTES).buffer("data", DType::Float32, 2 * sum_len);
            Ok(chip.buffer("partial", DType::Float32, sum_len))
        };
        let chips = job.devices().iter().enumerate().map(chip).collect::<Result<Vec<_>, Stop>>()?;
        worker.configure_chips(chips).map_err(Stop::before_start)?;

        let most = rows_that_fit(TOKENS * n * count * size_of::<f32>()).min(cli.options.iters.get());
        let outputs = Rows::new(&worker, most, TOKENS * n * count)?;
        let host = |values: &[f32]| {
            let buffer = worker.host_buffer::<f32>(values.len())?;
            buffer.write(values).map(|()| buffer)
        };
        let (mut x_parts, mut w_parts, mut v_parts, mut out_parts) = (vec![], vec![], vec![], vec![]);
        for rank in 0..n {
            let parts = xs.iter().map(|x| host(&x.some_columns(rank * count, count)));
            x_parts.push(parts.collect::<Result<Vec<_>, Failure>>()?);
            w_parts.push(host(&w.values[rank * count * HIDDEN..][..count * HIDDEN])?);
            v_parts.push(host(&v.some_columns(rank * count, count))?);
            out_parts.push(worker.host_buffer::<f32>(TOKENS * count)?);
        }

        job.bring_up(&mut worker)?;
        let contexts = worker.chip_contexts()?.to_vec();
        let sums = (0..n).map(|chip| worker.chip_alloc(chip, sum_len * size_of::<f32>()));
        let sums = sums.collect::<Result<Vec<_>, Failure>>()?;
        job.batches(most, |job, batch| {
            outputs.reset(UNTOUCHED)?;
            job.run(&mut worker, |orch| {
                for iteration in batch.clone() {
                    let variant = iteration as usize % VARIANTS;
                    let shaped = |buffer: &worker_orch::HostBuffer<f32>, rows, columns| {
                        matrix(DeviceAddr(buffer.tensor().addr), rows, columns)
                    };
                    let mut group = Vec::with_capacity(n);
                    for (chip, context) in contexts.iter().enumerate() {
                        let partial = matrix(context.buffer("partial")?.addr, TOKENS, HIDDEN)?;
                        let args = Args::new()
                            .tensor(&shaped(&x_parts[chip][variant], TOKENS, count)?, Access::Input)
                            .tensor(&shaped(&w_parts[chip], count, HIDDEN)?, Access::Input)
                            .tensor(&partial, Access::Output);
                        orch.submit_next_level(linear, &args, chip)?;
                        let args = Args::new()
                            .tensor(&partial, Access::Input)
                            .tensor(&matrix(sums[chip].addr(), TOKENS, HIDDEN)?, Access::Output)
                            .scalar(context.buffer("data")?.addr.0)
                            .scalar(context.buffer("signals")?.addr.0)
                            .scalar(context.device_ctx.0);
                        group.push((chip, args));
                    }
                    orch.submit_group(allreduce, &group)?;
                    let mut gather = Args::new();
                    for chip in 0..n {
                        let out = shaped(&out_parts[chip], TOKENS, count)?;
                        let args = Args::new()
                            .tensor(&matrix(sums[chip].addr(), TOKENS, HIDDEN)?, Access::Input)
                            .tensor(&shaped(&v_parts[chip], HIDDEN, count)?, Access::Input)
                            .tensor(&out, Access::Output);
                        orch.submit_next_level(ffn, &args, chip)?;
                        gather = gather.tensor(&out, Access::Input);
                    }
                    let whole = outputs.tensor(iteration - batch.start)?;
                    orch.submit_sub(collect, &gather.tensor(&whole, Access::Output))?;
                }
                Ok(())
            })?;
            for (iteration, got) in batch.zip(outputs.to_vec().chunks(TOKENS * n * count)) {
                let expected = &reference[iteration as usize % VARIANTS];
                let got = Matrix { columns: n * count, values: got.to_vec() };
                for chip in 0..n {
                    let expected = expected.some_columns(chip * count, count);
                    let expected = |i: usize| Some(f64::from(expected[i].max(0.0)));
                    job.checked(chip).check(iteration, &got.some_columns(chip * count, count), expected, 0.0);
                }
            }
            Ok(())
        })?;
        job.finish(worker)
    })
}
