//! Two domains that overlap, in one run: the front half of the chips, and the back half in reverse.
//!
//! The chip in the middle is a member of both, with a different rank in each. Both domains sum their members'
//! inputs with the allreduce kernel, each in its own window.

use chipcomm_examples::{
    CommandLine, Error, FLAGS, Job, KERNEL_NOTE, Options, Rows, SIGNAL_BYTES, UNTOUCHED, data_len, input,
    main as run, rows_that_fit, window_bytes,
};
use std::process::ExitCode;
use worker_orch::{Access, Args, DType, Domain, Failure, Orchestrator, Program};

const LINE: CommandLine = CommandLine {
    program: "domains",
    about: "Sums inside two overlapping groups of chips, 256 floats each",
    flags: &[FLAGS],
    examples: "Example: {0, 1, 2} and {4, 3, 2} of five chips\n  cargo run --release --bin domains -- -d 0-4",
    notes: &[KERNEL_NOTE],
};

/// What a domain will be.
struct Plan {
    name: &'static str,
    /// Its members, in the order of their ranks.
    chips: Vec<usize>,
    /// The output of each: a row for each iteration of a batch.
    outputs: Vec<Rows>,
}

/// Inputs of odd iterations are greater by 1, so that stale output of the last iteration is not right.
const VARIANTS: u32 = 2;
/// Sums of more floats than this would round.
const MOST_FLOATS: usize = 200_000;

fn main() -> ExitCode {
    run(&LINE, |arguments| {
        let options = Options::read(arguments)?;
        let (devices, count) = (options.devices_or(3)?, options.count_or(256));
        let n = devices.ids().len();
        if n < 2 || count > MOST_FLOATS {
            return Err(Error::Usage(format!("give two chips or more, and {MOST_FLOATS} floats or fewer")));
        }
        let mut job = Job::new(LINE.program, &options, devices, count)?;
        let mut worker = job.worker().build().map_err(Error::before_start)?;
        let kernel = job.kernel(&mut worker, "allreduce")?;
        let most = rows_that_fit(2 * n * count * size_of::<f32>()).min(options.iters.get());
        let rows = |members: usize, rows| {
            (0..members).map(|_| Rows::new(&worker, rows, count)).collect::<Result<Vec<_>, Failure>>()
        };
        let inputs = rows(n, VARIANTS)?;
        for (chip, input_rows) in inputs.iter().enumerate() {
            input_rows.fill(|variant, i| input(chip, i) + f64::from(variant))?;
        }
        let front: Vec<usize> = (0..=n / 2).collect();
        // Of two chips both are members of both domains.
        let back: Vec<usize> = (if n == 2 { 0 } else { n / 2 }..n).rev().collect();
        let plans = [
            Plan { name: "front", outputs: rows(front.len(), most)?, chips: front },
            Plan { name: "back", outputs: rows(back.len(), most)?, chips: back },
        ];

        job.bring_up(&mut worker)?;
        job.batches(most, |job, batch| {
            plans.iter().flat_map(|plan| &plan.outputs).try_for_each(|output| output.reset(UNTOUCHED))?;
            job.run(&mut worker, |orch| {
                // Domains live until the end of this run.
                let domains = [plans[0].allocate(orch, count)?, plans[1].allocate(orch, count)?];
                for iteration in batch.clone() {
                    for (plan, domain) in plans.iter().zip(&domains) {
                        plan.submit(orch, domain, kernel, &inputs, iteration, iteration - batch.start)?;
                    }
                }
                Ok(())
            })?;
            for plan in &plans {
                for (chip, output) in plan.chips.iter().zip(&plan.outputs) {
                    let expected = |iteration: u32| move |i: usize| Some(plan.sum(i, iteration));
                    for (iteration, got) in batch.clone().zip(output.to_vec().chunks(count)) {
                        job.checked(*chip).check(iteration, got, expected(iteration), 0.0);
                    }
                }
            }
            Ok(())
        })?;
        job.finish(worker)
    })
}

impl Plan {
    fn allocate(&self, orch: &mut Orchestrator<'_>, count: usize) -> Result<Domain, Failure> {
        let data = data_len(self.chips.len(), count);
        let words = SIGNAL_BYTES / size_of::<u32>();
        let buffers = [("signals", DType::Uint32, words), ("data", DType::Float32, data)];
        orch.allocate_domain(self.name, &self.chips, window_bytes(data), &buffers)
    }

    /// One sum inside the domain.
    fn submit(
        &self,
        orch: &mut Orchestrator<'_>,
        domain: &Domain,
        kernel: Program,
        inputs: &[Rows],
        iteration: u32,
        row: u32,
    ) -> Result<(), Failure> {
        let tasks = domain.contexts().iter().zip(&self.outputs).map(|(member, output)| {
            let args = Args::new()
                .tensor(&inputs[member.chip].tensor(iteration % VARIANTS)?, Access::Input)
                .tensor(&output.tensor(row)?, Access::Output)
                .scalar(member.buffer("data")?.addr.0)
                .scalar(member.buffer("signals")?.addr.0)
                .scalar(member.device_ctx.0);
            Ok((member.chip, args))
        });
        orch.submit_group(kernel, &tasks.collect::<Result<Vec<_>, Failure>>()?).map(drop)
    }

    fn sum(&self, i: usize, iteration: u32) -> f64 {
        self.chips.iter().map(|chip| input(*chip, i) + f64::from(iteration % VARIANTS)).sum()
    }
}
