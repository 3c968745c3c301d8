//! A sweep: many cases, in an order that a seed chooses, and their totals held to the contract.

use crate::case::{Case, Scenario};
use crate::runner::{Runner, names_in};
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use worker_chaos::{Kind, Outcome, Totals, spread};

const USAGE: &str =
    "proc_chaos sweep [--scenario NAME] [--only TEXT]… [--points N] [--seed S] [--minutes M] [--jobs J] [--json]
  proc_chaos sweep --case CASE [--json]
  --scenario NAME  only the cases of this scenario
  --only TEXT  only cases that contain this, such as =kill; all of them where it is given more than once
  --points N   only so many cases, spread over all scenarios and areas
  --seed S     which cases come first, and which are chosen with --points (1)
  --minutes M  start no case after so many minutes
  --jobs J     cases at a time (4)
  --case CASE  only this case, as a failure prints it
  --json       a JSON object for each case, and one with the totals as the last line";

/// How often a log without a terminal gets a line of progress.
const LOG_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq)]
struct Options {
    scenario: Option<String>,
    points: Option<usize>,
    seed: u64,
    minutes: Option<u64>,
    jobs: usize,
    case: Option<String>,
    only: Vec<String>,
    json: bool,
}

/// Runs the sweep. Exit code 1 when the contract was broken, 2 when nothing could run.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    let swept = parse(args).and_then(|options| sweep(&options));
    match swept {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(failure)) => {
            eprintln!("chaos: {failure}");
            ExitCode::FAILURE
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

/// The failure of the sweep, if it failed.
fn sweep(options: &Options) -> Result<Option<String>, String> {
    let (runner, started) = (Runner::new()?, Instant::now());
    let cases = match &options.case {
        Some(case) => vec![case.clone()],
        None => {
            let mut cases = runner.cases(options.scenario.as_deref())?;
            cases.retain(|case| options.only.iter().all(|text| case.contains(text.as_str())));
            if cases.is_empty() {
                return Err(format!("no case contains {}", options.only.join(" and ")));
            }
            cases = spread(cases, options.seed);
            cases.truncate(options.points.unwrap_or(usize::MAX));
            cases
        }
    };
    let shared_before = names_in(Path::new("/dev/shm"));
    let end = options.minutes.map(|minutes| started + Duration::from_secs(60 * minutes));
    let progress = Progress::new(cases.len());
    let mut totals = Totals::new(cases.len());
    runner.run_all(&cases, options.jobs, end, |outcome| {
        progress.clear();
        print(&outcome, options.json);
        totals.add(outcome);
        progress.show(totals.ran());
    });
    progress.clear();
    // Watchers remove their folders and nothing else here has a name, so what appeared and stays is a
    // finding, or another program's.
    let shared_left = names_in(Path::new("/dev/shm")).difference(&shared_before).cloned().collect();
    totals.set_left_in_shared_memory(shared_left);
    let took = started.elapsed();
    println!(
        "{}",
        if options.json { totals.json(options.seed, took) } else { totals.text(options.seed, took) }
    );
    Ok(totals.failure())
}

/// A failed case, or every case as JSON.
fn print(outcome: &Outcome, json: bool) {
    if json {
        println!("{}", serde_json::to_string(outcome).unwrap_or_default());
    } else if outcome.outcome == Kind::Failed {
        println!("FAILED  cargo xtask chaos --case '{}'", outcome.case);
        outcome.why.iter().flat_map(|why| why.lines()).for_each(|line| println!("    {line}"));
    }
}

/// A line on the terminal that is rewritten, or a line now and then in a log.
struct Progress {
    cases: usize,
    started: Instant,
    on_terminal: bool,
    logged: Cell<Instant>,
}

impl Progress {
    fn new(cases: usize) -> Self {
        let (started, on_terminal) = (Instant::now(), std::io::stderr().is_terminal());
        Self { cases, started, on_terminal, logged: Cell::new(started) }
    }

    fn show(&self, ran: usize) {
        let (cases, seconds) = (self.cases, self.started.elapsed().as_secs());
        if self.on_terminal {
            let _ = write!(std::io::stderr(), "\r{ran} of {cases} cases, {seconds} s");
        } else if self.logged.get().elapsed() > LOG_EVERY {
            eprintln!("{ran} of {cases} cases");
            self.logged.set(Instant::now());
        }
    }

    fn clear(&self) {
        if self.on_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn parse(args: &[&str]) -> Result<Options, String> {
    let mut options = Options {
        scenario: None,
        points: None,
        seed: 1,
        minutes: None,
        jobs: 4,
        case: None,
        only: Vec::new(),
        json: false,
    };
    let mut args = args.iter().copied();
    while let Some(name) = args.next() {
        if name == "--json" {
            options.json = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{name} needs a value\n{USAGE}"))?;
        let refused = || format!("{name} {value} is out of range or unknown\n{USAGE}");
        let number = |most: u64| value.parse().ok().filter(|number| (1..=most).contains(number));
        match name {
            "--scenario" => {
                value.parse::<Scenario>().map_err(|problem| format!("{problem}\n{USAGE}"))?;
                options.scenario = Some(value.to_owned());
            }
            "--points" => options.points = Some(number(u64::from(u32::MAX)).ok_or_else(refused)? as usize),
            "--seed" => options.seed = value.parse().map_err(|_| refused())?,
            "--minutes" => options.minutes = Some(number(10_000).ok_or_else(refused)?),
            "--only" => options.only.push(value.to_owned()),
            "--jobs" => options.jobs = number(64).ok_or_else(refused)? as usize,
            "--case" => {
                value.parse::<Case>().map_err(|problem| format!("{problem}\n{USAGE}"))?;
                options.case = Some(value.to_owned());
            }
            _ => return Err(refused()),
        }
    }
    match options.case {
        Some(_) if options.points.is_some() || options.minutes.is_some() || options.scenario.is_some() => {
            Err(format!("--case runs one case, without --scenario, --points and --minutes\n{USAGE}"))
        }
        _ => Ok(options),
    }
}
