//! The test: SIGKILL of every process of a Worker, at a sample of its points in the normal run and at all of them when ignored tests are asked for.

use crate::judge::{HELD, NOT_REACHED};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Deaths in the normal test run, spread over all points.
const SAMPLE: usize = 30;
/// Watchers at a time: they mostly wait.
const AT_ONCE: usize = 4;

const SWEEP: &str = "f01_f02_f03_sigkill_at_fault_points_is_told_and_nothing_is_left";

/// What sweeps have found.
const FOUND: &[(&str, &[&str])] = &[
    ("wo8_a_release_of_a_domain_that_fails_is_told", &["fork:exchange.done@0#3=panic"]),
    (
        "f20_a_death_is_told_before_the_failures_of_those_who_waited",
        &["fork:exchange.collected@0#2=exit:7", "fork:barrier.arriving@0#2=kill"],
    ),
    (
        "f46_a_task_that_panics_is_waited_for_by_nobody",
        &["fork:worker.task.before-program@0#4=panic", "fork:barrier.arriving@1#2=panic"],
    ),
    (
        "f28_a_command_that_panics_is_waited_for_by_nobody",
        &["fork:comm-sim.release@2#1=panic", "fork:worker.domain.allocate@0#1=panic"],
    ),
    ("f28_a_domain_that_cannot_be_made_leaves_the_group_in_order", &["fork:region.reserve@0#2=error:28"]),
    ("wo2_a_worker_below_says_why_it_ended_badly", &["levels:chip.teardown@100#1=term"]),
    ("f02_a_start_that_panics_leaves_no_child", &["fork:process.watch@999#2=panic"]),
];

/// Does what cargo's harness does, as far as it is used here. With `--ignored`, the sweep is over all points.
pub(crate) fn tests(args: &[&str]) -> ExitCode {
    let all = args.iter().any(|arg| ["--ignored", "--include-ignored"].contains(arg));
    let filters: Vec<&&str> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let asked = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(**filter));
    let mut names: Vec<&str> = vec![SWEEP];
    names.extend(FOUND.iter().filter(|_| !all).map(|(name, _)| name));
    let total = names.len();
    names.retain(|name| asked(name));
    println!("\nrunning {} tests", names.len());
    let folder = tempfile::tempdir().unwrap();
    let mut failed = 0;
    for name in &names {
        let found = FOUND.iter().find(|(known, _)| known == name);
        let failures = match found {
            Some((_, cases)) => watch_all(folder.path(), cases, &[HELD]),
            None => sweep(folder.path(), if all { usize::MAX } else { SAMPLE }),
        };
        failures.iter().for_each(|failure| println!("{failure}"));
        println!("test {name} ... {}", if failures.is_empty() { "ok" } else { "FAILED" });
        failed += usize::from(!failures.is_empty());
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let (passed, left_out) = (names.len() - failed, total - names.len());
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {left_out} filtered out\n"
    );
    ExitCode::from(u8::from(failed > 0))
}

/// Kills at up to `most` points, and says what did not hold.
fn sweep(folder: &Path, most: usize) -> Vec<String> {
    let listed = match this_program(folder, &["cases", "fork"]) {
        Ok(listed) => listed,
        Err(problem) => return vec![problem],
    };
    let kills: Vec<&str> = listed.lines().filter(|case| case.ends_with("=kill")).collect();
    let chosen: Vec<&str> = kills.iter().copied().step_by((kills.len() / most).max(1)).collect();
    if chosen.len() < SAMPLE {
        return vec![format!("only {} points were recorded", kills.len())];
    }
    println!("{} deaths at {} points", chosen.len(), kills.len());
    watch_all(folder, &chosen, &[HELD, NOT_REACHED])
}

/// Runs cases, each under a watcher of its own; gives those that ended otherwise.
fn watch_all(folder: &Path, cases: &[&str], wanted: &[&str]) -> Vec<String> {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let watch = |case: &str| -> Result<(), String> {
        let said = this_program(folder, &["watch", case])?;
        let verdict: serde_json::Value = serde_json::from_str(&said).map_err(|error| error.to_string())?;
        let held = wanted.iter().any(|wanted| verdict["verdict"] == *wanted);
        if held { Ok(()) } else { Err(said) }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::AcqRel)) {
                    if let Err(why) = watch(case) {
                        let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                        failures.push(format!("{case}: {why}"));
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs this program in another role and gives what it prints.
fn this_program(folder: &Path, args: &[&str]) -> Result<String, String> {
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(me);
    let run = command.args(args).env(crate::FOLDER, folder).stdin(Stdio::null()).output();
    let run = run.map_err(|error| error.to_string())?;
    match run.status.success() {
        true => Ok(String::from_utf8_lossy(&run.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&run.stderr).into_owned()),
    }
}
