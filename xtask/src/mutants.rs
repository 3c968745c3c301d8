//! `cargo xtask mutants`: deliberate breaks of the code, each of which a test must reject.
//!
//! The lists are `xtask/mutants/*.toml`. An entry names the promise that it breaks, the text that it replaces and the test that must
//! then fail. `cargo xtask tidy` holds the lists in step with the code. This command applies one mutant after the other to a copy of
//! the sources below the target folder, and runs its test there. A mutant survives when the test still passes: that promise is not
//! tested. One whose judge needs a tool that is not installed is left out, and fails the command with `--all-judged` only. An invariant that no mutant breaks is in a
//! list too, with the reason (`[[without]]`); `--list` prints both.

mod list;
mod tree;

use std::cell::OnceCell;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cargo::{answers, nightly};
use crate::console::{Console, Show};
use crate::lane::counted;
use crate::python::Place;
use crate::tally::Tally;
use crate::workspace::Workspace;
use crate::{mpi, python};

pub(crate) use list::{Judge, List, Mutant, Without, parse};
use tree::{Ended, SourceTree};

/// Where the lists are.
pub(crate) const FOLDER: &str = "xtask/mutants";

/// Which mutants.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only those of these crates, or that break these promises, such as SM-4; all of them where none is named
    #[arg(value_name = "CRATE|ID")]
    only: Vec<String>,
    /// Name them, and the invariants that have none with the reason, and run nothing
    #[arg(long)]
    list: bool,
    /// A mutant that nobody can judge here, because a tool is not installed, is a failure
    #[arg(long)]
    all_judged: bool,
    /// Show what cargo and the tests print
    #[arg(short, long)]
    verbose: bool,
}

impl Args {
    /// Whether an invariant is meant that has no mutant.
    fn names(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == id)
    }
}

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Rejected,
    Survived,
    /// It proves nothing: it does not compile, or its test does not run, or fails without it too.
    Broken(String),
    /// Nobody can judge it here: a tool is not installed.
    LeftOut(String),
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let all = list::read(ws)?;
    let named = |mutant: &&Mutant| args.only.is_empty() || args.only.iter().any(|only| mutant.is_of(only));
    let chosen: Vec<&Mutant> = all.mutants.iter().filter(named).collect();
    if args.list {
        chosen.iter().for_each(|mutant| println!("{:<18} {}", mutant.judge.package, mutant.title()));
        let mut count = 0;
        for Without { ids, why, .. } in &all.without {
            let ids: Vec<&str> = ids.iter().map(String::as_str).filter(|id| args.names(id)).collect();
            count += ids.len() as u64;
            if !ids.is_empty() {
                println!("{:<18} {}: {why}", "no mutant", ids.join(", "));
            }
        }
        let mutants = counted(chosen.len() as u64, "mutant");
        println!("\n{mutants}; {} without one", counted(count, "invariant"));
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!chosen.is_empty(), "no mutant of {}; see `cargo xtask mutants --list`", args.only.join(", "));
    let tree = SourceTree::copy(ws)?;
    let court = Court { ws, tree, python: OnceCell::new(), verbose: args.verbose };
    let (mut rest, mut unhappy, mut left_out) = (chosen.as_slice(), Vec::new(), 0);
    while let Some(first) = rest.first() {
        let (here, later) =
            rest.split_at(rest.iter().take_while(|m| m.judge.package == first.judge.package).count());
        rest = later;
        println!("== {}", first.judge.package);
        let unsound = court.unsound(here)?;
        for mutant in here {
            let start = Instant::now();
            let fate = match unsound.iter().find(|(judge, _)| **judge == mutant.judge) {
                Some((_, fate)) => fate.clone(),
                None => court.tree.with(mutant, || court.judge(&mutant.judge))?,
            };
            let row = row(mutant, &fate, start.elapsed().as_secs_f64());
            println!("{row}");
            left_out += usize::from(matches!(fate, Fate::LeftOut(_)));
            if fate != Fate::Rejected {
                unhappy.push(row);
            }
        }
    }
    println!();
    unhappy.iter().for_each(|row| println!("{row}"));
    let (rejected, not) = (chosen.len() - unhappy.len(), unhappy.len() - left_out);
    let beside = if left_out > 0 { format!(", {left_out} left out") } else { String::new() };
    println!("{}: {rejected} rejected, {not} not{beside}", counted(chosen.len() as u64, "mutant"));
    let failed = not > 0 || args.all_judged && left_out > 0;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn row(mutant: &Mutant, fate: &Fate, seconds: f64) -> String {
    let (word, why) = match fate {
        Fate::Rejected => ("rejected", String::new()),
        Fate::Survived => ("SURVIVED", String::new()),
        Fate::Broken(why) => ("BROKEN", format!(": {why}")),
        Fate::LeftOut(why) => ("left out", format!(": {why}")),
    };
    format!("{word:<8} {seconds:>6.1} s  {}{why}", mutant.title())
}

struct Court<'a> {
    ws: &'a Workspace,
    tree: SourceTree,
    /// Where the Python package is built and tested, or why it cannot be; known when the first test of it is to judge.
    python: OnceCell<Result<Place, String>>,
    verbose: bool,
}

impl Court<'_> {
    /// The judges of these mutants that cannot be there, or are not to be trusted because they fail, or run nothing, on the code as it is; and what
    /// becomes of their mutants.
    fn unsound<'m>(&self, mutants: &[&'m Mutant]) -> Result<Vec<(&'m Judge, Fate)>> {
        let mut judges: Vec<&Judge> = mutants.iter().map(|mutant| &mutant.judge).collect();
        judges.sort();
        judges.dedup();
        let mut unsound = Vec::new();
        for one in judges.into_iter().filter(|one| !one.is_compiler()) {
            match self.judge(one)? {
                Fate::Survived => {}
                Fate::Rejected => {
                    unsound.push((one, Fate::Broken(format!("{one} fails without a mutant"))));
                }
                other => unsound.push((one, other)),
            }
        }
        Ok(unsound)
    }

    /// Builds and runs one test on what the copy holds now.
    fn judge(&self, judge: &Judge) -> Result<Fate> {
        if judge.is_pytest() {
            return self.pytest(judge);
        }
        if judge.package == mpi::PACKAGE
            && let Some(why) = mpi::missing()
        {
            return Ok(Fate::LeftOut(why.to_owned()));
        }
        if judge.is_miri() {
            return self.miri(judge);
        }
        let build = judge.build.flags();
        let mut select = vec!["test", "--package", self.ws.package(&judge.package)];
        select.extend(build.iter().map(String::as_str));
        select.extend(judge.target());
        let built = self.tree.cargo(&[&select[..], &["--no-run"]].concat(), None)?;
        self.show(&built);
        if judge.is_compiler() {
            return Ok(fate_by_compiler(judge, &built));
        }
        if !built.success {
            return Ok(does_not_build(judge, &built));
        }
        select.extend(["--", &judge.filter]);
        let mut ended = self.tree.cargo(&select, Some(LONGEST_TEST_S))?;
        self.show(&ended);
        if is_slow(&ended) {
            select.extend(["--ignored", "--test-threads", "1"]);
            ended = self.tree.cargo(&select, Some(LONGEST_SLOW_TEST_S))?;
            self.show(&ended);
        }
        Ok(fate(judge, &ended))
    }

    /// The same under miri, which needs no build of its own.
    fn miri(&self, judge: &Judge) -> Result<Fate> {
        let root = self.tree.root();
        if !answers(nightly(root, ["miri", "--version"])) {
            return Ok(Fate::LeftOut("miri is not installed".to_owned()));
        }
        let package = self.ws.package(&judge.package);
        let args = ["miri", "test", "--package", package, "--lib", "--", &judge.filter];
        let mut plain = nightly(root, args);
        plain.env("CARGO_TARGET_DIR", self.tree.folder("miri"));
        let ended = self.tree.run(&plain, None)?;
        self.show(&ended);
        Ok(fate(judge, &ended))
    }

    /// The same for a test of the Python package.
    fn pytest(&self, judge: &Judge) -> Result<Fate> {
        let console = Console::new(Show::choose(self.verbose));
        let make = || Place::of_copy(self.tree.root(), self.tree.folder("python"), &console);
        let place = match self.python.get_or_init(make) {
            Ok(place) => place,
            Err(why) => return Ok(Fate::LeftOut(why.clone())),
        };
        let built = self.tree.run(&place.wheel_build(), None)?;
        self.show(&built);
        if !built.success {
            return Ok(does_not_build(judge, &built));
        }
        let installed = self.tree.run(&place.wheel_install()?, None)?;
        self.show(&installed);
        ensure!(installed.success, "the wheel was not installed: {}", installed.lines.join("\n"));
        let ended =
            self.tree.run(&place.pytest(&["-k".to_owned(), judge.filter.clone()]), Some(LONGEST_TEST_S))?;
        self.show(&ended);
        Ok(fate_by_pytest(judge, &ended))
    }

    fn show(&self, ended: &Ended) {
        if self.verbose {
            ended.lines.iter().for_each(|line| println!("{line}"));
        }
    }
}

/// A test that takes longer hangs, and has noticed the mutant in its own way.
const LONGEST_TEST_S: u32 = 120;
const LONGEST_SLOW_TEST_S: u32 = 300;

fn does_not_build(judge: &Judge, built: &Ended) -> Fate {
    let why = built.lines.iter().find(|line| line.trim_start().starts_with("error"));
    Fate::Broken(format!("{judge} does not build: {}", why.map_or("", String::as_str)))
}

/// The compiler rejects a mutant with the error that the entry names, where it names one, such as E0308.
fn fate_by_compiler(judge: &Judge, built: &Ended) -> Fate {
    let expected = built.lines.iter().any(|line| line.contains(&format!("error[{}", judge.filter)));
    match built.success {
        true => Fate::Survived,
        false if judge.filter.is_empty() || expected => Fate::Rejected,
        false => does_not_build(judge, built),
    }
}

/// Whether the test was not run because it is in a slow lane.
fn is_slow(ended: &Ended) -> bool {
    let tally = Tally::of(&ended.lines);
    ended.success && tally.ran() == 0 && tally.ignored > 0
}

fn fate_by_pytest(judge: &Judge, ended: &Ended) -> Fate {
    let tally = python::tally(&ended.lines);
    let has = |words: &str| ended.lines.iter().any(|line| line.contains(words));
    match ended.success {
        true if tally.passed == 0 => Fate::Broken(format!("{judge} ran no test")),
        true => Fate::Survived,
        false if has(" during collection") => Fate::Broken(format!("{judge} cannot be imported")),
        // One that hangs, or ends the interpreter, has no summary.
        false if tally.failed > 0 || has("collected ") && !has(" 0 selected") => Fate::Rejected,
        false => Fate::Broken(format!("{judge} did not start: {}", ended.lines.join(" "))),
    }
}

fn fate(judge: &Judge, ended: &Ended) -> Fate {
    let tally = Tally::of(&ended.lines);
    // A test that ends its process has no result.
    let began =
        ended.lines.iter().any(|line| line.starts_with("running ") && !line.starts_with("running 0 "));
    match ended.success {
        true if tally.passed == 0 => Fate::Broken(format!("{judge} ran no test")),
        true => Fate::Survived,
        false if tally.failed > 0 || began => Fate::Rejected,
        false => {
            Fate::Broken(format!("{judge} did not start: {}", ended.lines.last().map_or("", String::as_str)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::list::Build;
    use super::*;

    fn fate_of(success: bool, text: &str) -> Fate {
        let judge =
            Judge { package: "a".into(), program: "lib".into(), filter: "x".into(), build: Build::default() };
        fate(&judge, &Ended { success, lines: text.lines().map(str::to_owned).collect() })
    }

    #[test]
    fn a_mutant_is_rejected_by_a_test_that_fails_crashes_or_hangs() {
        let failed =
            "running 1 test\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(fate_of(false, failed), Fate::Rejected);
        assert_eq!(fate_of(false, "running 1 test\nerror: test failed (signal: 11)"), Fate::Rejected);
    }

    #[test]
    fn a_mutant_survives_a_test_that_passes_and_is_not_judged_by_none() {
        let passed =
            "running 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(fate_of(true, passed), Fate::Survived);
        let none =
            "running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";
        assert!(matches!(fate_of(true, none), Fate::Broken(_)));
        assert!(matches!(fate_of(false, "error: no such program"), Fate::Broken(_)));
    }

    /// Hosted CI splits the lists over runners; one that no runner has would never be judged there.
    #[test]
    fn hosted_ci_has_every_list() {
        let workflow = include_str!("../../.github/workflows/mutants.yml");
        let block = workflow.lines().skip_while(|line| line.trim() != "crates:").skip(1);
        let rows = block.map_while(|line| line.trim().strip_prefix("- "));
        let mut hosted: Vec<&str> = rows.flat_map(str::split_whitespace).collect();
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/mutants")).unwrap();
        let mut lists: Vec<String> =
            files.map(|file| file.unwrap().file_name().to_string_lossy().replace(".toml", "")).collect();
        hosted.sort_unstable();
        lists.sort_unstable();
        assert_eq!(hosted, lists);
    }

    #[test]
    fn the_compiler_rejects_with_the_error_that_is_named() {
        let of = |filter: &str, success, text: &str| {
            let judge = Judge {
                package: "a".into(),
                program: "compiler".into(),
                filter: filter.into(),
                build: Build::default(),
            };
            fate_by_compiler(&judge, &Ended { success, lines: vec![text.to_owned()] })
        };
        assert_eq!(of("E0308", false, "error[E0308]: mismatched types"), Fate::Rejected);
        assert_eq!(of("", false, "error: anything"), Fate::Rejected);
        assert!(matches!(of("E0308", false, "error[E0425]: no such value"), Fate::Broken(_)));
        assert_eq!(of("E0308", true, ""), Fate::Survived);
    }

    #[test]
    fn a_test_of_a_slow_lane_is_run_all_the_same() {
        let slow = |passed, ignored| {
            let line = format!(
                "test result: ok. {passed} passed; 0 failed; {ignored} ignored; 0 measured; 9 filtered out"
            );
            is_slow(&Ended { success: true, lines: vec![line] })
        };
        assert!(slow(0, 1) && !slow(1, 1) && !slow(0, 0));
    }

    #[test]
    fn pytest_judges_by_what_it_ran() {
        let of = |success, text: &str| {
            let judge = Judge {
                package: "python".into(),
                program: "pytest".into(),
                filter: "test_x".into(),
                build: Build::default(),
            };
            fate_by_pytest(&judge, &Ended { success, lines: text.lines().map(str::to_owned).collect() })
        };
        let began = "collected 90 items / 89 deselected / 1 selected\n";
        assert_eq!(of(true, &format!("{began}1 passed, 89 deselected in 0.50s")), Fate::Survived);
        assert_eq!(of(false, &format!("{began}1 failed, 89 deselected in 0.50s")), Fate::Rejected);
        assert_eq!(of(false, &format!("{began}Fatal Python error: Segmentation fault")), Fate::Rejected);
        for (success, text) in [
            (true, "collected 90 items / 89 deselected / 1 selected\n1 skipped, 89 deselected in 0.01s"),
            (false, "collected 90 items / 90 deselected / 0 selected\n90 deselected in 0.10s"),
            (false, "collected 0 items / 1 error\nInterrupted: 1 error during collection\n1 error in 0.10s"),
            (false, "no module named pytest"),
        ] {
            assert!(matches!(of(success, text), Fate::Broken(_)), "{text}");
        }
    }
}
