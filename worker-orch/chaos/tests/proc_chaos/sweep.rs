//! The test: SIGKILL of every process of a Worker, at a sample of its points in the normal run and at all of them when ignored tests are asked for.

use crate::judge::FAILED;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Deaths in the normal test run, spread over all points.
const SAMPLE: usize = 30;
/// Watchers at a time: they mostly wait.
const AT_ONCE: usize = 4;

/// Does what cargo's harness does, as far as it is used here.
pub(crate) fn tests(args: &[&str]) -> ExitCode {
    let all = args.iter().any(|arg| ["--ignored", "--include-ignored"].contains(arg));
    let (name, most) = if all {
        ("f01_f02_f03_sigkill_at_every_fault_point_is_told", usize::MAX)
    } else {
        ("f01_f02_f03_sigkill_at_sampled_fault_points_is_told", SAMPLE)
    };
    let filters: Vec<&&str> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let asked = filters.is_empty() || filters.iter().any(|filter| name.contains(**filter));
    println!("\nrunning {} tests", u32::from(asked));
    let failures = if asked { sweep(most) } else { Vec::new() };
    failures.iter().for_each(|failure| println!("{failure}"));
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    if asked {
        println!("test {name} ... {word}");
    }
    let failed = u32::from(!failures.is_empty());
    let (passed, left_out) = (u32::from(asked) - failed, u32::from(!asked));
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {left_out} filtered out\n"
    );
    ExitCode::from(failed as u8)
}

/// Kills at up to `most` points, each under a watcher of its own, and says what did not hold.
fn sweep(most: usize) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let listed = match this_program(folder.path(), &["cases", "fork"]) {
        Ok(listed) => listed,
        Err(problem) => return vec![problem],
    };
    let kills: Vec<&str> = listed.lines().filter(|case| case.ends_with("=kill")).collect();
    let chosen: Vec<&str> = kills.iter().copied().step_by(kills.len().div_ceil(most).max(1)).collect();
    if chosen.len() < most.min(30) {
        return vec![format!("only {} points were recorded", chosen.len())];
    }
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = chosen.get(next.fetch_add(1, Ordering::AcqRel)) {
                    let verdict = this_program(folder.path(), &["watch", case]);
                    if verdict.as_ref().map_or(true, |verdict| verdict.contains(FAILED)) {
                        let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                        failures.push(format!("{case}: {}", verdict.unwrap_or_else(|problem| problem)));
                    }
                }
            });
        }
    });
    println!("{} deaths at {} points", chosen.len(), kills.len());
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
