//! One chip, one kernel in C++: `kernels/scale.cpp`, which `build.rs` compiles to a shared object.
//!
//! `cargo run --release --bin hello_kernel`, or `-- FILE.so` with a kernel of your own that takes the same
//! arguments: `g++ -std=c++17 -O2 -fPIC -shared -I comm-context/include my_kernel.cpp -o my_kernel.so`

use std::io::{Write, stdout};
use std::path::PathBuf;
use worker_orch::{Access, Args, Failure, Worker};

fn main() -> Result<(), Failure> {
    let ours = concat!(env!("OUT_DIR"), "/scale.so");
    let kernel = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(ours), PathBuf::from);

    let mut worker = Worker::builder().devices(&[0]).build()?;
    let scale = worker.register_kernel(&kernel)?; // its function `kernel_entry`
    let (x, y) = (worker.host_buffer::<f32>(4)?, worker.host_buffer::<f32>(4)?);
    x.write(&[1.0, 2.0, 3.0, 4.0])?;

    worker.init()?;
    worker.run(|orch| {
        // The kernel finds them in this order in `args`: a descriptor for each tensor, then the scalars.
        let args =
            Args::new().tensor(&x.tensor(), Access::Input).tensor(&y.tensor(), Access::Output).scalar(10);
        orch.submit_next_level(scale, &args, 0)
    })?;
    worker.close()?;

    let _ = writeln!(stdout(), "chip 0 scaled {:?} by 10: {:?}", x.to_vec(), y.to_vec());
    assert_eq!(y.to_vec(), [10.0, 20.0, 30.0, 40.0]);
    Ok(())
}
