//! `cargo xtask hw-test`: the tests that need an Ascend device, `tests/hw_*.rs` of a layer's crates. They
//! are ignored in every other command. Asked for without a device they fail at once; with `--double` the
//! same tests run against the vendor double, and the result says so.
//!
//! Test programs read from the environment what to use: `CHIPCOMM_PLATFORM`, `CHIPCOMM_DEVICES` (ids with
//! commas) and, on the double, `CHIPCOMM_CANN_LIB_DIR` for its libraries and `CANN_SIM_DIR` for its
//! session. They run one at a time, one test at a time, so that no two tests share a device.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::cargo::cargo;
use crate::console::{Console, Show};
use crate::lane::{self, Lane, Outcome, Report, Setting};
use crate::layers::ROWS;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// A layer by the name that hardware CI uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layer {
    /// comm-context
    #[value(alias = "abi")]
    Context,
    /// mailbox-atomics (L3)
    #[value(alias = "l3")]
    Atomics,
    /// worker-errors (L4)
    #[value(alias = "l4")]
    Errors,
    /// bootstrap-channel (L2)
    #[value(alias = "l2")]
    Bootstrap,
    /// The backends and their rendezvous (L1a, L1b)
    #[value(aliases = ["l1a", "l1b", "l1"])]
    Comm,
    /// collectives
    Collectives,
    /// chip-bootstrap (L5)
    #[value(alias = "l5")]
    Chip,
    /// worker-orch (L6)
    #[value(alias = "l6")]
    Worker,
    /// The example programs
    Examples,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Platform {
    /// Atlas A2 and A3
    A2a3,
    /// Ascend A5
    A5,
}

/// What to run and on what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this layer; every layer that has hardware tests where none is named. L1a to L6 are accepted as
    /// well
    #[arg(long, ignore_case = true)]
    layer: Option<Layer>,
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

/// The list of devices that the vendor's runtime reads.
const VISIBLE: &str = "ASCEND_RT_VISIBLE_DEVICES";

/// Logical device ids, each once, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Devices(Vec<u32>);

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let list = std::env::var(VISIBLE).ok();
    let devices = devices_to_use(args, logical(list.as_deref(), present(Path::new("/dev")).len())?)?;
    let listed = devices.0.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let layers = layers_with_tests(ws, args.layer)?;
    let console = Console::new(Show::choose(args.verbose));
    let library_folder = if args.double { Some(build_double(ws, &console)?) } else { None };
    let platform =
        args.platform.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let run_layer = |setting: &Setting<'_>, crates: &[&str]| {
        let mut command = cargo(&ws.root, ["test", "--no-fail-fast", "--test", "hw_*"]);
        crates.iter().for_each(|name| {
            command.args(["--package", name]);
        });
        command.args(["--", "--ignored", "--test-threads=1"]);
        command.env("CHIPCOMM_PLATFORM", &platform).env("CHIPCOMM_DEVICES", &listed);
        let Some(folder) = &library_folder else {
            let log = setting.console.run(&mut command)?;
            return Ok(Outcome::Ran(Report::tests(Tally::of(&log.lines), log.failure)));
        };
        command.env("CHIPCOMM_CANN_LIB_DIR", folder).env("CANN_SIM_DIR", fresh_session(ws, "")?);
        let log = setting.console.run(&mut command)?;
        let (mut tally, mut failure) = (Tally::of(&log.lines), log.failure);
        // What only a double can do: every number of ranks, every share mode of windows, every fault.
        for (_, program, test) in DOUBLE_ONLY.iter().filter(|(name, ..)| crates.contains(name)) {
            let args =
                ["test", "--package", "comm-hccl", "--test", program, "--", "--ignored", "--exact", test];
            let log = setting.console.run(&mut cargo(&ws.root, args))?;
            tally += Tally::of(&log.lines);
            failure = failure.or(log.failure);
        }
        // The suites of the simulation that make no difference between platforms.
        for (name, program) in ANY_PLATFORM.iter().filter(|(name, _)| crates.contains(name)) {
            let args = ["test", "--package", name, "--test", program, "--", "--test-threads=1"];
            let mut command = cargo(&ws.root, args);
            command.env("CHIPCOMM_PLATFORM", &platform).env("CHIPCOMM_CANN_LIB_DIR", folder);
            command.env("CANN_SIM_DIR", fresh_session(ws, "devices = 16\n")?);
            let log = setting.console.run(&mut command)?;
            tally += Tally::of(&log.lines);
            failure = failure.or(log.failure);
        }
        Ok(Outcome::Ran(Report::tests(tally, failure)))
    };
    type Run<'a> = Box<dyn Fn(&Setting<'_>) -> Result<Outcome> + 'a>;
    let runs: Vec<(String, String, Run<'_>)> = layers
        .iter()
        .map(|(layer, crates)| {
            let run: Run<'_> = Box::new(|setting| run_layer(setting, crates));
            (name_of(*layer), format!("hardware tests of {}", crates.join(", ")), run)
        })
        .collect();
    let lanes: Vec<Lane<'_>> = runs.iter().map(|(name, about, run)| Lane { name, about, run }).collect();
    let label = if args.double {
        format!(
            "ran on the vendor double (cann-sim) as {platform}, devices {listed}; no hardware was involved"
        )
    } else {
        format!("ran on hardware: {platform}, devices {listed}")
    };
    Ok(lane::run_all(&Setting { ws, console: &console }, &lanes, &[label]))
}

/// Ignored tests that create sessions of the double themselves: crate, program, test.
const DOUBLE_ONLY: &[(&str, &str, &str)] = &[
    ("comm-hccl", "conformance_double", "all_sizes_and_share_modes"),
    ("comm-hccl", "proc_comm_faults", "f11_every_vendor_call_fails_hangs_and_kills"),
];

/// Suites whose Workers run on the platform that `CHIPCOMM_PLATFORM` names: crate, program. They need up to
/// 16 devices and kernels that g++ builds, which only the double accepts.
const ANY_PLATFORM: &[(&str, &str)] = &[
    ("worker-orch", "proc_run"),
    ("worker-orch", "proc_cancelled"),
    ("worker-orch", "proc_collectives"),
    ("worker-orch", "proc_death"),
    ("worker-orch", "proc_limits"),
    ("worker-orch", "proc_exec"),
];

/// An empty folder for a session of the double, with the configuration of its machine.
fn fresh_session(ws: &Workspace, machine: &str) -> Result<PathBuf> {
    let folder = ws.target.join("hw-test-double");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let made = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join("config"), machine));
    made.with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

fn name_of(layer: Layer) -> String {
    layer.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The layers to run, each with its crates that have hardware tests.
fn layers_with_tests(ws: &Workspace, only: Option<Layer>) -> Result<Vec<(Layer, Vec<&str>)>> {
    let mut found = Vec::new();
    for layer in Layer::value_variants().iter().filter(|layer| only.is_none_or(|only| only == **layer)) {
        let rows = ROWS.iter().filter(|row| row.layer == Some(*layer)).filter_map(|row| ws.member(row.name));
        let crates: Vec<&str> = rows
            .filter(|member| member.targets_named("test", "hw_").next().is_some())
            .map(|member| member.name.as_str())
            .collect();
        if !crates.is_empty() {
            found.push((*layer, crates));
        }
    }
    let whose = only.map_or("no crate".to_owned(), |layer| format!("no crate of layer `{}`", name_of(layer)));
    ensure!(
        !found.is_empty(),
        "nothing to run: {whose} has tests/hw_*.rs, and a run of nothing is a failure"
    );
    Ok(found)
}

/// Ids of the device files `davinci0`, `davinci1`, … in a folder.
fn present(dev: &Path) -> Vec<u32> {
    let names = std::fs::read_dir(dev).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut ids: Vec<u32> =
        names.filter_map(|name| name.to_str()?.strip_prefix("davinci")?.parse().ok()).collect();
    ids.sort_unstable();
    ids
}

/// How many devices a process of this machine can open. Device files carry physical numbers: a container with davinci4
/// and davinci5 has the logical devices 0 and 1.
fn logical(list: Option<&str>, present: usize) -> Result<u32> {
    let listed = list.map(|list| {
        let entries: Vec<&str> = list.split(',').collect();
        let numbers = entries.iter().all(|entry| entry.parse::<u32>().is_ok());
        ensure!(numbers, "{VISIBLE}={list:?} is not a list of device numbers such as 0,1");
        Ok(entries.len())
    });
    Ok(listed.transpose()?.map_or(present, |listed| listed.min(present)) as u32)
}

fn devices_to_use(args: &Args, present: u32) -> Result<Devices> {
    if args.double {
        return Ok(args.devices.clone().unwrap_or(Devices(vec![0, 1, 2, 3])));
    }
    if present == 0 {
        bail!(
            "no Ascend device: there is no /dev/davinci* on this machine that this process may use.\n\
             Hardware tests need an NPU with its driver, and the CANN libraries on the library search path.\n\
             To run the same tests against the vendor double: cargo xtask hw-test --double"
        );
    }
    let wanted = args.devices.clone().unwrap_or(Devices((0..present).collect()));
    for id in &wanted.0 {
        ensure!(
            *id < present,
            "device {id} was asked for; this process sees {present} devices, which count from 0 (/dev/davinci*, {VISIBLE})"
        );
    }
    Ok(wanted)
}

fn parse_devices(text: &str) -> Result<Devices> {
    let mut ids = Vec::new();
    for part in text.split(',') {
        let number = |text: &str| {
            text.trim()
                .parse::<u32>()
                .with_context(|| format!("`{text}` is not a device id; write 0-3 or 0,2,5"))
        };
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        ensure!(first <= last, "`{part}` runs backwards");
        ensure!(last < 64, "`{part}` goes beyond the 64 devices that a communicator can hold");
        ids.extend(first..=last);
    }
    for (at, id) in ids.iter().enumerate() {
        ensure!(!ids[..at].contains(id), "device {id} is named twice");
    }
    Ok(Devices(ids))
}

/// Builds the vendor double and returns the folder that holds its libraries.
pub(crate) fn build_double(ws: &Workspace, console: &Console) -> Result<PathBuf> {
    let parts: Vec<&str> = ws
        .members
        .iter()
        .filter(|member| member.dir.starts_with("comm-hccl/cann-sim"))
        .map(|member| member.name.as_str())
        .collect();
    ensure!(!parts.is_empty(), "the vendor double, comm-hccl/cann-sim, is not part of this workspace");
    let mut command = cargo(&ws.root, ["build"]);
    parts.iter().for_each(|name| {
        command.args(["--package", name]);
    });
    console.begin("double", "building the vendor double");
    let log = console.run(&mut command)?;
    console.end();
    if let Some(failure) = log.failure {
        bail!("the vendor double does not build: {failure}");
    }
    Ok(ws.target.join("debug"))
}

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
            assert_eq!(args(&format!("--layer {spelling}")).layer, Some(layer), "{spelling}");
        }
    }

    #[test]
    fn device_lists_are_ranges_and_ids() {
        assert_eq!(parse_devices("0-3").unwrap(), Devices(vec![0, 1, 2, 3]));
        assert_eq!(parse_devices("5,0-1").unwrap(), Devices(vec![5, 0, 1]));
        for bad in ["", "a", "3-1", "0,0", "1-", "0-64", "-1", "0-4294967295"] {
            assert!(parse_devices(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_a_device_it_fails_and_names_the_way_out() {
        let error = devices_to_use(&args(""), 0).unwrap_err().to_string();
        assert!(error.contains("/dev/davinci*") && error.contains("--double"), "{error}");
        assert_eq!(devices_to_use(&args("--double"), 0).unwrap(), Devices(vec![0, 1, 2, 3]));
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        assert!(devices_to_use(&args("--devices 0-2"), 2).is_err());
        assert_eq!(devices_to_use(&args("--devices 1"), 2).unwrap(), Devices(vec![1]));
        assert_eq!(devices_to_use(&args(""), 2).unwrap(), Devices(vec![0, 1]));
    }

    #[test]
    fn device_files_have_physical_numbers_and_processes_use_logical_ones() {
        // davinci4 and davinci5.
        assert_eq!(logical(None, 2).unwrap(), 2);
        assert_eq!(logical(Some("5"), 2).unwrap(), 1);
        assert_eq!(logical(Some("0,1,2,3"), 2).unwrap(), 2);
        let error = logical(Some("0-3"), 4).unwrap_err().to_string();
        assert!(error.contains("ASCEND_RT_VISIBLE_DEVICES") && error.contains("0-3"), "{error}");
    }

    #[test]
    fn a_layer_without_hardware_tests_is_an_error() {
        let ws = Workspace { root: ".".into(), target: "target".into(), members: Vec::new() };
        let error = layers_with_tests(&ws, Some(Layer::Bootstrap)).unwrap_err().to_string();
        assert!(error.contains("`bootstrap`"), "{error}");
    }

    #[test]
    fn every_test_that_is_named_here_exists() {
        let ws = Workspace::load().unwrap();
        let file = |name: &str, program: &str| {
            let member = ws.member(name).expect(name);
            std::fs::read_to_string(ws.root.join(&member.dir).join(format!("tests/{program}.rs")))
                .expect(program)
        };
        for (name, program, test) in DOUBLE_ONLY {
            assert!(file(name, program).contains(&format!("fn {test}()")), "{program} has no test {test}");
        }
        ANY_PLATFORM.iter().for_each(|(name, program)| assert!(!file(name, program).is_empty()));
    }
}
