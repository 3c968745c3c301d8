//! What `ipcq-sim` predicts for an all-reduce on the memory of this machine, beside what it takes.
//!
//! The topology comes from a file of `ipcq calibrate`, or is measured first. The calls are out of place and staged. Below stand the schedules
//! of the library, run as plans.

use crate::args::{Args, Mode};
use crate::out::{note, say};
use crate::trial::{Times, Trial, table};
use crate::{Outcome, schedule, table as tables};
use bench_support::Figure;
use ccl_schedule::{Goal, algo};
use collectives::{Kind, Passing, Plan, Table};
use ipcq_sim::calibrate::calibrate;
use ipcq_sim::config::{DType, Fabric, Settings, Topology, TopologyFile};
use ipcq_sim::engine::Engine;
use ipcq_sim::probe::NoProbe;
use ipcq_sim::sim::{Simulation, build};

/// From so many bytes on the prediction is meant to hold.
const HOLDS_FROM: usize = 64 << 10;

/// An algorithm, predicted and measured.
struct Compared {
    name: &'static str,
    predicted: Times,
    measured: Times,
}

/// The topology of the command line, or of this machine.
fn topology(args: &Args) -> Outcome<Topology> {
    let topology = match &args.topology {
        Some(file) => TopologyFile::load(file)?.topology()?,
        None => {
            note(format_args!(
                "measuring this machine for some seconds; --topology takes a file of `ipcq calibrate`"
            ));
            Topology { fabric: Fabric::Memory, host: calibrate(|_| {}), ..Topology::default() }
        }
    };
    if topology.fabric == Fabric::Memory {
        Ok(topology)
    } else {
        Err("--topology: its fabric is not memory".into())
    }
}

/// Microseconds that a schedule takes for each size of the command line.
fn predict(args: &Args, topology: &Topology, name: &str) -> Outcome<Times> {
    let mut times = Times::new();
    for size in args.sizes() {
        let settings = Settings {
            entry: name.to_owned(),
            algorithm: name.to_owned(),
            world_size: Some(args.ranks),
            n_elem: (size / 4) as u64,
            dtype: DType::F32,
            ..Settings::default()
        };
        let program = build(&settings, topology)?;
        let outcome = Simulation::new(&*program, topology, &settings)?.time(Engine::Auto, &mut NoProbe)?;
        times.push((size, outcome.report.time_ps as f64 / 1e6));
    }
    Ok(times)
}

fn compare(args: &Args, topology: &Topology) -> Outcome<Vec<Compared>> {
    let entry = one_shot_entry(args.ranks);
    let of = |name, limit| -> Outcome<Compared> {
        let table = table(&[(entry, limit)])?;
        let trial = Trial { kind: Kind::AllReduce, window: false, table, schedule: None };
        Ok(Compared { name, predicted: predict(args, topology, name)?, measured: trial.measure(args)? })
    };
    Ok(vec![of("direct_one_shot", u32::MAX)?, of("direct_two_shot", 0)?])
}

/// The entry of the table that decides between the two.
pub(crate) fn one_shot_entry(ranks: u32) -> &'static str {
    if ranks == 2 { "pair_one_shot" } else { "one_shot_reads" }
}

/// What the prediction says of the two: times of one shot, and of two.
pub(crate) fn both(args: &Args) -> Outcome<[Times; 2]> {
    let topology = topology(args)?;
    Ok([predict(args, &topology, "direct_one_shot")?, predict(args, &topology, "direct_two_shot")?])
}

fn error_of(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted - measured) / measured
}

/// Prints a table.
pub(crate) fn print(args: &Args) -> Outcome<()> {
    let args = &Args { mode: Mode::Dirty, from: args.from.max(64), ..args.clone() };
    let topology = topology(args)?;
    let all = compare(args, &topology)?;
    say(format_args!(
        "# all_reduce f32, {} ranks, staged, out of place: predicted and measured, us\n",
        args.ranks
    ))?;
    say(format_args!("#{:>9}", "size"))?;
    all.iter().try_for_each(|one| say(format_args!(" | {:>27}", one.name)))?;
    say(format_args!(" | {:>16} {:>16}\n", "predicted best", "fastest"))?;
    let (mut worst, mut agree, mut sizes) = (0.0_f64, 0, 0);
    for (at, size) in args.sizes().into_iter().enumerate() {
        say(format_args!("{:>10}", tables::readable(size)))?;
        for one in &all {
            let (predicted, measured) = (one.predicted[at].1, one.measured[at].1);
            let error = error_of(predicted, measured);
            if size >= HOLDS_FROM {
                worst = worst.max(error.abs());
            }
            say(format_args!(" | {predicted:>9.1} {measured:>9.1} {error:>+6.0}%"))?;
        }
        let best = |times: fn(&Compared) -> &Times| {
            all.iter().min_by(|a, b| times(a)[at].1.total_cmp(&times(b)[at].1)).map_or("", |one| one.name)
        };
        let (chosen, fastest) = (best(|one| &one.predicted), best(|one| &one.measured));
        sizes += 1;
        agree += u32::from(chosen == fastest);
        say(format_args!(" | {chosen:>16} {fastest:>16}\n"))?;
    }
    say(format_args!(
        "# largest error from 64 KiB on: {worst:.0} %; the prediction chooses the fastest for {agree} of {sizes} sizes\n"
    ))?;
    print_library(args, &topology)
}

/// How the plan of a schedule of the library passes data here: by reference, or by value where that would wait forever; `None` where there
/// is none for so many ranks.
fn passing(name: &str, ranks: u32) -> Option<(Passing, Goal)> {
    let ways = [Passing::Reference, Passing::Value { slots: 4 }];
    ways.into_iter().find_map(|way| Some((way, Plan::named(name, ranks, way).ok()?.goal())))
}

/// Prints a table of all schedules of the library, each run as a plan. They stage and add as the prediction has it, and wait more often.
fn print_library(args: &Args, topology: &Topology) -> Outcome<()> {
    let args = &Args { from: args.from.max(4 << 10), factor: 16, ..args.clone() };
    say(format_args!(
        "\n# schedules of the library as plans, {} ranks: predicted and measured, us\n",
        args.ranks
    ))?;
    say(format_args!("#{:>30} {:>10}", "schedule", "by"))?;
    args.sizes().into_iter().try_for_each(|size| say(format_args!(" | {:>27}", tables::readable(size))))?;
    say("\n")?;
    for names in algo::NAMES {
        let Some((way, goal)) = passing(names[0], args.ranks) else { continue };
        let kind = schedule::kind(goal).unwrap_or(Kind::AllReduce);
        let trial = Trial { kind, window: false, table: Table::default(), schedule: Some((names[0], way)) };
        let (predicted, measured) = (predict(args, topology, names[0])?, trial.measure(args)?);
        say(format_args!("{:>31} {:>10}", names[0], schedule::name(way)))?;
        for ((_, predicted), (_, measured)) in predicted.iter().zip(&measured) {
            let error = error_of(*predicted, *measured);
            say(format_args!(" | {predicted:>9.1} {measured:>9.1} {error:>+6.0}%"))?;
        }
        say("\n")?;
    }
    Ok(())
}

/// Prints figures for `cargo xtask bench`: the prediction, held against the measurement.
pub(crate) fn figures(args: &Args) -> Outcome<()> {
    let args = Args { ranks: 2, from: HOLDS_FROM, to: 16 << 20, factor: 16, runs: 3, ..args.clone() };
    for one in compare(&args, &topology(&args)?)? {
        for ((size, value), (_, measured)) in one.predicted.iter().zip(&one.measured) {
            let case = format!("predicted {} {}, 2 ranks", one.name, tables::readable(*size));
            let figure = Figure {
                case: &case,
                value: *value,
                unit: "us",
                limit: "measured",
                limit_value: Some(*measured),
            };
            say(format_args!("{}\n", figure.json("coll")))?;
        }
    }
    Ok(())
}
