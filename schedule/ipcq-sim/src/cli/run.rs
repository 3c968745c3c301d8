//! `ipcq run`.

use super::files::Files;
use super::progress::Progress;
use super::{
    BadInput, EngineArg, Inputs, Selection, Status, bad_dist, bad_plan, malformed, print_line, settings, warn,
};
use crate::config::{Config, DType, Fabric, Settings, Topology};
use crate::dist::{DistError, data_fits};
use crate::engine::SimError;
use crate::memory::Memory;
use crate::out::{self, Trace, TraceLimits};
use crate::placement::{Placement, Policy};
use crate::sim::{Outcome, Report, Simulation, SimulationError, build};
use crate::units::Decimal;
use crate::{data, kernbench};
use anyhow::Context;
use ccl_schedule::{Expect, Land, ListedProgram, Program, ProofError};
use clap::Args;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    selection: Selection,
    /// Engine
    #[arg(long, value_enum, default_value_t)]
    engine: EngineArg,
    /// Write summary.json, ranks.csv, links.csv, links.svg and trace.json here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write oplog.csv: every movement of data
    #[arg(long, requires = "out", conflicts_with = "no_data")]
    op_log: bool,
    /// Print one JSON object per run instead of the table
    #[arg(long)]
    json: bool,
    /// Prove and time only: no data, and so no bench line
    #[arg(long)]
    no_data: bool,
    /// Ranks that trace.json shows, from 0 on
    #[arg(long, value_name = "N", default_value_t = 64)]
    trace_ranks: u32,
    /// Nanoseconds that trace.json shows, such as 0..2000
    #[arg(long, value_name = "FROM..TO")]
    trace_window: Option<String>,
    /// Most megabytes of trace.json
    #[arg(long, value_name = "MB", default_value_t = 64)]
    trace_mb: u64,
}

pub(super) fn run(args: &RunArgs) -> anyhow::Result<Status> {
    let (config, topology) = args.inputs.load()?;
    let limits = trace_limits(args)?;
    let (names, listed) = args.selection.load(&config)?;
    let several = names.len() > 1;
    let mut reports: Vec<Report> = Vec::new();
    let mut status = Status::Right;
    for name in &names {
        let (settings, program): (Settings, Box<dyn Program>) = match &listed {
            Some(file) => (file_settings(&config, file)?, Box::new(file.clone())),
            None => {
                let settings = settings(&config, name)?;
                let program = build(&settings, &topology).map_err(|error| bad_plan(&config, name, error))?;
                (settings, program)
            }
        };
        let dir = args.out.as_ref().map(|dir| if several { dir.join(name) } else { dir.clone() });
        let one = One { args, config: &config, topology: &topology, settings: &settings, limits };
        let (report, good) = one.run(&*program, dir.as_deref())?;
        if args.json {
            print_line(&serde_json::to_string(&report)?)?;
        }
        status = if good { status } else { Status::Wrong };
        reports.push(report);
    }
    if !args.json {
        print_line(&format!("\n{}", out::table(&reports.iter().collect::<Vec<_>>()).trim_end()))?;
    }
    Ok(status)
}

/// A schedule file has its own name and ranks; all other settings are those of `defaults`.
fn file_settings(config: &Config, file: &ListedProgram) -> anyhow::Result<Settings> {
    let base = settings(config, config.ccl.default_name())?;
    Ok(Settings { entry: file.name().to_owned(), world_size: Some(file.ranks()), ..base })
}

fn trace_limits(args: &RunArgs) -> anyhow::Result<TraceLimits> {
    let mut limits =
        TraceLimits { ranks: args.trace_ranks, bytes: args.trace_mb << 20, ..TraceLimits::default() };
    if let Some(text) = &args.trace_window {
        let bounds = text.split_once("..").map(|(from, to)| (Decimal::parse(from), Decimal::parse(to)));
        match bounds {
            Some((Ok(from), Ok(to))) if from < to => (limits.from, limits.until) = (from.ns(), to.ns()),
            _ => {
                let why = format!("--trace-window {text}: write two times in ns, such as 0..2000");
                return Err(BadInput(why).into());
            }
        }
    }
    Ok(limits)
}

struct One<'a> {
    args: &'a RunArgs,
    config: &'a Config,
    topology: &'a Topology,
    settings: &'a Settings,
    limits: TraceLimits,
}

impl One<'_> {
    fn run(&self, program: &dyn Program, dir: Option<&Path>) -> anyhow::Result<(Report, bool)> {
        let name = &self.settings.entry;
        let progress = Progress::start(format!("{name}: wiring and routing"), 0);
        let simulation = Simulation::new(program, self.topology, self.settings)
            .map_err(|error| bad_plan(self.config, name, error))?;
        drop(progress);
        let with_data = self.data_wanted(&simulation)?;
        {
            let _progress = Progress::start(format!("{name}: proving"), 0);
            match simulation.prove() {
                Ok(_) => {}
                Err(error @ ProofError::TooLarge { .. }) => warn(&format!("{name}: not proved: {error}")),
                Err(error) if malformed(&error) => return Err(BadInput(format!("{name}: {error}")).into()),
                Err(error) => return Err(anyhow::Error::new(error).context(name.clone())),
            }
        }
        let files = dir.map(Files::create).transpose()?;
        let trace = match &files {
            Some(files) => Some(Trace::new(&simulation.plan, self.limits, files.open("trace.json")?)),
            None => None,
        };
        let csv: Option<Box<dyn Write>> = match &files {
            Some(files) if self.args.op_log && with_data => Some(Box::new(files.open("oplog.csv")?)),
            _ => None,
        };
        let mut probe = (Progress::start(format!("{name}: timing"), program.messages()), trace);
        let engine = self.args.engine.into();
        let result = if with_data {
            let start = self.start(&simulation);
            let both = simulation.time_with_data(engine, start, csv, &mut probe);
            both.map(|(outcome, memory)| (outcome, Some(memory)))
        } else {
            simulation.time(engine, &mut probe).map(|outcome| (outcome, None)).map_err(SimulationError::from)
        };
        let (progress, trace) = probe;
        drop(progress);
        let (outcome, memory) = result.map_err(|error| match error {
            SimulationError::Run(error @ SimError::Shared { .. }) => {
                BadInput(format!("{name}: {error}")).into()
            }
            error => anyhow::Error::new(error).context(name.clone()),
        })?;
        let good = match &memory {
            Some(memory) => self.check(&simulation, memory)?,
            None => true,
        };
        if let Some(trace) = trace {
            let left_out = trace.finish().context("trace.json")?;
            if left_out > 0 {
                warn(&format!(
                    "{name}: trace.json reached its limit, {left_out} events are left out (--trace-mb, --trace-window)"
                ));
            }
        }
        if let Some(files) = files {
            self.write(&files, &simulation, &outcome)?;
            files.keep()?;
        }
        Ok((outcome.report, good))
    }

    /// Whether the run carries data, after checking that it can.
    fn data_wanted(&self, simulation: &Simulation<'_>) -> anyhow::Result<bool> {
        if self.args.no_data {
            return Ok(false);
        }
        let (name, ranks) = (&self.settings.entry, simulation.plan.program.ranks());
        let bad = |error: DistError| bad_dist(self.config, name, error);
        kernbench::check_range(self.settings, ranks).map_err(bad)?;
        if self.topology.fabric == Fabric::Cubes {
            let placement = Placement::uniform(Policy::RowWise, self.topology, ranks);
            placement.parts(self.topology, ranks, u64::from(ranks), 1).map_err(|error| bad(error.into()))?;
        }
        if let Err(error) = data_fits(simulation) {
            warn(&format!("{name}: proved and timed only: {error}"));
            return Ok(false);
        }
        Ok(true)
    }

    /// The initial data: r + 1 in every element of rank r.
    fn start(&self, simulation: &Simulation<'_>) -> Memory {
        let (plan, program) = (&simulation.plan, simulation.plan.program);
        let mut memory = simulation.memory();
        for rank in 0..program.ranks() {
            for chunk in
                (0..plan.cut.chunks).filter(|&c| program.goal().contributes(program.ranks(), rank, c))
            {
                let values = vec![(rank + 1) as f32; plan.cut.len(chunk) as usize];
                memory.write(rank, chunk, Land::Copy, &data::encode(self.settings.dtype, &values));
            }
        }
        memory
    }

    /// Compares the final data of every rank with the goal. Prints the bench's line.
    fn check(&self, simulation: &Simulation<'_>, memory: &Memory) -> anyhow::Result<bool> {
        let (plan, name, dtype) = (&simulation.plan, &self.settings.entry, self.settings.dtype);
        let (program, ranks) = (plan.program, plan.program.ranks());
        let sum = (1..=u64::from(ranks)).sum::<u64>() as f32;
        // By chunk, as the goal is; a shard is right when all its chunks are.
        let (mut ok, mut failures) = (0, Vec::new());
        for rank in 0..ranks {
            let wrong = (0..plan.cut.chunks).find_map(|chunk| {
                let want = match program.goal().expect(ranks, rank, chunk) {
                    Expect::All => sum,
                    Expect::One(rank) => (rank + 1) as f32,
                    Expect::Any => return None,
                };
                let values = data::decode(dtype, memory.tile(rank, chunk));
                if let Err(error) = self.refuse_overflow(rank, &values, dtype) {
                    return Some(Err(error));
                }
                let wrong = values.into_iter().find(|&value| !kernbench::close(value, want))?;
                Some(Ok(format!("[FAIL] rank {rank}: {wrong}, expected {want}")))
            });
            match wrong {
                None => ok += 1,
                Some(text) => failures.push(text?),
            }
        }
        failures.truncate(5);
        let line = kernbench::line(name, ranks, ok, &failures);
        if self.args.json {
            warn(&line);
        } else {
            print_line(&line)?;
        }
        Ok(ok == ranks)
    }

    fn refuse_overflow(&self, rank: u32, values: &[f32], dtype: DType) -> anyhow::Result<()> {
        match values.iter().position(|value| value.is_infinite()) {
            None => Ok(()),
            Some(element) => {
                let (element, largest) = (element as u64, data::largest(dtype));
                let error = DistError::Overflow { rank, element, dtype: dtype.name(), largest };
                Err(bad_dist(self.config, &self.settings.entry, error))
            }
        }
    }

    fn write(&self, files: &Files, simulation: &Simulation<'_>, outcome: &Outcome) -> anyhow::Result<()> {
        let plan = &simulation.plan;
        files.write("summary.json", |out| out::summary_json(outcome, out))?;
        files.write("ranks.csv", |out| out::ranks_csv(plan, outcome, out))?;
        files.write("links.csv", |out| out::links_csv(plan, outcome, out))?;
        files.write("links.svg", |out| out.write_all(out::heat_svg(plan, outcome).as_bytes()))?;
        Ok(())
    }
}
