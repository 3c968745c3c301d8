//! How long it takes until failures of graphs that wait for each other are reported, each figure beside its limit.
//! `cargo xtask bench graph_failures`.
//!
//! The graph of one chip kills its process while those of the others wait for its signal, or all wait for each other. Each
//! figure is the median, the 99th percentile or the longest of all rounds.

use bench_support::{Bench, Figure};
use deadline::monotonic_ns;
use nix::sys::signal::{Signal as Kill, raise};
use std::time::Duration;
use worker_orch::runtime::signals::{Domain, Signaller, Wait};
use worker_orch::runtime::{FrontEnd, KernelId, Kernels, Limits, TaskArgs};
use worker_orch::{
    Access, Args, ChipConfig, ErrorCode, Failure, HostBuffer, Membership, Program, Task, Worker,
};

type Done = Result<(), Box<dyn std::error::Error>>;

/// Chips of a group.
const CHIPS: usize = 4;
/// How long the others wait before it happens: long enough for all of them to sleep.
const BEFORE: Duration = Duration::from_millis(120);
/// The word in the window.
const WORD: u64 = 64;

fn main() -> Done {
    let bench = Bench::from_args("graph_failures");
    let rounds = bench.amount(100).max(5);
    measure(&bench, rounds, "death", "of a chip while WAITs are armed", 200.0, death)?;
    measure(&bench, rounds, "deadlock", "of all chips, proved", 1000.0, deadlock)
}

/// Times in milliseconds: until the run returns, and until the first graph fails, where one comes to note that. The other
/// chips of one that dies are ended too.
struct Times {
    run_ms: f64,
    graph_ms: Option<f64>,
}

fn measure(
    bench: &Bench,
    rounds: usize,
    name: &str,
    what: &str,
    limit_ms: f64,
    round: fn() -> Result<Times, Failure>,
) -> Done {
    if !bench.wants(name) {
        return Ok(());
    }
    let times = (0..rounds).map(|_| round()).collect::<Result<Vec<_>, _>>()?;
    let run: Vec<f64> = times.iter().map(|times| times.run_ms).collect();
    let graph: Vec<f64> = times.iter().filter_map(|times| times.graph_ms).collect();
    for (to, mut values) in [("run returns", run), ("graph fails", graph)] {
        if values.len() < rounds {
            continue;
        }
        values.sort_by(f64::total_cmp);
        for (percent, label) in [(50, "p50"), (99, "p99"), (100, "max")] {
            let value = values[(values.len() * percent).div_ceil(100).max(1) - 1];
            let (case, limit) = (format!("{name} {what}: {to}, {label}"), format!("{limit_ms} ms"));
            bench.print(&Figure {
                case: &case,
                value,
                unit: "ms",
                limit: &limit,
                limit_value: Some(limit_ms),
            });
        }
    }
    Ok(())
}

/// A Worker whose chips are a group, and where they note times: one element of the buffer for each chip and kind.
struct Chips {
    worker: Worker,
    program: Program,
    times: Vec<HostBuffer<u64>>,
}

impl Chips {
    fn up(run: fn(&mut Task<'_>) -> Result<(), Failure>) -> Result<Self, Failure> {
        let devices: Vec<i32> = (0..CHIPS as i32).collect();
        let mut worker = Worker::builder().devices(&devices).build()?;
        let config = |rank: usize| {
            let member = Membership::new(rank as u32, CHIPS as u32)
                .map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))?;
            Ok(ChipConfig::new(rank as i32).communicator(member).window(4096))
        };
        worker.configure_chips((0..CHIPS).map(config).collect::<Result<_, Failure>>()?)?;
        let times = (0..CHIPS).map(|_| worker.host_buffer(2)).collect::<Result<_, _>>()?;
        let program = worker.register_graph("graph", run)?;
        worker.init()?;
        Ok(Self { worker, program, times })
    }

    /// Runs a graph that must fail with this, and returns when it began to be wrong (0), when the first graph failed (1), and
    /// when the run returned.
    fn fail(&mut self, with: &str) -> Result<(u64, Option<u64>, u64), Failure> {
        let args = |times: &HostBuffer<u64>| Args::new().tensor(&times.tensor(), Access::InOut);
        let members: Vec<_> = self.times.iter().map(args).enumerate().collect();
        let (worker, program) = (&mut self.worker, self.program);
        let ended = worker.run(|orch| orch.submit_group(program, &members).map(drop));
        let returned = monotonic_ns();
        let text = ended.err().map(|failure| failure.to_string()).unwrap_or_default();
        if !text.contains(with) {
            return Err(Failure::new(ErrorCode::Internal, format!("no {with:?} in {text:?}")));
        }
        let all = |at: usize| self.times.iter().map(move |times| times.to_vec()[at]).filter(|time| *time > 0);
        Ok((all(0).max().unwrap_or(returned), all(1).min(), returned))
    }
}

fn times((since, graph, run): (u64, Option<u64>, u64)) -> Times {
    let ms = |until: u64| until.saturating_sub(since) as f64 / 1e6;
    Times { run_ms: ms(run), graph_ms: graph.map(ms) }
}

/// Chip 1 dies while the others wait for it.
fn death() -> Result<Times, Failure> {
    let mut chips = Chips::up(|task| {
        note(task, 0, 0)?;
        let times = task.tensors()[0];
        let mut graphs = task.graphs(&limits())?;
        graphs.runtime().set_kernel(KernelId(0), "dies", |block| {
            std::thread::sleep(BEFORE);
            block.write(0, &[monotonic_ns(), 0])?;
            let _ = raise(Kill::SIGKILL);
            Ok(())
        });
        let me = graphs.signals().rank();
        let ended = graphs.run(FrontEnd::Inferred, |graph| match me {
            1 => graph.submit(Kernels::aiv(KernelId(0)), &TaskArgs::new().inout(&times)).map(drop),
            _ => graph.submit_dummy(&TaskArgs::new().wait(wait(1))).map(drop),
        });
        note(task, 1, monotonic_ns())?;
        ended
    })?;
    let found = chips.fail("SIGKILL")?;
    // It is lost, which is known.
    let _ = chips.worker.close();
    Ok(times(found))
}

/// Each chip waits for the next.
fn deadlock() -> Result<Times, Failure> {
    let mut chips = Chips::up(|task| {
        let mut graphs = task.graphs(&limits())?;
        let next = (graphs.signals().rank() + 1) % CHIPS as u32;
        let mut since = 0;
        let ended = graphs.run(FrontEnd::Inferred, |graph| {
            std::thread::sleep(BEFORE * (next + 1));
            since = monotonic_ns();
            graph.submit_dummy(&TaskArgs::new().wait(wait(next))).map(drop)
        });
        note(task, 0, since)?;
        note(task, 1, monotonic_ns())?;
        ended
    })?;
    let found = chips.fail("no chip can go on")?;
    chips.worker.close()?;
    Ok(times(found))
}

fn note(task: &Task<'_>, at: usize, time: u64) -> Result<(), Failure> {
    let mut times = task.read::<u64>(0)?;
    times[at] = time;
    task.write(0, &times)
}

fn limits() -> Limits {
    Limits { clusters: 1, slots: 16, heap: 1 << 16, ..Limits::default() }
}

fn wait(from: u32) -> Wait {
    Wait { domain: Domain::BASE, offset: WORD, at_least: 1, from: Signaller::Rank(from) }
}
