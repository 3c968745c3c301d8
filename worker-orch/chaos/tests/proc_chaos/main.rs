//! Everything that a Worker does, with a fault at every point (F01 to F03, F20, F21, F33, F38, F39).
//!
//! One program in several roles. As a *scenario* it is a program that uses a Worker, or ranks that
//! rendezvous. As a *watcher* it starts one scenario with one fault, and checks from outside whether the
//! contract held. As a *sweep* it runs a watcher for each of many cases and adds up. As a test it kills every
//! process of a Worker at a sample of its points.
//!
//! Runs alone: it has folders in shared memory, where other tests look for what is left.
//!
//! - `proc_chaos sweep [OPTIONS]` runs cases and fails when one of them, or all together, broke the contract;
//! - `proc_chaos cases [SCENARIO]` records which points the scenario's processes pass, and prints every case,
//!   one a line;
//! - `proc_chaos watch CASE` runs one case and prints its outcome as a line of JSON;
//! - `proc_chaos scenario SCENARIO LIMITS REPORT` is the scenario itself;
//! - everything else is for the test harness.
//!
//! A sweep, like the test, makes a folder for what scenarios share; the other roles expect its path in
//! `CHAOS_FOLDER`.
#![allow(missing_docs)]

mod case;
mod chips;
mod flight;
mod graphs;
mod harness;
mod levels;
mod log;
mod outcome;
mod plain;
mod ranks;
mod rounds;
mod runner;
mod sweep;
#[path = "../../../../rendezvous/tests/support/unannounced_points.rs"]
mod unannounced_points;
mod watch;

use case::{PARENT, Scenario};
use chips::Chips;
use flight::Flight;
use graphs::Graphs;
use levels::Levels;
use plain::Plain;
use ranks::Place;
use rounds::Limits;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use worker_orch::{Platform, Start, serve_if_child};

/// Where the scenarios' kernel is.
pub(crate) const FOLDER: &str = "CHAOS_FOLDER";

fn main() -> ExitCode {
    serve_if_child(chips::FUNCTIONS);
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["cases"] => Scenario::all().try_for_each(print_cases),
        ["cases", scenario] => scenario.parse().and_then(print_cases),
        ["watch", case] => case.parse().and_then(|case| watch::watch(&case)).map(|outcome| {
            println!("{}", serde_json::to_string(&outcome).unwrap_or_default());
        }),
        ["scenario", scenario, limits, report] => scenario.parse().and_then(|scenario| {
            let limits = if limits == "short" { Limits::SHORT } else { Limits::PATIENT };
            run_scenario(scenario, limits, Path::new(report))
        }),
        ["sweep", ref options @ ..] => return sweep::run(options),
        _ => return harness::tests(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

fn print_cases(scenario: Scenario) -> Result<(), String> {
    watch::cases(scenario)?.iter().for_each(|case| println!("{case}"));
    Ok(())
}

/// Runs the scenario in this process; what it observed goes to the file `report`.
fn run_scenario(scenario: Scenario, limits: Limits, report: &Path) -> Result<(), String> {
    fault_points::set_rank(PARENT);
    let folder = std::env::var_os(FOLDER).map(PathBuf::from).ok_or(format!("{FOLDER} is not set"))?;
    let kernel = chips::kernel(&folder);
    let seen = match scenario {
        Scenario::Fork => {
            rounds::two_rounds(limits, &|log, limits| Chips::build(Start::Fork, limits, &kernel, log))
        }
        Scenario::Exec => {
            rounds::two_rounds(limits, &|log, limits| Chips::build(Start::Exec, limits, &kernel, log))
        }
        Scenario::Plain => {
            rounds::two_rounds(limits, &|log, limits| Plain::build(Platform::Sim, limits, log))
        }
        Scenario::Double => {
            rounds::two_rounds(limits, &|log, limits| Plain::build(Platform::A2a3, limits, log))
        }
        Scenario::Flight => rounds::two_rounds(limits, &|log, limits| Flight::build(limits, log)),
        Scenario::Graphs => rounds::two_rounds(limits, &|log, limits| Graphs::build(limits, log)),
        Scenario::Levels => rounds::two_rounds(limits, &|log, limits| Levels::build(limits, log)),
        Scenario::Ranks => ranks::two_rounds(limits, Place::Path),
        Scenario::Hosts => ranks::two_rounds(limits, Place::Address),
    };
    let text = serde_json::to_string(&seen).map_err(|error| error.to_string())?;
    std::fs::write(report, text).map_err(|error| format!("{}: {error}", report.display()))
}
