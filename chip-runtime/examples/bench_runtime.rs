//! What tasks cost, each figure beside its limit. `cargo xtask bench runtime`.

use bench_support::{
    Bench, Contestant, Figure, SpinPingPong, alternate, futex_wait, futex_wake, processor_time,
};
use chip_runtime::signals::{Domain, Signal, SignalOp, Signaller, Signals, Wait};
use chip_runtime::{
    Buffer, FrontEnd, Graph, KernelId, Kernels, Limits, Runtime, RuntimeError, ScopeMode, TaskArgs, Tensor,
};
use deadline::Deadline;
use mailbox_atomics::{Listener, WordU32};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Done = Result<(), Box<dyn std::error::Error>>;

fn main() -> Done {
    let bench = Bench::from_args("runtime");
    one_task(&bench)?;
    stream(&bench)?;
    submit(&bench)?;
    million(&bench)?;
    inference(&bench)?;
    turns(&bench)?;
    started(&bench)?;
    parked(&bench)?;
    idle(&bench)?;
    idle_with_waits(&bench)
}

fn runtime(limits: Limits) -> Result<(Runtime, KernelId), RuntimeError> {
    let mut runtime = Runtime::new(limits)?;
    let nothing = runtime.kernel("nothing", |_| Ok(()));
    Ok((runtime, nothing))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120)).expect("two minutes are a time limit")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(bench: &Bench, case: &str, value: f64, unit: &str, limit: &str, limit_value: f64) {
    bench.print(&Figure { case, value, unit, limit, limit_value: Some(limit_value) });
}

/// A whole run of one empty task: submit, a core, the end.
fn one_task(bench: &Bench) -> Done {
    let case = "run of one empty task, warm";
    if !bench.wants(case) {
        return Ok(());
    }
    let (mut runtime, nothing) = runtime(Limits::default())?;
    let args = TaskArgs::new();
    let mut one = |runs: usize| -> Result<f64, RuntimeError> {
        let start = Instant::now();
        for _ in 0..runs {
            runtime.run(FrontEnd::Inferred, soon(), |graph| {
                graph.submit(Kernels::aiv(nothing), &args).map(drop)
            })?;
        }
        Ok(start.elapsed().as_nanos() as f64 / 1e3 / runs as f64)
    };
    one(20_000)?;
    let times = (0..bench.amount(500)).map(|_| one(200)).collect::<Result<_, _>>()?;
    print(bench, case, median(times), "us", "1 us", 1.0);
    Ok(())
}

/// Empty tasks as fast as they can be submitted, all at once.
fn stream(bench: &Bench) -> Done {
    let case = "empty task in a stream";
    if !bench.wants(case) {
        return Ok(());
    }
    let (mut runtime, nothing) = runtime(Limits::default())?;
    let args = TaskArgs::new();
    let tasks = 10_000;
    let mut one = || -> Result<f64, RuntimeError> {
        let start = Instant::now();
        runtime.run(FrontEnd::Inferred, soon(), |graph| {
            (0..tasks).try_for_each(|_| graph.submit(Kernels::aiv(nothing), &args).map(drop))
        })?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3 / f64::from(tasks))
    };
    one()?;
    let times = (0..bench.amount(50)).map(|_| one()).collect::<Result<_, _>>()?;
    print(bench, case, median(times), "us", "1 us", 1.0);
    Ok(())
}

/// What the cores do while submits are timed.
#[derive(Clone, Copy, PartialEq)]
enum Cores {
    /// Nothing: every task waits for one that has not ended.
    Wait,
    /// Run what is submitted.
    Run,
}

/// The builder's time for a submit with an input and an output. The limit is that of a builder that has its graph to
/// itself, as one has whose scheduler is on another device; beside cores that end a task for each submit, the memory of the
/// graph also moves to the other processor and back each time.
fn submit(bench: &Bench) -> Done {
    for (case, front_end, cores) in [
        ("submit, 2 tensors, prebuilt", FrontEnd::Prebuilt, Cores::Wait),
        ("submit, 2 tensors, inferred", FrontEnd::Inferred, Cores::Wait),
        ("submit, 2 tensors, inferred, beside cores", FrontEnd::Inferred, Cores::Run),
    ] {
        if !bench.wants(case) {
            continue;
        }
        let (mut runtime, nothing) = runtime(Limits::default())?;
        let (open, gate) = std::sync::mpsc::sync_channel::<()>(1);
        let gate = std::sync::Mutex::new(gate);
        let held = runtime.kernel("held", move |_| Ok(gate.lock().map_err(|e| e.to_string())?.recv()?));
        let mut data = Buffer::<f32>::zeroed(&[64 * 1024]);
        let mut one = || -> Result<f64, RuntimeError> {
            runtime.run(front_end, soon(), |graph| {
                let data = graph.import(&mut data)?;
                let first = match cores {
                    Cores::Wait => Some(graph.submit(Kernels::aiv(held), &TaskArgs::new())?.task),
                    Cores::Run => None,
                };
                let args: Vec<TaskArgs> = (0..1024u32)
                    .map(|at| {
                        let slice = |at: u32| data.range(64 * at..64 * at + 64);
                        let args =
                            TaskArgs::new().input(&slice(at)?).output_existing(&slice((at + 7) % 1024)?);
                        Ok(first.map_or(args.clone(), |first| args.after(first)))
                    })
                    .collect::<Result<_, RuntimeError>>()?;
                let start = Instant::now();
                for args in &args {
                    graph.submit(Kernels::aiv(nothing), args)?;
                }
                let time = start.elapsed();
                if cores == Cores::Wait {
                    open.send(()).expect("the kernel has the other end");
                }
                Ok(time.as_nanos() as f64 / 1e3 / args.len() as f64)
            })
        };
        one()?;
        let times = (0..bench.amount(100)).map(|_| one()).collect::<Result<_, _>>()?;
        print(bench, case, median(times), "us", "0.75 us", 0.75);
    }
    Ok(())
}

/// A million tasks through a window of 1,024 slots, in scopes of 256: the time of each, and what memory grew.
fn million(bench: &Bench) -> Done {
    let cases = ["task of a million, window 1024", "memory after a million over after 100,000"];
    if !cases.iter().any(|case| bench.wants(case)) {
        return Ok(());
    }
    let (mut runtime, nothing) = runtime(Limits { slots: 1024, heap: 4 << 20, ..Limits::default() })?;
    let mut data = Buffer::<f32>::zeroed(&[64 * 256]);
    let (total, scope) = (bench.amount(1_000_000) as u32, 256u32);
    let mut early = 0.0;
    let start = Instant::now();
    runtime.run(FrontEnd::Inferred, soon(), |graph| {
        let data = graph.import(&mut data)?;
        let args: Vec<TaskArgs> = (0..scope)
            .map(|at| Ok(TaskArgs::new().inout(&data.range(64 * at..64 * at + 64)?)))
            .collect::<Result<_, RuntimeError>>()?;
        for round in 0..total.div_ceil(scope) {
            if round == total / scope / 10 {
                early = resident();
            }
            graph.scope(ScopeMode::Auto, |graph: &mut Graph<'_>| {
                args.iter().try_for_each(|args| graph.submit(Kernels::aiv(nothing), args).map(drop))
            })?;
        }
        Ok::<_, RuntimeError>(())
    })?;
    let each = start.elapsed().as_nanos() as f64 / 1e3 / f64::from(total);
    print(bench, cases[0], each, "us", "1 us", 1.0);
    print(bench, cases[1], resident(), "KiB", "then", early);
    Ok(())
}

/// This process's memory, in KiB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(f64::NAN)
}

/// What is live while submits are timed: parts of one buffer.
#[derive(Clone, Copy)]
enum Parts {
    /// One after the other in memory.
    Ranges,
    /// Columns of a matrix: their byte ranges all overlap.
    Columns,
    /// Tiles of a matrix with a hundred in each row.
    Tiles,
}

impl Parts {
    fn buffer(self, live: u32) -> Buffer<f32> {
        match self {
            Self::Ranges => Buffer::zeroed(&[64 * live]),
            Self::Columns => Buffer::zeroed(&[64, live]),
            Self::Tiles => Buffer::zeroed(&[8 * live / 100, 800]),
        }
    }

    fn part(self, of: &Tensor<f32>, at: u32) -> Result<Tensor<f32>, RuntimeError> {
        match self {
            Self::Ranges => of.range(64 * at..64 * at + 64),
            Self::Columns => of.slice(&[0..64, at..at + 1]),
            Self::Tiles => {
                let (row, column) = (8 * (at / 100), 8 * (at % 100));
                of.slice(&[row..row + 8, column..column + 8])
            }
        }
    }
}

/// What a submit costs while so many tensors have unfinished users, over what it costs among a tenth of them: 1.2 to 1.4 times
/// as much where the cost is logarithmic, ten times where it is linear. What is over that is memory that is in no cache.
fn inference(bench: &Bench) -> Done {
    let among = |parts: Parts, live: u32| -> Result<f64, RuntimeError> {
        let (mut runtime, nothing) = runtime(Limits { slots: 1 << 16, ..Limits::default() })?;
        let mut data = parts.buffer(live);
        let mut times = Vec::new();
        for _ in 0..bench.amount(20) {
            let time = runtime.run(FrontEnd::Prebuilt, soon(), |graph| {
                let data = graph.import(&mut data)?;
                for at in 0..live {
                    let args = TaskArgs::new().inout(&parts.part(&data, at)?);
                    graph.submit(Kernels::aiv(nothing), &args)?;
                }
                let next: Vec<TaskArgs> = (0..100u32)
                    .map(|at| Ok(TaskArgs::new().inout(&parts.part(&data, at * 6151 % live)?)))
                    .collect::<Result<_, RuntimeError>>()?;
                let start = Instant::now();
                next.iter().try_for_each(|args| graph.submit(Kernels::aiv(nothing), args).map(drop))?;
                Ok(start.elapsed().as_nanos() as f64 / 1e3 / next.len() as f64)
            })?;
            times.push(time);
        }
        Ok(median(times))
    };
    for (case, parts, live, limit) in [
        ("submit among 10,000 live tensors", Parts::Ranges, 10_000, "2 x among 1,000"),
        ("submit among 60,000 live tensors", Parts::Ranges, 60_000, "2 x among 6,000"),
        ("submit among 10,000 live columns", Parts::Columns, 10_000, "2 x among 1,000"),
        ("submit among 10,000 live tiles", Parts::Tiles, 10_000, "2 x among 1,000"),
    ] {
        if bench.wants(case) {
            print(bench, case, among(parts, live)?, "us", limit, 2.0 * among(parts, live / 10)?);
        }
    }
    Ok(())
}

/// A bare spin round trip of two processes, in microseconds.
fn spin_ping_pong() -> Result<f64, std::io::Error> {
    let (spin, mut played) = (SpinPingPong::new()?, 0);
    let mut play = |me: usize, rounds: u64| spin.play(me, rounds, &mut played);
    let samples = alternate(2, 9, &mut [Contestant { rounds: 2000, play: &mut play }])?;
    Ok(samples[0].median() / 1e3)
}

/// Two chips in turns, in two threads: from the end of a task on one, by its signal, to the end of the task on the other that
/// waits for it.
fn turns(bench: &Bench) -> Done {
    let cases = ["signal to end of the waiting task", "signal, send alone"];
    if !cases.iter().any(|case| bench.wants(case)) {
        return Ok(());
    }
    let spin = spin_ping_pong()?;
    let rounds = bench.amount(5000) as u32;
    let mut times = Vec::new();
    for number in 1..=bench.amount(10) as u64 {
        let chips = Signals::in_process(2, 4096)?;
        let play = |me: u32| -> Result<f64, RuntimeError> {
            let (mut runtime, nothing) = runtime(Limits { clusters: 1, ..Limits::default() })?;
            runtime.connect(chips[me as usize].clone());
            runtime.session(number, &[0, 1]);
            let mut start = Instant::now();
            runtime.run(FrontEnd::Prebuilt, soon(), |graph| {
                let mut before = None;
                for round in 0..rounds {
                    let wait = Wait {
                        domain: Domain::BASE,
                        offset: 0,
                        at_least: round + me,
                        from: Signaller::Rank(1 - me),
                    };
                    let signal =
                        Signal { domain: Domain::BASE, rank: 1 - me, offset: 0, op: SignalOp::Add(1) };
                    let args = TaskArgs::new().wait(wait).signal(signal);
                    let args = before.map_or(args.clone(), |before| args.after(before));
                    before = Some(graph.submit(Kernels::aiv(nothing), &args)?.task);
                }
                start = Instant::now();
                Ok(())
            })?;
            Ok(start.elapsed().as_nanos() as f64 / 1e3 / f64::from(2 * rounds))
        };
        let both = std::thread::scope(|scope| {
            let threads = [0, 1].map(|me| scope.spawn(move || play(me)));
            threads.map(|thread| thread.join().expect("a chip does not panic"))
        });
        for time in both {
            times.push(time?);
        }
    }
    print(bench, cases[0], 1e3 * median(times), "ns", "3 x bare spin ping-pong", 3e3 * spin);
    let alone = Signals::in_process(2, 4096)?;
    let signal = Signal { domain: Domain::BASE, rank: 1, offset: 0, op: SignalOp::Add(1) };
    // As the engine sends: the word was found when its task was submitted.
    let target = alone[0].target(&signal)?;
    let (word, doorbell, flag) = (AtomicU32::new(0), WordU32::new(0), WordU32::new(0));
    let (mut sends, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..bench.amount(50) {
        let start = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(target.send(signal.op));
        }
        sends.push(start.elapsed().as_nanos() as f64 / 1e3);
        let start = Instant::now();
        for _ in 0..1000 {
            word.fetch_add(1, Ordering::Release);
            doorbell.store_and_notify(doorbell.load().wrapping_add(1), [Listener::new(&flag)]);
        }
        bare.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    print(bench, cases[1], median(sends), "ns", "2 x bare add and notify", 2.0 * median(bare));
    Ok(())
}

/// From a signal to the start of the task that waits for it, on a chip that looks for it. The kernel tells the sender by a
/// bare word, which then waits until the chip has come to the next wait.
fn started(bench: &Bench) -> Done {
    let case = "signal to start of the task";
    if !bench.wants(case) {
        return Ok(());
    }
    let spin = spin_ping_pong()?;
    let rounds = bench.amount(2000) as u32;
    let (zero, mut times) = (Instant::now(), Vec::new());
    let now = move || zero.elapsed().as_nanos() as u64;
    for number in 1..=bench.amount(10) as u64 {
        let chips = Signals::in_process(2, 4096)?;
        let (mut runtime, _) = runtime(Limits { clusters: 1, ..Limits::default() })?;
        let begun = std::sync::Arc::new([const { AtomicU64::new(0) }; 2]);
        let ([at, count], started) = ([0, 1], begun.clone());
        let start = runtime.kernel("start", move |_| {
            started[at].store(now(), Ordering::Relaxed);
            started[count].fetch_add(1, Ordering::Release);
            Ok(())
        });
        runtime.connect(chips[1].clone());
        runtime.session(number, &[0, 1]);
        let sent = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let signal = Signal { domain: Domain::BASE, rank: 1, offset: 0, op: SignalOp::Add(1) };
                let target = chips[0].target(&signal).expect("the word is in the window");
                let turn = |round: u32| {
                    // Never the same time: a thread that waits yields once in a while.
                    let ready = now() + 2000 + u64::from(round * 619 % 2000);
                    while now() < ready {
                        std::hint::spin_loop();
                    }
                    let sent = now();
                    target.send(signal.op);
                    while begun[count].load(Ordering::Acquire) <= u64::from(round) {
                        std::hint::spin_loop();
                    }
                    (begun[at].load(Ordering::Relaxed) - sent) as f64 / 1e3
                };
                (0..rounds).map(turn).collect::<Vec<f64>>()
            });
            let ran = runtime.run(FrontEnd::Inferred, soon(), |graph| {
                let mut before = None;
                for round in 1..=rounds {
                    let from = Signaller::Rank(0);
                    let wait = Wait { domain: Domain::BASE, offset: 0, at_least: round, from };
                    let args = TaskArgs::new().wait(wait);
                    let args = before.map_or(args.clone(), |before| args.after(before));
                    before = Some(graph.submit(Kernels::aiv(start), &args)?.task);
                }
                Ok(())
            });
            ran.map(|()| sender.join().expect("the sender does not panic"))
        })?;
        times.push(median(sent));
    }
    print(bench, case, 1e3 * median(times), "ns", "3 x bare spin ping-pong", 3e3 * spin);
    Ok(())
}

/// From a signal to the start of the task that waits for it, on a chip whose threads are parked by then. In turns with a bare
/// futex wake-up: from before the call to the first instruction of a thread that has slept as long.
fn parked(bench: &Bench) -> Done {
    let case = "signal to start of the task, parked";
    if !bench.wants(case) {
        return Ok(());
    }
    let rounds = bench.amount(400) as u32;
    let chips = Signals::in_process(2, 4096)?;
    let (mut runtime, _) = runtime(Limits { clusters: 1, ..Limits::default() })?;
    let begun = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let starts = begun.clone();
    let start = runtime.kernel("start", move |_| {
        starts.lock().map_err(|error| error.to_string())?.push(Instant::now());
        Ok(())
    });
    runtime.connect(chips[1].clone());
    // The other has no graph: no deadlock can be proved, and a prebuilt graph would wait for what that one declares.
    runtime.session(1, &[0, 1]);
    let bare = AtomicU32::new(0);
    let (sent, woken) = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let wake_up = |round: u32| {
                while bare.load(Ordering::Acquire) <= round {
                    futex_wait(&bare, round);
                }
                Instant::now()
            };
            (0..rounds).map(wake_up).collect::<Vec<Instant>>()
        });
        let sender = scope.spawn(|| {
            let signal = Signal { domain: Domain::BASE, rank: 1, offset: 0, op: SignalOp::Add(1) };
            let target = chips[0].target(&signal).expect("the word is in the window");
            let after_a_while = |wake: &dyn Fn()| {
                // Twice that, until it is this one's turn again: longer than anything spins.
                std::thread::sleep(Duration::from_millis(1));
                let now = Instant::now();
                wake();
                now
            };
            let send = |_| {
                let sent = after_a_while(&|| {
                    target.send(signal.op);
                });
                let woken = after_a_while(&|| {
                    bare.fetch_add(1, Ordering::Release);
                    futex_wake(&bare, 1);
                });
                (sent, woken)
            };
            (0..rounds).map(send).collect::<Vec<(Instant, Instant)>>()
        });
        let ran = runtime.run(FrontEnd::Inferred, soon(), |graph| {
            let mut before = None;
            for round in 1..=rounds {
                let from = Signaller::Rank(0);
                let wait = Wait { domain: Domain::BASE, offset: 0, at_least: round, from };
                let args = TaskArgs::new().wait(wait);
                let args = before.map_or(args.clone(), |before| args.after(before));
                before = Some(graph.submit(Kernels::aiv(start), &args)?.task);
            }
            Ok(())
        });
        let sent = sender.join().expect("the sender does not panic");
        let woken = sleeper.join().expect("the sleeper does not panic");
        ran.map(|()| (sent, woken))
    })?;
    let begun = begun.lock().expect("no kernel panicked");
    let times = |from: &mut dyn Iterator<Item = Instant>, to: &[Instant]| {
        median(from.zip(to).map(|(from, to)| (*to - from).as_nanos() as f64 / 1e3).collect())
    };
    let task = times(&mut sent.iter().map(|(sent, _)| *sent), &begun);
    let bare = times(&mut sent.iter().map(|(_, woken)| *woken), &woken);
    print(bench, case, task, "us", "1.5 x bare futex wake-up after 2 ms of sleep", 1.5 * bare);
    Ok(())
}

/// The processor time of a runtime that ran a graph on all its cores and has nothing to do.
fn idle(bench: &Bench) -> Done {
    let case = "idle, 8 clusters";
    if !bench.wants(case) {
        return Ok(());
    }
    let (mut runtime, _) = runtime(Limits::default())?;
    let sleep = runtime.kernel("sleep", |_| {
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    });
    let args = TaskArgs::new().blocks(16).sync_start();
    runtime.run(FrontEnd::Inferred, soon(), |graph| graph.submit(Kernels::aiv(sleep), &args).map(drop))?;
    std::thread::sleep(Duration::from_millis(20));
    let (start, used) = (Instant::now(), processor_time());
    std::thread::sleep(Duration::from_millis(bench.amount(3000) as u64));
    let share = (processor_time() - used).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    print(bench, case, share, "%", "1 % of a core", 1.0);
    Ok(())
}

/// The processor time of 16 chips whose tasks wait for a signal that comes late, as chips of a Worker do: on the threads that
/// called them. Words that a kernel may signal have no wake-up, and are looked at with pauses.
fn idle_with_waits(bench: &Bench) -> Done {
    for (case, from) in [
        ("idle, 16 chips with armed waits", Signaller::Rank(0)),
        ("idle, 16 chips with waits for kernels", Signaller::Unknown),
    ] {
        if bench.wants(case) {
            print(bench, case, idle_for(bench, from)?, "%", "1 % of a core", 1.0);
        }
    }
    Ok(())
}

fn idle_for(bench: &Bench, from: Signaller) -> Result<f64, Box<dyn std::error::Error>> {
    let chips = Signals::in_process(16, 4096)?;
    let members: Vec<u32> = (0..16).collect();
    let pause = Duration::from_millis(bench.amount(3000) as u64);
    let wait = Wait { domain: Domain::BASE, offset: 0, at_least: 1, from };
    let play = |me: u32| -> Result<f64, RuntimeError> {
        let (mut runtime, nothing) = runtime(Limits::default())?;
        runtime.connect(chips[me as usize].clone());
        runtime.session(1, &members);
        runtime.use_calling_thread();
        let mut share = 0.0;
        runtime.run(FrontEnd::Inferred, soon(), |graph| {
            if me > 0 {
                return graph.submit(Kernels::aiv(nothing), &TaskArgs::new().wait(wait)).map(drop);
            }
            std::thread::sleep(Duration::from_millis(200));
            let (start, used) = (Instant::now(), processor_time());
            std::thread::sleep(pause);
            share = (processor_time() - used).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
            let signal = |rank| Signal { domain: Domain::BASE, rank, offset: 0, op: SignalOp::Add(1) };
            graph
                .submit_dummy(&(1..16).fold(TaskArgs::new(), |args, rank| args.signal(signal(rank))))
                .map(drop)
        })?;
        Ok(share)
    };
    let shares: Result<Vec<f64>, RuntimeError> = std::thread::scope(|scope| {
        let play = &play;
        let threads: Vec<_> = (0..16).map(|me| scope.spawn(move || play(me))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a chip does not panic")).collect()
    });
    Ok(shares?.into_iter().fold(0.0, f64::max))
}
