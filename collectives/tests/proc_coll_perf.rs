//! `coll_perf --schedule` as a user starts it: a schedule of the library, one from a file, and what is refused.
#![allow(missing_docs)]

use ccl_schedule::algo::{self, Shape};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program. Cargo builds no example for a test, so the test asks for it.
fn program() -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "collectives", "--example", "coll_perf"]);
    cargo.arg("--message-format=json").current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{cargo:?}: {}", output.status);
    let report = String::from_utf8_lossy(&output.stdout);
    let path = report.split('"').rfind(|word| word.ends_with("/examples/coll_perf"));
    path.unwrap_or_else(|| panic!("cargo reports no coll_perf: {report}")).into()
}

/// Runs it with one small size. Returns whether it succeeded, and what it printed.
fn run(program: &Path, schedule: &Path, more: &[&str]) -> (bool, String, String) {
    let args = ["--alone", "--quick", "--from", "1K", "--to", "1K", "--warmup", "1", "--iterations", "3"];
    let output =
        Command::new(program).args(args).arg("--schedule").arg(schedule).args(more).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// The row of the schedule: it ran, and no element was wrong in either place.
fn ran(program: &Path, schedule: &Path, more: &[&str]) {
    let (success, stdout, stderr) = run(program, schedule, more);
    assert!(success, "{stdout}\n{stderr}");
    let of_schedule = stdout.split("# the schedule").nth(1).unwrap_or_else(|| panic!("{stdout}"));
    let row = of_schedule.lines().find(|line| line.trim_start().starts_with("1024 ")).unwrap();
    let wrong = row.split('|').skip(1).map(|half| half.split_whitespace().nth(3).unwrap().to_owned());
    assert_eq!(wrong.collect::<Vec<_>>(), ["0", "0"], "{stdout}");
}

/// A schedule of the library as a file.
fn dumped(folder: &Path, name: &str, ranks: u32) -> PathBuf {
    let program = algo::build(name, ranks, &Shape { window: 4, ..Shape::default() }).unwrap();
    let mut text = Vec::new();
    ccl_schedule::dump(&*program, &mut text).unwrap();
    let file = folder.join(format!("{name}.json"));
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn wrong_flags_are_refused_with_what_to_write() {
    let program = program();
    for (args, said) in [
        (&["--from", "many"][..], "a number of bytes such as 4 or 64K is needed"),
        (
            &["--from", "2M", "--to", "1M"],
            "--from 2097152 is more than --to 1048576: there is no size to measure",
        ),
        (&["--from", "1", "--to", "2"], "no size from --from to --to has room for an element of "),
        (&["--op", "avg", "--type", "i32"], "--op avg: not of elements of i32"),
        (&["--runs", "0"], "--runs 0: there is nothing to measure"),
        (&["--kind", "reduce_all"], "not one of "),
        (&["--passing", "value:x"], "a number of slots such as value:2 is needed"),
        (&["--passing", "by_value"], "reference, value or value:SLOTS is needed"),
    ] {
        let output = Command::new(&program).args(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{args:?}: {error}");
    }
}

/// The picture says of how many runs its medians are, however many programs took part in each.
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn the_picture_counts_runs_as_the_tables_do() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("picture.svg");
    let args = ["--alone", "--runs", "2", "--from", "1K", "--to", "2K", "--warmup", "1", "--iterations", "3"];
    let output = Command::new(program()).args(args).arg("--svg").arg(&picture).output().unwrap();
    let (tables, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{error}");
    assert!(tables.contains("median of 2 runs"), "{tables}");
    assert!(std::fs::read_to_string(&picture).unwrap().contains("median of 2 runs in turns"));
}

// PL-1, PL-2
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn a_schedule_of_the_library_or_of_a_file_runs_and_a_wrong_one_is_refused() {
    let (program, folder) = (program(), tempfile::tempdir().unwrap());
    ran(&program, Path::new("ring_reduce_scatter_allgather"), &[]);
    let tree = dumped(folder.path(), "tree_allreduce", 3);
    ran(&program, &tree, &["--ranks", "3", "--passing", "value:2"]);

    // One send is left out: the sentence is the prover's.
    let broken = dumped(folder.path(), "direct_one_shot", 2);
    let text = std::fs::read_to_string(&broken).unwrap();
    let mut schedule: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ops = schedule["programs"][1].as_array_mut().unwrap();
    let at = ops.iter().position(|op| op["op"] == "send").unwrap();
    ops.remove(at);
    schedule["messages"] = (schedule["messages"].as_u64().unwrap() - 1).into();
    std::fs::write(&broken, schedule.to_string()).unwrap();
    let loaded = ipcq_sim::schedule_file::load(&broken).unwrap();
    let sentence = ccl_schedule::prove_by_reference(&loaded).unwrap_err().to_string();

    let (empty, missing) = (folder.path().join("empty.json"), folder.path().join("missing.json"));
    std::fs::write(&empty, "{}").unwrap();
    let ring = dumped(folder.path(), "ring_accumulate", 4);
    let unknown = Path::new("rnig");
    for (schedule, parts) in [
        (broken.as_path(), ["direct_one_shot", &sentence]),
        (&missing, ["missing.json: cannot be read", "No such file"]),
        (&empty, ["empty.json", "missing field"]),
        (unknown, ["unknown algorithm", "ring_accumulate"]),
        (&ring, ["is for 4 ranks; pass", "--ranks 4"]),
    ] {
        let (success, stdout, stderr) = run(&program, schedule, &["--ranks", "2"]);
        let told = parts.iter().all(|part| stderr.contains(part));
        assert!(!success && stdout.is_empty() && told, "{}: {stdout}\n{stderr}", schedule.display());
    }
}

/// Small runs of ours alone.
fn small(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--alone", "--from", "1K", "--to", "1K", "--warmup", "1", "--iterations", "3"]);
    command
}

/// A pipe that nobody reads ends the program quietly, as `| head -1` does; a full disk is an error that says so.
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn nobody_who_reads_and_a_full_disk_are_no_panic() {
    let program = program();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = small(&program).arg("--quick").stdout(writer).stderr(Stdio::piped()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !error.contains("panicked"), "{}: {error}", output.status);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = small(&program).arg("--quick").stdout(full).stderr(Stdio::piped()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let said = error.contains("coll_perf: standard output: No space left on device");
    assert!(output.status.code() == Some(1) && said, "{}: {error}", output.status);
    for flag in ["--report", "--svg", "--tune"] {
        let output = small(&program).args([flag, "/nowhere/file"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let said =
            error.contains("coll_perf: /nowhere/file: No such file or directory") && !error.contains("run 1");
        assert!(output.status.code() == Some(1) && said, "{flag}: {}: {error}", output.status);
    }
}

/// A report that cannot be written any more ends the measuring, and what was measured until then is printed.
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn what_was_measured_is_printed_when_the_report_cannot_be_written_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let mut command = small(&program());
    command.args(["--runs", "100000", "--report"]).arg(&report).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("run 1 of 100000: ours, staged: 2 rows") {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    folder.close().unwrap();
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("# ours, staged") && table.contains("1024"), "{table}");
    let said = rest.contains(&format!("coll_perf: {}: No such file or directory", report.display()));
    assert!(output.status.code() == Some(1) && said, "{}: {rest}", output.status);
}
