//! How long collective calls take, beside what the memory allows and what other libraries take, as nccl-tests does it.
//!
//! `cargo xtask bench coll` runs the short form; `cargo coll_perf --help` says what else there is.
//!
//! Every contestant is started anew in each run, the plain way, and the runs go in turns. A rank of ours is a process without a core of its
//! own; other libraries run with their best switches, bound where they like to be. The limit does the same work with bare atomics on two
//! bound processes, in the better of two ways: each reduces one half of both tensors, or they exchange copies.
//!
//! The report and the picture are written anew whenever a contestant has ended a run. Ctrl-C ends the measuring, not the program: what was
//! measured until then is printed. The package has no dev-dependency that compiles fault points in, so that none are measured.

mod args;
mod data;
mod interrupt;
mod limit;
mod out;
mod peers;
mod plot;
mod predict;
mod rank;
mod schedule;
mod table;
mod trial;
mod tune;

use args::Args;
use clap::Parser;
use out::{note, say};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// One line of a contestant.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Line {
    time_us: f64,
    p50_us: f64,
    p99_us: f64,
    wrong: u64,
    /// Of a schedule: how much more than the call that does the same, measured in turns with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    over_us: Option<f64>,
    /// The bare spin round trip just before the run: on a virtual machine, cores come nearer to each other and go.
    round_trip_us: f64,
}

impl Line {
    /// Whether the bare round trips before two runs are within a factor of 1.5.
    fn is_like(&self, other: &Self) -> bool {
        let (one, two) = (self.round_trip_us, other.round_trip_us);
        one.max(two) <= 1.5 * one.min(two)
    }
}

/// All runs of a contestant, by size and whether the call was in place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(BTreeMap<(usize, bool), Vec<Line>>);

impl Lines {
    fn add(&mut self, text: &str, round_trip_us: f64) {
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [size, place, numbers @ ..] = words.as_slice() else { continue };
            let numbers: Vec<f64> = numbers.iter().filter_map(|word| word.parse().ok()).collect();
            if let (Ok(size), [time_us, p50_us, p99_us, wrong, over @ ..]) =
                (size.parse(), numbers.as_slice())
            {
                let (time_us, p50_us, p99_us, over_us) = (*time_us, *p50_us, *p99_us, over.first().copied());
                let line = Line { time_us, p50_us, p99_us, wrong: *wrong as u64, over_us, round_trip_us };
                self.0.entry((size, *place == "in")).or_default().push(line);
            }
        }
    }

    /// The median of one of the numbers over all runs.
    pub(crate) fn median(&self, at: (usize, bool), pick: fn(&Line) -> f64) -> Option<f64> {
        let all = self.0.get(&at)?;
        Some(all.iter().map(pick).collect::<bench_support::Samples>().median())
    }

    /// The median of what a schedule takes more than its call.
    pub(crate) fn over(&self, at: (usize, bool)) -> Option<f64> {
        let all: Vec<f64> = self.0.get(&at)?.iter().filter_map(|line| line.over_us).collect();
        (!all.is_empty()).then(|| all.into_iter().collect::<bench_support::Samples>().median())
    }

    /// The largest time of a run.
    pub(crate) fn worst(&self, at: (usize, bool)) -> Option<f64> {
        self.0.get(&at)?.iter().map(|line| line.time_us).max_by(f64::total_cmp)
    }

    /// The largest ratio of a run of ours to the median of those runs of `peer` whose round trip was like its own. `None` where no run
    /// has such a one.
    pub(crate) fn worst_ratio(&self, peer: &Self, at: (usize, bool)) -> Option<f64> {
        let theirs = peer.0.get(&at)?;
        let ratio = |line: &Line| {
            let alike = theirs.iter().filter(|other| line.is_like(other)).map(|other| other.time_us);
            let alike: Vec<f64> = alike.collect();
            let median = || alike.iter().copied().collect::<bench_support::Samples>().median();
            (!alike.is_empty()).then(|| line.time_us / median())
        };
        self.0.get(&at)?.iter().filter_map(ratio).max_by(f64::total_cmp)
    }

    /// How many rows there are, of all runs.
    fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub(crate) fn wrong(&self, at: (usize, bool)) -> u64 {
        self.0.get(&at).map_or(0, |all| all.iter().map(|line| line.wrong).sum())
    }
}

/// What takes part in the comparison.
#[derive(Clone)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) lines: Lines,
}

/// What a contestant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Ours,
    Schedule,
    Limit,
    Mpi,
    Other,
}

impl Role {
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::Schedule)
    }
}

/// Everything that was measured.
pub(crate) struct Report {
    pub(crate) contestants: Vec<Contestant>,
    /// Microseconds of the bare spin round trip, before each run of each contestant.
    pub(crate) round_trips: Vec<f64>,
    /// What ended the measuring early. What was measured until then stands.
    ended_by: Option<Box<dyn std::error::Error>>,
}

impl Report {
    /// Fails if it is not whole, or not right.
    fn outcome(self) -> Outcome<()> {
        let ours = self.contestants.iter().filter(|contestant| contestant.role.is_ours());
        let wrong: u64 = ours.flat_map(|ours| ours.lines.0.keys().map(|at| ours.lines.wrong(*at))).sum();
        match self.ended_by {
            Some(error) => Err(error),
            None if wrong > 0 => Err(format!("{wrong} elements were wrong").into()),
            None => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(problem) = args.check() {
        note(format_args!("coll_perf: {problem}"));
        return ExitCode::from(2);
    }
    let done = match args.rank {
        Some(rank) => rank::run(&args, rank),
        None if args.json => short(&args),
        None if args.tune.is_some() || args.predict => other(&args),
        None => whole(&args),
    };
    match done {
        // As a shell counts a program that Ctrl-C ended.
        Ok(()) if interrupt::came() => ExitCode::from(130),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<out::Closed>() => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("coll_perf: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Predictions, and tables.
fn other(args: &Args) -> Outcome<()> {
    match &args.tune {
        Some(file) => tune::write(args, file),
        None => predict::print(args),
    }
}

/// As the command line asks for.
fn whole(args: &Args) -> Outcome<()> {
    // A schedule that is wrong is refused here, before a rank is started.
    let plan = schedule::plan(args)?;
    let kind = plan.as_ref().map_or(Some(args.kind), |plan| schedule::kind(plan.goal()));
    let args = &Args { kind: kind.unwrap_or(args.kind), ..args.clone() };
    interrupt::listen()?;
    let report = measure(args, kind.is_some(), &|report| keep(args, report))?;
    if !report.contestants.is_empty() {
        say(table::text(args, &report))?;
    }
    report.outcome()
}

/// Writes what there is to the files of the command line.
fn keep(args: &Args, report: &Report) -> Outcome<()> {
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> Outcome<String>| match path {
        None => Ok(()),
        Some(path) => out::write(path, &text()?),
    };
    write(&args.report, &|| table::json(args, report))?;
    write(&args.svg, &|| Ok(plot::svg(args, report)))
}

/// The short form: a few sizes with two ranks, and fewer with more ranks than cores.
fn short(args: &Args) -> Outcome<()> {
    for (ranks, to, runs) in [(2, 16 << 20, 5), (4, 1 << 20, 3), (16, 1 << 20, 3)] {
        let runs = if args.quick { 1 } else { runs };
        let args = Args { ranks, from: 4, to, factor: 16, runs, patience: 20, ..args.clone() };
        let report = measure(&args, true, &|_| Ok(()))?;
        table::figures(&args, &report)?;
        report.outcome()?;
    }
    predict::figures(args)
}

/// Measures the contestants; `calls` when there is a call of ours to measure. `keep` gets what there is after each run of each.
fn measure(args: &Args, calls: bool, keep: &dyn Fn(&Report) -> Outcome<()>) -> Outcome<Report> {
    let folder = tempfile::tempdir()?;
    let peers = peers::find(args);
    let named = |name, role| Contestant { name, role, lines: Lines::default() };
    let mut contestants = vec![
        named("ours, staged", Role::Ours),
        named("ours, in window", Role::Ours),
        named("limit", Role::Limit),
        named("the schedule", Role::Schedule),
    ];
    contestants.extend(
        peers.iter().map(|peer| named(peer.name, if peer.is_mpi() { Role::Mpi } else { Role::Other })),
    );
    let mut report = Report { contestants: Vec::new(), round_trips: Vec::new(), ended_by: None };
    // A file that cannot be written is found before the first minute, not after the last.
    keep(&report)?;
    let runs = if args.quick { 1 } else { args.runs };
    for run in 0..runs {
        for at in 0..contestants.len() {
            if matches!(contestants[at].role, Role::Ours if !calls)
                || contestants[at].role == Role::Schedule && args.schedule.is_none()
            {
                continue;
            }
            let round_trip = limit::round_trip()?;
            report.round_trips.push(round_trip);
            let (started, before) = (Instant::now(), contestants[at].lines.count());
            let measured = match contestants[at].role {
                Role::Ours => ours(args, folder.path(), run, if at == 1 { &["--window"] } else { &[] }),
                Role::Schedule => ours(args, folder.path(), run, &["--run-schedule", "--in-turns"]),
                Role::Limit => bare(args),
                Role::Mpi | Role::Other => Ok(peers[at - 4].run(args)),
            };
            let kept = measured.and_then(|lines| {
                contestants[at].lines.add(&lines, round_trip);
                let measured = contestants.iter().filter(|contestant| contestant.lines.count() > 0);
                report.contestants = measured.cloned().collect();
                keep(&report)
            });
            if let Err(error) = kept {
                // What took minutes is not lost with it.
                report.ended_by = Some(error);
                return Ok(report);
            }
            let rows = contestants[at].lines.count() - before;
            if rows > 0 && !args.json {
                let name = contestants[at].name;
                note(format_args!(
                    "run {} of {runs}: {name}: {rows} rows in {:.1?}",
                    run + 1,
                    started.elapsed()
                ));
            }
            if interrupt::came() {
                note(format_args!(
                    "interrupted: what follows is what was measured until then; Ctrl-C again ends it at once"
                ));
                return Ok(report);
            }
        }
    }
    Ok(report)
}

/// The limit at all sizes, where there is one.
fn bare(args: &Args) -> Outcome<String> {
    let mut lines = String::new();
    let wanted = |_: &usize| peers::has_limit(args) && !interrupt::came();
    for size in args.sizes().into_iter().filter(wanted) {
        let us = limit::measure(size, args.mode)?;
        lines += &format!("{size} in {us} {us} {us} 0\n");
    }
    Ok(lines)
}

/// Starts this program once for each rank, as a shell would.
fn ours(args: &Args, folder: &Path, run: u32, form: &[&str]) -> Outcome<String> {
    let name = format!("ours-{run}{}", form.concat());
    let (program, path) = (std::env::current_exe()?, folder.join(name));
    let text = [
        ("--kind", args.kind.to_string()),
        ("--type", args.dtype.to_string()),
        ("--op", args.op.to_string()),
        ("--mode", args.mode.name().to_owned()),
        ("--from", args.from.to_string()),
        ("--to", args.to.to_string()),
        ("--factor", args.factor.to_string()),
        ("--ranks", args.ranks.to_string()),
        ("--warmup", args.warmup.to_string()),
        ("--iterations", args.iterations.to_string()),
        ("--passing", schedule::name(args.passing)),
        ("--path", path.display().to_string()),
    ];
    let file = args.schedule.iter().flat_map(|schedule| ["--schedule", schedule]);
    let output = tempfile::NamedTempFile::new()?;
    let ranks: Result<Vec<Child>, _> = (0..args.ranks)
        .map(|rank| {
            let mut command = Command::new(&program);
            command
                .args(text.iter().flat_map(|(name, value)| [*name, value]))
                .args(["--rank", &rank.to_string()])
                .args(file.clone());
            command.args(form).stdin(Stdio::null()).stdout(output.reopen()?).spawn()
        })
        .collect();
    let mut failed = false;
    for mut rank in ranks? {
        failed |= !rank.wait()?.success();
    }
    // Ctrl-C ends the ranks too; the rows that they had printed are whole.
    let failed = failed && !interrupt::came();
    if failed { Err("a rank failed".into()) } else { Ok(std::fs::read_to_string(output.path())?) }
}
