//! The programs `ipcq` and `ccl_allreduce`: options, exit codes, and what the subcommands share.
//!
//! Exit codes: 0 all right, 1 the schedule or its data is wrong, 2 bad input (and nothing was written).

mod calibrate;
mod files;
mod lint;
mod progress;
mod run;
mod sweep;
mod verify;

use crate::config::{Config, ConfigError, DType, Overrides, Settings, Topology};
use crate::dist::DistError;
use crate::engine::{Engine, SimError};
use crate::plan::PlanError;
use crate::sim::SimulationError;
use crate::{kernbench, out, schedule_file};
use ccl_schedule::algo::BuildError;
use ccl_schedule::{ListedProgram, Program, ProofError};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Whether schedules and data are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Exit code 0.
    Right,
    /// Exit code 1.
    Wrong,
}

/// An error of the user's input: exit code 2.
#[derive(Debug)]
pub(crate) struct BadInput(String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

#[derive(Parser)]
#[command(
    name = "ipcq",
    version,
    about = "Collectives between processing elements: proved, timed link by link, beside the lower bound",
    after_help = "Exit codes: 0 all right, 1 the schedule or its data is wrong, 2 bad input (nothing is written)."
)]
struct Ipcq {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prove, time and execute algorithms; print the bench's line and a table
    Run(run::RunArgs),
    /// Prove algorithms: every contribution exactly once, no deadlock, the smallest number of queue slots
    Verify(verify::VerifyArgs),
    /// Time several algorithms over sizes and ranks; draw them in one picture
    Sweep(sweep::SweepArgs),
    /// Measure this machine for a few seconds, and write the topology of its memory (fabric: memory)
    Calibrate(calibrate::CalibrateArgs),
    /// Check both configuration files, entry by entry
    Lint(Inputs),
}

/// Where configuration comes from.
#[derive(Args, Clone, Debug)]
pub(crate) struct Inputs {
    /// The system; the shipped topology.yaml when not given
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Algorithms and queues; the shipped ccl.yaml when not given
    #[arg(long, value_name = "FILE")]
    ccl: Option<PathBuf>,
    /// Ranks, instead of those of the files
    #[arg(long, value_name = "N")]
    world_size: Option<u32>,
    /// Elements per rank
    #[arg(long, value_name = "N")]
    n_elem: Option<u64>,
    /// Number format
    #[arg(long, value_enum)]
    dtype: Option<Format>,
    /// Replace a key of either file, such as n_slots=8, cubes.w=8 or defaults.dtype=f32; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    F16,
    Bf16,
    F32,
}

/// `--engine`.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum EngineArg {
    /// A where it is exact, else B
    #[default]
    Auto,
    /// Data flow: exact when no two channels share a link
    A,
    /// Events, one per hop
    B,
}

impl From<EngineArg> for Engine {
    fn from(arg: EngineArg) -> Engine {
        match arg {
            EngineArg::Auto => Engine::Auto,
            EngineArg::A => Engine::A,
            EngineArg::B => Engine::B,
        }
    }
}

impl Inputs {
    /// Reads the files and applies the overrides; every mistake is a [`BadInput`].
    fn load(&self) -> anyhow::Result<(Config, Topology)> {
        let load = || -> Result<(Config, Topology), ConfigError> {
            let mut config = Config::load(self.ccl.as_deref(), self.topology.as_deref())?;
            for text in &self.set {
                config.set(text)?;
            }
            let dtype = self.dtype.map(|format| match format {
                Format::F16 => DType::F16,
                Format::Bf16 => DType::Bf16,
                Format::F32 => DType::F32,
            });
            config.ccl.override_with(&Overrides { world_size: self.world_size, n_elem: self.n_elem, dtype });
            let topology = config.topology.topology()?;
            Ok((config, topology))
        };
        load().map_err(|error| BadInput(error.to_string()).into())
    }
}

/// The settings of an entry; a mistake is a [`BadInput`].
fn settings(config: &Config, name: &str) -> anyhow::Result<Settings> {
    config.ccl.settings(name).map_err(|error| BadInput(error.to_string()).into())
}

/// Which schedules to use.
#[derive(Args)]
struct Selection {
    /// An entry of ccl.yaml or a schedule's name, or `all`; may be repeated
    #[arg(long, value_name = "NAME")]
    algorithm: Vec<String>,
    /// A schedule written by `ipcq verify --dump`, instead of an algorithm
    #[arg(long, value_name = "FILE", conflicts_with = "algorithm")]
    schedule: Option<PathBuf>,
}

impl Selection {
    /// The names to use; a schedule file has one, and is returned as well.
    fn load(&self, config: &Config) -> anyhow::Result<(Vec<String>, Option<ListedProgram>)> {
        let Some(file) = &self.schedule else { return Ok((names(config, &self.algorithm), None)) };
        let program = schedule_file::load(file).map_err(|error| BadInput(error.to_string()))?;
        Ok((vec![program.name().to_owned()], Some(program)))
    }
}

/// The given names, or the default one.
fn names(config: &Config, given: &[String]) -> Vec<String> {
    if given.iter().any(|name| name == "all") {
        return config.ccl.names().map(str::to_owned).collect();
    }
    if given.is_empty() { vec![config.ccl.default_name().to_owned()] } else { given.to_vec() }
}

/// The key of `ccl.yaml` that an error is about.
fn plan_key(error: &PlanError) -> &'static str {
    match error {
        PlanError::Build(BuildError::BadMesh { .. }) => "mesh_w",
        PlanError::Build(BuildError::Unknown { .. }) => "algorithm",
        PlanError::Build(_) | PlanError::Wiring(_) => "world_size",
        PlanError::TooManyRanks { .. }
        | PlanError::TooManyChannels { .. }
        | PlanError::TooManyMessages { .. } => "world_size",
        PlanError::TileTooLarge { .. } => "n_elem",
        PlanError::TrafficNeedsLinks { .. } | PlanError::NoSuchTraffic { .. } => "traffic",
        PlanError::File(_) | PlanError::OtherRanks { .. } => "module",
        PlanError::NoSlots => "n_slots",
        PlanError::NoSuchStraggler { .. } => "skew_rank",
    }
}

/// An error of planning, with the origin of its key.
fn bad_plan(config: &Config, name: &str, error: PlanError) -> anyhow::Error {
    bad(config, name, plan_key(&error), error)
}

fn bad(config: &Config, name: &str, key: &str, error: impl std::fmt::Display) -> anyhow::Error {
    BadInput(format!("{}: {name}: {error}", config.ccl.origin(name, key))).into()
}

/// Separates bad input from wrong schedules.
fn bad_dist(config: &Config, name: &str, error: DistError) -> anyhow::Error {
    match error {
        DistError::Simulation(SimulationError::Plan(error)) => bad_plan(config, name, error),
        DistError::Simulation(SimulationError::Run(error @ SimError::Shared { .. })) => {
            BadInput(format!("{name}: {error}")).into()
        }
        DistError::Simulation(error) => anyhow::Error::new(error).context(name.to_owned()),
        DistError::Placement(error) => bad(config, name, "world_size", error),
        error @ (DistError::Overflow { .. } | DistError::Range { .. }) => bad(config, name, "dtype", error),
        error => bad(config, name, "n_elem", error),
    }
}

/// Whether a proof failed because the schedule is malformed, and not because its result is wrong.
fn malformed(error: &ProofError) -> bool {
    matches!(
        error,
        ProofError::Wiring(_) | ProofError::NoSlots | ProofError::TooLarge { .. } | ProofError::Misuse { .. }
    )
}

/// Prints a line of the result. A closed pipe is an error, which ends the program quietly; see [`exit`].
fn print_line(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")
}

/// Prints a line about progress or a problem; a failure to do so is ignored.
fn warn(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn exit(result: anyhow::Result<Status>, program: &str) -> ExitCode {
    let closed_pipe = |error: &anyhow::Error| {
        let broken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
        error.downcast_ref::<std::io::Error>().is_some_and(broken)
    };
    match result {
        Ok(Status::Right) => ExitCode::SUCCESS,
        Ok(Status::Wrong) => ExitCode::from(1),
        // Such as `| head -1`.
        Err(error) if closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let code = if error.downcast_ref::<BadInput>().is_some() { 2 } else { 1 };
            warn(&format!("{program}: {error:#}"));
            ExitCode::from(code)
        }
    }
}

/// `ipcq`.
pub fn ipcq() -> ExitCode {
    let args = Ipcq::parse();
    let result = match args.command {
        Command::Run(args) => run::run(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Lint(args) => lint::lint(&args),
    };
    exit(result, "ipcq")
}

#[derive(Parser)]
#[command(
    name = "ccl_allreduce",
    version,
    about = "kernbench2's bench: all_reduce over all PEs, every shard compared with the sum",
    after_help = "Exit codes: 0 all right, 1 the schedule or its data is wrong, 2 bad input."
)]
struct CclAllreduce {
    #[command(flatten)]
    inputs: Inputs,
    /// An entry of ccl.yaml, or `all`; may be repeated
    #[arg(long, value_name = "NAME")]
    algorithm: Vec<String>,
    /// Engine
    #[arg(long, value_enum, default_value_t)]
    engine: EngineArg,
}

/// `ccl_allreduce`.
pub fn ccl_allreduce() -> ExitCode {
    let args = CclAllreduce::parse();
    let run = || -> anyhow::Result<Status> {
        let (config, topology) = args.inputs.load()?;
        let mut status = Status::Right;
        for name in names(&config, &args.algorithm) {
            let settings = settings(&config, &name)?;
            let result = kernbench::run(&topology, &settings, args.engine.into());
            let bench = match result {
                // With `all`, other collectives are skipped.
                Err(DistError::NotAllReduce(_)) if args.algorithm.iter().any(|name| name == "all") => {
                    continue;
                }
                other => other.map_err(|error| bad_dist(&config, &name, error))?,
            };
            let report = &bench.outcome.report;
            print_line(&format!(
                "{name}: {} ranks x {}, simulated {}, {} messages, hash {}",
                report.ranks,
                out::size(report.bytes),
                out::duration(report.time_ps),
                report.messages,
                report.hash
            ))?;
            print_line(&bench.line())?;
            if bench.ok != bench.ranks {
                status = Status::Wrong;
            }
        }
        Ok(status)
    };
    exit(run(), "ccl_allreduce")
}
