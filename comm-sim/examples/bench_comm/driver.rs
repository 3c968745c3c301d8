//! The driver in C, which forks its ranks itself: `bench/barrier.c`.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) struct Driver {
    program: PathBuf,
    folder: PathBuf,
}

impl Driver {
    /// Builds `libcomm_sim.so` and the driver; `None`, with the reason on standard error, when that fails.
    pub(crate) fn build(folder: &Path) -> Option<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let library = std::env::current_exe().ok()?.parent()?.parent()?.to_owned();
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--quiet", "--release", "--package", "comm-sim-c"]).current_dir(here);
        let program = folder.join("barrier");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-std=c11", "-o"]).arg(&program).arg(here.join("bench/barrier.c"));
        cc.arg("-I").arg(comm_context::INCLUDE_DIR).arg("-L").arg(&library).arg("-lcomm_sim");
        cc.arg(format!("-Wl,-rpath,{}", library.display()));
        for command in [&mut cargo, &mut cc] {
            match command.status() {
                Ok(status) if status.success() => {}
                other => {
                    eprintln!("{command:?}: {other:?}");
                    return None;
                }
            }
        }
        Some(Self { program, folder: folder.to_owned() })
    }

    /// Nanoseconds of a barrier of a communicator (`comm`) or of a group for collective calls (`coll`), the median of batches; `None`,
    /// with the reason on standard error, when a rank failed.
    pub(crate) fn run(&self, ranks: usize, rounds: usize, of: &str) -> Option<f64> {
        let mut command = Command::new(&self.program);
        command.args([ranks.to_string(), rounds.to_string()]).arg(self.folder.join("rootinfo")).arg(of);
        let output = command.output().inspect_err(|error| eprintln!("{command:?}: {error}")).ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let median = text.split_whitespace().next().and_then(|word| word.parse().ok());
        match median {
            Some(median) if output.status.success() => Some(median),
            _ => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                eprintln!("{command:?}: {} {text} {}", output.status, stderr.trim());
                None
            }
        }
    }
}
