//! The test: SIGKILL of every process of a Worker, at a sample of its points in the normal run and at all of
//! them when ignored tests are asked for; and cases that sweeps have found.

use crate::runner::Runner;
use std::process::ExitCode;
use worker_chaos::Kind;

/// Deaths in the normal test run, spread over all points.
const SAMPLE: usize = 30;
/// Watchers at a time; they mostly wait.
const JOBS: usize = 4;

const SWEEP: &str = "f01_f02_f03_sigkill_at_fault_points_is_reported_and_nothing_is_left";

/// Cases that sweeps have found.
const FOUND: &[(&str, &[&str])] = &[
    ("wo8_a_release_of_a_domain_that_fails_is_reported", &["fork:exchange.done@0#3=panic"]),
    (
        "f20_a_death_is_reported_before_the_failures_of_ranks_that_waited",
        &["fork:exchange.collected@0#2=exit:7", "fork:barrier.arriving@0#2=kill"],
    ),
    (
        "f46_no_rank_waits_for_a_task_that_panicked",
        &["fork:worker.task.before-program@0#4=panic", "fork:barrier.arriving@1#2=panic"],
    ),
    (
        "f28_no_rank_waits_for_a_command_that_panicked",
        &["fork:comm-sim.release@2#1=panic", "fork:worker.domain.allocate@0#1=panic"],
    ),
    ("f28_a_domain_that_cannot_be_made_leaves_the_group_in_order", &["fork:region.reserve@0#2=error:28"]),
    ("f07_no_child_waits_for_a_submit_that_panicked", &["levels:worker.send.written@0#1=panic"]),
    ("wo2_a_worker_below_reports_why_it_ended_with_an_error", &["levels:chip.teardown@100#1=term"]),
    (
        "f07_a_deadline_is_reported_before_the_tasks_that_it_cancelled",
        &["exec:worker.register@1#1=stop", "fork:worker.register@1#1=stop"],
    ),
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
    let runner = match Runner::new() {
        Ok(runner) => runner,
        Err(problem) => {
            println!("{problem}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = 0;
    for name in &names {
        let found = FOUND.iter().find(|(known, _)| known == name);
        let failures = match found {
            Some((_, cases)) => {
                let cases: Vec<String> = cases.iter().map(|case| (*case).to_owned()).collect();
                failures(&runner, &cases, &[Kind::Held])
            }
            None => kill_at_points(&runner, if all { usize::MAX } else { SAMPLE }),
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

/// Kills at up to `most` points, and returns what did not hold.
fn kill_at_points(runner: &Runner, most: usize) -> Vec<String> {
    let cases = match runner.cases(Some("fork")) {
        Ok(cases) => cases,
        Err(problem) => return vec![problem],
    };
    let kills: Vec<String> = cases.into_iter().filter(|case| case.ends_with("=kill")).collect();
    let chosen: Vec<String> = kills.iter().step_by((kills.len() / most).max(1)).cloned().collect();
    if chosen.len() < SAMPLE {
        return vec![format!("only {} points were recorded", kills.len())];
    }
    println!("{} deaths at {} points", chosen.len(), kills.len());
    failures(runner, &chosen, &[Kind::Held, Kind::NotReached])
}

/// Runs cases, and returns those with another outcome.
fn failures(runner: &Runner, cases: &[String], wanted: &[Kind]) -> Vec<String> {
    let mut failures = Vec::new();
    runner.run_all(cases, JOBS, None, |outcome| {
        if !wanted.contains(&outcome.outcome) {
            failures.push(format!("{outcome:#?}"));
        }
    });
    failures
}
