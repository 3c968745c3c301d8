//! One collective operation on all chips: what allreduce, allgather, reduce_scatter and treduce share.

use crate::cli::{Arguments, CommandLine};
use crate::exit::{Error, Outcome, main};
use crate::golden::{UNTOUCHED, slack_of_sum};
use crate::job::Job;
use crate::options::Options;
use crate::rows::{Rows, rows_that_fit};
use comm_context::abi::{DType, TensorDesc};
use comm_context::comm::Membership;
use std::process::ExitCode;
use worker_orch::{Access, Args, ChipConfig, ChipContext, Failure};

/// The bytes of a `CommPhaseBarrier`.
pub const SIGNAL_BYTES: usize = 4096;
/// Inputs differ from iteration to iteration, so that stale output of the last one is not right.
const VARIANTS: u32 = 4;

/// Element `index` of the input of a rank, in the first iteration; in iteration k it is k mod 4 more.
pub fn input(rank: usize, index: usize) -> f64 {
    index as f64 + 100.0 * rank as f64
}

/// The sum over `n` ranks of [`input`].
pub fn sum_of_inputs(n: usize, index: usize) -> f64 {
    let n = n as f64;
    n * index as f64 + 100.0 * n * (n - 1.0) / 2.0
}

/// What is special about a collective.
pub struct Collective {
    /// Floats of input on each chip; the window has room for two of them.
    pub input_len: usize,
    /// Floats of output on each chip.
    pub output_len: usize,
    /// Further arguments of the kernel.
    pub scalars: Vec<u64>,
    /// Element `index` of the output of a rank, in the first iteration; `None` if it must not be written.
    pub expected: Box<dyn Fn(usize, usize) -> Option<f64>>,
    /// How much the output grows when every input grows by 1.
    pub gain: f64,
}

impl Collective {
    /// The main function of a program that is a collective on two chips or more. Its kernel has the program's
    /// name in `kernels/` and takes input and output tensor, then the window's data and signals, the context,
    /// and `scalars`. `describe` gets the number of chips and the count of floats, which is `count` unless
    /// the user gives one.
    pub fn main(
        line: &CommandLine,
        count: usize,
        describe: impl FnOnce(&Arguments, usize, usize) -> Result<Self, Error>,
    ) -> ExitCode {
        main(line, |arguments| {
            let options = Options::read(arguments)?;
            let (devices, count) = (options.devices_or(2)?, options.count_or(count));
            let collective = describe(arguments, devices.ids().len(), count)?;
            collective.run(&options, line.program, Job::new(line.program, &options, devices, count)?)
        })
    }

    /// Brings up the chips, runs all iterations, and checks every output of each.
    fn run(&self, options: &Options, kernel: &str, mut job: Job<'_>) -> Result<Outcome, Error> {
        let n = job.devices().len();
        let mut worker = job.worker().build().map_err(Error::before_start)?;
        let kernel = job.kernel(&mut worker, kernel)?;
        let chips = job.devices().iter().enumerate().map(|(rank, device)| self.chip(*device, rank, n));
        let chips = chips.collect::<Result<Vec<_>, _>>().map_err(Error::Usage)?;
        worker.configure_chips(chips).map_err(Error::before_start)?;

        let variants = VARIANTS.min(options.iters.get());
        let most = rows_that_fit(n * self.output_len * size_of::<f32>()).min(options.iters.get());
        let rows = |rows, len| (0..n).map(|_| Rows::new(&worker, rows, len)).collect::<Result<Vec<_>, _>>();
        let inputs = rows(variants, self.input_len).map_err(Error::before_start)?;
        let outputs = rows(most, self.output_len).map_err(Error::before_start)?;
        for (rank, rows) in inputs.iter().enumerate() {
            rows.fill(|variant, index| input(rank, index) + f64::from(variant))?;
        }

        job.bring_up(&mut worker)?;
        let contexts = worker.chip_contexts()?.to_vec();
        job.batches(most, |job, batch| {
            outputs.iter().try_for_each(|output| output.reset(UNTOUCHED))?;
            let first = batch.start;
            job.run(&mut worker, |orch| {
                for iteration in batch.clone() {
                    let task = |(chip, context): (usize, &ChipContext)| {
                        let input = inputs[chip].tensor(iteration % VARIANTS)?;
                        let output = outputs[chip].tensor(iteration - first)?;
                        Ok((chip, self.args(context, &input, &output)?))
                    };
                    let group: Result<Vec<_>, Failure> = contexts.iter().enumerate().map(task).collect();
                    // As a group: the chips wait for each other inside the kernel.
                    orch.submit_group(kernel, &group?)?;
                }
                Ok(())
            })?;
            for (rank, output) in outputs.iter().enumerate() {
                let got = output.to_vec();
                for (iteration, got) in batch.clone().zip(got.chunks(self.output_len)) {
                    self.check(job, rank, iteration, got);
                }
            }
            Ok(())
        })?;
        job.finish(worker)
    }

    fn chip(&self, device: i32, rank: usize, n: usize) -> Result<ChipConfig, String> {
        let member = Membership::new(rank as u32, n as u32).map_err(|error| error.to_string())?;
        let data = self.input_len.saturating_mul(2);
        let window = data.saturating_mul(size_of::<f32>()).saturating_add(SIGNAL_BYTES + 64);
        let chip = ChipConfig::new(device).communicator(member).window(window);
        Ok(chip.region("signals", SIGNAL_BYTES).buffer("data", DType::Float32, data))
    }

    fn args(&self, context: &ChipContext, input: &TensorDesc, output: &TensorDesc) -> Result<Args, Failure> {
        let args = Args::new()
            .tensor(input, Access::Input)
            .tensor(output, Access::OutputExisting)
            .scalar(context.buffer("data")?.addr.0)
            .scalar(context.buffer("signals")?.addr.0)
            .scalar(context.device_ctx.0);
        Ok(self.scalars.iter().fold(args, |args, scalar| args.scalar(*scalar)))
    }

    fn check(&self, job: &mut Job<'_>, rank: usize, iteration: u32, got: &[f32]) {
        let more = self.gain * f64::from(iteration % VARIANTS);
        let expected = |index| (self.expected)(rank, index).map(|value| value + more);
        let greatest = expected(got.len() - 1).unwrap_or(0.0);
        job.checked(rank).check(iteration, got, expected, slack_of_sum(self.gain as usize, greatest));
    }
}
