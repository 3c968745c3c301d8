//! `cargo xtask ci`: the lanes that must hold before a change lands. Adding one is a row in [`LANES`].

mod aarch64;
mod advisories;
pub(crate) mod guides;
mod layer;
mod licences;
mod loom;
mod miri;
mod packages;
mod readme;
mod sanitizers;
mod semver;
mod slow;
mod workflows;

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::cargo::{appended, cargo};
use crate::console::{Console, Show};
use crate::lane::{self, Lane, LeftOut, Outcome, Report, Setting};
use crate::workspace::{Member, Workspace};
use crate::{abi_check, chaos, hw_test, mpi, python, test, tidy};

/// Which lanes to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these lanes; all of them in order where none is named
    #[arg(value_name = "LANE", value_parser = clap::builder::PossibleValuesParser::new(LANES.iter().map(|l| l.name)))]
    lanes: Vec<String>,
    /// What a reviewer of this crate needs: clippy, tests, docs, loom and double of it and of the crates in its folder
    #[arg(long, value_name = "CRATE", conflicts_with = "lanes")]
    layer: Option<String>,
    /// A lane or a test that this machine cannot run is a failure; otherwise the last line names it
    #[arg(long)]
    all_lanes: bool,
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
    // Before `mpi`, which runs a program in Python, too.
    Lane { name: "python", about: "the wheel builds and its tests pass", run: &python::lane },
    Lane { name: "mpi", about: "MPI programs with the drop-in, by real launchers", run: &mpi::lane },
    Lane { name: "torch", about: "the torch backend's tests", run: &python::torch_lane },
    Lane { name: "readme", about: "the commands of the README and of the guides run", run: &readme::lane },
    Lane {
        name: "alone",
        about: "each library builds without the others' features, and without a warning",
        run: &alone,
    },
    Lane {
        name: "packages",
        about: "each library builds from its package, C programs find the installed ones",
        run: &packages::lane,
    },
    Lane {
        name: "licences",
        about: "every crate may be used under a licence of the list",
        run: &licences::lane,
    },
    Lane {
        name: "advisories",
        about: "no crate with a known defect, by RustSec's list",
        run: &advisories::lane,
    },
    Lane { name: "semver", about: "who called the last release can call this one", run: &semver::lane },
    Lane {
        name: "workflows",
        about: "the files of hosted CI have the form of workflows, and no known weakness",
        run: &workflows::lane,
    },
    Lane { name: "aarch64", about: "libraries and programs compile for 64-bit Arm", run: &aarch64::lane },
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
    let setting = Setting { ws, console: &console, named: !args.lanes.is_empty() };
    let left_out = if args.all_lanes { LeftOut::Failed } else { LeftOut::Named };
    if let Some(name) = &args.layer {
        return layer::run(left_out, &setting, name);
    }
    let wanted = |lane: &&Lane<'_>| args.lanes.is_empty() || args.lanes.iter().any(|name| name == lane.name);
    Ok(lane::run_all_or(left_out, &setting, LANES.iter().filter(wanted), &[]))
}

fn fmt(setting: &Setting<'_>) -> Result<Outcome> {
    over_all_members(setting, cargo(&setting.ws.root, ["fmt", "--all", "--check"]))
}

fn clippy(setting: &Setting<'_>) -> Result<Outcome> {
    over_all_members(setting, clippy_of(setting, &["--workspace"]))
}

/// `which` is cargo's choice of packages.
fn clippy_of(setting: &Setting<'_>, which: &[&str]) -> Command {
    let mut command = cargo(&setting.ws.root, ["clippy", "--all-targets"]);
    command.args(which).args(["--", "-D", "warnings"]);
    command
}

fn docs(setting: &Setting<'_>) -> Result<Outcome> {
    over_all_members(setting, docs_of(setting, &["--workspace"]))
}

fn docs_of(setting: &Setting<'_>, which: &[&str]) -> Command {
    let mut command = cargo(&setting.ws.root, ["doc", "--no-deps"]);
    command.args(which).env("RUSTDOCFLAGS", appended("RUSTDOCFLAGS", "-D warnings"));
    command
}

/// A whole-workspace build turns on every feature that any member asks for; this one shows what a user of a
/// single crate gets, without a warning. A crate with a default feature must build without it too, and one with several, such as
/// platforms, with each of them alone.
fn alone(setting: &Setting<'_>) -> Result<Outcome> {
    let (mut count, mut failures) = (0, Vec::new());
    for member in setting.ws.members.iter().filter(|member| member.is_library()) {
        for features in feature_sets(member) {
            // Not `check`: a warning that only this build has is one that every user of the crate sees.
            let what = ["clippy", "--no-deps", "--package", &member.package, "--lib"];
            let mut command = cargo(&setting.ws.root, what);
            command.args(features).args(["--", "-D", "warnings"]);
            failures.extend(setting.console.run(&mut command)?.failure);
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

    /// Hosted CI splits the lanes over runners; one that no runner has would never run there.
    #[test]
    fn hosted_ci_runs_every_lane() {
        let workflow = include_str!("../../.github/workflows/ci.yml");
        let block = workflow.lines().skip_while(|line| line.trim() != "lanes:").skip(1);
        let rows = block.map_while(|line| line.trim().strip_prefix("- "));
        let mut hosted: Vec<&str> = rows.flat_map(str::split_whitespace).collect();
        let mut lanes: Vec<&str> = LANES.iter().map(|lane| lane.name).collect();
        hosted.sort_unstable();
        lanes.sort_unstable();
        assert_eq!(hosted, lanes);
    }

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
