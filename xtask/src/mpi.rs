//! `cargo xtask mpi`: builds `libchipcomm_mpi.so` with the compiler wrapper of every MPI library that is installed.
//!
//! The Rust half is an archive that is the same for all. The C half is compiled against each library's `mpi.h`, because handles and
//! constants differ from one to the next.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::cargo::{answers, cargo};
use crate::ci::guides;
use crate::lane::{Outcome, Report, Setting};
use crate::tally::{SHOW_OUTPUT, Tally};
use crate::workspace::Workspace;

/// For which library, and what to do with it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A compiler wrapper, such as `/opt/openmpi/bin/mpicc`; may be given several times. Without it, those of Debian
    /// (`mpicc.openmpi`, `mpicc.mpich`), or `mpicc`
    #[arg(long, value_name = "MPICC")]
    wrapper: Vec<PathBuf>,
    /// Also run mpi4py's own tests of collectives on 1 to 5 ranks (needs pip, and takes a quarter of an hour for each library);
    /// RANKS="2 3" in the environment runs these numbers only, TESTS="test_cco_obj" these files
    #[arg(long)]
    mpi4py: bool,
    /// Also measure. RUNS="3" in the environment measures so many times
    #[arg(long, value_enum, value_name = "WHAT")]
    bench: Option<Bench>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Bench {
    /// What the drop-in adds to a call of `collectives`, on 2 and 4 ranks (RANKS="2")
    Overhead,
    /// Messages between ranks, with and without the drop-in
    Messages,
    /// Allreduce of three hosts of two ranks beside the library's own (needs root, iproute2 and Open MPI)
    Hosts,
}

const DEBIAN: [&str; 2] = ["mpicc.openmpi", "mpicc.mpich"];
pub(crate) const PACKAGE: &str = "chipcomm-mpi";
const FOLDER: &str = "bindings/mpi";

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let wrappers = if args.wrapper.is_empty() { found() } else { args.wrapper.clone() };
    ensure!(
        !wrappers.is_empty(),
        "there is no MPI here: install libopenmpi-dev or libmpich-dev, or pass --wrapper"
    );
    let built = cargo(&ws.root, ["build", "--release", "--package", PACKAGE]).status();
    ensure!(built.context("cannot start cargo")?.success(), "{PACKAGE} does not build");
    for wrapper in &wrappers {
        let library = link(ws, wrapper)?;
        println!("{}: {}", wrapper.display(), library.display());
    }
    println!("use it: mpirun -x LD_PRELOAD=… PROGRAM (Open MPI), mpirun -genv LD_PRELOAD … PROGRAM (MPICH)");
    let run = |script: &str, arguments: &[&OsStr]| -> Result<bool> {
        let mut command = Command::new("sh");
        command.arg(ws.root.join(FOLDER).join(script)).args(arguments);
        for wrapper in &wrappers {
            command.arg(label(wrapper)).arg(wrapper);
        }
        Ok(command.status().context("cannot start sh")?.success())
    };
    let libraries = ws.target.join("mpi");
    if args.mpi4py {
        ensure!(run("tests/mpi4py.sh", &[libraries.as_ref()])?, "mpi4py's tests failed");
    }
    if let Some(bench) = args.bench {
        let name = bench.to_possible_value().expect("no variant is left out");
        let archive = archive(ws);
        let arguments = [name.get_name().as_ref(), libraries.as_ref(), archive.as_ref()];
        ensure!(run("bench/bench.sh", &arguments)?, "the measurement failed");
    }
    Ok(ExitCode::SUCCESS)
}

/// The Rust half.
fn archive(ws: &Workspace) -> PathBuf {
    ws.target.join("release/libchipcomm_mpi.a")
}

/// The same, its tests, and the commands of its guide, as a lane of `ci`. Left out where there is no MPI.
pub(crate) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    if let Some(text) = missing() {
        return Ok(Outcome::LeftOut(text.to_owned()));
    }
    if std::env::var_os("CHIPCOMM_MPI_PREFIXES").is_none() {
        let here = found();
        for name in DEBIAN.into_iter().filter(|name| !here.contains(&PathBuf::from(name))) {
            setting.console.not_run(&format!("there is no {name}"));
        }
    }
    let args = ["test", "--package", PACKAGE, "--", "--ignored", "--test-threads", "1", SHOW_OUTPUT];
    let log = setting.console.run(&mut cargo(&setting.ws.root, args))?;
    let mut report = Report::tests(Tally::of(&log.lines), log.failure);
    if report.failure.is_none() {
        report.failure = guides::follow(setting, "mpi")?.1;
    }
    Ok(Outcome::Ran(report))
}

/// What to say where there is no MPI, without which its tests pass and show nothing.
pub(crate) fn missing() -> Option<&'static str> {
    let text = "no MPI: there is neither mpicc.openmpi (libopenmpi-dev) nor mpicc.mpich (libmpich-dev)";
    found().is_empty().then_some(text)
}

/// The wrappers on the search path; Debian has two beside each other.
fn found() -> Vec<PathBuf> {
    let here = |name: &&str| {
        let mut command = Command::new(name);
        command.arg("--version");
        answers(command)
    };
    let debian: Vec<&str> = DEBIAN.into_iter().filter(here).collect();
    let names = if debian.is_empty() { ["mpicc"].into_iter().filter(here).collect() } else { debian };
    names.into_iter().map(PathBuf::from).collect()
}

/// A folder for each wrapper: `openmpi`, `mpich`, or the folder that it was installed in.
fn label(wrapper: &Path) -> String {
    let name = wrapper.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let prefix = wrapper.parent().and_then(Path::parent).and_then(Path::file_name);
    match (name.split_once('.'), prefix) {
        (Some((_, suffix)), _) => suffix.to_owned(),
        (None, Some(prefix)) => prefix.to_string_lossy().into_owned(),
        (None, None) => "mpi".to_owned(),
    }
}

fn link(ws: &Workspace, wrapper: &Path) -> Result<PathBuf> {
    let (sources, into) = (ws.root.join(FOLDER).join("c"), ws.target.join("mpi").join(label(wrapper)));
    std::fs::create_dir_all(&into)?;
    let library = into.join("libchipcomm_mpi.so");
    let mut command = Command::new(wrapper);
    command.arg(format!("@{}", sources.join("flags").display()));
    for entry in std::fs::read_dir(&sources)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "c") {
            command.arg(path);
        }
    }
    // Found at run time where it was found now: a library outside the system's folders.
    if let Some(prefix) =
        wrapper.parent().and_then(Path::parent).filter(|prefix| !prefix.as_os_str().is_empty())
    {
        command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    }
    command.arg(archive(ws)).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&library);
    let status = command.status().with_context(|| format!("cannot start {}", wrapper.display()))?;
    ensure!(status.success(), "{} does not compile {}", wrapper.display(), sources.display());
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrapper_has_a_folder_of_its_own() {
        let of = |path: &str| label(Path::new(path));
        assert_eq!(of("mpicc.openmpi"), "openmpi");
        assert_eq!(of("/usr/bin/mpicc.mpich"), "mpich");
        assert_eq!(of("/opt/openmpi-5/bin/mpicc"), "openmpi-5");
        assert_eq!(of("mpicc"), "mpi");
    }
}
