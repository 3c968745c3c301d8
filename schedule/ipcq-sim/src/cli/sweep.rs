//! `ipcq sweep`.

use super::files::{FileTrace, Files};
use super::progress::Progress;
use super::{BadInput, EngineArg, Inputs, Status, bad_plan, print_line, settings, warn};
use crate::config::Settings;
use crate::out::{self, Point};
use crate::sim::{Simulation, build};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(super) struct SweepArgs {
    #[command(flatten)]
    inputs: Inputs,
    /// Entries of ccl.yaml or schedules' names, separated by commas
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "ring_allreduce_tcm,ring_reduce_scatter_allgather,tree_allreduce,recursive_doubling,hierarchical"
    )]
    algorithm: Vec<String>,
    /// Bytes per rank
    #[arg(long, value_delimiter = ',', default_value = "256,1024,4096,16384,65536,262144,1048576")]
    bytes: Vec<u64>,
    /// Ranks; those that an algorithm or the topology does not support are left out
    #[arg(long, value_delimiter = ',', default_value = "4,8,16,32,64,128,256")]
    ranks: Vec<u32>,
    /// Engine
    #[arg(long, value_enum, default_value_t)]
    engine: EngineArg,
    /// Write sweep.csv and sweep.svg here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object per run instead of the table
    #[arg(long)]
    json: bool,
}

pub(super) fn sweep(args: &SweepArgs) -> anyhow::Result<Status> {
    let (config, topology) = args.inputs.load()?;
    let files = args.out.as_deref().map(Files::create).transpose()?;
    let mut points: Vec<Point> = Vec::new();
    let total = args.algorithm.len() * args.bytes.len() * args.ranks.len();
    let mut left_out = Vec::new();
    for name in &args.algorithm {
        for &ranks in &args.ranks {
            for &bytes in &args.bytes {
                let base = settings(&config, name)?;
                let settings = Settings {
                    world_size: Some(ranks),
                    n_elem: (bytes / base.dtype.bytes()).max(1),
                    // A sweep shows how time grows with size, so slots grow as well.
                    slot_size: base.slot_size.max(bytes),
                    ..base
                };
                let program = match build(&settings, &topology) {
                    Ok(program) => program,
                    Err(error) => {
                        left_out.push(error.to_string());
                        continue;
                    }
                };
                let simulation = match Simulation::new(&*program, &topology, &settings) {
                    Ok(simulation) => simulation,
                    Err(error @ crate::plan::PlanError::TooManyRanks { .. }) => {
                        left_out.push(error.to_string());
                        continue;
                    }
                    Err(error) => return Err(bad_plan(&config, name, error)),
                };
                let label =
                    format!("{} of {total}: {name}, {ranks} ranks, {}", points.len() + 1, out::size(bytes));
                // The same type as in `run`, so that the engines are compiled once for both.
                let mut probe = (Progress::start(label, program.messages()), None::<FileTrace<'_>>);
                let report = simulation.time(args.engine.into(), &mut probe)?.report;
                if args.json {
                    print_line(&serde_json::to_string(&report)?)?;
                }
                points.push(report);
            }
        }
    }
    left_out.dedup();
    for why in &left_out {
        warn(&format!("left out: {why}"));
    }
    if points.is_empty() {
        return Err(BadInput("nothing to sweep: no algorithm supports any of the ranks".to_owned()).into());
    }
    if !args.json {
        print_line(out::table(&points.iter().collect::<Vec<_>>()).trim_end())?;
    }
    if let Some(files) = files {
        files.write("sweep.csv", |out| out::sweep_csv(&points, out))?;
        files.write("sweep.svg", |out| out.write_all(out::sweep_svg(&points).as_bytes()))?;
        files.keep()?;
    }
    Ok(Status::Right)
}
