//! The program `allreduce`, through a Worker, beside the same call by `coll_perf`: `cargo xtask bench allreduce`.
//!
//! Both programs run in turns, whole. The value is the program's own time of an iteration: it includes the submission of its tasks, their
//! way to the chips and back, and the kernel, which sums from and to tensors in the host's memory, of which each iteration has another.
//! Start and end of the chips are not in it, nor is the check of the results. The limits are `all_reduce` of plain ranks in Rust, staged
//! and out of place, as the kernel's call is: hot, always on the same tensors, and cold, on other ones in turn.

use bench_support::{Bench, Figure, Samples};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const SIZES: [(usize, &str); 5] = [
    (64 << 10, "64 KiB"),
    (256 << 10, "256 KiB"),
    (1 << 20, "1 MiB"),
    (4 << 20, "4 MiB"),
    (16 << 20, "16 MiB"),
];
const MODES: [&str; 2] = ["hot", "cold"];

fn main() -> Outcome<()> {
    let bench = Bench::from_args("allreduce");
    let allreduce = built(&["--package", "chipcomm-examples", "--bin", "allreduce"], "allreduce")?;
    let coll_perf = built(&["--package", "collectives", "--example", "coll_perf"], "examples/coll_perf")?;
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.json");
    for (bytes, name) in SIZES {
        let case = format!("allreduce {name}, 2 chips");
        if !bench.wants(&case) {
            continue;
        }
        let (mut ours, mut limits) = (Vec::new(), MODES.map(|_| Vec::new()));
        for _ in 0..bench.amount(5) {
            ours.push(through_worker(&allreduce, bytes)?);
            for (mode, times) in MODES.iter().zip(&mut limits) {
                times.push(plain(&coll_perf, bytes, mode, &report)?);
            }
        }
        let median = |times: Vec<f64>| times.into_iter().collect::<Samples>().median();
        let value = median(ours);
        for (mode, times) in MODES.iter().zip(limits) {
            let (limit, limit_value) = (format!("coll_perf staged, {mode}"), Some(median(times)));
            bench.print(&Figure { case: &case, value, unit: "us", limit: &limit, limit_value });
        }
    }
    Ok(())
}

/// Builds a program, and returns where it is.
fn built(what: &[&str], name: &str) -> Outcome<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--release"]).args(what).current_dir(env!("CARGO_MANIFEST_DIR"));
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("{cargo:?}: {status}").into());
    }
    // This program is target/release/examples/bench_allreduce.
    let here = std::env::current_exe()?;
    let folder = here.parent().and_then(Path::parent).ok_or("no folder of the programs")?;
    Ok(folder.join(name))
}

fn printed(command: &mut Command) -> Outcome<String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(String::from_utf8(output.stdout)?)
    } else {
        Err(format!("{command:?}: {} {}", output.status, said.trim()).into())
    }
}

/// Microseconds of an iteration of the program.
fn through_worker(program: &Path, bytes: usize) -> Outcome<f64> {
    let iters = ((256 << 20) / bytes).clamp(16, 2000).to_string();
    let count = (bytes / size_of::<f32>()).to_string();
    let text =
        printed(Command::new(program).args(["--json", "-d", "2", "--iters", &iters, "--count", &count]))?;
    let result: Value = serde_json::from_str(&text)?;
    result["us_per_iteration"].as_f64().ok_or_else(|| format!("no time in {text}").into())
}

/// Microseconds of the same call by ranks without a Worker.
fn plain(program: &Path, bytes: usize, mode: &str, report: &Path) -> Outcome<f64> {
    let size = bytes.to_string();
    let mut command = Command::new(program);
    command
        .args(["--alone", "--runs", "1", "--mode", mode, "--from", &size, "--to", &size, "--report"])
        .arg(report);
    printed(&mut command)?;
    let text = std::fs::read_to_string(report)?;
    let everything: Value = serde_json::from_str(&text)?;
    let measured = everything["measured"].as_array().map_or(&[][..], Vec::as_slice);
    let staged = measured
        .iter()
        .find(|one| one["contestant"] == "ours, staged" && one["in_place"] == Value::Bool(false));
    let time = staged.and_then(|one| one["runs"][0]["time_us"].as_f64());
    time.ok_or_else(|| format!("no time in {text}").into())
}
