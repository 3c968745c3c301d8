//! Graphs on the cores of chips: signals between them, failures, deadlocks and deaths.
#![allow(missing_docs)]

mod support;

use nix::sys::signal::{Signal as Kill, raise};
use serial_test::serial;
use std::time::{Duration, Instant};
use support::{builder, form_group, grouped, secs, text, traces};
use worker_orch::runtime::signals::{Domain, NamedBuffer, Signal, SignalOp, Signaller, Wait};
use worker_orch::runtime::{ErrorKind, FrontEnd, KernelId, Kernels, Limits, RuntimeError, TaskArgs};
use worker_orch::{Access, Args, DType, ErrorCode, Failure, HostBuffer, Platform, Task, Worker, flat_tensor};

const COUNT: usize = 300;
const COPY: KernelId = KernelId(0);
const SUM: KernelId = KernelId(1);
const FAIL: KernelId = KernelId(2);

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::Task, error.to_string())
}

/// As a graph's own error.
fn refused(error: impl std::fmt::Display) -> RuntimeError {
    ErrorKind::Orchestration(error.to_string()).into()
}

fn limits() -> Limits {
    Limits { clusters: 2, slots: 64, heap: 1 << 20, ..Limits::default() }
}

/// Sums tensor 0 of all chips into tensor 1 of each: peers read each other's windows when a signal says that they may.
///
/// Scalars: round, front end, where the words and the data are in the window, context of a domain or 0.
fn all_reduce(task: &mut Task<'_>) -> Result<(), Failure> {
    let scalars: Vec<u64> = task.scalars().to_vec();
    let &[round, front_end, words, data, context] = scalars.as_slice() else { return Err(failed("scalars")) };
    let (round, front_end) = (round as u32, FrontEnd::ALL[front_end as usize]);
    let mut graphs = task.graphs(&limits())?;
    graphs.runtime().set_kernel(COPY, "copy", |block| Ok(block.write(1, &block.read::<f32>(0)?)?));
    graphs.runtime().set_kernel(SUM, "sum", |block| {
        let last = block.tensors().len() - 1;
        let mut sum = vec![0.0; COUNT];
        for tensor in 0..last {
            block.read::<f32>(tensor)?.iter().zip(&mut sum).for_each(|(value, sum)| *sum += value);
        }
        Ok(block.write(last, &sum)?)
    });
    let signals = graphs.signals().clone();
    let found = signals.table().domain(worker_orch::DeviceAddr(context));
    let domain = if context == 0 { Domain::BASE } else { found.ok_or_else(|| failed("no such domain"))? };
    let named = NamedBuffer { name: "data".into(), offset: data, count: COUNT as u64, element: 4 };
    signals.name_buffer(domain, named).map_err(failed)?;
    let (me, n) = signals.table().place(domain).map_err(failed)?;
    let window = |rank: u32| {
        let at = signals.table().address(domain, rank, "data", 0).map_err(failed)?;
        flat_tensor(at, DType::Float32, COUNT)
    };
    let windows = (0..n).map(window).collect::<Result<Vec<_>, _>>()?;
    let peers = || (0..n).filter(|rank| *rank != me);
    // For each peer a word that counts what it has written, and one that counts what it has read.
    let written = |by: u32| words + 4 * u64::from(by);
    let read = |by: u32| words + 256 + 4 * u64::from(by);
    let wait = |offset, at_least, from| Wait { domain, offset, at_least, from: Signaller::Rank(from) };
    let signal = |rank, offset| Signal { domain, rank, offset, op: SignalOp::Add(1) };
    let (input, output) = (graphs.tensor(0)?, graphs.tensor(1)?);
    graphs.run(front_end, |graph| {
        let mut copy = TaskArgs::new().input(&input).output_existing(&windows[me as usize]);
        for peer in peers() {
            copy = copy.wait(wait(read(peer), round - 1, peer)).signal(signal(peer, written(me)));
        }
        let copied = graph.submit(Kernels::aiv(COPY), &copy)?.task;
        let mut sum = windows.iter().fold(TaskArgs::new(), |args, window| args.input(window));
        sum = sum.output_existing(&output).after(copied);
        for peer in peers() {
            sum = sum.wait(wait(written(peer), round, peer)).signal(signal(peer, read(me)));
        }
        graph.submit(Kernels::aiv(SUM), &sum)?;
        Ok(())
    })
}

/// Where the words and the data are in the windows, and inputs and outputs on the host.
struct Chips {
    worker: Worker,
    words: u64,
    data: u64,
    inputs: Vec<HostBuffer<f32>>,
    outputs: Vec<HostBuffer<f32>>,
}

impl Chips {
    fn up(mut worker: Worker, chips: usize) -> Self {
        let buffers = |worker: &Worker| {
            (0..chips).map(|_| worker.host_buffer::<f32>(COUNT).unwrap()).collect::<Vec<_>>()
        };
        let (inputs, outputs) = (buffers(&worker), buffers(&worker));
        worker.init().unwrap();
        let context = &worker.chip_contexts().unwrap()[0];
        let at = |name| context.buffer(name).unwrap().addr.0 - context.window_base.0;
        let (words, data) = (at("barrier"), at("data"));
        Self { worker, words, data, inputs, outputs }
    }

    fn args(&self, chip: usize, scalars: &[u64]) -> (usize, Args) {
        let args = Args::new()
            .tensor(&self.inputs[chip].tensor(), Access::Input)
            .tensor(&self.outputs[chip].tensor(), Access::Output);
        (chip, scalars.iter().fold(args, |args, scalar| args.scalar(*scalar)))
    }

    /// Submits `program` to all chips together.
    fn together(&mut self, program: worker_orch::Program, scalars: &[u64]) -> Result<(), Failure> {
        let members: Vec<_> = (0..self.inputs.len()).map(|chip| self.args(chip, scalars)).collect();
        self.worker.run(|orch| orch.submit_group(program, &members).map(drop))
    }
}

/// The same bytes in all front ends, round after round in the same windows, and nothing is left.
#[test]
#[serial]
fn chips_sum_with_waits_and_signals_in_all_front_ends() {
    if support::platform() != Platform::Sim {
        return;
    }
    let before = traces();
    for n in [2, 4] {
        let mut worker = grouped(n, COUNT);
        let program = worker.register_graph("all_reduce", all_reduce).unwrap();
        let mut chips = Chips::up(worker, n);
        for round in 1..=12_u64 {
            for (chip, input) in chips.inputs.iter().enumerate() {
                input.write(&vec![(chip + 1) as f32 * round as f32; COUNT]).unwrap();
            }
            let scalars = [round, round % 3, chips.words, chips.data, 0];
            chips.together(program, &scalars).unwrap();
            let sum = (n * (n + 1) / 2) as f32 * round as f32;
            for output in &chips.outputs {
                assert_eq!(output.to_vec(), vec![sum; COUNT], "round {round} on {n} chips");
            }
        }
        chips.worker.close().unwrap();
    }
    assert_eq!(traces(), before, "something is left");
}

#[test]
#[serial]
fn chips_of_a_domain_signal_each_other() {
    if support::platform() != Platform::Sim {
        return;
    }
    let mut worker = grouped(3, COUNT);
    let program = worker.register_graph("all_reduce", all_reduce).unwrap();
    let mut chips = Chips::up(worker, 3);
    for (chip, input) in chips.inputs.iter().enumerate() {
        input.write(&vec![(chip + 1) as f32; COUNT]).unwrap();
    }
    for _ in 0..3 {
        let Chips { worker, inputs, outputs, .. } = &mut chips;
        let (inputs, outputs) = (&*inputs, &*outputs);
        let ran = worker.run(|orch| {
            let buffers = [("words", DType::Float32, 1024), ("data", DType::Float32, COUNT)];
            let domain = orch.allocate_domain("pair", &[2, 0], 16384, &buffers)?;
            let members: Vec<_> = domain
                .contexts()
                .iter()
                .map(|member| {
                    let at = |name: &str| member.buffer(name).unwrap().addr.0 - member.window_base.0;
                    let scalars = [1, 2, at("words"), at("data"), member.device_ctx.0];
                    let args = Args::new()
                        .tensor(&inputs[member.chip].tensor(), Access::Input)
                        .tensor(&outputs[member.chip].tensor(), Access::Output);
                    (member.chip, scalars.iter().fold(args, |args, scalar| args.scalar(*scalar)))
                })
                .collect();
            orch.submit_group(program, &members).map(drop)
        });
        ran.unwrap();
        assert_eq!((outputs[0].to_vec()[7], outputs[2].to_vec()[7], outputs[1].to_vec()[7]), (4.0, 4.0, 0.0));
    }
    chips.worker.close().unwrap();
}

/// Prebuilt: rank 0 signals the first word of rank 1, which waits for the word so many bytes behind it.
///
/// Scalars: where the words are in the window, how far behind, context of a domain or 0.
fn misses(task: &mut Task<'_>) -> Result<(), Failure> {
    let (words, behind, context) = (task.scalar(0)?, task.scalar(1)?, task.scalar(2)?);
    let mut graphs = task.graphs(&limits())?;
    graphs.runtime().set_kernel(COPY, "copy", |_| Ok(()));
    let signals = graphs.signals().clone();
    let found = signals.table().domain(worker_orch::DeviceAddr(context));
    let domain = if context == 0 { Domain::BASE } else { found.ok_or_else(|| failed("no such domain"))? };
    let (me, _) = signals.table().place(domain).map_err(failed)?;
    graphs.run(FrontEnd::Prebuilt, |graph| {
        let args = match me {
            0 => TaskArgs::new().signal(Signal { domain, rank: 1, offset: words, op: SignalOp::Add(1) }),
            _ => {
                let offset = words + behind;
                TaskArgs::new().wait(Wait { domain, offset, at_least: 1, from: Signaller::Rank(0) })
            }
        };
        graph.submit(Kernels::aiv(COPY), &args).map(drop)
    })
}

/// Between processes, in the base window and in a domain whose ranks are not those of the chips.
#[test]
#[serial]
fn a_prebuilt_graph_that_waits_for_what_the_other_never_signals_is_refused() {
    if support::platform() != Platform::Sim {
        return;
    }
    let mut worker = grouped(3, COUNT);
    let program = worker.register_graph("misses", misses).unwrap();
    let chips = Chips::up(worker, 3);
    let Chips { mut worker, words, .. } = chips;
    let refused = |failure: Failure, parts: &[&str]| {
        let failure = text(&failure);
        for part in ["task 0.0", "kernel 0 `copy`", "never", "proc_graphs.rs:"].iter().chain(parts) {
            assert!(failure.contains(part), "no {part:?} in {failure}");
        }
    };
    let base =
        |behind: u64| [0, 1].map(|chip| (chip, Args::new().scalar(words + 512).scalar(behind).scalar(0)));
    let in_domain = |worker: &mut Worker, behind: u64| {
        worker.run(|orch| {
            let buffers = [("words", DType::Float32, 1024)];
            let domain = orch.allocate_domain("pair", &[2, 0], 16384, &buffers)?;
            let members: Vec<_> = domain
                .contexts()
                .iter()
                .map(|member| {
                    let words = member.buffer("words").unwrap().addr.0 - member.window_base.0;
                    (member.chip, Args::new().scalar(words).scalar(behind).scalar(member.device_ctx.0))
                })
                .collect();
            orch.submit_group(program, &members).map(drop)
        })
    };
    for _ in 0..2 {
        let failure = worker.run(|orch| orch.submit_group(program, &base(4)).map(drop)).unwrap_err();
        refused(failure, &["rank 0 to signal word", "window `base`", "chip 1"]);
        // The chips are usable, and the word that is signalled is one to wait for.
        worker.run(|orch| orch.submit_group(program, &base(0)).map(drop)).unwrap();
        refused(in_domain(&mut worker, 4).unwrap_err(), &["rank 2 to signal word 0x4", "chip 0"]);
        in_domain(&mut worker, 0).unwrap();
    }
    worker.close().unwrap();
}

/// What goes wrong, by scalar 1, on the chip of scalar 0; the others wait for its signal.
fn troubled(task: &mut Task<'_>) -> Result<(), Failure> {
    let (chip, trouble, words) = (task.scalar(0)? as u32, task.scalar(1)?, task.scalar(2)?);
    let mut graphs = task.graphs(&limits())?;
    graphs.runtime().set_kernel(FAIL, "fail", move |_| match trouble {
        0 => Err("refused on purpose".into()),
        1 => panic!("panicked on purpose"),
        2 => {
            let _ = raise(Kill::SIGKILL);
            Ok(())
        }
        // Never ends.
        3 => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        _ => Ok(()),
    });
    let me = graphs.signals().rank();
    let wait =
        |from| Wait { domain: Domain::BASE, offset: words + 1024, at_least: 1, from: Signaller::Rank(from) };
    graphs.run(FrontEnd::Inferred, |graph| {
        let args = match (me == chip, trouble) {
            // Waits for a chip that waits for this one.
            (true, 4) => TaskArgs::new().wait(wait(1 - chip)),
            // Ends without the signal that the others wait for.
            (true, 5) => return Ok(()),
            (true, 6) => TaskArgs::new().wait(Wait { offset: 1 << 40, ..wait(1 - chip) }),
            (true, _) => TaskArgs::new(),
            (false, _) => TaskArgs::new().wait(wait(chip)),
        };
        graph.submit(Kernels::aiv(FAIL), &args).map(drop).map_err(|error| match trouble {
            99 => refused(error),
            _ => error,
        })
    })
}

/// Runs trouble number `trouble` of chip `chip` on two chips; afterwards both run a graph that succeeds.
fn failure_of(trouble: u64, chip: u64, limit: u64) -> (Failure, Duration) {
    let mut worker = builder(2).run_within(secs(limit)).build().unwrap();
    form_group(&mut worker, 2, COUNT);
    let program = worker.register_graph("troubled", troubled).unwrap();
    let sum = worker.register_graph("all_reduce", all_reduce).unwrap();
    let mut chips = Chips::up(worker, 2);
    let begun = Instant::now();
    let failure = chips.together(program, &[chip, trouble, chips.words]).unwrap_err();
    let took = begun.elapsed();
    let scalars = [1, 2, chips.words, chips.data, 0];
    match trouble {
        2 => {}
        // Its process has ended with the run, and it was a rank of a group.
        3 => {
            let refused = text(&chips.together(sum, &scalars).unwrap_err());
            assert!(refused.contains("closed and initialised again"), "{refused}");
            chips.worker.close().unwrap();
            chips.worker.init().unwrap();
            chips.together(sum, &scalars).unwrap();
            chips.worker.close().unwrap();
        }
        _ => {
            chips.together(sum, &scalars).unwrap();
            chips.worker.close().unwrap();
        }
    }
    (failure, took)
}

#[test]
#[serial]
fn a_kernel_that_fails_is_the_first_cause_with_task_kernel_and_site() {
    if support::platform() != Platform::Sim {
        return;
    }
    for (trouble, said) in [(0, "refused on purpose"), (1, "panicked on purpose")] {
        let failure = text(&failure_of(trouble, 1, 60).0);
        for part in [said, "task 0.0", "kernel 2 `fail`", "proc_graphs.rs:", "chip 1"] {
            assert!(failure.contains(part), "no {part:?} in {failure}");
        }
    }
}

#[test]
#[serial]
fn a_dead_chip_is_reported_while_the_other_waits_for_its_signal() {
    if support::platform() != Platform::Sim {
        return;
    }
    let (failure, took) = failure_of(2, 1, 60);
    assert!(text(&failure).contains("SIGKILL") && took < Duration::from_secs(10), "{took:?}: {failure}");
}

#[test]
#[serial]
fn f87_chips_that_wait_for_each_other_end_with_a_proof() {
    if support::platform() != Platform::Sim {
        return;
    }
    let (failure, took) = failure_of(4, 1, 60);
    let failure = text(&failure);
    for part in
        ["no chip can go on", "of rank 0 waits for rank 1", "of rank 1 waits for rank 0", "is 0, not 1"]
    {
        assert!(failure.contains(part), "no {part:?} in {failure}");
    }
    assert!(took < Duration::from_secs(10), "{took:?}");
    let ended = text(&failure_of(5, 1, 60).0);
    assert!(ended.contains("rank 1 has ended without that signal"), "{ended}");
}

#[test]
#[serial]
fn a_word_outside_the_window_is_refused() {
    if support::platform() != Platform::Sim {
        return;
    }
    let failure = text(&failure_of(6, 0, 60).0);
    assert!(failure.contains("outside window `") && failure.contains("proc_graphs.rs:"), "{failure}");
}

#[test]
#[serial]
fn a_kernel_that_never_ends_is_named() {
    if support::platform() != Platform::Sim {
        return;
    }
    let (failure, took) = failure_of(3, 1, 2);
    let failure = text(&failure);
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(failure.contains("kernel 2 `fail`"), "{failure}");
}

#[test]
#[serial]
fn a_closure_that_is_not_a_graph_has_none() {
    let mut worker = builder(1).build().unwrap();
    let plain = worker.register_closure("plain", |task| task.graphs(&Limits::default()).map(drop)).unwrap();
    worker.init().unwrap();
    let refused = worker.run(|orch| orch.submit_next_level(plain, &Args::new(), 0).map(drop)).unwrap_err();
    assert!(text(&refused).contains("register_graph"), "{refused}");
    worker.close().unwrap();
}
