//! `chipcomm-doctor`: what this machine has and what it lacks, for the simulation and for Ascend devices, each with one
//! line of advice. It needs nothing but itself, so that it can be copied to a machine without the source. The exit code
//! is 0 when the simulation can run.
//!
//! Everything is read from files and from the environment through [`Machine`], or tried through [`Trials`]; tests plant
//! both.
#![deny(unsafe_code)]

mod cann;
mod cores;
mod finding;
mod kernel;
mod limits;
mod machine;
#[cfg(test)]
mod planted;
mod tools;
mod trials;

use std::io::Write;
use std::process::ExitCode;

use finding::{Diagnosis, Finding};
use machine::Machine;
use trials::Trials;

const HELP: &str = "\
chipcomm-doctor: what this machine has and lacks for the simulation and for Ascend devices

Usage: chipcomm-doctor [--json]

  --json      one JSON object instead of text
  -h, --help  this text

The exit code is 0 when the simulation can run, 1 when it cannot, 2 for a bad command line.
";

/// What to do.
enum Command {
    Text,
    Json,
    Help,
    /// Loads the vendor's libraries and says what they answer. In a process of its own: they are foreign code, and may
    /// crash or hang.
    ProbeVendor,
}

fn main() -> ExitCode {
    match command() {
        Ok(Command::Help) => print(HELP, ExitCode::SUCCESS),
        Ok(Command::ProbeVendor) => trials::answer_for_vendor(),
        Ok(Command::Text) => {
            let diagnosis = examine(&Machine::this(), &Trials::real());
            print(&diagnosis.text(), diagnosis.exit_code())
        }
        Ok(Command::Json) => {
            let diagnosis = examine(&Machine::this(), &Trials::real());
            print(&format!("{:#}\n", diagnosis.json()), diagnosis.exit_code())
        }
        Err(error) => {
            eprintln!("error: {error}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn command() -> Result<Command, lexopt::Error> {
    use lexopt::prelude::*;
    let mut arguments = lexopt::Parser::from_env();
    let mut command = Command::Text;
    while let Some(argument) = arguments.next()? {
        command = match argument {
            Long("json") => Command::Json,
            Long("help") | Short('h') => return Ok(Command::Help),
            Long(trials::PROBE_VENDOR) => Command::ProbeVendor,
            other => return Err(other.unexpected()),
        };
    }
    Ok(command)
}

/// Prints; a reader that has gone away (`| head`) is not an error.
fn print(text: &str, code: ExitCode) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

/// Everything there is to say about a machine.
fn examine(machine: &Machine, trials: &Trials) -> Diagnosis {
    type Area = fn(&Machine, &Trials) -> Vec<Finding>;
    let areas: [(&'static str, Area); 7] = [
        ("kernel", kernel::examine),
        ("limits", limits::examine),
        ("cores and memory", cores::examine),
        ("namespaces", kernel::namespaces),
        ("compilers", tools::compilers),
        ("launchers", tools::launchers),
        ("Ascend", cann::examine),
    ];
    Diagnosis { areas: areas.into_iter().map(|(name, area)| (name, area(machine, trials))).collect() }
}
