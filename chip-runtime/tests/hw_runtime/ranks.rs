//! WAIT and SIGNAL between devices, with one process for each.
//!
//! # Safety
//! Forks before any vendor call. The children use their device and communicator only, and no lock of the test harness.
#![allow(unsafe_code)]

#[path = "exchange.rs"]
mod exchange;

use super::{COUNT, first_and_last, floats, soon};
use cann_sim::hw_test::{at_least, kernel};
use child_process::Child;
use chip_runtime::on_device::{DeviceGraph, GraphDevice, OnDeviceError};
use chip_runtime::signals::{Domain, Signal, SignalOp, Signaller, Signals, Wait};
use chip_runtime::{Compare, Create, FrontEnd, KernelId, Kernels, Predicate, TaskArgs};
use comm_context::comm::{AllocationId, Communicator, DomainSpec, Timeout};
use comm_hccl::{Device, DeviceMemory, HcclComm, LogicalDevice, Runtime, Vendor, VisibleDevices};
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::sync::Arc;
use std::time::Duration;

const TEXT: usize = 4096;
/// A slot for each rank, then the words.
const SLOT: u64 = 4 * COUNT as u64;
const WORDS: u64 = 64 * SLOT;
const WINDOW: usize = WORDS as usize + 4096;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn within() -> Timeout {
    Timeout::new(Duration::from_secs(120)).unwrap()
}

/// What a rank has.
struct Rank<'a> {
    device: &'a Device,
    comm: Arc<Box<dyn Communicator>>,
    graphs: GraphDevice,
    /// `scale`, `add` and `fail`.
    kernels: [KernelId; 3],
    me: u32,
    nranks: u32,
    /// Memory that all ranks share, where graphs say what they signal.
    words: Arc<Region>,
}

impl Rank<'_> {
    fn run<T>(
        &mut self,
        limit: Duration,
        orchestration: impl FnOnce(&mut DeviceGraph<'_>) -> Result<T, OnDeviceError>,
    ) -> Result<T, OnDeviceError> {
        self.graphs.run(FrontEnd::Prebuilt, Deadline::after(limit).unwrap(), orchestration)
    }

    fn word(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        let base = self.comm.window().unwrap().base;
        self.comm.read(comm_context::abi::DeviceAddr(base.0 + at), &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn barrier(&self) -> Result<(), String> {
        self.comm.barrier(within()).map_err(text)
    }
}

fn add(rank: u32, offset: u64) -> Signal {
    Signal { domain: Domain::BASE, rank, offset, op: SignalOp::Add(1) }
}

fn wait(offset: u64, at_least: u32, from: Signaller) -> Wait {
    Wait { domain: Domain::BASE, offset, at_least, from }
}

/// Runs `body` as every rank, each in a process of its own with a device of its own. All must return; those that are in `dying` die.
fn on_devices(name: &str, dying: &[usize], body: impl Fn(&mut Rank<'_>) -> Result<(), String>) {
    let devices = at_least(2);
    let prepared = HcclComm::prepare_group(devices.len() as u32).unwrap();
    let texts = Region::create("texts", devices.len() * TEXT).unwrap();
    let words = Arc::new(Region::create("words", Signals::words_bytes(devices.len())).unwrap());
    let rank_main = |me: u32, device: u32| -> Result<(), String> {
        let runtime = Runtime::start(Vendor::load(None).map_err(text)?).map_err(text)?;
        let list = VisibleDevices::from_env().map_err(text)?;
        let device = Device::open(runtime, LogicalDevice(device), &list).map_err(text)?;
        let comm = HcclComm::join(&device, &prepared, me, within()).map_err(text)?;
        comm.alloc_windows(WINDOW, within()).map_err(text)?;
        let (nranks, comm): (_, Box<dyn Communicator>) = (comm.nranks(), Box::new(comm));
        let comm = Arc::new(comm);
        let mut graphs = GraphDevice::new(&device).map_err(text)?;
        graphs.connect(comm.clone()).map_err(text)?;
        let kernels =
            ["scale", "add", "fail"].map(|name| graphs.kernel(&kernel(name), "kernel_entry").unwrap());
        let mut rank = Rank { device: &device, comm, graphs, kernels, me, nranks, words: words.clone() };
        let done = body(&mut rank);
        let Rank { comm, graphs, .. } = rank;
        graphs.close().map_err(text)?;
        let comm = Arc::into_inner(comm).ok_or("somebody keeps the communicator")?;
        let left = comm.destroy(within()).map_err(text);
        let left = if dying.is_empty() { left } else { Ok(()) };
        let closed = device.close().and_then(|()| runtime.finalise()).map_err(text);
        done.and(left).and(closed)
    };
    let children: Vec<Child> = devices
        .iter()
        .enumerate()
        .map(|(rank, device)| {
            let run = || match rank_main(rank as u32, *device) {
                Ok(()) => 0,
                Err(said) => {
                    let _ = texts.write(rank * TEXT, worker_errors::clip(&said, TEXT).as_bytes());
                    1
                }
            };
            // SAFETY: see the head of the file.
            unsafe { Child::fork(&prepared.fds().collect::<Vec<_>>(), run) }.unwrap()
        })
        .collect();
    let end = Deadline::after(Duration::from_secs(300)).unwrap();
    let mut failed = Vec::new();
    for (rank, child) in children.iter().enumerate() {
        let how = child.reap(end);
        let mut said = vec![0; TEXT];
        texts.read(rank * TEXT, &mut said).unwrap();
        if (how == Some(HowDied::Exited(0))) == dying.contains(&rank) {
            let said = String::from_utf8_lossy(&said);
            failed.push(format!("rank {rank} {how:?}: {}", said.trim_end_matches('\0')));
        }
    }
    assert!(failed.is_empty(), "{name}:\n{}", failed.join("\n"));
}

// CA-5
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn graphs_that_signal_each_other_sum_what_all_ranks_have() {
    let (arrived, read) = (WORDS, WORDS + 64);
    on_devices("sum", &[], |rank| {
        let (me, nranks, [scale, sum, _]) = (rank.me, rank.nranks, rank.kernels);
        let (x, y) = (floats(rank.device, 1.0), floats(rank.device, 0.0));
        for round in 1..=5u32 {
            let ended = rank.graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
                let (x, y) = (graph.import::<f32>(&x, &[COUNT])?, graph.import::<f32>(&y, &[COUNT])?);
                let factor = u64::from((me + 1) * round);
                for peer in 0..nranks {
                    // All ranks add to one word of each rank.
                    let slot = graph.window::<f32>(Domain::BASE, peer, u64::from(me) * SLOT, &[COUNT])?;
                    let args = TaskArgs::new().input(&x).output_existing(&slot).scalar(factor);
                    let args = args.wait(wait(read, nranks * (round - 1), Signaller::Unknown));
                    graph.submit(Kernels::aiv(scale), &args.signal(add(peer, arrived)))?;
                }
                let all = wait(arrived, nranks * round, Signaller::Unknown);
                let mut ready = graph.submit_dummy(&TaskArgs::new().wait(all))?.task;
                let mut total = None;
                for peer in 0..nranks {
                    let slot = graph.window::<f32>(Domain::BASE, me, u64::from(peer) * SLOT, &[COUNT])?;
                    total = Some(match total {
                        None => *slot.as_ref(),
                        Some(before) => {
                            let args = TaskArgs::new().input(&before).input(&slot).after(ready);
                            let args = args.output(Create::of::<f32>(&[COUNT]));
                            let cores = [Kernels::aic(sum), Kernels::aiv(sum)][peer as usize % 2];
                            let added = graph.submit(cores, &args)?;
                            ready = added.task;
                            added.outputs[0]
                        }
                    });
                }
                let last = TaskArgs::new().input(&total.unwrap()).output_existing(&y).scalar(1);
                let last = (0..nranks).fold(last, |args, peer| args.signal(add(peer, read)));
                graph.submit(Kernels::aiv(scale), &last).map(drop)
            });
            ended.map_err(text)?;
            let wanted = (nranks * (nranks + 1) / 2 * round) as f32;
            let got = first_and_last(&y);
            if got != [wanted; 2] {
                return Err(format!("round {round}: {got:?}, not {wanted}"));
            }
        }
        rank.barrier()?;
        x.release().and_then(|()| y.release()).map_err(text)
    });
}

// CA-5
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_task_that_waits_holds_back_only_what_comes_after_it() {
    on_devices("order", &[], |rank| {
        let (me, nranks, [scale, ..]) = (rank.me, rank.nranks, rank.kernels);
        // Its members are in another order than the ranks.
        let members: Vec<u32> = (0..nranks).rev().collect();
        let place = nranks - 1 - me;
        let id = AllocationId(7);
        let spec = DomainSpec { id, ranks: &members, domain_rank: place, window_size: 4096 };
        let window = rank.comm.alloc_domain(&spec, within()).map_err(text)?;
        let domain = rank.graphs.add_domain("pairs", window.context, &members).map_err(text)?;
        let (x, y) = (floats(rank.device, 3.0), floats(rank.device, 0.0));
        let next = (place + 1) % nranks;
        let from = Signaller::Rank((place + nranks - 1) % nranks);
        let ended = rank.graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
            let (x, y) = (graph.import::<f32>(&x, &[COUNT])?, graph.import::<f32>(&y, &[COUNT])?);
            // Each waits for a signal that its peer sends in a task behind its own wait.
            let held = Wait { domain, offset: 8, at_least: 6, from };
            let held = TaskArgs::new().input(&x).output(Create::of::<f32>(&[COUNT])).scalar(2).wait(held);
            let held = graph.submit(Kernels::aiv(scale), &held)?.outputs[0];
            graph.submit(Kernels::aic(scale), &TaskArgs::new().input(&held).output_existing(&y).scalar(5))?;
            let set = Signal { domain, rank: next, offset: 8, op: SignalOp::Set(6) };
            let free = TaskArgs::new().input(&x).output(Create::of::<f32>(&[COUNT])).scalar(1).signal(set);
            graph.submit(Kernels::aiv(scale), &free).map(drop)
        });
        ended.map_err(text)?;
        let got = first_and_last(&y);
        if got != [30.0; 2] {
            return Err(format!("{got:?}, not 30"));
        }
        rank.graphs.forget_domains();
        rank.comm.release_domain(id, within()).map_err(text)?;
        x.release().and_then(|()| y.release()).map_err(text)
    });
}

// CA-5
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_task_that_is_skipped_signals_and_one_that_failed_does_not() {
    let (skipped, failed, behind) = (WORDS, WORDS + 4, WORDS + 8);
    on_devices("signals", &[], |rank| {
        let (me, [scale, _, fail]) = (rank.me, rank.kernels);
        let x = floats(rank.device, 1.0);
        let y = floats(rank.device, 0.0);
        let error = rank.run(Duration::from_secs(60), |graph| {
            let (x, y) = (graph.import::<f32>(&x, &[COUNT])?, graph.import::<f32>(&y, &[COUNT])?);
            let never = Predicate::new(&x, &[0], Compare::Gt, 1);
            let args = TaskArgs::new().input(&x).output_existing(&y).scalar(9).when(never);
            graph.submit(Kernels::aiv(scale), &args.signal(add(me, skipped)))?;
            let args = TaskArgs::new().input(&x).scalar(17).signal(add(me, failed));
            let fails = graph.submit(Kernels::aiv(fail), &args)?.task;
            graph.submit_dummy(&TaskArgs::new().after(fails).signal(add(me, behind))).map(drop)
        });
        let error = text(error.err().ok_or("a kernel that set an error was taken for a success")?);
        if !error.contains("set the error 17") {
            return Err(error);
        }
        let words = [skipped, failed, behind].map(|at| rank.word(at));
        if (words, first_and_last(&y)) != ([1, 0, 0], [0.0; 2]) {
            return Err(format!("{words:?} {:?}", first_and_last(&y)));
        }
        rank.barrier()?;
        x.release().and_then(|()| y.release()).map_err(text)
    });
}

/// A graph with one task, which waits for a word from rank 1.
fn wait_for_rank_1(rank: &mut Rank<'_>, x: &DeviceMemory, limit: Duration) -> Result<String, String> {
    let [scale, ..] = rank.kernels;
    let ended = rank.run(limit, |graph| {
        let x = graph.import::<f32>(x, &[COUNT])?;
        let args = TaskArgs::new().input(&x).output(Create::of::<f32>(&[COUNT])).scalar(2);
        let args = args.wait(wait(WORDS + 64, 1, Signaller::Rank(1)));
        graph.submit(Kernels::aiv(scale), &args).map(drop)
    });
    ended.err().map(text).ok_or_else(|| "a word that nobody has signalled was waited for".to_owned())
}

// CA-6
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_wait_that_is_never_met_names_both_ends_and_the_device_stays_usable() {
    on_devices("late", &[], |rank| {
        let x = floats(rank.device, 1.0);
        if rank.me == 0 {
            let error = wait_for_rank_1(rank, &x, Duration::from_millis(300))?;
            let ends = "rank 0, task 0, waits for rank 1 (word 0x40040 of window `base` is 0, not 1)";
            if !error.contains(ends) || !error.contains("no signal came within 300ms") {
                return Err(error);
            }
            let scale = rank.kernels[0];
            let again = rank.run(Duration::from_secs(60), |graph| {
                let x = graph.import::<f32>(&x, &[COUNT])?;
                let twice = TaskArgs::new().input(&x).output_existing(&x).scalar(2);
                graph.submit(Kernels::aiv(scale), &twice).map(drop)
            });
            again.map_err(text)?;
            if first_and_last(&x) != [2.0; 2] {
                return Err("the next graph did not run".to_owned());
            }
        }
        rank.barrier()?;
        x.release().map_err(text)
    });
}

// CA-6
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_wait_for_a_rank_that_dies_ends_with_its_name() {
    on_devices("death", &[1], |rank| {
        let x = floats(rank.device, 1.0);
        rank.barrier()?;
        match rank.me {
            1 => std::process::abort(),
            0 => {
                // Far longer than it takes to notice.
                let error = wait_for_rank_1(rank, &x, Duration::from_secs(60))?;
                let ends = "rank 0, task 0, waits for rank 1 (word 0x40040 of window `base` is 0, not 1)";
                let told = error.contains(ends) && !error.contains("no signal came within");
                x.release().map_err(text)?;
                if told { Ok(()) } else { Err(error) }
            }
            _ => x.release().map_err(text),
        }
    });
}

// CA-4
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn waits_and_signals_that_cannot_be_are_refused_where_they_are_submitted() {
    on_devices("bad", &[], |rank| {
        let nranks = rank.nranks;
        let size = rank.comm.window().map_err(text)?.size as u64;
        let cases = [
            (TaskArgs::new().wait(wait(size, 1, Signaller::Unknown)), "is outside window `base`"),
            (TaskArgs::new().wait(wait(2, 1, Signaller::Unknown)), "is not at a multiple of 4"),
            (TaskArgs::new().wait(wait(0, 1, Signaller::Rank(nranks))), "; window `base` has "),
            (TaskArgs::new().signal(add(nranks, 0)), "; window `base` has "),
            (TaskArgs::new().signal(add(0, size - 2)), "is outside window `base`"),
            (TaskArgs::new().signal(Signal { domain: Domain(4), ..add(0, 0) }), "has no window 4"),
        ];
        for (args, why) in cases {
            let refused = rank.run(Duration::from_secs(60), |graph| graph.submit_dummy(&args).map(drop));
            let said = refused.err().map(text).unwrap_or_default();
            if !said.contains(why) || !said.contains(&format!("rank {}, at ", rank.me)) {
                return Err(format!("{args:?}: {said:?} does not say {why:?}"));
            }
        }
        let outside = rank.run(Duration::from_secs(60), |graph| {
            graph.window::<f32>(Domain::BASE, 0, size - 4, &[2]).map(drop)
        });
        let said = outside.err().map(text).unwrap_or_default();
        if !said.contains("is outside window `base`") {
            return Err(said);
        }
        rank.barrier()
    });
}
