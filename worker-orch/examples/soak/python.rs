//! Ranks in Python for one cycle: a launcher starts them, they sum arrays, and all of them end well.

use crate::cycle::Soak;
use std::process::{Command, Stdio};
use worker_orch::{ErrorCode, Failure};

const PROGRAM: &str = "\
import chipcomm
import numpy as np

with chipcomm.init() as comm, comm.group() as group:
    for round in range(1, 9):
        x = np.full(1000 * round, round, np.float32)
        group.all_reduce(x)
        assert (x == round * comm.size).all(), x
";

pub(crate) fn run(soak: &mut Soak) -> Result<(), Failure> {
    let failed = |text: String| Failure::new(ErrorCode::Internal, text);
    let Some(python) = soak.python() else { return Ok(()) };
    let script = soak.folder().join("sums.py");
    std::fs::write(&script, PROGRAM).map_err(|error| failed(error.to_string()))?;
    let mut launch = Command::new(python);
    launch.args(["-m", "chipcomm.launch", "-n", "2"]).arg(&script).stdin(Stdio::null());
    let out = launch.output().map_err(|error| failed(format!("{}: {error}", python.display())))?;
    if out.status.success() {
        return Ok(());
    }
    Err(failed(format!("Python: {}: {}", out.status, String::from_utf8_lossy(&out.stderr))))
}
