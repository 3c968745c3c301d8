//! Ranks in other languages, one program for each.

use comm_context::conformance::CLibrary;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

pub(crate) static LIBRARY: LazyLock<CLibrary> = LazyLock::new(|| CLibrary::build("comm-sim-c", "comm_sim"));

/// Far above what a rank needs; a stuck one must not block the test run.
const TIMEOUT_S: &str = "30";

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

pub(crate) fn compile(name: &str, into: &Path) -> PathBuf {
    LIBRARY.compile(&source(name), into, &["-ldl".to_owned(), "-pthread".to_owned()])
}

/// Starts one program for each rank, and expects each to print `ok`.
pub(crate) fn run_ranks(nranks: usize, path: &Path, program: &dyn Fn(usize) -> Command) {
    let ranks: Vec<_> = (0..nranks)
        .map(|rank| {
            let mut command = program(rank);
            command.env("CHIPCOMM_TIMEOUT_S", TIMEOUT_S).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let out = child.wait_with_output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        let ok = out.status.success() && stdout.trim() == "ok";
        assert!(ok, "rank {rank}: {}\n{stdout}{stderr}", out.status);
    }
    assert!(!path.exists());
}

/// Runs a program on two ranks, then on four.
pub(crate) fn run_program(program: &Path, arguments: &[&Path]) {
    for nranks in [2, 4] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rootinfo");
        run_ranks(nranks, &path, &|rank| {
            let mut command = Command::new(program);
            command.args([rank.to_string(), nranks.to_string()]).arg(&path).args(arguments);
            command
        });
    }
}

/// Runs a Python program on two ranks, where there is Python.
pub(crate) fn run_python(name: &str) {
    if !Command::new("python3").arg("--version").output().is_ok_and(|out| out.status.success()) {
        println!("not run: there is no python3 on this machine");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    run_ranks(2, &path, &|rank| {
        let mut command = Command::new("python3");
        command.arg(source(name)).args([rank.to_string(), "2".to_owned()]);
        command.arg(&path).arg(LIBRARY.path());
        command
    });
}
