//! `cargo xtask test`: every test that is not in a slow lane. The `tests` lane of `ci` runs the same
//! function.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cargo::cargo;
use crate::console::{Console, Show};
use crate::lane::{self, Lane, Outcome, Report, Setting};
use crate::tally::Tally;
use crate::workspace::Workspace;

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
    let mut command = cargo(&setting.ws.root, ["test", "--no-fail-fast"]);
    if args.packages.is_empty() {
        command.arg("--workspace");
    }
    args.packages.iter().for_each(|name| {
        command.args(["--package", setting.ws.package(name)]);
    });
    if !args.passed_on.is_empty() {
        command.arg("--").args(&args.passed_on);
    }
    let log = setting.console.run(&mut command)?;
    Ok(Outcome::Ran(Report::tests(Tally::of(&log.lines), log.failure)))
}
