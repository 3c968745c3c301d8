//! How fast a Worker comes up, runs tasks and goes, each beside its limit. `cargo xtask bench worker`.

use bench_support::{Bench, Contestant, Figure, FutexPingPong, SpinPingPong, alternate, fork_and_wait};
use std::time::{Duration, Instant};
use worker_orch::{Access, Args, Failure, RunState, Start, Task, Timeout, Worker, serve_if_child};

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

/// A program that finds this set ends at once: the least that starting one by exec costs.
const END_AT_ONCE: &str = "CHIPCOMM_BENCH_END_AT_ONCE";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os(END_AT_ONCE).is_some() {
        return Ok(());
    }
    serve_if_child(&[("nothing", nothing)]);
    let bench = Bench::from_args("worker");
    for chips in [2, 8, 16, 64] {
        up_and_down(&bench, chips)?;
    }
    by_exec(&bench, 8)?;
    round_trips(&bench)?;
    in_flight(&bench)?;
    chain(&bench)?;
    throughput(&bench)?;
    million(&bench)?;
    idle(&bench)?;
    Ok(())
}

fn worker(chips: usize) -> Result<Worker, Failure> {
    Worker::builder().devices(&(0..chips as i32).collect::<Vec<_>>()).build()
}

/// The median in microseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}

fn up_and_down(bench: &Bench, chips: usize) -> Result<(), Box<dyn std::error::Error>> {
    let (init, close) = (format!("init of {chips} chips"), format!("close of {chips} chips"));
    if !bench.wants(&init) && !bench.wants(&close) {
        return Ok(());
    }
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut worker = worker(chips)?;
    for _ in 0..bench.amount(20) {
        times[0].push(fork_and_wait(chips)?);
        let start = Instant::now();
        worker.init()?;
        times[1].push(start.elapsed());
        let start = Instant::now();
        worker.close()?;
        times[2].push(start.elapsed());
    }
    let [limit, up, down] = times.map(median);
    for (case, value) in [(&init, up), (&close, down)] {
        bench.print(&Figure {
            case,
            value,
            unit: "us",
            limit: "fork and wait of as many",
            limit_value: Some(limit),
        });
    }
    Ok(())
}

fn by_exec(bench: &Bench, chips: usize) -> Result<(), Box<dyn std::error::Error>> {
    let case = format!("init of {chips} chips by exec");
    if !bench.wants(&case) {
        return Ok(());
    }
    let devices: Vec<i32> = (0..chips as i32).collect();
    let mut worker = Worker::builder().start(Start::Exec).devices(&devices).build()?;
    let (mut limits, mut times) = (Vec::new(), Vec::new());
    for _ in 0..bench.amount(20) {
        limits.push(spawn_and_wait(chips)?);
        let start = Instant::now();
        worker.init()?;
        times.push(start.elapsed());
        worker.close()?;
    }
    let (value, limit_value) = (median(times), Some(median(limits)));
    bench.print(&Figure { case: &case, value, unit: "us", limit: "spawn and wait of as many", limit_value });
    Ok(())
}

fn spawn_and_wait(count: usize) -> std::io::Result<Duration> {
    let program = std::env::current_exe()?;
    let start = Instant::now();
    let spawn = |_| std::process::Command::new(&program).env(END_AT_ONCE, "1").spawn();
    let mut children = (0..count).map(spawn).collect::<Result<Vec<_>, _>>()?;
    children.iter_mut().try_for_each(|child| child.wait().map(drop))?;
    Ok(start.elapsed())
}

/// A bare spin round trip and a bare futex round trip, in nanoseconds.
fn limits() -> Result<(f64, f64), std::io::Error> {
    let (spin, futex) = (SpinPingPong::new()?, FutexPingPong::new()?);
    let (mut spun, mut parked) = (0, 0);
    let mut one = |me: usize, rounds: u64| spin.play(me, rounds, &mut spun);
    let mut two = |me: usize, rounds: u64| futex.play(me, rounds, &mut parked);
    let mut games = [Contestant { rounds: 2000, play: &mut one }, Contestant { rounds: 200, play: &mut two }];
    let samples = alternate(2, 15, &mut games)?;
    Ok((samples[0].median(), samples[1].median()))
}

fn round_trips(bench: &Bench) -> Result<(), Box<dyn std::error::Error>> {
    let cases = ["empty task, chip awake", "empty task, chip parked"];
    if !cases.iter().any(|case| bench.wants(case)) {
        return Ok(());
    }
    let mut worker = worker(1)?;
    let nothing = worker.register_function("nothing", nothing);
    worker.init()?;
    let args = Args::new();
    let (mut awake, mut parked, mut spin, mut futex) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.amount(30) {
        let limit = limits()?;
        spin.push(limit.0);
        futex.push(limit.1);
        // Long enough for the scheduler to notice that parent and chip want a core each.
        let warm = Instant::now();
        while warm.elapsed() < Duration::from_millis(50) {
            worker.run(|orch| orch.submit_next_level(nothing, &args, 0))?;
        }
        let start = Instant::now();
        for _ in 0..1000 {
            worker.run(|orch| orch.submit_next_level(nothing, &args, 0))?;
        }
        awake.push(start.elapsed() / 1000);
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(2));
            let start = Instant::now();
            worker.run(|orch| orch.submit_next_level(nothing, &args, 0))?;
            parked.push(start.elapsed());
        }
    }
    let mid = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (spin, futex) = (mid(spin), mid(futex));
    for (case, value, limit, limit_value) in [
        (cases[0], median(awake) * 1e3, "bare spin ping-pong", spin),
        (cases[1], median(parked) * 1e3, "bare futex ping-pong", futex),
    ] {
        bench.print(&Figure { case, value, unit: "ns", limit, limit_value: Some(limit_value) });
    }
    Ok(())
}

/// Runs of one task each, with so many in flight; beside runs that are waited for one by one.
fn in_flight(bench: &Bench) -> Result<(), Box<dyn std::error::Error>> {
    const RUNS: usize = 2000;
    let most = [1, 2, 8];
    let cases = most.map(|most| format!("runs of one task, {most} in flight"));
    if !cases.iter().any(|case| bench.wants(case)) {
        return Ok(());
    }
    let mut workers = Vec::new();
    for most in most {
        let mut worker = Worker::builder().devices(&[0]).runs_in_flight(most).build()?;
        let nothing = worker.register_function("nothing", nothing);
        worker.init()?;
        workers.push((worker, nothing, Vec::new()));
    }
    let (args, mut waited) = (Args::new(), Vec::new());
    for _ in 0..bench.amount(20) {
        for (worker, nothing, times) in &mut workers {
            let nothing = *nothing;
            let start = Instant::now();
            for _ in 0..RUNS {
                worker.run(|orch| orch.submit_next_level(nothing, &args, 0))?;
            }
            waited.push(start.elapsed());
            let start = Instant::now();
            let mut last = None;
            for _ in 0..RUNS {
                last = Some(worker.submit_run(|orch| orch.submit_next_level(nothing, &args, 0))?.1);
            }
            if let Some(run) = last
                && run.wait(worker, Timeout::default())? != RunState::Done
            {
                return Err("the runs did not end in time".into());
            }
            times.push(start.elapsed());
        }
    }
    let per_second = |times: Vec<Duration>| RUNS as f64 / (median(times) / 1e6);
    let limit_value = Some(per_second(waited));
    for (case, (_, _, times)) in cases.iter().zip(workers) {
        let value = per_second(times);
        bench.print(&Figure { case, value, unit: "runs/s", limit: "runs that are waited for", limit_value });
    }
    Ok(())
}

fn chain(bench: &Bench) -> Result<(), Box<dyn std::error::Error>> {
    let case = "chain of 10,000 dependent tasks over 2 chips, each";
    if !bench.wants(case) {
        return Ok(());
    }
    let mut worker = worker(2)?;
    let nothing = worker.register_function("nothing", nothing);
    let data = worker.host_buffer::<f32>(16)?;
    worker.init()?;
    let args = Args::new().tensor(&data.tensor(), Access::InOut);
    let empty = Args::new();
    let (mut each, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..bench.amount(20) {
        let start = Instant::now();
        for _ in 0..1000 {
            worker.run(|orch| orch.submit_next_level(nothing, &empty, 0))?;
        }
        trips.push(start.elapsed() / 1000);
        let start = Instant::now();
        worker.run(|orch| {
            (0..10_000).try_for_each(|step| orch.submit_next_level(nothing, &args, step % 2).map(drop))
        })?;
        each.push(start.elapsed() / 10_000);
    }
    let (value, limit_value) = (median(each) * 1e3, Some(median(trips) * 1e3));
    bench.print(&Figure { case, value, unit: "ns", limit: "empty task round trip", limit_value });
    Ok(())
}

fn throughput(bench: &Bench) -> Result<(), Box<dyn std::error::Error>> {
    let case = "independent empty tasks over 2 chips";
    if !bench.wants(case) {
        return Ok(());
    }
    let mut worker = worker(2)?;
    let nothing = worker.register_function("nothing", nothing);
    worker.init()?;
    let args = Args::new();
    let mut each = Vec::new();
    for _ in 0..bench.amount(20) {
        let start = Instant::now();
        worker.run(|orch| {
            (0..100_000).try_for_each(|step| orch.submit_next_level(nothing, &args, step % 2).map(drop))
        })?;
        each.push(start.elapsed());
    }
    let value = 100_000.0 / (median(each) / 1e6);
    bench.print(&Figure { case, value, unit: "tasks/s", limit: "the target", limit_value: Some(500_000.0) });
    Ok(())
}

fn million(bench: &Bench) -> Result<(), Box<dyn std::error::Error>> {
    let case = "memory grown by 1,000,000 tasks in one run";
    if !bench.wants(case) {
        return Ok(());
    }
    let mut worker = worker(2)?;
    let nothing = worker.register_function("nothing", nothing);
    let data = worker.host_buffer::<f32>(1 << 16)?;
    worker.init()?;
    let tasks = bench.amount(1_000_000);
    let submit = |orch: &mut worker_orch::Orchestrator<'_>, count: usize| {
        (0..count).try_for_each(|step| {
            let part = comm_context::abi::DeviceAddr(data.tensor().addr + 64 * (step as u64 % 4096));
            let tensor = worker_orch::flat_tensor(part, comm_context::abi::DType::Float32, 16)?;
            orch.submit_next_level(nothing, &Args::new().tensor(&tensor, Access::InOut), step % 2).map(drop)
        })
    };
    worker.run(|orch| submit(orch, 10_000))?;
    let before = resident_kib();
    worker.run(|orch| submit(orch, tasks))?;
    let value = resident_kib() - before;
    bench.print(&Figure { case, value, unit: "KiB", limit: "1 MiB", limit_value: Some(1024.0) });
    Ok(())
}

fn resident_kib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

fn idle(bench: &Bench) -> Result<(), Box<dyn std::error::Error>> {
    let case = "idle Worker with 16 chips";
    if !bench.wants(case) {
        return Ok(());
    }
    let mut worker = worker(16)?;
    worker.init()?;
    std::thread::sleep(Duration::from_millis(100));
    let before = children_ticks()?;
    std::thread::sleep(Duration::from_secs(2));
    // A tick is 10 ms; two seconds are 200.
    let value = (children_ticks()? - before) as f64 / 200.0 * 100.0;
    bench.print(&Figure { case, value, unit: "%", limit: "1 % of a core", limit_value: Some(1.0) });
    Ok(())
}

/// Processor time of all child processes, in ticks.
fn children_ticks() -> std::io::Result<u64> {
    let me = std::process::id().to_string();
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some(rest) = stat.rfind(')').map(|at| &stat[at + 2..]) else { continue };
        let fields: Vec<&str> = rest.split(' ').collect();
        if fields.get(1) == Some(&me.as_str()) {
            ticks += [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    Ok(ticks)
}
