//! `cargo xtask soak`: Workers and groups of ranks are started, used, killed and closed over and over by the
//! program `soak` of worker-orch, which fails when something that it holds grows or when a cycle breaks the
//! contract. This command builds and runs it.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cargo::cargo;
use crate::workspace::Workspace;

/// How long, and what.
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

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let start = ["run", "--quiet", "--release", "--package", "worker-orch", "--example", "soak", "--"];
    let mut soak = cargo(&ws.root, start);
    soak.args(args.passed_on());
    let python = crate::python::with_package(ws);
    soak.args(python.iter().flat_map(|python| ["--python".as_ref(), python.as_os_str()]));
    let status = soak.status().context("cannot start cargo")?;
    if python.is_none() {
        // At the end, where it is read.
        eprintln!("soak: without cycles in Python, whose package is not built: `cargo xtask python` does it");
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    /// The same for the program.
    fn passed_on(&self) -> Vec<String> {
        let mut flags = vec!["--minutes".to_owned(), self.minutes.to_string()];
        flags.extend(["--seed".to_owned(), self.seed.to_string()]);
        flags.extend(self.leak.iter().flat_map(|leak| ["--leak".to_owned(), leak.clone()]));
        flags.extend(self.json.then(|| "--json".to_owned()));
        flags
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse::<f64>().ok().filter(|minutes| (0.1..=10_000.0).contains(minutes));
    minutes.ok_or_else(|| "write a number of minutes from 0.1 to 10000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_passed_on() {
        let args = Args { minutes: 0.5, seed: 7, json: true, leak: Some("memory".to_owned()) };
        assert_eq!(args.passed_on().join(" "), "--minutes 0.5 --seed 7 --leak memory --json");
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        assert_eq!(minutes("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "inf", "x"] {
            assert_eq!(minutes(text).unwrap_err(), "write a number of minutes from 0.1 to 10000");
        }
    }
}
