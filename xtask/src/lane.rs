//! Lanes: named checks that run one after another, each with its time and its count, and a summary at the
//! end. A lane that ran nothing has failed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::console::Console;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// What a lane works with.
pub(crate) struct Setting<'a> {
    pub(crate) ws: &'a Workspace,
    pub(crate) console: &'a Console,
    /// Whether the user asked for these lanes by name.
    pub(crate) named: bool,
}

/// One named check.
pub(crate) struct Lane<'a> {
    pub(crate) name: &'a str,
    /// What it checks, for the help and the log.
    pub(crate) about: &'a str,
    pub(crate) run: &'a dyn Fn(&Setting<'_>) -> Result<Outcome>,
}

/// How a lane ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Ran(Report),
    /// This machine cannot run it; the reason in one line.
    LeftOut(String),
}

/// What a lane did.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Tests that ran; empty for lanes that check something else.
    pub(crate) tests: Tally,
    /// How many things were checked. None is a failure.
    pub(crate) count: u64,
    /// The count in words: `41 tests`, `9 models held, 7 mutants rejected`.
    pub(crate) counted: String,
    /// Why the lane failed.
    pub(crate) failure: Option<String>,
    /// Why parts of it did not run.
    pub(crate) not_run: Vec<String>,
}

impl Report {
    /// A lane that checked `count` things that are not tests; `noun` is what one of them is.
    pub(crate) fn checks(count: usize, noun: &str, failure: Option<String>) -> Self {
        let count = count as u64;
        Self { count, counted: counted(count, noun), failure, ..Self::default() }
    }

    /// A lane that ran tests.
    pub(crate) fn tests(tests: Tally, failure: Option<String>) -> Self {
        let ignored = if tests.ignored > 0 { format!(", {} ignored", tests.ignored) } else { String::new() };
        let counted = counted(tests.ran(), "test") + &ignored;
        Self { tests, count: tests.ran(), counted, failure, ..Self::default() }
    }

    /// Both as one.
    pub(crate) fn and(self, other: Self) -> Self {
        let mut tests = self.tests;
        tests += other.tests;
        Self::tests(tests, self.failure.or(other.failure))
    }

    /// The rule for every lane: one that ran nothing, or in which a test failed, has failed; where all of it was asked for, also one
    /// of which a part did not run.
    fn judged(mut self, left_out: LeftOut, not_run: Vec<String>) -> Self {
        self.not_run = not_run;
        if self.tests.failed > 0 {
            // More telling than the exit code of the command that ran them.
            self.failure = Some(format!("{} failed", self.tests.failed));
        } else if self.failure.is_none() && self.count == 0 {
            self.failure = Some("it ran nothing, and a check that ran nothing has failed".to_owned());
        } else if self.failure.is_none() && left_out == LeftOut::Failed && !self.not_run.is_empty() {
            self.failure = Some("a part was not run, and everything was asked for".to_owned());
        }
        self
    }
}

/// `1 test`, `2 tests`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A lane that has ended.
struct Ended<'a> {
    name: &'a str,
    took: Duration,
    outcome: Outcome,
}

/// What becomes of a lane, or of a part of one, that this machine cannot run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftOut {
    /// The closing line names it.
    Named,
    /// It has failed.
    Failed,
}

/// Runs the lanes in order, all of them even after a failure, and prints the summary with `remarks` above
/// its closing line. A lane that failed has shown why, so the exit code is all that is left to say.
pub(crate) fn run_all<'a>(
    setting: &Setting<'_>,
    lanes: impl IntoIterator<Item = &'a Lane<'a>>,
    remarks: &[String],
) -> ExitCode {
    run_all_or(LeftOut::Named, setting, lanes, remarks)
}

/// The same, with a choice of what a lane that is left out means.
pub(crate) fn run_all_or<'a>(
    left_out: LeftOut,
    setting: &Setting<'_>,
    lanes: impl IntoIterator<Item = &'a Lane<'a>>,
    remarks: &[String],
) -> ExitCode {
    let mut ended = Vec::new();
    for lane in lanes {
        setting.console.begin(lane.name, lane.about);
        let start = Instant::now();
        let outcome = (lane.run)(setting);
        let not_run = setting.console.take_not_run();
        let outcome = match outcome {
            Ok(Outcome::Ran(report)) => Outcome::Ran(report.judged(left_out, not_run)),
            Ok(Outcome::LeftOut(reason)) if left_out == LeftOut::Failed => Outcome::Ran(Report {
                failure: Some(format!("left out, and every lane was asked for: {reason}")),
                ..Report::checks(0, "check", None)
            }),
            Ok(named) => named,
            Err(error) => Outcome::Ran(Report {
                failure: Some(format!("{error:#}")),
                ..Report::checks(0, "check", None)
            }),
        };
        let one = Ended { name: lane.name, took: start.elapsed(), outcome };
        setting.console.line(&row(&one));
        ended.push(one);
    }
    setting.console.end();
    summary(&ended, remarks).iter().for_each(|line| println!("{line}"));
    if ended.iter().any(|one| failure(one).is_some()) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn failure<'a>(ended: &'a Ended<'_>) -> Option<&'a str> {
    match &ended.outcome {
        Outcome::Ran(report) => report.failure.as_deref(),
        Outcome::LeftOut(_) => None,
    }
}

fn row(ended: &Ended<'_>) -> String {
    let (status, rest) = match &ended.outcome {
        Outcome::Ran(Report { failure: None, counted, .. }) => ("ok", counted.clone()),
        Outcome::Ran(Report { failure: Some(why), counted, .. }) => ("FAILED", format!("{counted}; {why}")),
        Outcome::LeftOut(reason) => ("left out", reason.clone()),
    };
    let not_run = match &ended.outcome {
        Outcome::Ran(Report { not_run, .. }) if !not_run.is_empty() => {
            format!("; not run: {}", not_run.join(", "))
        }
        _ => String::new(),
    };
    format!("{:<8} {status:<8} {:>7.1} s  {rest}{not_run}", ended.name, ended.took.as_secs_f64())
}

/// The table, the failures by name, and the closing line with the totals. A lane that failed without a
/// failing test, such as one that does not compile, counts as one failure, so that the totals never look
/// better than the exit code.
fn summary(all: &[Ended<'_>], remarks: &[String]) -> Vec<String> {
    let mut tests = Tally::default();
    for one in all {
        if let Outcome::Ran(report) = &one.outcome {
            tests += report.tests;
            tests.failed += u64::from(report.failure.is_some() && report.tests.failed == 0);
        }
    }
    let took: Duration = all.iter().map(|one| one.took).sum();
    let mut lines = Vec::new();
    if all.len() > 1 {
        lines.push(String::new());
        lines.extend(all.iter().map(row));
        lines.push(format!("{:<8} {:<8} {:>7.1} s", "total", "", took.as_secs_f64()));
    }
    let failed: Vec<&str> = all.iter().filter(|one| failure(one).is_some()).map(|one| one.name).collect();
    lines.push(String::new());
    if !failed.is_empty() {
        lines.push(format!("failed: {}", failed.join(", ")));
    }
    lines.extend_from_slice(remarks);
    let left_out: Vec<String> = all
        .iter()
        .filter_map(|one| match &one.outcome {
            // What to do about it stands in the lane's own row.
            Outcome::LeftOut(why) => Some(format!("{} ({})", one.name, why.split(';').next().unwrap_or(why))),
            Outcome::Ran(report) if report.not_run.is_empty() => None,
            Outcome::Ran(report) => Some(format!("part of {} ({})", one.name, report.not_run.join(", "))),
        })
        .collect();
    let left_out =
        if left_out.is_empty() { String::new() } else { format!("; left out: {}", left_out.join(", ")) };
    lines.push(format!("{} passed, {} failed{left_out}", tests.passed, tests.failed));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::Show;

    fn passes(lanes: &[Lane<'_>]) -> bool {
        let ws = Workspace::default();
        run_all(&Setting { ws: &ws, console: &Console::new(Show::Progress), named: false }, lanes, &[])
            == ExitCode::SUCCESS
    }

    fn lane(run: &dyn Fn(&Setting<'_>) -> Result<Outcome>) -> Lane<'_> {
        Lane { name: "x", about: "a lane of a test", run }
    }

    fn tally(passed: u64, failed: u64) -> Tally {
        Tally { passed, failed, ignored: 0 }
    }

    #[test]
    fn a_lane_with_zero_tests_fails() {
        assert!(!passes(&[lane(&|_| Ok(Outcome::Ran(Report::tests(Tally::default(), None))))]));
        assert!(!passes(&[lane(&|_| Ok(Outcome::Ran(Report::checks(0, "crate", None))))]));
        assert!(passes(&[lane(&|_| Ok(Outcome::Ran(Report::tests(tally(1, 0), None))))]));
    }

    #[test]
    fn counts_read_well() {
        assert_eq!(Report::tests(tally(1, 0), None).counted, "1 test");
        assert_eq!(
            Report::tests(Tally { passed: 2, failed: 0, ignored: 3 }, None).counted,
            "2 tests, 3 ignored"
        );
        assert_eq!(Report::checks(0, "crate", None).counted, "0 crates");
    }

    #[test]
    fn only_ignored_tests_are_zero_tests() {
        let ignored = Tally { ignored: 5, ..Tally::default() };
        assert!(Report::tests(ignored, None).judged(LeftOut::Named, Vec::new()).failure.is_some());
    }

    #[test]
    fn a_failing_test_an_error_and_a_failing_command_fail_the_lane() {
        assert!(!passes(&[lane(&|_| Ok(Outcome::Ran(Report::tests(tally(5, 1), None))))]));
        assert!(!passes(&[lane(&|_| anyhow::bail!("no compiler"))]));
        assert!(!passes(&[lane(&|_| Ok(Outcome::Ran(Report::checks(3, "crate", Some("exit 1".into())))))]));
    }

    #[test]
    fn a_lane_that_is_left_out_fails_where_every_lane_is_asked_for() {
        let ws = Workspace::default();
        let setting = Setting { ws: &ws, console: &Console::new(Show::Progress), named: false };
        let absent: [Lane<'_>; 1] = [lane(&|_| Ok(Outcome::LeftOut("no miri here".into())))];
        assert_eq!(run_all_or(LeftOut::Named, &setting, &absent, &[]), ExitCode::SUCCESS);
        assert_eq!(run_all_or(LeftOut::Failed, &setting, &absent, &[]), ExitCode::FAILURE);
    }

    #[test]
    fn a_part_that_is_left_out_is_named_and_fails_where_everything_is_asked_for() {
        let ws = Workspace::default();
        let setting = Setting { ws: &ws, console: &Console::new(Show::Progress), named: false };
        let partly: [Lane<'_>; 1] = [lane(&|setting| {
            setting.console.not_run("no cmake");
            Ok(Outcome::Ran(Report::tests(tally(1, 0), None)))
        })];
        assert_eq!(run_all_or(LeftOut::Named, &setting, &partly, &[]), ExitCode::SUCCESS);
        assert_eq!(run_all_or(LeftOut::Failed, &setting, &partly, &[]), ExitCode::FAILURE);
        let report = Report::tests(tally(1, 0), None).judged(LeftOut::Named, vec!["no cmake".into()]);
        let ended = Ended { name: "x", took: Duration::from_secs(1), outcome: Outcome::Ran(report) };
        let lines = summary(&[ended], &[]);
        assert_eq!(lines.last().unwrap(), "1 passed, 0 failed; left out: part of x (no cmake)");
    }

    #[test]
    fn a_lane_after_a_failed_one_still_runs() {
        let ran = std::cell::Cell::new(false);
        let second = |_: &Setting<'_>| {
            ran.set(true);
            Ok(Outcome::Ran(Report::tests(tally(1, 0), None)))
        };
        assert!(!passes(&[lane(&|_| anyhow::bail!("no")), lane(&second)]));
        assert!(ran.get());
    }

    #[test]
    fn the_last_line_is_the_total_and_counts_a_lane_that_broke() {
        let ended = |outcome| Ended { name: "x", took: Duration::from_secs(1), outcome };
        let good = ended(Outcome::Ran(Report::tests(tally(40, 0), None)));
        let broken = ended(Outcome::Ran(Report::checks(0, "crate", Some("does not compile".into()))));
        let absent = ended(Outcome::LeftOut("no miri here; to install: x".into()));
        assert_eq!(summary(&[good], &[]).last().unwrap(), "40 passed, 0 failed");
        let good = ended(Outcome::Ran(Report::tests(tally(40, 2), Some("exit code 101".into()))));
        let lines = summary(&[good, broken, absent], &["on the double".into()]);
        assert_eq!(lines.last().unwrap(), "40 passed, 3 failed; left out: x (no miri here)");
        assert!(
            lines.iter().any(|line| line.contains("left out") && line.contains("no miri here")),
            "{lines:?}"
        );
        assert_eq!(lines[lines.len() - 3..lines.len() - 1], ["failed: x, x", "on the double"]);
    }
}
