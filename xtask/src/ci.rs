//! `cargo xtask ci`: the lanes that must hold before a change lands. Adding one is a row in [`LANES`].

mod loom;
mod miri;
mod readme;
mod sanitizers;
mod slow;

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::cargo::{appended, cargo};
use crate::console::{Console, Show};
use crate::lane::{self, Lane, Outcome, Report, Setting};
use crate::workspace::{Member, Workspace};
use crate::{abi_check, chaos, hw_test, python, test, tidy};

/// Which lanes to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these lanes; all of them in order where none is named
    #[arg(value_name = "LANE", value_parser = clap::builder::PossibleValuesParser::new(LANES.iter().map(|l| l.name)))]
    lanes: Vec<String>,
    /// Show everything that the lanes print; otherwise only a lane that fails does
    #[arg(short, long)]
    verbose: bool,
}

const LANES: &[Lane<'_>] = &[
    Lane { name: "fmt", about: "the sources are formatted", run: &fmt },
    Lane { name: "clippy", about: "no warning from rustc or clippy", run: &clippy },
    Lane { name: "tidy", about: "the rules of the codebase", run: &tidy::lane },
    Lane {
        name: "tests",
        about: "what `cargo xtask test` runs",
        run: &|at| test::lane(at, &test::Args::default()),
    },
    Lane { name: "slow", about: "tests that take too long for `cargo xtask test`", run: &slow::lane },
    Lane { name: "chaos", about: "a slice of the faults at every point", run: &chaos::lane },
    Lane {
        name: "double",
        about: "the hardware tests of every layer, on the vendor double",
        run: &hw_test::double_lane,
    },
    Lane { name: "python", about: "the wheel builds and its tests pass", run: &python::lane },
    Lane { name: "torch", about: "the torch backend's tests", run: &python::torch_lane },
    Lane { name: "readme", about: "the README's commands run", run: &readme::lane },
    Lane { name: "alone", about: "each library builds without the others' features", run: &alone },
    Lane { name: "docs", about: "no warning from rustdoc", run: &docs },
    Lane { name: "loom", about: "the models hold and their mutants are rejected", run: &loom::lane },
    Lane { name: "miri", about: "unit tests under miri", run: &miri::lane },
    Lane {
        name: "asan",
        about: "tests of processes under the address sanitizer",
        run: &sanitizers::addresses,
    },
    Lane { name: "tsan", about: "tests of threads under the thread sanitizer", run: &sanitizers::threads },
    Lane {
        name: "abi",
        about: "comm-hccl's declarations against the vendor's headers",
        run: &abi_check::lane,
    },
];

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let console = Console::new(Show::choose(args.verbose));
    let wanted = |lane: &&Lane<'_>| args.lanes.is_empty() || args.lanes.iter().any(|name| name == lane.name);
    let setting = Setting { ws, console: &console, named: !args.lanes.is_empty() };
    Ok(lane::run_all(&setting, LANES.iter().filter(wanted), &[]))
}

fn fmt(setting: &Setting<'_>) -> Result<Outcome> {
    over_all_members(setting, cargo(&setting.ws.root, ["fmt", "--all", "--check"]))
}

fn clippy(setting: &Setting<'_>) -> Result<Outcome> {
    let args = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    over_all_members(setting, cargo(&setting.ws.root, args))
}

fn docs(setting: &Setting<'_>) -> Result<Outcome> {
    let mut command = cargo(&setting.ws.root, ["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", appended("RUSTDOCFLAGS", "-D warnings"));
    over_all_members(setting, command)
}

/// A whole-workspace build turns on every feature that any member asks for; this one shows what a user of a
/// single crate gets. A crate with a default feature must build without it too, and one with several, such as
/// platforms, with each of them alone.
fn alone(setting: &Setting<'_>) -> Result<Outcome> {
    let (mut count, mut failures) = (0, Vec::new());
    for member in setting.ws.members.iter().filter(|member| member.is_library()) {
        for features in feature_sets(member) {
            let mut command = cargo(&setting.ws.root, ["check", "--package", &member.name, "--lib"]);
            failures.extend(setting.console.run(command.args(features))?.failure);
            count += 1;
        }
    }
    Ok(Outcome::Ran(Report::checks(count, "build", failures.into_iter().next())))
}

/// The flags of each build.
fn feature_sets(member: &Member) -> Vec<Vec<&str>> {
    const NONE: &str = "--no-default-features";
    let mut sets = vec![vec![]];
    match member.features.get("default").map(Vec::as_slice).unwrap_or_default() {
        [] => {}
        [_] => sets.push(vec![NONE]),
        several => sets.extend(several.iter().map(|feature| vec![NONE, "--features", feature])),
    }
    sets
}

fn over_all_members(setting: &Setting<'_>, mut command: Command) -> Result<Outcome> {
    let log = setting.console.run(&mut command)?;
    Ok(Outcome::Ran(Report::checks(setting.ws.members.len(), "crate", log.failure)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_built_without_its_default_feature_or_with_each_of_several() {
        let with = |default: &[&str]| {
            let default = default.iter().map(|name| (*name).to_owned()).collect();
            let member = Member { features: [("default".to_owned(), default)].into(), ..Member::default() };
            feature_sets(&member).iter().map(|set| set.join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(with(&[]), [""]);
        assert_eq!(with(&["std"]), ["", "--no-default-features"]);
        let two = with(&["sim", "ascend"]);
        assert_eq!(
            two[1..],
            ["--no-default-features --features sim", "--no-default-features --features ascend"]
        );
    }
}
