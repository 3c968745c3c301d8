//! `cargo xtask hw-test`: the tests that need an Ascend device, `tests/hw_LAYER.rs` of any crate. They are ignored in
//! every other command. Asked for without a device they fail at once; with `--double` the same tests run against the vendor
//! double, and the result says so.
//!
//! Test programs read from the environment what to use: `CHIPCOMM_PLATFORM`, `CHIPCOMM_DEVICES` (ids with commas),
//! `CHIPCOMM_HW_KERNELS` (kernels of `tests/hw_kernels`, compiled here) and, on the double, `CHIPCOMM_CANN_LIB_DIR` for its
//! libraries and `CANN_SIM_DIR` for its session. Each test has a process of its own, one at a time, so that no two share a
//! device. Its vendor calls are counted; a test of a device that makes none has failed. What ran, where and how it ended
//! is written to a file that a user can attach to an issue.

mod devices;
mod double;
mod programs;
mod report;

use std::cell::RefCell;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;

use crate::console::{Console, Show};
use crate::kernels::Platform;
use crate::lane::{self, Lane, Outcome, Setting};
use crate::workspace::{Member, Workspace};
use devices::{Devices, parse_devices};
use programs::{Program, Target};

pub(crate) use double::build_double;

/// A layer by the name that hardware CI uses. Its tests are the programs `hw_NAME` of any crate: a new one is a line here
/// and a file there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layer {
    /// The context that kernels read, as the device sees it
    #[value(alias = "abi")]
    Context,
    /// Orderings of this host's processor (L3)
    #[value(alias = "l3")]
    Atomics,
    /// An error of the vendor across processes (L4)
    #[value(alias = "l4")]
    Errors,
    /// The backends (L1a, L1b)
    #[value(aliases = ["l1a", "l1b", "l1"])]
    Comm,
    /// Collectives, by the devices' own engine
    Collectives,
    /// Graphs of tasks, driven from the host
    Runtime,
    /// The report of a chip's bring-up (L2)
    #[value(alias = "l2")]
    Bootstrap,
    /// One chip, from bring-up to teardown (L5)
    #[value(alias = "l5")]
    Chip,
    /// Workers (L6)
    #[value(alias = "l6")]
    Worker,
    /// The example programs
    Examples,
}

impl Layer {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The name of its test programs.
    fn file(self) -> String {
        format!("hw_{}", self.name())
    }

    /// Whether its tests must make vendor calls. Those of the atomics test the processor beside the devices.
    fn calls_the_vendor(self) -> bool {
        self != Self::Atomics
    }
}

/// What to run and on what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these layers; all of them where none is named. L1a to L6 are accepted as well
    #[arg(long, ignore_case = true, value_delimiter = ',')]
    layer: Vec<Layer>,
    /// The chips under test
    #[arg(long, default_value = "a2a3", ignore_case = true)]
    platform: Platform,
    /// Devices to use, as 0-3 or 0,2,5: logical ids, counted from 0 whatever the names under /dev are. Without it
    /// all that the process can see (on the double: 0-3)
    #[arg(long, value_parser = parse_devices)]
    devices: Option<Devices>,
    /// Run against the vendor double instead of a device
    #[arg(long)]
    double: bool,
    /// Show everything that cargo and the tests print
    #[arg(short, long)]
    verbose: bool,
}

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let devices = if args.double {
        devices::of_the_double(args.devices.as_ref())
    } else {
        devices::of_this_machine(args.devices.as_ref())?
    };
    let wanted = |layer: &&Layer| args.layer.is_empty() || args.layer.contains(layer);
    let layers: Vec<Layer> = Layer::value_variants().iter().filter(wanted).copied().collect();
    let console = Console::new(Show::choose(args.verbose));
    let libraries = if args.double { Some(build_double(ws, &console)?) } else { None };
    let target = Target { ws, platform: args.platform, devices: devices.listed(), libraries };
    let results = RefCell::new(Vec::new());
    let run_layer = |setting: &Setting<'_>, layer: Layer| {
        let programs = programs::of_layer(ws, layer, args.double)?;
        target.run_layer(setting.console, layer, &programs, &results)
    };
    type Run<'a> = Box<dyn Fn(&Setting<'_>) -> Result<Outcome> + 'a>;
    let runs: Vec<(String, Run<'_>)> = layers
        .iter()
        .map(|layer| {
            let run: Run<'_> = Box::new(|setting| run_layer(setting, *layer));
            (layer.name(), run)
        })
        .collect();
    let lanes: Vec<Lane<'_>> =
        runs.iter().map(|(name, run)| Lane { name, about: "hardware tests", run }).collect();
    let file = ws.target.join("hw-test/report.txt");
    let remarks = [target.in_words(), format!("report, for an issue: {}", file.display())];
    let code = lane::run_all(&Setting { ws, console: &console, named: false }, &lanes, &remarks);
    report::write(&target, &console, &results.borrow(), &file)?;
    Ok(code)
}

/// The lane `double` of `ci`: the hardware tests of every layer, with two devices of the double, without the suites that
/// take minutes.
pub(crate) fn double_lane(setting: &Setting<'_>) -> Result<Outcome> {
    double_lane_of(setting, &setting.ws.members.iter().collect::<Vec<_>>())
}

/// Whether a crate has hardware tests that `ci` runs.
pub(crate) fn in_double_lane(member: &Member) -> bool {
    IN_CI.iter().any(|layer| member.targets_named("test", &layer.file()).any(|name| name == layer.file()))
}

/// The same with the hardware tests of these crates alone.
pub(crate) fn double_lane_of(setting: &Setting<'_>, members: &[&Member]) -> Result<Outcome> {
    let libraries = Some(build_double(setting.ws, setting.console)?);
    let devices = "0,1".to_owned();
    let target = Target { ws: setting.ws, platform: Platform::A2a3, devices, libraries };
    let results = RefCell::new(Vec::new());
    let mut sum = lane::Report::default();
    for layer in IN_CI {
        let wanted = |program: &Program| {
            program.is_in_ci() && members.iter().any(|member| member.name == program.package)
        };
        let programs: Vec<Program> =
            programs::of_layer(setting.ws, *layer, true)?.into_iter().filter(wanted).collect();
        if programs.is_empty() {
            continue;
        }
        if let Outcome::Ran(report) = target.run_layer(setting.console, *layer, &programs, &results)? {
            sum = sum.and(report);
        }
    }
    Ok(Outcome::Ran(sum))
}

/// The examples are left to `hw-test`: they need four devices, and their tests on the simulation are in `ci` already.
const IN_CI: &[Layer] = &[
    Layer::Context,
    Layer::Atomics,
    Layer::Errors,
    Layer::Comm,
    Layer::Bootstrap,
    Layer::Collectives,
    Layer::Runtime,
    Layer::Chip,
    Layer::Worker,
];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::try_parse_from(["hw-test"].into_iter().chain(line.split_whitespace())).unwrap().args
    }

    #[test]
    fn layers_have_other_spellings() {
        let spellings = [("L1a", Layer::Comm), ("L1b", Layer::Comm), ("L2", Layer::Bootstrap)];
        let more =
            [("L3", Layer::Atomics), ("L4", Layer::Errors), ("L5", Layer::Chip), ("L6", Layer::Worker)];
        for (spelling, layer) in spellings.into_iter().chain(more).chain([("bootstrap", Layer::Bootstrap)]) {
            assert_eq!(args(&format!("--layer {spelling}")).layer, [layer], "{spelling}");
        }
    }
}
