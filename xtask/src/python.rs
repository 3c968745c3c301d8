//! `cargo xtask python`: builds the wheel of `bindings/python` into an environment of its own, below `target`, and runs its tests.
//!
//! The binding is not a member of the workspace: everything else builds, tests and locks without Python and pyo3.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{answers, cargo};
use crate::console::{Console, Show};
use crate::lane::{Outcome, Report, Setting};
use crate::tally::Tally;
use crate::workspace::Workspace;

/// What to do after the wheel is built.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// With torch, which is installed if it is not there: 540 MB, and some GB of libraries that it needs to start
    #[arg(long)]
    torch: bool,
    /// Run this script instead of the tests
    #[arg(long, value_name = "SCRIPT")]
    run: Option<PathBuf>,
    /// On how many ranks
    #[arg(long, default_value_t = 4, requires = "run", value_parser = clap::value_parser!(u8).range(1..=64))]
    ranks: u8,
    /// Show everything that the commands print; otherwise only one that fails does
    #[arg(short, long)]
    verbose: bool,
    /// Passed on to pytest
    #[arg(last = true)]
    pytest: Vec<String>,
}

pub(crate) const FOLDER: &str = "bindings/python";
/// What the environment has besides the package.
const TOOLS: &[&str] = &["maturin>=1.7,<2", "mpi4py>=4.1", "numpy", "pytest"];
pub(crate) const NEEDED: &str = "Python 3.11 or later with venv and pip, as `python3` or in CHIPCOMM_PYTHON";

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let console = Console::new(Show::choose(args.verbose));
    let python = interpreter().with_context(|| format!("this needs {NEEDED}"))?;
    let place = Place::of(ws, args.torch);
    console.begin("python", "environment, wheel, tests");
    if let Err(why) = place.prepare(&python, &console).and_then(|()| place.install(&console)) {
        console.end();
        bail!("{why:#}");
    }
    if let Some(script) = &args.run {
        console.end();
        let mut launch = place.program("python");
        let status =
            launch.args(["-m", "chipcomm.launch", "-n", &args.ranks.to_string()]).arg(script).status()?;
        return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let report = place.test(&console, &args.pytest)?;
    console.end();
    println!("{}", report.counted);
    Ok(match report.failure {
        None => ExitCode::SUCCESS,
        Some(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    })
}

/// The lane `python`: without the tests that need torch.
pub(crate) fn lane(setting: &Setting<'_>) -> Result<Outcome> {
    in_lane(setting, false)
}

/// The lane `torch`: with them, where torch is there or the lane was asked for by name.
pub(crate) fn torch_lane(setting: &Setting<'_>) -> Result<Outcome> {
    let place = Place::of(setting.ws, true);
    if !setting.named && !place.has("torch") {
        let text =
            "torch is 540 MB and some GB of libraries; `cargo xtask ci torch` installs it below target";
        return Ok(Outcome::LeftOut(text.to_owned()));
    }
    in_lane(setting, true)
}

fn in_lane(setting: &Setting<'_>, torch: bool) -> Result<Outcome> {
    let Some(python) = interpreter() else {
        return Ok(Outcome::LeftOut(format!("there is no {NEEDED}")));
    };
    let place = Place::of(setting.ws, torch);
    if let Err(why) = place.prepare(&python, setting.console) {
        return Ok(Outcome::LeftOut(format!("{why:#}")));
    }
    if !torch && let Some(why) = warnings(setting)? {
        return Ok(Outcome::Ran(Report::checks(1, "crate", Some(why))));
    }
    place.install(setting.console)?;
    Ok(Outcome::Ran(place.test(setting.console, &[])?))
}

/// What the lanes `fmt` and `clippy` do, which see the members of the workspace only.
fn warnings(setting: &Setting<'_>) -> Result<Option<String>> {
    let folder = setting.ws.root.join(FOLDER);
    for args in [&["fmt", "--check"][..], &["clippy", "--", "-D", "warnings"]] {
        let mut command = cargo(&folder, args.iter().copied());
        command.env("CARGO_TARGET_DIR", setting.ws.target.join("python"));
        if let Some(why) = setting.console.run(&mut command)?.failure {
            return Ok(Some(format!("cargo {}: {why}", args[0])));
        }
    }
    Ok(None)
}

/// A Python that is new enough.
pub(crate) fn interpreter() -> Option<PathBuf> {
    let python = std::env::var_os("CHIPCOMM_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let mut asked = Command::new(&python);
    asked.args(["-c", "import sys, venv, pip; sys.exit(sys.version_info < (3, 11))"]);
    answers(asked).then_some(python)
}

/// A Python that has the package, where it was built before.
pub(crate) fn with_package(ws: &Workspace) -> Option<PathBuf> {
    let place = Place::of(ws, false);
    place.has("chipcomm").then(|| place.env.join("bin").join("python"))
}

/// An environment below the workspace's target folder, so that one `cargo clean` clears it.
pub(crate) struct Place {
    /// The binding's own folder.
    sources: PathBuf,
    env: PathBuf,
    build: PathBuf,
    torch: bool,
}

impl Place {
    fn of(ws: &Workspace, torch: bool) -> Self {
        Self::new(&ws.root, ws.target.join("python"), torch)
    }

    fn new(root: &Path, folder: PathBuf, torch: bool) -> Self {
        let env = folder.join(if torch { "env-torch" } else { "env" });
        Self { sources: root.join(FOLDER), env, build: folder, torch }
    }

    /// For a copy of the sources at `root`, with an environment of its own below `folder`; or why there is none.
    pub(crate) fn of_copy(root: &Path, folder: PathBuf, console: &Console) -> Result<Self, String> {
        let place = Self::new(root, folder, false);
        let python = interpreter().ok_or_else(|| format!("there is no {NEEDED}"))?;
        place.prepare(&python, console).map_err(|why| format!("{why:#}"))?;
        Ok(place)
    }

    fn program(&self, name: &str) -> Command {
        Command::new(self.env.join("bin").join(name))
    }

    fn has(&self, module: &str) -> bool {
        let mut python = self.program("python");
        python.args(["-c", &format!("import {module}")]);
        answers(python)
    }

    /// Makes the environment, with the tools that the build and the tests need.
    fn prepare(&self, python: &Path, console: &Console) -> Result<()> {
        let mut tools = TOOLS.to_vec();
        let mut modules = vec!["maturin", "mpi4py", "numpy", "pytest"];
        if self.torch {
            tools.push("torch");
            modules.push("torch");
        }
        if modules.iter().all(|module| self.has(module)) {
            return Ok(());
        }
        let mut venv = Command::new(python);
        let made = console.run(venv.args(["-m", "venv"]).arg(&self.env))?;
        if let Some(why) = made.failure {
            bail!("no environment could be made: {why}");
        }
        let mut pip = self.program("python");
        pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir"]).args(&tools);
        match console.run(&mut pip)?.failure {
            None => Ok(()),
            Some(why) => bail!("pip could not install {}: {why}", tools.join(", ")),
        }
    }

    /// Builds the wheel and puts it into the environment.
    fn install(&self, console: &Console) -> Result<()> {
        let built = console.run(&mut self.wheel_build())?;
        ensure!(built.failure.is_none(), "the wheel was not built: {}", built.failure.unwrap_or_default());
        let installed = console.run(&mut self.wheel_install()?)?;
        ensure!(
            installed.failure.is_none(),
            "the wheel was not installed: {}",
            installed.failure.unwrap_or_default()
        );
        Ok(())
    }

    /// What builds the wheel.
    pub(crate) fn wheel_build(&self) -> Command {
        let wheels = self.build.join("wheels");
        let _ = std::fs::remove_dir_all(&wheels);
        let mut maturin = self.program("maturin");
        maturin.current_dir(&self.sources).env("CARGO_TARGET_DIR", &self.build);
        maturin.args(["build", "--release", "--interpreter"]).arg(self.env.join("bin/python"));
        maturin.arg("--out").arg(&wheels);
        maturin
    }

    /// What puts the wheel that was built into the environment.
    pub(crate) fn wheel_install(&self) -> Result<Command> {
        let wheels = std::fs::read_dir(self.build.join("wheels")).context("maturin made no folder")?;
        let wheel = wheels.into_iter().next().context("maturin made no wheel")??.path();
        let mut pip = self.program("python");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]).arg(&wheel);
        Ok(pip)
    }

    /// What runs the tests, with more arguments for pytest.
    pub(crate) fn pytest(&self, more: &[String]) -> Command {
        let mut pytest = self.program("python");
        pytest.current_dir(&self.sources).env("PYTHONDONTWRITEBYTECODE", "1");
        pytest.args(["-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-rs"]).args(more);
        let folder = if self.torch { "tests/torch" } else { "tests" };
        pytest.arg(folder);
        if !self.torch {
            pytest.arg("--ignore=tests/torch");
        }
        pytest
    }

    fn test(&self, console: &Console, more: &[String]) -> Result<Report> {
        let log = console.run(&mut self.pytest(more))?;
        Ok(Report::tests(tally(&log.lines), log.failure))
    }
}

/// What pytest counted.
pub(crate) fn tally(lines: &[String]) -> Tally {
    lines.iter().rev().find_map(|line| summary(line)).unwrap_or_default()
}

/// pytest's last line: `== 3 failed, 20 passed, 1 skipped in 12.34s ==`.
fn summary(line: &str) -> Option<Tally> {
    let text = line.trim_matches(|c: char| c == '=' || c.is_whitespace());
    let (counts, time) = text.rsplit_once(" in ")?;
    if !time.contains('s') {
        return None;
    }
    let mut tally = Tally::default();
    for part in counts.split(", ") {
        let (count, what) = part.split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match what {
            "passed" => tally.passed += count,
            "failed" | "error" | "errors" => tally.failed += count,
            "skipped" | "deselected" | "xfailed" => tally.ignored += count,
            _ => {}
        }
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytest_is_counted_by_its_last_line() {
        let counted = |line| summary(line).map(|tally| (tally.passed, tally.failed, tally.ignored));
        assert_eq!(
            counted("=== 3 failed, 20 passed, 1 skipped, 2 warnings in 12.34s (0:00:12) ==="),
            Some((20, 3, 1))
        );
        assert_eq!(counted("27 passed in 4.02s"), Some((27, 0, 0)));
        assert_eq!(counted("tests/test_bad_input.py ....  [ 12%]"), None);
        assert_eq!(counted("no tests ran in 0.01s"), None);
    }
}
