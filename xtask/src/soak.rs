//! `cargo xtask soak`: has Workers and groups of ranks started, used, killed and closed over and over by
//! the program `examples/soak` of worker-orch, and fails when something that this process holds grows, or
//! when a cycle breaks the contract.

mod judge;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::cargo::cargo;
use crate::lane::counted;
use crate::status::StatusLine;
use crate::workspace::Workspace;
use judge::{Trend, Verdict, judge};

/// What to do, and how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long the cycles go on
    #[arg(long, default_value_t = 20.0, value_parser = minutes)]
    minutes: f64,
    /// The random choices: the same seed makes the same ones
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object at the end
    #[arg(long)]
    json: bool,
    /// Loses one of these every 100 cycles on purpose, to see that it is found
    #[arg(long, value_parser = ["descriptor", "memory", "shared-memory", "process"])]
    leak: Option<String>,
}

const PACKAGE: &str = "worker-orch";
const PROGRAM: &str = "soak";

/// What is judged, and how far it may move without having grown. Memory comes and goes in pages and arenas
/// of the allocator; everything else is exact.
const FIGURES: [(&str, f64); 8] = [
    ("heap bytes", 8192.0),
    ("resident KiB", 256.0),
    ("private KiB", 256.0),
    ("shared memory KiB", 0.5),
    ("mappings", 0.5),
    ("descriptors", 0.5),
    ("processes", 0.5),
    ("files", 0.5),
];

/// A line of the program.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
enum Event {
    /// What the process holds between two cycles.
    Sample { cycle: u64, kills: u64, values: BTreeMap<String, u64> },
    /// A cycle in which something went wrong that must not.
    Violation { cycle: u64, text: String },
    /// It is over.
    End(End),
}

/// What was done.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct End {
    cycles: u64,
    /// Cycles by what lived in them.
    kinds: BTreeMap<String, u64>,
    /// Kills by what was being done.
    kills: BTreeMap<String, u64>,
    /// Cycles in which somebody was to be killed and nobody was there.
    missed: u64,
    /// Cycles that ended with an error, which named the kill.
    told: u64,
}

/// Everything that the program said.
#[derive(Debug, Default)]
struct Course {
    samples: Vec<(u64, BTreeMap<String, u64>)>,
    violations: Vec<(u64, String)>,
    end: Option<End>,
}

/// The result, as `--json` prints it.
#[derive(Serialize)]
struct Report<'a> {
    seed: u64,
    #[serde(flatten)]
    end: &'a End,
    samples: usize,
    trends: &'a BTreeMap<&'static str, Trend>,
    violations: &'a [(u64, String)],
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    eprintln!("building {PROGRAM} of {PACKAGE} …");
    let build = ["build", "--quiet", "--release", "--package", PACKAGE, "--example", PROGRAM];
    let status = cargo(&ws.root, build).status().context("cannot start cargo")?;
    ensure!(status.success(), "{PROGRAM} does not build");
    let course = follow(ws, args)?;
    let end = course.end.as_ref().context("the program ended without a word")?;
    ensure!(
        end.kills.values().sum::<u64>() > 0,
        "nobody was killed in {} cycles: let it run longer",
        end.cycles
    );
    let trends = match trends(&course.samples) {
        Err(_) if !course.violations.is_empty() => bail!("{}", broken(&course)),
        trends => trends?,
    };
    if args.json {
        let (samples, violations) = (course.samples.len(), &course.violations[..]);
        println!(
            "{}",
            serde_json::to_string(&Report { seed: args.seed, end, samples, trends: &trends, violations })?
        );
    } else {
        print(end, &course, &trends);
    }
    let growing: Vec<&str> =
        trends.iter().filter(|(_, trend)| trend.verdict == Verdict::Grows).map(|(name, _)| *name).collect();
    ensure!(growing.is_empty(), "this grows from cycle to cycle: {}", growing.join(", "));
    ensure!(course.violations.is_empty(), "{}", broken(&course));
    Ok(ExitCode::SUCCESS)
}

fn broken(course: &Course) -> String {
    format!("{} broke the contract", counted(course.violations.len() as u64, "cycle"))
}

/// Runs the program to its end and collects what it says.
fn follow(ws: &Workspace, args: &Args) -> Result<Course> {
    let start = ["run", "--quiet", "--release", "--package", PACKAGE, "--example", PROGRAM, "--"];
    let mut command = cargo(&ws.root, start);
    command.args(["--minutes", &args.minutes.to_string(), "--seed", &args.seed.to_string()]);
    // The C library counts what its threads keep for the next allocation as in use; without that the heap
    // is exact.
    command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    command.args(args.leak.iter().flat_map(|leak| ["--leak", leak]));
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start it")?;
    let out = child.stdout.take().context("its output is not connected")?;
    let mut progress = Progress::new(args.minutes);
    let mut course = Course::default();
    let read = course.read(BufReader::new(out), &mut progress, args.seed);
    progress.status.clear();
    if read.is_err() {
        // It may wait for someone to read the rest.
        child.kill().context("cannot end it")?;
    }
    let status = child.wait().context("cannot wait for it")?;
    read?;
    ensure!(status.success(), "it failed ({status})");
    Ok(course)
}

fn parse(line: &str) -> Result<Event> {
    serde_json::from_str(line).with_context(|| format!("not a line of a soak: {line}"))
}

impl Course {
    /// Reads up to the last event, and not to the end of the output: a process that was left behind may
    /// hold it open.
    fn read(&mut self, from: impl BufRead, progress: &mut Progress, seed: u64) -> Result<()> {
        for line in from.lines() {
            self.take(parse(&line?)?, progress, seed);
            if self.end.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event, progress: &mut Progress, seed: u64) {
        match event {
            Event::Sample { cycle, kills, values } => {
                let found = counted(self.violations.len() as u64, "violation");
                progress.show(&format!("cycle {cycle}, {kills} kills, {found}"));
                self.samples.push((cycle, values));
            }
            Event::Violation { cycle, text } => {
                progress.status.clear();
                eprintln!("violation in cycle {cycle}: {text}");
                eprintln!(
                    "  its choices again: cargo run --release -p {PACKAGE} --example {PROGRAM} -- --seed {seed} --only {cycle}"
                );
                self.violations.push((cycle, text));
            }
            Event::End(end) => self.end = Some(end),
        }
    }
}

/// A moving line on a terminal, a line a minute elsewhere.
struct Progress {
    status: StatusLine,
    minutes: f64,
    started: Instant,
    logged: f64,
}

impl Progress {
    fn new(minutes: f64) -> Self {
        Self { status: StatusLine::new(), minutes, started: Instant::now(), logged: 0.0 }
    }

    fn show(&mut self, text: &str) {
        self.status.set(&format!("of {} min: {text}", self.minutes));
        let minutes = self.started.elapsed().as_secs_f64() / 60.0;
        if !self.status.is_shown() && minutes >= self.logged + 1.0 {
            self.logged = minutes.floor();
            eprintln!("{} of {} min: {text}", self.logged, self.minutes);
        }
    }
}

/// The trend of each figure.
fn trends(samples: &[(u64, BTreeMap<String, u64>)]) -> Result<BTreeMap<&'static str, Trend>> {
    FIGURES
        .iter()
        .map(|(name, tolerance)| {
            let values = samples
                .iter()
                .filter_map(|(cycle, values)| Some((*cycle as f64, *values.get(*name)? as f64)));
            let trend = judge(&values.collect::<Vec<_>>(), *tolerance).with_context(|| {
                format!(
                    "there are too few samples of {name} to judge, {} of them: let it run longer",
                    samples.len()
                )
            })?;
            Ok((*name, trend))
        })
        .collect()
}

fn print(end: &End, course: &Course, trends: &BTreeMap<&str, Trend>) {
    let of = |counts: &BTreeMap<String, u64>| {
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let kills: u64 = end.kills.values().sum();
    println!("{} cycles: {}", end.cycles, of(&end.kinds));
    println!(
        "{kills} kills: {}; {} cycles ended with an error, each of which named the kill",
        of(&end.kills),
        end.told
    );
    println!("{} samples, the first quarter of them not judged\n", course.samples.len());
    println!(
        "{:<20} {:>12} {:>12} {:>14}   {:<26} verdict",
        "figure", "at first", "at last", "per 1000", "99.9 % between"
    );
    for (name, _) in FIGURES {
        let Trend { first, last, slope, low, high, verdict } = &trends[name];
        let word = if *verdict == Verdict::Grows { "GROWS" } else { "steady" };
        let between = format!("{low:.2} and {high:.2}");
        println!("{name:<20} {first:>12.1} {last:>12.1} {slope:>14.2}   {between:<26} {word}");
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse::<f64>().ok().filter(|minutes| (0.1..=10_000.0).contains(minutes));
    minutes.ok_or_else(|| "from 0.1 to 10000 minutes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_program_are_read_and_others_refused() {
        let sample = parse(r#"{"event": "sample", "cycle": 3, "kills": 1, "values": {"files": 2}}"#).unwrap();
        assert!(matches!(sample, Event::Sample { cycle: 3, kills: 1, values } if values["files"] == 2));
        let end =
            r#"{"event": "end", "cycles": 9, "kinds": {"forked": 9}, "kills": {}, "missed": 0, "told": 0}"#;
        assert!(matches!(parse(end).unwrap(), Event::End(End { cycles: 9, .. })));
        assert!(parse("panicked at …").is_err() && parse(r#"{"event": "other"}"#).is_err());
    }

    #[test]
    fn a_figure_that_is_missing_is_a_failure_and_not_a_steady_one() {
        let all: BTreeMap<String, u64> = FIGURES.iter().map(|(name, _)| ((*name).to_owned(), 1)).collect();
        let samples = |values: &BTreeMap<String, u64>| {
            (0..100).map(|cycle| (cycle, values.clone())).collect::<Vec<_>>()
        };
        assert_eq!(trends(&samples(&all)).unwrap().len(), FIGURES.len());
        for (name, _) in FIGURES {
            let mut without = all.clone();
            without.remove(name);
            assert!(trends(&samples(&without)).unwrap_err().to_string().contains(name));
        }
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        assert_eq!(minutes("0.5"), Ok(0.5));
        assert!(["0", "-1", "NaN", "inf", "x"].iter().all(|text| minutes(text).is_err()));
    }
}
