//! The smallest program: one chip, one Rust function.

use chipcomm_examples::{Job, Options, Stop, main as run};
use clap::Parser;
use std::process::ExitCode;
use worker_orch::{Access, Args, Failure, Task};

/// Doubles 8 floats on one chip
#[derive(Parser)]
#[command(after_help = "Example:\n  cargo run --release --bin hello")]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// Runs in the chip's process.
fn double(task: &mut Task<'_>) -> Result<(), Failure> {
    let x = task.read::<f32>(0)?;
    task.write(1, &x.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
}

fn main() -> ExitCode {
    run(|cli: &Cli| {
        let (devices, count) = (cli.options.devices_or(1)?, cli.options.count_or(8));
        let chips = devices.ids().len();
        let mut job = Job::new("hello", &cli.options, devices, count)?;
        let mut worker = job.worker().build().map_err(Stop::before_start)?;
        let program = match &cli.options.kernel {
            Some(theirs) => {
                worker.register_kernel_symbol(&theirs.file, &theirs.symbol).map_err(Stop::before_start)?
            }
            None => worker.register_function("double", double),
        };
        let x = worker.host_buffer::<f32>(count).map_err(Stop::before_start)?;
        x.write(&(0..count).map(|i| i as f32).collect::<Vec<_>>())?;
        let y = (0..chips).map(|_| worker.host_buffer::<f32>(count)).collect::<Result<Vec<_>, _>>()?;

        job.bring_up(&mut worker)?;
        job.batches(u32::MAX, |job, batch| {
            job.run(&mut worker, |orch| {
                for chip in batch.clone().flat_map(|_| 0..chips) {
                    let args = Args::new()
                        .tensor(&x.tensor(), Access::Input)
                        .tensor(&y[chip].tensor(), Access::Output);
                    orch.submit_next_level(program, &args, chip)?;
                }
                Ok(())
            })?;
            for (chip, y) in y.iter().enumerate() {
                job.checked(chip).check(batch.end - 1, &y.to_vec(), |i| Some(2.0 * f64::from(i as f32)), 0.0);
            }
            Ok(())
        })?;
        job.finish(worker)
    })
}
