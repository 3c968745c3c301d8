//! The workspace's own commands: `cargo xtask <command>`. One file a subcommand; this file only names them.

mod abi_check;
mod bench;
mod cargo;
mod chaos;
mod ci;
mod console;
mod doctor;
mod fuzz;
mod hw_test;
mod install;
mod kernels;
mod lane;
mod layers;
mod mpi;
mod mutants;
mod python;
mod soak;
mod status;
mod tally;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Checks, tests and measures the chipcomm workspace
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must hold before a change lands, lane by lane
    Ci(ci::Args),
    /// All tests but the slow lanes
    Test(test::Args),
    /// The rules of the codebase: crate edges, manifests, invariants, texts
    Tidy(tidy::Args),
    /// The benchmarks, each figure beside the limit measured in the same run
    Bench(bench::Args),
    /// The hardware tests of a layer, on Ascend devices or on the vendor double
    HwTest(hw_test::Args),
    /// What this machine has and lacks, for the simulation and for Ascend devices
    Doctor(doctor::Args),
    /// The declarations of comm-hccl, against the vendor's own headers
    AbiCheck(abi_check::Args),
    /// The examples' kernels, with the vendor's compiler for Ascend cores
    Kernels(kernels::Args),
    /// The drop-in for MPI programs, for every MPI library that is installed
    Mpi(mpi::Args),
    /// The C libraries and headers, with files for pkg-config and CMake, under a prefix
    Install(install::Args),
    /// The fuzz targets, with cargo-fuzz
    Fuzz(fuzz::Args),
    /// Faults at every point of every process, each case judged from outside
    Chaos(chaos::Args),
    /// The Python package: its wheel, in an environment of its own, and its tests
    Python(python::Args),
    /// Deliberate breaks of the code, each of which a test must reject
    Mutants(mutants::Args),
    /// Workers and groups started, used, killed and closed over and over: nothing may grow
    Soak(soak::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // Returning it would print a backtrace, which does not help the user of a command.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let ws = Workspace::load()?;
    match command {
        Command::Ci(args) => ci::run(&ws, &args),
        Command::Test(args) => test::run(&ws, &args),
        Command::Tidy(args) => tidy::run(&ws, &args),
        Command::Bench(args) => bench::run(&ws, &args),
        Command::HwTest(args) => hw_test::run(&ws, &args),
        Command::Doctor(args) => doctor::run(&ws, &args),
        Command::AbiCheck(args) => abi_check::run(&ws, &args),
        Command::Kernels(args) => kernels::run(&ws, &args),
        Command::Mpi(args) => mpi::run(&ws, &args),
        Command::Install(args) => install::run(&ws, &args),
        Command::Fuzz(args) => fuzz::run(&ws, &args),
        Command::Chaos(args) => chaos::run(&ws, &args),
        Command::Python(args) => python::run(&ws, &args),
        Command::Mutants(args) => mutants::run(&ws, &args),
        Command::Soak(args) => soak::run(&ws, &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_line_of_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }

    #[test]
    fn unknown_commands_and_flags_are_refused_and_a_near_miss_is_suggested() {
        let error = |line: &[&str]| Cli::try_parse_from(line).err().map(|error| error.to_string());
        assert!(error(&["xtask", "tets"]).unwrap().contains("'test'"));
        assert!(error(&["xtask", "ci", "--fast"]).unwrap().contains("--fast"));
        assert!(error(&["xtask"]).unwrap().contains("Usage"));
        assert!(error(&["xtask", "test", "-p", "a", "-p", "b", "--", "--test-threads", "1"]).is_none());
    }
}
