//! What the tests share: programs as processes, and a compiler for kernels.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The programs that run on a Worker with any number of chips from 2.
pub(crate) const COLLECTIVES: [&str; 5] = ["allreduce", "allgather", "reduce_scatter", "treduce", "domains"];

/// Where cargo put a program.
pub(crate) fn program(name: &str) -> &'static str {
    match name {
        "allreduce" => env!("CARGO_BIN_EXE_allreduce"),
        "allgather" => env!("CARGO_BIN_EXE_allgather"),
        "reduce_scatter" => env!("CARGO_BIN_EXE_reduce_scatter"),
        "treduce" => env!("CARGO_BIN_EXE_treduce"),
        "tp_ffn" => env!("CARGO_BIN_EXE_tp_ffn"),
        "domains" => env!("CARGO_BIN_EXE_domains"),
        "graph" => env!("CARGO_BIN_EXE_graph"),
        "hello" => env!("CARGO_BIN_EXE_hello"),
        "hello_kernel" => env!("CARGO_BIN_EXE_hello_kernel"),
        "hello_staged" => env!("CARGO_BIN_EXE_hello_staged"),
        "ported" => env!("CARGO_BIN_EXE_ported"),
        "hello_collective" => env!("CARGO_BIN_EXE_hello_collective"),
        "independent_ranks" => env!("CARGO_BIN_EXE_independent_ranks"),
        _ => panic!("there is no program {name}"),
    }
}

/// A program with its arguments, without settings from the environment of the tests.
pub(crate) fn command(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program(name));
    command.args(args);
    for variable in ["CHIPCOMM_TIMEOUT_S", "RUST_LOG", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"] {
        command.env_remove(variable);
    }
    command
}

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a program to its end.
pub(crate) fn run(name: &str, args: &[&str]) -> Ended {
    ended(command(name, args).output().expect("the program starts"))
}

pub(crate) fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Compiles a kernel and returns the path of its shared object.
pub(crate) fn compile(folder: &Path, name: &str, source: &str) -> PathBuf {
    let (from, to) = (folder.join(format!("{name}.cpp")), folder.join(format!("{name}.so")));
    std::fs::write(&from, source).unwrap();
    let mut compiler = env!("KERNEL_COMPILER").split_whitespace();
    let mut command = Command::new(compiler.next().unwrap());
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    command.args(compiler);
    command.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-I", comm_context::INCLUDE_DIR, "-I", kernels]);
    let output = command.arg(&from).arg("-o").arg(&to).output().expect("a C++ compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

/// Polls `found` until it returns something; panics with `what` after half a minute.
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The children of a process, from `/proc`.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(state, of)| state != 'Z' && of == parent)).collect()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

pub(crate) fn kill_9(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}
