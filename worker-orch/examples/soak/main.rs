//! Starts, uses, kills and closes Workers and groups of ranks, over and over. It fails when something that
//! this process holds grows, or when a cycle breaks the contract. `cargo xtask soak` runs it.
//!
//! Every cycle draws its random numbers from the seed and its own number, so that `--only CYCLE` repeats one
//! alone.

mod cycle;
mod graphs;
mod group;
mod history;
mod hosts;
mod killer;
mod leftovers;
mod levels;
mod progress;
mod python;
mod random;
mod report;
mod sample;
mod trend;
mod unit;

use cycle::Soak;
use history::History;
use progress::Progress;
use random::Random;
use report::Report;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use worker_orch::serve_if_child;

/// A sample is taken at most this often: reading `/proc` shall not become what is measured.
const BETWEEN_SAMPLES: Duration = Duration::from_millis(500);
/// Violations after which the soak stops.
const ENOUGH: usize = 20;

const USAGE: &str = "soak [--minutes M] [--seed S] [--only CYCLE] [--json] [--python PROGRAM] \
                     [--leak descriptor|memory|shared-memory|process]";

struct Options {
    minutes: f64,
    seed: u64,
    only: Option<u64>,
    json: bool,
    /// A Python that has the package: some cycles are in Python.
    python: Option<PathBuf>,
    leak: Option<Leak>,
}

/// What is lost on purpose, once in [`LEAK_EVERY`] cycles, to see that it is found.
#[derive(Clone, Copy)]
enum Leak {
    Descriptor,
    Memory,
    SharedMemory,
    Process,
}

const LEAK_EVERY: u64 = 100;

/// The C library counts what its threads keep for the next allocation as in use; without that the heap is
/// exact.
const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");

fn main() -> ExitCode {
    serve_if_child(unit::FUNCTIONS);
    let Some(options) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let settings = [TUNABLES, hosts::TOKEN];
    if settings.iter().any(|(name, _)| std::env::var_os(name).is_none()) {
        // The C library reads its own when a program starts.
        let failed = Command::new("/proc/self/exe").args(std::env::args().skip(1)).envs(settings).exec();
        eprintln!("soak: cannot start again with {}: {failed}", TUNABLES.0);
        return ExitCode::FAILURE;
    }
    match run(&options) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(failure)) => {
            eprintln!("soak: {failure}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Why the soak failed, if it did.
fn run(options: &Options) -> Result<Option<String>, Box<dyn std::error::Error>> {
    // Orphans become children of this process, so that none is missed.
    nix::sys::prctl::set_child_subreaper(true)?;
    let mut soak = Soak::new(options.python.clone())?;
    let mut history = History::new();
    let mut progress = Progress::new(options.minutes);
    let mut violations: Vec<(u64, String)> = Vec::with_capacity(ENOUGH);
    let end = Instant::now() + Duration::from_secs_f64(options.minutes * 60.0);
    let (first, last) = options.only.map_or((1, u64::MAX), |cycle| (cycle, cycle));
    let mut next_sample = Instant::now();
    let mut done = 0;
    for cycle in first..=last {
        let broken = soak.cycle(cycle, &mut Random::of(options.seed, cycle));
        let broken = broken.and_then(|()| leftovers::check(soak.may_leave_orphans()));
        done += 1;
        if let Err(text) = broken {
            progress.violation(cycle, options.seed, &text);
            violations.push((cycle, text));
        }
        if let Some(leak) = options.leak.filter(|_| cycle % LEAK_EVERY == 0) {
            lose(leak)?;
        }
        if Instant::now() >= next_sample {
            history.add(cycle, sample::take(soak.folder())?);
            progress.show(cycle, soak.tally().kills(), violations.len());
            next_sample = Instant::now() + BETWEEN_SAMPLES;
        }
        if Instant::now() >= end || violations.len() >= ENOUGH {
            break;
        }
    }
    progress.clear();
    if options.only.is_some() {
        return Ok(violations.pop().map(|(cycle, text)| format!("cycle {cycle}: {text}")));
    }
    let (seed, tally) = (options.seed, soak.tally());
    Ok(Report { seed, cycles: done, tally, history: &history, violations: &violations }.print(options.json))
}

fn parse(mut args: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options { minutes: 1.0, seed: 1, only: None, json: false, python: None, leak: None };
    while let Some(name) = args.next() {
        if name == "--json" {
            options.json = true;
            continue;
        }
        let value = args.next()?;
        match name.as_str() {
            "--minutes" => options.minutes = value.parse().ok().filter(|m: &f64| *m > 0.0 && *m < 1e5)?,
            "--seed" => options.seed = value.parse().ok()?,
            "--only" => options.only = Some(value.parse().ok()?),
            "--python" => options.python = Some(value.into()),
            "--leak" => options.leak = Some(Leak::named(&value)?),
            _ => return None,
        }
    }
    Some(options)
}

impl Leak {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "descriptor" => Self::Descriptor,
            "memory" => Self::Memory,
            "shared-memory" => Self::SharedMemory,
            "process" => Self::Process,
            _ => return None,
        })
    }
}

fn lose(leak: Leak) -> Result<(), Box<dyn std::error::Error>> {
    match leak {
        Leak::Descriptor => std::mem::forget(std::fs::File::open("/dev/null")?),
        // Hidden from the compiler, which would not allocate what is never read.
        Leak::Memory => std::mem::forget(std::hint::black_box(vec![1_u8; 100 << 10])),
        Leak::SharedMemory => {
            std::mem::forget(shared_memory::Region::create("chipcomm-leak", 4096)?);
        }
        Leak::Process => {
            let mut sleeper = Command::new("sleep");
            std::mem::forget(sleeper.arg("30").stdout(std::process::Stdio::null()).spawn()?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_others_refused() {
        let parsed = |line: &str| parse(line.split_whitespace().map(str::to_owned));
        let options = parsed("--minutes 0.5 --json --seed 7 --leak memory --python p").unwrap();
        assert_eq!(options.python, Some(PathBuf::from("p")));
        assert!(options.minutes == 0.5 && options.json && options.seed == 7 && options.leak.is_some());
        for line in ["--minutes 0", "--minutes NaN", "--seed", "--leak water", "--nonsuch 1"] {
            assert!(parsed(line).is_none(), "{line}");
        }
    }
}
