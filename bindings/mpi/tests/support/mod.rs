//! The MPI libraries of this machine, the drop-in built for each, and programs run with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// Far above what a program needs; one that hangs must not block the test run.
const SECONDS: &str = "120";

/// Which kind of launcher it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    OpenMpi,
    Mpich,
}

/// A library with its wrapper and launcher.
#[derive(Clone, Debug)]
pub(crate) struct Mpi {
    pub(crate) family: Family,
    compiler: PathBuf,
    pub(crate) fortran: PathBuf,
    launcher: PathBuf,
}

/// What a program says of itself, if it is there.
fn version(program: &Path) -> Option<String> {
    Command::new(program).arg("--version").output().ok().map(|out| texts(&out).0)
}

impl Mpi {
    /// Programs in `folder` (empty: on the search path) whose names end so.
    fn at(folder: &Path, end: &str) -> Option<Self> {
        let named = |name: &str| folder.join(format!("{name}{end}"));
        let (compiler, fortran, launcher) = (named("mpicc"), named("mpif90"), named("mpirun"));
        let says = version(&compiler).and_then(|_| version(&launcher))?;
        let family = if says.contains("open-mpi.org") { Family::OpenMpi } else { Family::Mpich };
        Some(Self { family, compiler, fortran, launcher })
    }
}

/// Those whose folders `CHIPCOMM_MPI_PREFIXES` names, as `PATH` does; without it, those of Debian that are here.
pub(crate) fn libraries() -> Vec<Mpi> {
    let named =
        |prefix: PathBuf| Mpi::at(&prefix.join("bin"), "").expect("mpicc and mpirun in its folder bin");
    let found: Vec<_> = match std::env::var_os("CHIPCOMM_MPI_PREFIXES") {
        Some(prefixes) => std::env::split_paths(&prefixes).map(named).collect(),
        None => [".openmpi", ".mpich"].iter().filter_map(|end| Mpi::at(Path::new(""), end)).collect(),
    };
    if found.is_empty() {
        println!("not run: neither Open MPI nor MPICH is on this machine");
    }
    found
}

/// The Rust half.
static ARCHIVE: LazyLock<PathBuf> = LazyLock::new(|| {
    let mut cargo = Command::new(env!("CARGO"));
    // The features that the tests were built with: `cargo xtask test` sets the variable.
    match std::env::var_os("CHIPCOMM_TEST_WORKSPACE") {
        Some(_) => cargo.args(["build", "--quiet", "--workspace", "--lib", "--tests"]),
        None => cargo.args(["build", "--quiet", "--package", "chipcomm-mpi"]),
    };
    let built = cargo.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // target/debug/deps/this-test
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("libchipcomm_mpi.a")
});

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "c")).collect()
}

fn succeed(command: &mut Command) {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&out.stderr));
}

/// A library with the drop-in and the test programs, in a folder that goes with it.
pub(crate) struct Built {
    pub(crate) mpi: Mpi,
    pub(crate) folder: tempfile::TempDir,
}

impl Built {
    pub(crate) fn new(mpi: Mpi) -> Self {
        Self::with(mpi, &[])
    }

    /// With other constants: `-DNAME=VALUE`.
    pub(crate) fn with(mpi: Mpi, constants: &[&str]) -> Self {
        let into = tempfile::tempdir().unwrap();
        let mut flags = folder("c/flags").into_os_string();
        flags = ["@".into(), flags].into_iter().collect();
        let mut command = Command::new(&mpi.compiler);
        command.arg(flags).args(constants).args(sources(&folder("c"))).arg(&*ARCHIVE).args([
            "-lpthread",
            "-ldl",
            "-lm",
            "-o",
        ]);
        succeed(command.arg(into.path().join("libchipcomm_mpi.so")).arg("-Werror"));
        Self { mpi, folder: into }
    }

    pub(crate) fn compile(&self, name: &str) -> PathBuf {
        let program = self.folder.path().join(name);
        let source = |end: &str| folder("tests/c").join(format!("{name}.{end}"));
        let mut command = if source("f90").exists() {
            let mut command = Command::new(&self.mpi.fortran);
            command.arg(source("f90"));
            command
        } else {
            let mut command = Command::new(&self.mpi.compiler);
            command.args(["-Wall", "-Wextra", "-Werror", "-pthread"]).arg(source("c"));
            command
        };
        succeed(command.args(["-O1", "-o"]).arg(&program));
        program
    }

    /// The launcher, with `ranks` ranks and the drop-in; the program and its arguments are still to come.
    pub(crate) fn launch(&self, ranks: usize) -> Command {
        let library = self.folder.path().join("libchipcomm_mpi.so");
        let mut command = self.launch_alone(ranks);
        match self.mpi.family {
            Family::OpenMpi => command.arg("-x").arg(format!("LD_PRELOAD={}", library.display())),
            Family::Mpich => command.args(["-genv", "LD_PRELOAD"]).arg(library),
        };
        command.env("CHIPCOMM_MPI_STATS", "1");
        command
    }

    /// The same without the drop-in.
    pub(crate) fn launch_alone(&self, ranks: usize) -> Command {
        let mut command = Command::new("timeout");
        // The launcher ends its ranks when it is asked to.
        command.args(["-k", "5", SECONDS]).arg(&self.mpi.launcher);
        if self.mpi.family == Family::OpenMpi {
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
            command.args(["--mca", "mpi_yield_when_idle", "1"]);
        }
        command.args(["-n", &ranks.to_string()]);
        command
    }
}

/// Runs a test program, which must say that all is well. Returns what it says besides: standard output and error.
pub(crate) fn run_well(command: &mut Command) -> (String, String) {
    let out = command.output().unwrap();
    let (stdout, stderr) = texts(&out);
    let well = out.status.success() && stdout.lines().any(|line| line == "ok");
    assert!(well, "{command:?}: {}\n{stdout}{stderr}", out.status);
    (stdout, stderr)
}

pub(crate) fn texts(out: &Output) -> (String, String) {
    (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// The two numbers of the first line of the table: calls taken, and passed on.
pub(crate) fn counts(stderr: &str) -> (u64, u64) {
    let line = stderr.lines().find(|line| line.contains(" calls taken, "));
    let line = line.unwrap_or_else(|| panic!("no table in {stderr}"));
    let mut numbers = line.split([' ', ',']).filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
