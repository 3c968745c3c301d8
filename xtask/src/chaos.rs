//! `cargo xtask chaos`: faults at every point of every process. The program `proc_chaos` of worker-orch runs the
//! cases and decides whether the contract held; this command builds it, with the vendor double for the scenario
//! that needs one, and passes on which cases to run.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo::cargo;
use crate::console::{Console, Log, Show};
use crate::hw_test::build_double;
use crate::lane::{Outcome, Report, Setting};
use crate::workspace::Workspace;

/// Which cases to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the cases of this scenario
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// Only so many cases, spread over all scenarios and areas; otherwise every one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    points: Option<u32>,
    /// Which cases come first, and which are chosen with --points
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Start no case after so many minutes
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: Option<u32>,
    /// Cases at a time; they mostly wait
    #[arg(long, value_name = "J", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Only this case, as a failure prints it
    #[arg(long, value_name = "CASE", value_parser = shape, conflicts_with_all = ["scenario", "points", "minutes"])]
    case: Option<String>,
    /// Only cases that contain this, such as `=kill`; all of them where it is given more than once
    #[arg(long, value_name = "TEXT", conflicts_with = "case")]
    only: Vec<String>,
    /// One JSON object for each case, and one with the totals
    #[arg(long)]
    json: bool,
}

/// Cases of the CI lane: every area of every scenario more than once, in about a minute.
const SAMPLE: u32 = 240;

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let mut program = build(ws, &Console::new(Show::choose(false)))?;
    let status = program.args(args.passed_on()).status().context("cannot start proc_chaos")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A sample of the cases as a lane.
pub(crate) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    let (points, seed, jobs, only) = (Some(SAMPLE), 1, 4, Vec::new());
    let args = Args { scenario: None, points, seed, minutes: None, jobs, case: None, only, json: false };
    let mut program = build(setting.ws, setting.console)?;
    Ok(Outcome::Ran(report(setting.console.run(program.args(args.passed_on()))?)))
}

impl Args {
    /// The same for the program.
    fn passed_on(&self) -> Vec<String> {
        let number = |name: &str, value: Option<u64>| value.map(|value| [name.to_owned(), value.to_string()]);
        let numbers = [
            number("--points", self.points.map(u64::from)),
            number("--seed", Some(self.seed)),
            number("--minutes", self.minutes.map(u64::from)),
            number("--jobs", Some(self.jobs.into())),
            self.scenario.clone().map(|name| ["--scenario".to_owned(), name]),
            self.case.clone().map(|case| ["--case".to_owned(), case]),
        ];
        let only = self.only.iter().flat_map(|text| ["--only".to_owned(), text.clone()]);
        let flags = numbers.into_iter().flatten().flatten().chain(only);
        ["sweep".to_owned()].into_iter().chain(flags).chain(self.json.then(|| "--json".to_owned())).collect()
    }
}

/// Refuses before anything is built what cannot be a case.
fn shape(case: &str) -> Result<String, String> {
    let parts = case.split_once(':').and_then(|(scenario, fault)| Some((scenario, fault.split_once('=')?)));
    match parts {
        Some((scenario, (point, action))) if ![scenario, point, action].contains(&"") => Ok(case.to_owned()),
        _ => {
            Err("write it as a failure prints it, such as fork:worker.task.before-program@1#2=kill"
                .to_owned())
        }
    }
}

/// Builds the program as the tests of the workspace are built, so that nothing is compiled twice.
fn build(ws: &Workspace, console: &Console) -> Result<Command> {
    let double = build_double(ws, console)?;
    let select = ["test", "--workspace", "--test", "proc_chaos", "--no-run"];
    if let Some(failure) = console.run(&mut cargo(&ws.root, select))?.failure {
        bail!("proc_chaos does not build: {failure}");
    }
    let messages = cargo(&ws.root, select).args(["--quiet", "--message-format", "json"]).output()?.stdout;
    let path = String::from_utf8_lossy(&messages).lines().filter_map(executable).next_back();
    let mut command = Command::new(path.context("cargo did not say where proc_chaos is")?);
    command.env("CHIPCOMM_CANN_LIB_DIR", double).stdin(Stdio::null());
    Ok(command)
}

/// The test program in a line of cargo's messages.
fn executable(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let ours = message.get("target")?.get("name")? == "proc_chaos";
    ours.then(|| message.get("executable")?.as_str().map(PathBuf::from))?
}

/// A sweep ends with a line such as `240 of 240 cases, seed 1, 61 s: 231 held, 0 failed, 9 not reached`.
fn report(log: Log) -> Report {
    let line =
        log.lines.iter().rev().find(|line| line.contains(" cases, seed ")).cloned().unwrap_or_default();
    let count = line.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
    Report { counted: line, ..Report::checks(count, "case", log.failure) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let line =
            r#"{"reason":"compiler-artifact","target":{"name":"proc_chaos"},"executable":"/x/proc_chaos-1"}"#;
        assert_eq!(executable(line), Some(PathBuf::from("/x/proc_chaos-1")));
        assert_eq!(executable(&line.replace("proc_chaos\"}", "proc_run\"}")), None);
        assert_eq!(executable("no JSON"), None);
    }

    #[test]
    fn what_cannot_be_a_case_is_refused_before_a_build() {
        assert!(shape("fork:worker.task.before-program@1#2=kill").is_ok());
        for text in ["", "malformed", "fork:", "fork:a.b", ":a.b=kill", "fork:=kill", "fork:a.b="] {
            assert_eq!(
                shape(text).unwrap_err(),
                "write it as a failure prints it, such as fork:worker.task.before-program@1#2=kill"
            );
        }
    }

    #[test]
    fn flags_are_passed_on() {
        let (scenario, points, only) = (Some("flight".to_owned()), Some(9), vec!["=kill".to_owned()]);
        let args = Args { scenario, points, seed: 2, minutes: None, jobs: 3, case: None, only, json: true };
        let passed = "sweep --points 9 --seed 2 --jobs 3 --scenario flight --only =kill --json";
        assert_eq!(args.passed_on().join(" "), passed);
        let (case, only) = (Some("fork:a=kill".to_owned()), Vec::new());
        let args = Args { scenario: None, case, points: None, only, json: false, ..args };
        assert_eq!(args.passed_on().join(" "), "sweep --seed 2 --jobs 3 --case fork:a=kill");
    }

    #[test]
    fn a_sweep_is_counted_by_its_last_line() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        let last = "7 of 240 cases, seed 1, 2 s: 6 held, 1 failed, 0 not reached\nchaos: 1 case failed";
        let report = report(Log { lines: lines(last), failure: None });
        assert_eq!((report.count, report.counted.contains("6 held")), (7, true));
        assert_eq!(super::report(Log { lines: lines("no such line"), failure: None }).count, 0);
    }
}
