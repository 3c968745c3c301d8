//! The same work with MPI, where it is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One MPI library, with the program that does the work.
pub(crate) struct Mpi {
    pub(crate) name: &'static str,
    launcher: &'static str,
    flags: &'static [&'static str],
    program: PathBuf,
}

/// Nanoseconds of rank 0.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

struct Kind {
    name: &'static str,
    compiler: &'static str,
    launcher: &'static str,
    flags: &'static [&'static str],
    packages: &'static str,
}

const OPEN_MPI: &[&str] = &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"];
const YIELDING: &[&str] =
    &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"];

const KINDS: &[Kind] = &[
    Kind {
        name: "Open MPI",
        compiler: "mpicc.openmpi",
        launcher: "mpirun.openmpi",
        flags: OPEN_MPI,
        packages: "openmpi-bin libopenmpi-dev",
    },
    Kind {
        name: "Open MPI, yielding",
        compiler: "mpicc.openmpi",
        launcher: "mpirun.openmpi",
        flags: YIELDING,
        packages: "openmpi-bin libopenmpi-dev",
    },
    Kind {
        name: "MPICH",
        compiler: "mpicc.mpich",
        launcher: "mpirun.mpich",
        flags: &[],
        packages: "mpich libmpich-dev",
    },
];

/// The MPI libraries of this machine. Prints on standard error which there are, and how to install the others.
pub(crate) fn installed(folder: &Path) -> Vec<Mpi> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/mpi.c");
    let mut found = Vec::new();
    for kind in KINDS {
        let program = folder.join(kind.compiler);
        let mut compile = Command::new(kind.compiler);
        compile.args(["-O2", "-std=c11", "-o"]).arg(&program).arg(&source);
        match compile.status() {
            Ok(status) if status.success() => {
                eprintln!("found {} ({})", kind.name, kind.compiler);
                let (name, launcher, flags) = (kind.name, kind.launcher, kind.flags);
                found.push(Mpi { name, launcher, flags, program });
            }
            Ok(status) => {
                eprintln!("{}: {} does not compile bench/mpi.c ({status})", kind.name, kind.compiler)
            }
            Err(error) => {
                eprintln!(
                    "{}: no {} ({error}); Debian packages: {}",
                    kind.name, kind.compiler, kind.packages
                );
            }
        }
    }
    found
}

impl Mpi {
    /// Runs `work` with `ranks` ranks; `None`, with the reason on standard error, when that fails.
    pub(crate) fn run(&self, ranks: usize, work: &[&str]) -> Option<Times> {
        let mut command = Command::new(self.launcher);
        command.args(self.flags).args(["-n", &ranks.to_string()]).arg(&self.program).args(work);
        let out = command.output().ok()?;
        let text = String::from_utf8_lossy(&out.stdout);
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [median, p99] if out.status.success() => Some(Times { median, p99 }),
            _ => {
                let stderr = String::from_utf8_lossy(&out.stderr);
                eprintln!("{} with {ranks} ranks, {work:?}: {} {}", self.name, out.status, stderr.trim());
                None
            }
        }
    }
}
