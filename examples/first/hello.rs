//! The smallest program: one chip, one Rust function.
//!
//! `cargo run --release --bin hello`

use std::io::{Write, stdout};
use worker_orch::{Access, Args, Failure, Task, Worker};

/// Runs in the chip's process: reads tensor 0, writes tensor 1.
fn double(task: &mut Task<'_>) -> Result<(), Failure> {
    let x = task.read::<f32>(0)?;
    task.write(1, &x.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
}

fn main() -> Result<(), Failure> {
    // Simulated chips; `.platform(Platform::A2a3)` asks for Ascend devices instead.
    let mut worker = Worker::builder().devices(&[0]).build()?;
    let double = worker.register_function("double", double);
    // Memory that the parent and the chips' processes share.
    let (x, y) = (worker.host_buffer::<f32>(4)?, worker.host_buffer::<f32>(4)?);
    x.write(&[1.0, 2.0, 3.0, 4.0])?;

    worker.init()?; // starts a process for each chip and brings it up
    worker.run(|orch| {
        let args = Args::new().tensor(&x.tensor(), Access::Input).tensor(&y.tensor(), Access::Output);
        orch.submit_next_level(double, &args, 0) // on chip 0
    })?; // returns when all tasks are done
    worker.close()?;

    // `println!` would panic when nobody reads, as after `| head -1`.
    let _ = writeln!(stdout(), "chip 0 doubled {:?}: {:?}", x.to_vec(), y.to_vec());
    assert_eq!(y.to_vec(), [2.0, 4.0, 6.0, 8.0]);
    Ok(())
}
