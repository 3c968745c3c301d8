//! `cargo xtask fuzz`: runs the fuzz targets, `xtask/fuzz/fuzz_targets/*.rs`, through cargo-fuzz.
//!
//! Time is counted in CPU minutes: minutes on the clock say little on a machine that others use.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{answers, nightly};
use crate::console::{Console, Show};
use crate::lane::counted;
use crate::workspace::Workspace;

/// What to fuzz.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this target; all of them in turn where none is named
    target: Option<String>,
    /// CPU minutes that each target gets
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: u32,
    /// Show everything that the targets print; otherwise only one with a finding does
    #[arg(short, long)]
    verbose: bool,
}

/// The crate with all targets. It is not a member: it builds with a nightly compiler and libFuzzer only.
const FOLDER: &str = "xtask/fuzz";
/// A target is run for at most this long at once, then its CPU time is read again.
const LONGEST_SLICE: Duration = Duration::from_secs(300);
/// Not much shorter than this, or cargo's own time, which is counted too, would matter.
const SHORTEST_SLICE: Duration = Duration::from_secs(30);

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let targets = chosen(targets(ws)?, args.target.as_deref())?;
    ensure!(
        answers(nightly(&ws.root, ["fuzz", "--version"])),
        "`cargo +nightly fuzz --version` does not answer; to install:\n  \
         rustup toolchain install nightly\n  cargo install cargo-fuzz"
    );
    let console = Console::new(Show::choose(args.verbose));
    let mut rows = Vec::new();
    for target in &targets {
        console.begin(target, &format!("{} CPU min, corpus in {FOLDER}/corpus/{target}", args.minutes));
        let row = one(ws, &console, target, Duration::from_secs(60 * u64::from(args.minutes)))?;
        console.line(&row.line());
        rows.push(row);
    }
    console.end();
    println!("\n{HEAD}");
    rows.iter().for_each(|row| println!("{}", row.line()));
    let findings = rows.iter().filter(|row| row.failure.is_some()).count();
    println!("\n{}, {findings} with a finding or broken", counted(rows.len() as u64, "target"));
    Ok(if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds a target, then runs it slice by slice until it has had its time.
fn one(ws: &Workspace, console: &Console, target: &str, cpu: Duration) -> Result<Row> {
    let mut row = Row { target: target.to_owned(), ..Row::default() };
    row.failure = console.run(&mut cargo_fuzz(ws, &["build", "--fuzz-dir", FOLDER, target]))?.failure;
    while row.failure.is_none() && row.cpu < cpu {
        let slice = (cpu - row.cpu).clamp(SHORTEST_SLICE, LONGEST_SLICE);
        let limit = format!("-max_total_time={}", slice.as_secs());
        let run = ["run", "--fuzz-dir", FOLDER, target, "--", &limit, "-print_final_stats=1"];
        let before = cpu_of_children()?;
        let log = console.run(&mut cargo_fuzz(ws, &run))?;
        row.cpu += cpu_of_children()?.saturating_sub(before);
        row.failure = log.failure;
        row.take(&log.lines);
    }
    ensure!(row.failure.is_some() || row.executions > 0, "{target} executed nothing");
    Ok(row)
}

/// In a target folder below the workspace's own, so that one `cargo clean` clears both.
fn cargo_fuzz(ws: &Workspace, args: &[&str]) -> Command {
    let mut command = nightly(&ws.root, ["fuzz"]);
    command.args(args).env("CARGO_TARGET_DIR", ws.target.join("fuzz"));
    command
}

const HEAD: &str = "target                 executions    cov     ft  corpus  CPU min";

/// What a target has done.
#[derive(Debug, Default)]
struct Row {
    target: String,
    executions: u64,
    /// Edges and features that the corpus reaches, and its size, as libFuzzer counts them.
    cov: u64,
    ft: u64,
    corpus: u64,
    cpu: Duration,
    failure: Option<String>,
}

impl Row {
    /// Adds a slice of libFuzzer's log.
    fn take(&mut self, lines: &[String]) {
        for line in lines {
            if let Some(executed) = line.strip_prefix("stat::number_of_executed_units:") {
                self.executions += executed.trim().parse::<u64>().unwrap_or(0);
            }
            let word = |name: &str| line.split_once(name)?.1.split([' ', '/']).find(|word| !word.is_empty());
            let number = |name: &str| word(name).and_then(|word| word.parse().ok());
            if let (Some(cov), Some(ft), Some(corpus)) = (number(" cov:"), number(" ft:"), number(" corp:")) {
                (self.cov, self.ft, self.corpus) = (cov, ft, corpus);
            }
        }
    }

    fn line(&self) -> String {
        let Self { target, executions, cov, ft, corpus, .. } = self;
        let minutes = self.cpu.as_secs_f64() / 60.0;
        let failure = self.failure.as_ref().map_or(String::new(), |why| format!("  {why}"));
        format!("{target:<20} {executions:>12} {cov:>6} {ft:>6} {corpus:>7} {minutes:>8.1}{failure}")
    }
}

/// CPU time of the children that have ended, and of theirs.
fn cpu_of_children() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    children_ticks(&stat)
        .map(|ticks| Duration::from_millis(ticks * 10))
        .context("/proc/self/stat has another form")
}

/// Fields 16 and 17 of proc(5): user and system time of reaped children. Linux counts both in hundredths of
/// a second for programs.
fn children_ticks(stat: &str) -> Option<u64> {
    // The name of the program, in parentheses, may have anything in it; the third field follows it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(field(16)? + field(17)?)
}

/// Names of the targets.
fn targets(ws: &Workspace) -> Result<BTreeSet<String>> {
    let folder = ws.root.join(FOLDER).join("fuzz_targets");
    let files = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let names =
        files.flatten().filter_map(|file| file.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned));
    Ok(names.collect())
}

fn chosen(targets: BTreeSet<String>, only: Option<&str>) -> Result<BTreeSet<String>> {
    ensure!(!targets.is_empty(), "{FOLDER}/fuzz_targets is empty");
    match only {
        None => Ok(targets),
        Some(only) if targets.contains(only) => Ok(BTreeSet::from([only.to_owned()])),
        Some(only) => {
            let names: Vec<String> = targets.into_iter().collect();
            bail!("no fuzz target `{only}`; there are: {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_target_lists_those_that_exist() {
        let some = BTreeSet::from(["decode".to_owned(), "environment".to_owned()]);
        assert_eq!(chosen(some.clone(), Some("decode")).unwrap(), BTreeSet::from(["decode".to_owned()]));
        assert_eq!(chosen(some.clone(), None).unwrap(), some);
        let error = chosen(some, Some("x")).unwrap_err().to_string();
        assert_eq!(error, "no fuzz target `x`; there are: decode, environment");
        assert!(chosen(BTreeSet::new(), None).is_err());
    }

    #[test]
    fn every_target_is_declared_in_the_fuzz_crate_and_has_a_corpus() {
        let ws = Workspace::load().unwrap();
        let manifest = std::fs::read_to_string(ws.root.join(FOLDER).join("Cargo.toml")).unwrap();
        for target in targets(&ws).unwrap() {
            assert!(manifest.contains(&format!("name = \"{target}\"\n")), "{target}");
            assert!(ws.root.join(FOLDER).join("corpus").join(&target).is_dir(), "{target}");
        }
    }

    #[test]
    fn slices_add_up_and_the_last_coverage_counts() {
        let log = "INFO: seed corpus: files: 9\n#9\tINITED cov: 11 ft: 21 corp: 9/2Kb exec/s: 0 rss: 31Mb\n\
                   #700\tDONE   cov: 12 ft: 23 corp: 10/3Kb lim: 80 exec/s: 70 rss: 40Mb\n\
                   stat::number_of_executed_units: 700\nstat::average_exec_per_sec:     70";
        let lines: Vec<String> = log.lines().map(str::to_owned).collect();
        let mut row = Row::default();
        row.take(&lines);
        row.take(&lines);
        assert_eq!((row.executions, row.cov, row.ft, row.corpus), (1400, 12, 23, 10));
        assert_eq!(HEAD.len(), row.line().len());
    }

    #[test]
    fn the_time_of_children_is_found_behind_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 1 2 3 4 50 60 700 80 20 0 1 0 99";
        assert_eq!(children_ticks(stat), Some(780));
        assert_eq!(children_ticks("7 (a) S 1"), None);
        let before = cpu_of_children().unwrap();
        assert!(Command::new("true").status().unwrap().success());
        assert!(cpu_of_children().unwrap() >= before);
    }
}
