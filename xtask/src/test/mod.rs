//! `cargo xtask test`: every test that is not in a slow lane. The `tests` lane of `ci` runs the same
//! function.

mod programs;

use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use crate::cargo::cargo;
use crate::console::{Console, Show};
use crate::lane::{self, Lane, Outcome, Report, Setting};
use crate::tally::{SHOW_OUTPUT, Tally};
use crate::workspace::{Member, Workspace};

/// What to test.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only this crate; may be given several times
    #[arg(short, long = "package", value_name = "CRATE")]
    packages: Vec<String>,
    /// Show everything that cargo and the tests print
    #[arg(short, long)]
    verbose: bool,
    /// Goes to the test programs: a filter, --test-threads N, --nocapture
    #[arg(last = true, value_name = "ARGS")]
    passed_on: Vec<String>,
}

impl Args {
    /// The tests of these crates.
    pub(crate) fn of(packages: &[String]) -> Self {
        Self { packages: packages.to_vec(), ..Self::default() }
    }
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    for name in &args.packages {
        if ws.member(name).is_none() {
            let names: Vec<&str> = ws.members.iter().map(|member| member.name.as_str()).collect();
            bail!("no crate `{name}` in this workspace; there are: {}", names.join(", "));
        }
    }
    let console = Console::new(Show::choose(args.verbose));
    let tests = |setting: &Setting<'_>| lane(setting, args);
    let lanes = [Lane { name: "tests", about: "all but the slow lanes", run: &tests }];
    Ok(lane::run_all(&Setting { ws, console: &console, named: false }, &lanes, &[]))
}

/// The tests as one lane.
pub(crate) fn lane(setting: &Setting<'_>, args: &Args) -> Result<Outcome> {
    let console = setting.console;
    let mut builds = vec![command(setting, args, &PROGRAMS)];
    builds[0].arg("--no-run");
    if args.packages.is_empty() {
        // The C libraries, which cargo does not build for their own tests; these ask for them in the same words.
        let mut libraries = cargo(&setting.ws.root, ["build", "--workspace", "--lib", "--tests"]);
        libraries.envs(environment(args).iter().copied());
        builds.push(libraries);
    }
    for mut build in builds {
        let failure = console.run(&mut build)?.failure;
        if failure.is_some() {
            return Ok(Outcome::Ran(Report::tests(Tally::default(), failure)));
        }
    }
    // Examples in documentation are compiled while the programs mostly wait for processes.
    let documented = args.packages.is_empty() || args.packages.iter().any(|name| is_library(setting, name));
    let documentation = documented
        .then(|| console.start(with_passed_on(&mut command(setting, args, &["--doc"]), args)))
        .transpose()?;
    let programs = programs::built(command(setting, args, &PROGRAMS)).and_then(|built| {
        let passed_on: Vec<String> = args.passed_on.iter().cloned().chain([SHOW_OUTPUT.to_owned()]).collect();
        programs::run(console, &setting.ws.root, &built, &passed_on, environment(args))
    });
    let documentation = documentation.map(|started| console.finish(started)).transpose()?;
    let mut logs = programs?;
    logs.extend(documentation);
    let (mut tests, mut failure) = (Tally::default(), None);
    for log in logs {
        tests += Tally::of(&log.lines);
        failure = failure.or(log.failure);
    }
    Ok(Outcome::Ran(Report::tests(tests, failure)))
}

/// What is a program of its own; the rest are examples in documentation.
const PROGRAMS: [&str; 4] = ["--lib", "--bins", "--tests", "--examples"];

/// Cargo refuses to look for documentation where no chosen crate has a library.
fn is_library(setting: &Setting<'_>, name: &str) -> bool {
    setting.ws.member(name).is_some_and(Member::is_library)
}

fn command(setting: &Setting<'_>, args: &Args, targets: &[&str]) -> Command {
    let mut command = cargo(&setting.ws.root, ["test", "--no-fail-fast"]);
    if args.packages.is_empty() {
        command.arg("--workspace");
    }
    command.envs(environment(args).iter().copied());
    for name in &args.packages {
        command.args(["--package", setting.ws.package(name)]);
    }
    command.args(targets);
    command
}

/// What all of them have in their environment. With the features of the whole workspace, all that a C library needs is there
/// already; and what the compiler would keep for a next build of each crate takes a quarter of the time of this one.
fn environment(args: &Args) -> &'static [(&'static str, &'static str)] {
    if args.packages.is_empty() {
        &[("CHIPCOMM_TEST_WORKSPACE", "1"), ("CARGO_INCREMENTAL", "0")]
    } else {
        &[]
    }
}

fn with_passed_on<'a>(command: &'a mut Command, args: &Args) -> &'a mut Command {
    if !args.passed_on.is_empty() {
        command.arg("--").args(&args.passed_on);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Member;

    #[test]
    fn an_unknown_crate_lists_those_that_exist() {
        let member = Member { name: "a".into(), ..Member::default() };
        let ws = Workspace { members: vec![member], ..Workspace::default() };
        let error = run(&ws, &Args::of(&["b".to_owned()])).unwrap_err().to_string();
        assert_eq!(error, "no crate `b` in this workspace; there are: a");
    }
}
