//! Starts, uses, kills and closes Workers and groups of ranks, over and over, and tells what the process holds on to. `cargo xtask soak` runs it and
//! judges the figures.
//!
//! Each line of the output is a JSON object: a sample, a violation of the contract, or the end. Every cycle draws its own random numbers from the seed and its number, so
//! that `--only CYCLE` repeats one alone.

mod cycle;
mod group;
mod killer;
mod leftovers;
mod levels;
mod random;
mod sample;

use cycle::Soak;
use random::Random;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use worker_orch::serve_if_child;

/// A sample is taken at most this often: reading `/proc` shall not become what is measured.
const BETWEEN_SAMPLES: Duration = Duration::from_millis(500);
/// Violations after which going on tells nothing new.
const ENOUGH: usize = 20;

const USAGE: &str =
    "soak [--minutes M] [--seed S] [--only CYCLE] [--leak descriptor|memory|shared-memory|process]";

struct Options {
    minutes: f64,
    seed: u64,
    only: Option<u64>,
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

fn main() -> ExitCode {
    serve_if_child(cycle::FUNCTIONS);
    let Some(options) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    // Whoever loses its parent becomes a child of this process: nobody can slip away.
    nix::sys::prctl::set_child_subreaper(true)?;
    let mut soak = Soak::new()?;
    let end = Instant::now() + Duration::from_secs_f64(options.minutes * 60.0);
    let (first, last) = options.only.map_or((1, u64::MAX), |cycle| (cycle, cycle));
    let mut violations = 0;
    let mut next_sample = Instant::now();
    let mut done = 0;
    for cycle in first..=last {
        let broken = soak.cycle(&mut Random::of(options.seed, cycle));
        let broken = broken.and_then(|()| leftovers::check(soak.may_leave_orphans()));
        done += 1;
        if let Err(text) = broken {
            violations += 1;
            println!(r#"{{"event": "violation", "cycle": {cycle}, "text": {}}}"#, sample::quoted(&text));
        }
        if let Some(leak) = options.leak.filter(|_| cycle % LEAK_EVERY == 0) {
            lose(leak)?;
        }
        if Instant::now() >= next_sample {
            println!("{}", sample::take(soak.folder())?.json(cycle, soak.tally()));
            next_sample = Instant::now() + BETWEEN_SAMPLES;
        }
        if Instant::now() >= end || violations >= ENOUGH {
            break;
        }
    }
    println!("{}", soak.tally().json(done));
    Ok(())
}

fn parse(mut args: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options { minutes: 1.0, seed: 1, only: None, leak: None };
    while let Some(name) = args.next() {
        let value = args.next()?;
        match name.as_str() {
            "--minutes" => options.minutes = value.parse().ok().filter(|m: &f64| *m > 0.0 && *m < 1e5)?,
            "--seed" => options.seed = value.parse().ok()?,
            "--only" => options.only = Some(value.parse().ok()?),
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
        // Hidden from the compiler, which would not allocate what nobody reads.
        Leak::Memory => std::mem::forget(std::hint::black_box(vec![1_u8; 100 << 10])),
        Leak::SharedMemory => {
            std::mem::forget(shared_memory::Region::create("chipcomm-leak", 4096)?);
        }
        Leak::Process => {
            let mut sleeper = std::process::Command::new("sleep");
            std::mem::forget(sleeper.arg("30").stdout(std::process::Stdio::null()).spawn()?);
        }
    }
    Ok(())
}
