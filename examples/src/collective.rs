//! One collective operation on all chips: the frame that allreduce, allgather, reduce_scatter and treduce share.

use crate::cli::Options;
use crate::golden::{UNTOUCHED, slack_of_sum};
use crate::job::Job;
use crate::rows::{Rows, rows_that_fit};
use crate::stop::{Stop, Verdict};
use comm_context::abi::{DType, TensorDesc};
use comm_context::comm::Membership;
use worker_orch::{Access, Args, ChipConfig, ChipContext, Failure};

/// The bytes of a `CommPhaseBarrier`.
pub const SIGNAL_BYTES: usize = 4096;
/// Inputs differ from iteration to iteration, so that what is left of the last one cannot pass for the next.
const VARIANTS: u32 = 4;

/// What is special about a collective.
pub struct Collective<'a> {
    /// Its kernel in `kernels/`: input and output tensor, then the window's data and signals, the context, and `scalars`.
    pub kernel: &'static str,
    /// Floats of input on each chip; the window has room for two of them.
    pub input_len: usize,
    /// Floats of output on each chip.
    pub output_len: usize,
    /// Further arguments of the kernel.
    pub scalars: &'a [u64],
    /// Element `index` of the input of a rank, in the first iteration; in iteration k it is k mod 4 more.
    pub input: &'a dyn Fn(usize, usize) -> f64,
    /// Element `index` of the output of a rank, in the first iteration; `None` when the kernel must not write it.
    pub expected: &'a dyn Fn(usize, usize) -> Option<f64>,
    /// How much the output grows when every input grows by 1.
    pub gain: f64,
}

impl Collective<'_> {
    /// Brings the chips up, runs all iterations, and checks every output of each.
    pub fn run(&self, options: &Options, mut job: Job<'_>) -> Result<Verdict, Stop> {
        let n = job.devices().len();
        let mut worker = job.worker().build().map_err(Stop::before_start)?;
        let kernel = job.kernel(&mut worker, self.kernel)?;
        let chips = job.devices().iter().enumerate().map(|(rank, device)| self.chip(*device, rank, n));
        let chips = chips.collect::<Result<Vec<_>, _>>().map_err(Stop::Usage)?;
        worker.configure_chips(chips).map_err(Stop::before_start)?;

        let variants = VARIANTS.min(options.iters.get());
        let most = rows_that_fit(n * self.output_len * size_of::<f32>()).min(options.iters.get());
        let rows = |rows, len| (0..n).map(|_| Rows::new(&worker, rows, len)).collect::<Result<Vec<_>, _>>();
        let inputs = rows(variants, self.input_len).map_err(Stop::before_start)?;
        let outputs = rows(most, self.output_len).map_err(Stop::before_start)?;
        for (rank, input) in inputs.iter().enumerate() {
            input.fill(|variant, index| (self.input)(rank, index) + f64::from(variant))?;
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
