//! The speed figures of the simulator, each beside its limit. `--json` prints one object per line.
//!
//! Times are wall time by the monotonic clock, the best of several runs: other load on the machine only adds
//! time, so the best run is the closest to the cost of the work itself.

use ccl_schedule::algo::{self, Ring, RingKind, Shape, TreeAllReduce};
use ccl_schedule::{CreditPoint, Program, prove};
use ipcq_sim::bound::bounds;
use ipcq_sim::config::{Config, Fabric, Settings, Topology};
use ipcq_sim::engine::{Engine, Timing, run};
use ipcq_sim::kernbench;
use ipcq_sim::plan::Plan;
use ipcq_sim::probe::NoProbe;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Instant;

#[derive(Clone, Copy)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

fn main() -> ExitCode {
    // `process` runs this executable under the name of the program, to time the whole process.
    if std::env::args().next().as_deref() == Some(PROGRAM) {
        return ipcq_sim::cli::ccl_allreduce();
    }
    let json = std::env::args().any(|arg| arg == "--json");
    let line = |case: &str, value: f64, unit: &str, limit: Limit| {
        let (word, bound, held) = match limit {
            Limit::AtLeast(bound) => ("at least", bound, value >= bound),
            Limit::AtMost(bound) => ("at most", bound, value <= bound),
        };
        let ratio = value / bound;
        if json {
            println!(
                "{{\"bench\":\"ipcq\",\"case\":\"{case}\",\"value\":{value:.4},\"unit\":\"{unit}\",\"limit\":\"{word}\",\
                 \"limit_value\":{bound},\"ratio\":{ratio:.4},\"held\":{held}}}"
            );
        } else {
            let result = if held { "ok" } else { "MISSED" };
            println!("{case:<58} {value:>10.3} {unit:<14} {word} {bound:<6} {ratio:>6.2}x {result}");
        }
    };

    // First, before anything else raises the peak of memory.
    let (seconds, _) = tree(1_000_000, 1);
    line("engine A, tree of 10^6 PEs, with planning", seconds, "s", Limit::AtMost(5.0));
    if let Some(peak) = peak_memory() {
        line("engine A, tree of 10^6 PEs, peak memory", peak, "GiB", Limit::AtMost(2.0));
    }

    let ring = |ranks, split| Ring::new(RingKind::AllReduce, ranks, &shape(split)).expect("a ring");
    let settings = Settings { n_elem: 1 << 19, slot_size: 1 << 30, ..Settings::default() };
    let best = best(8, || timed(&ring(4096, 1), &direct(), &settings, Engine::A));
    line(
        "engine A, ring of 4096",
        best.1.messages as f64 / best.0 / 1e6,
        "Mmessages/s",
        Limit::AtLeast(30.0),
    );

    let mut chip = Topology::default();
    (chip.cubes.w, chip.cubes.h, chip.sips.w) = (16, 16, 32);
    let small = Settings { n_elem: 4096, ..settings.clone() };
    let wide = TreeAllReduce::new(65_536, 8).expect("a tree");
    let best_b = self::best(10, || timed(&wide, &chip, &small, Engine::B));
    line(
        "engine B, tree on 65536 PEs",
        best_b.1.events as f64 / best_b.0 / 1e6,
        "Mevents/s",
        Limit::AtLeast(15.0),
    );

    let config = Config::load(None, None).expect("the shipped files");
    let (topology, entry) = (
        config.topology.topology().expect("valid"),
        config.ccl.settings("ring_allreduce_tcm").expect("valid"),
    );
    let (seconds, _) = self::best(60, || {
        let start = Instant::now();
        let run = kernbench::run(&topology, &entry, Engine::Auto).expect("the bench runs");
        assert_eq!(run.line(), BENCH_LINE);
        drop(run);
        (start.elapsed().as_secs_f64(), ())
    });
    line("kernbench2's bench, 256 ranks, from settings to line", seconds * 1e3, "ms", Limit::AtMost(20.0));
    if let Some(seconds) = process() {
        line("the same, the whole process of ccl_allreduce", seconds * 1e3, "ms", Limit::AtMost(20.0));
    }

    let (seconds, _) = self::best(2, || {
        let start = Instant::now();
        prove(&ring(4096, 1), 4, CreditPoint::LastUse).expect("the ring is right");
        (start.elapsed().as_secs_f64(), ())
    });
    line("proof of the ring of 4096", seconds, "s", Limit::AtMost(3.0));

    let cost = |ranks: u32| {
        let (seconds, timing) = self::best((2_000_000 / ranks).clamp(2, 100), || tree_only(ranks, 8));
        seconds / timing.messages as f64 * 1e9
    };
    let costs: Vec<f64> = [1_000, 10_000, 100_000, 1_000_000].into_iter().map(cost).collect();
    let spread = costs.iter().copied().fold(0.0, f64::max) / costs.iter().copied().fold(f64::MAX, f64::min);
    line("cost per message, largest over smallest, 10^3 to 10^6 PEs", spread, "x", Limit::AtMost(3.0));

    // 1 MiB per rank, where latency decides, and 1 MiB per chunk (4 GiB per rank), where bandwidth does.
    for (case, elems, split) in [
        ("optimal ring of 4096, 1 MiB per rank", 1 << 19, 1),
        ("optimal ring of 4096, chunks of 1 MiB in 256 KiB messages", 1 << 31, 4),
    ] {
        let settings = Settings { n_elem: elems, slot_size: 1 << 30, ..Settings::default() };
        let share = efficiency(&ring(4096, split), &direct(), &settings);
        line(case, share, "of the bound", Limit::AtLeast(0.95));
    }
    ExitCode::SUCCESS
}

const PROGRAM: &str = "ccl_allreduce";
const BENCH_LINE: &str = " ring_allreduce_tcm (ws=256): 256 OK";

/// The time of the whole process.
fn process() -> Option<f64> {
    let this = std::env::current_exe().ok()?;
    let run = || -> Option<f64> {
        let start = Instant::now();
        let output = Command::new(&this).arg0(PROGRAM).args(["--world-size", "256"]).output().ok()?;
        let seconds = start.elapsed().as_secs_f64();
        String::from_utf8_lossy(&output.stdout).ends_with(&format!("{BENCH_LINE}\n")).then_some(seconds)
    };
    (0..60).map(|_| run()).reduce(|best, next| Some(best?.min(next?)))?
}

fn shape(split: u32) -> Shape {
    Shape { split, window: 4, ..Shape::default() }
}

fn direct() -> Topology {
    Topology { fabric: Fabric::Direct, ..Topology::default() }
}

/// As the programs run it.
fn timed(program: &dyn Program, topology: &Topology, settings: &Settings, engine: Engine) -> (f64, Timing) {
    let plan = Plan::new(program, topology, settings, u64::MAX).expect("a plan");
    let start = Instant::now();
    let timing = run(&plan, engine, &mut NoProbe).expect("a run");
    (start.elapsed().as_secs_f64(), timing)
}

fn efficiency(ring: &Ring, topology: &Topology, settings: &Settings) -> f64 {
    let plan = Plan::new(ring, topology, settings, u64::MAX).expect("a plan");
    let timing = run(&plan, Engine::A, &mut NoProbe).expect("a run");
    bounds(&plan).most() as f64 / timing.time() as f64
}

fn tree_only(ranks: u32, chunks: u32) -> (f64, Timing) {
    let settings = Settings { n_elem: 4096, ..Settings::default() };
    timed(&TreeAllReduce::new(ranks, chunks).expect("a tree"), &direct(), &settings, Engine::A)
}

/// With building, wiring and routing.
fn tree(ranks: u32, chunks: u32) -> (f64, Timing) {
    let start = Instant::now();
    let settings = Settings { n_elem: 32, ..Settings::default() };
    let program = algo::build("tree_allreduce", ranks, &shape(chunks)).expect("a tree");
    let plan = Plan::new(&*program, &direct(), &settings, u64::MAX).expect("a plan");
    let timing = run(&plan, Engine::Auto, &mut NoProbe).expect("a run");
    (start.elapsed().as_secs_f64(), timing)
}

fn best<T>(times: u32, mut run: impl FnMut() -> (f64, T)) -> (f64, T) {
    let mut best = run();
    for _ in 1..times {
        let next = run();
        if next.0 < best.0 {
            best = next;
        }
    }
    best
}

/// The peak memory of this process, in GiB.
fn peak_memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / (1 << 20) as f64)
}
