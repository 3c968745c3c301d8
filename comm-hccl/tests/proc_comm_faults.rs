//! Every vendor function that a communicator uses fails, hangs, or kills the process, at its first and second call. The
//! error names the function, its rank and the phase, in time; nothing is left behind; and the next run works. The cases come
//! from the table of declared functions, not from a list.
//!
//! The default run takes one case of each function. All of them:
//! `cargo test -p comm-hccl --test proc_comm_faults -- --ignored --exact f11_every_vendor_call_fails_hangs_and_kills`.

mod support;

use cann_sim::Kind;
use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::{AllocationId, Communicator, DomainSpec, Membership, SubsetView, Timeout};
use comm_hccl::sys::{AscendCl, Hccl};
use comm_hccl::*;
use deadline::Deadline;
use std::collections::BTreeSet;
use std::error::Error;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::scenario::{outcome, report};
use support::*;

const PATH: &str = "CHIPCOMM_TEST_PATH";
/// What each call of a rank may take. Two healthy ranks on a busy machine need far less.
const LIMIT: Duration = Duration::from_secs(2);
/// The vendor's own limits, in whole seconds: after this time a rank whose peer is gone returns from HCCL.
const VENDOR_LIMIT: &str = "3";
/// Scheduling delay on a machine that runs other tests at the same time.
const BUSY: Duration = Duration::from_secs(2);
/// For teardown, which may have to wait for that.
const END: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Return,
    Hang,
    Kill,
}

#[derive(Debug)]
struct Case {
    function: &'static str,
    call: u32,
    fault: Fault,
    rank: usize,
    machine: &'static str,
}

/// A machine on which the scenario calls the function.
fn machine(function: &str) -> &'static str {
    match function {
        name if name.contains("Ipc") => "fabric = off\nshareable = off",
        name if name.ends_with("ShareableHandle") || name.contains("Peer") => "fabric = off",
        _ => "",
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for function in AscendCl::FUNCTIONS.iter().chain(Hccl::FUNCTIONS).map(|f| f.name) {
        let rank = if function == "HcclGetRootInfo" { 0 } else { 1 };
        for call in [1, 2] {
            for fault in [Fault::Return, Fault::Hang, Fault::Kill] {
                cases.push(Case { function, call, fault, rank, machine: machine(function) });
            }
        }
    }
    cases
}

/// Declared, but not called by a communicator without errors.
const NOT_CALLED: &[&str] = &[
    "aclrtGetDevice",
    "aclGetRecentErrMsg",
    "aclrtBinaryLoadFromFile",
    "aclrtBinaryGetFunction",
    "aclrtBinaryUnLoad",
    "aclrtLaunchKernel",
    "aclrtLaunchKernelWithHostArgs",
    "HcclGetErrorString",
    "HcclGetCommName",
    "HcclGetCommAsyncError",
    "HcclAllReduce",
    "HcclAllGather",
    "HcclReduceScatter",
    "HcclBroadcast",
    "HcclReduceScatterV",
    "HcclAllGatherV",
    "HcclReduce",
    "HcclScatter",
    "HcclAlltoAll",
    "HcclAlltoAllV",
    "HcclSend",
    "HcclRecv",
    "aclrtPointerGetAttributes",
    "aclrtCreateEvent",
    "aclrtDestroyEvent",
    "aclrtRecordEvent",
    "aclrtStreamWaitEvent",
    "aclrtQueryEventStatus",
];

fn run_ranks(double: &Double, name: &str) -> [std::process::Output; 2] {
    let path = double.dir.path().join(name);
    let children = [0, 1].map(|rank| {
        let mut command = rank_command(double, "part_comm", rank);
        command.env(PATH, &path).env("HCCL_CONNECT_TIMEOUT", VENDOR_LIMIT);
        command.env("HCCL_EXEC_TIMEOUT", VENDOR_LIMIT).spawn().unwrap()
    });
    children.map(finish)
}

/// Runs one case. Returns whether the fault happened.
fn run(case: &Case) -> bool {
    let Case { function, call, fault, rank, machine } = case;
    let code = if function.starts_with("Hccl") { 21 } else { 507015 };
    let what = match fault {
        Fault::Return => format!("return {code}"),
        Fault::Hang => "hang".to_owned(),
        Fault::Kill => "kill".to_owned(),
    };
    let rule = format!("rank={rank} {function}#{call} {what}");
    let double = double(machine);
    double.session.script(&rule).unwrap();
    let outputs = run_ranks(&double, "first");
    let held = double.session.report().unwrap();
    let all = format!("{rule}\n{held}{}\n{}", text(&outputs[0]), text(&outputs[1]));
    let injected = text(&outputs[*rank]).contains("fault: call");
    let other = outcome(&outputs[1 - rank]).unwrap_or_else(|| panic!("{all}"));
    // The survivor has released everything itself.
    let survivor = held.processes.iter().find(|p| p.rank == Some(1 - *rank as u32));
    assert!(survivor.is_none_or(|process| process.is_clean()), "{all}");
    if !injected {
        assert_eq!(outcome(&outputs[*rank]).as_deref(), Some("ok"), "{all}");
        assert_eq!(other, "ok", "{all}");
        return false;
    }
    if other != "ok" {
        assert!(
            other.contains(&format!("rank {rank}")) || other.contains(&format!("rank {}", 1 - rank)),
            "{all}"
        );
    }
    if *fault == Fault::Kill {
        assert_eq!(outputs[*rank].status.signal(), Some(9), "{all}");
    } else {
        assert_success(&outputs[*rank]);
        let own = outcome(&outputs[*rank]).unwrap_or_else(|| panic!("{all}"));
        if *function == "aclrtGetSocName" && *fault == Fault::Return {
            // A chip without a name is treated as any other.
            assert_eq!(own, "ok", "{all}");
            return true;
        }
        // Where all ranks wait together inside the vendor's code, no rank can know whose call hangs.
        let together = *fault == Fault::Hang && ["HcclCommInitRootInfo", "HcclBarrier"].contains(function);
        assert!(own.contains(function) && (together || own.contains(&format!("rank {rank}"))), "{all}");
        assert!(PHASES.iter().any(|phase| own.contains(phase)), "{all}");
        if *fault == Fault::Return {
            assert!(own.contains(&code.to_string()), "{all}");
            assert_released(&held, *rank as u32, function, &all);
        } else {
            assert!(own.contains("not come back"), "{all}");
            // One second is the contract; the rest is for a busy machine.
            assert!(late(&outputs[*rank]) < Duration::from_secs(1) + BUSY, "{all}");
        }
    }
    double.session.script("").unwrap();
    for output in run_ranks(&double, "second") {
        assert_eq!(outcome(&output).as_deref(), Some("ok"), "the next run\n{}", text(&output));
    }
    true
}

const PHASES: &[&str] = &[
    "device",
    "init",
    "alloc_windows",
    "derive_context",
    "alloc_domain",
    "release_domain",
    "barrier",
    "transfer",
    "destroy",
    "close",
];

/// By how much the failed call exceeded its limit, as the part printed it.
fn late(output: &std::process::Output) -> Duration {
    let text = text(output);
    let millis = text.lines().find_map(|line| line.strip_prefix("late: ")?.parse().ok());
    Duration::from_millis(millis.unwrap_or_else(|| panic!("{text}")))
}

/// Only objects whose releasing function failed are left to the reset.
fn assert_released(report: &cann_sim::SessionReport, rank: u32, function: &str, all: &str) {
    let Some(process) = report.processes.iter().find(|p| p.rank == Some(rank)) else { return };
    let runtime_stays = function == "aclFinalize";
    let live = process.live.iter().filter(|(kind, _)| !(runtime_stays && *kind == Kind::Runtime));
    assert_eq!(live.count(), 0, "{all}");
    assert!(
        process.reclaimed.iter().all(|(kind, count)| excused(function).contains(kind) && *count == 1),
        "{all}"
    );
}

fn run_all(cases: &[&Case]) -> (BTreeSet<&'static str>, usize) {
    let (next, injected) = (AtomicUsize::new(0), Mutex::new((BTreeSet::new(), 0)));
    std::thread::scope(|scope| {
        // The cases mostly wait.
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
                    if run(case) {
                        let mut injected = injected.lock().unwrap();
                        injected.0.insert(case.function);
                        injected.1 += 1;
                    }
                }
            });
        }
    });
    injected.into_inner().unwrap()
}

fn assert_all_reached(functions: &BTreeSet<&'static str>) {
    let declared: BTreeSet<_> = AscendCl::FUNCTIONS.iter().chain(Hccl::FUNCTIONS).map(|f| f.name).collect();
    let missed: BTreeSet<_> = declared.difference(functions).copied().collect();
    assert_eq!(missed, NOT_CALLED.iter().copied().collect(), "functions that no fault reached");
}

// F11, F39, CH-2, CH-5
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn f11_every_vendor_call_of_a_communicator_fails_once_in_turn() {
    // The first call of each function fails and kills in turn; only every fifth one hangs, since that takes time.
    let all = cases();
    let wanted = |at: usize| match at {
        at if at % 5 == 0 => Fault::Hang,
        at if at % 2 == 0 => Fault::Return,
        _ => Fault::Kill,
    };
    let cases: Vec<_> = all
        .chunks(6)
        .enumerate()
        .filter_map(|(at, of)| of.iter().find(|case| case.fault == wanted(at)))
        .collect();
    let (functions, count) = run_all(&cases);
    assert_all_reached(&functions);
    println!("{} cases, {count} faults injected", cases.len());
}

// F11, F39, CH-2, CH-5
#[test]
#[ignore = "some minutes; `cargo xtask hw-test --layer comm --double` runs it"]
fn f11_every_vendor_call_fails_hangs_and_kills() {
    let all = cases();
    assert!(all.len() >= 200, "{}", all.len());
    let cases: Vec<_> = all.iter().collect();
    let (functions, count) = run_all(&cases);
    assert_all_reached(&functions);
    println!("{} cases, {count} faults injected", cases.len());
}

#[test]
#[ignore = "one rank of a case"]
fn part_comm() {
    let Some(rank) = my_rank() else { return };
    report(use_device(rank, Path::new(&std::env::var_os(PATH).unwrap())));
}

fn deadline(limit: Duration) -> Deadline {
    Deadline::after(limit).unwrap()
}

/// Prints by how much a failed call exceeded its limit.
fn timed<T, E>(limit: Duration, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let began = Instant::now();
    let done = call();
    if done.is_err() {
        println!("\nlate: {}", began.elapsed().saturating_sub(limit).as_millis());
    }
    done
}

/// What a rank does: it opens the device on a vendor thread and uses everything of a communicator.
fn use_device(rank: u32, path: &Path) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let open = move || -> Result<_, String> {
        let runtime =
            Runtime::start(Vendor::load(None).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        let list = VisibleDevices::from_env().map_err(|e| e.to_string())?;
        match Device::open(runtime, LogicalDevice(rank), &list) {
            Ok(device) => Ok((runtime, Some(device))),
            Err(error) => {
                let _ = runtime.finalise();
                Err(error.to_string())
            }
        }
    };
    let thread = timed(LIMIT, || {
        VendorThread::start(deadline(LIMIT), open).map_err(|error| match error {
            NotStarted::State(error) => format!("rank {rank} in device: {error}"),
            NotStarted::Overrun(overrun) => format!("rank {rank} in device: {overrun}"),
            NotStarted::Thread(error) => error.to_string(),
        })
    })?;
    let device = thread.run(deadline(LIMIT), |(_, device)| device.clone())?.ok_or("no device")?;
    let used = UsesComm { rank, device: &device }.run(path);
    drop(device);
    // A call that hung until now does not return.
    let patience = if began.elapsed() > END { LIMIT / 4 } else { END - LIMIT / 2 };
    let closed = timed(END, || {
        thread.run(deadline(END), move |(runtime, device)| {
            let closed = device.take().map_or(Ok(()), |device| device.close_within(deadline(patience)));
            closed.and(runtime.finalise())
        })
    });
    used?;
    closed
        .map_err(|overrun| format!("rank {rank} in close: {overrun}"))?
        .map_err(|e| format!("rank {rank} in close: {e}"))?;
    Ok(thread.close(deadline(END))?)
}

struct UsesComm<'a> {
    rank: u32,
    device: &'a Device,
}

impl UsesComm<'_> {
    fn run(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let within = Timeout::new(LIMIT)?;
        let me = Membership::new(self.rank, 2)?;
        let comm = timed(LIMIT, || HcclComm::rendezvous(self.device, path, me, within))?;
        let used = self.use_all(&comm, within);
        let destroyed = timed(END, || Box::new(comm).destroy(Timeout::new(END).unwrap()));
        used?;
        Ok(destroyed?)
    }

    fn use_all(&self, comm: &dyn Communicator, within: Timeout) -> Result<(), Box<dyn Error>> {
        let window = timed(LIMIT, || comm.alloc_windows(100_000, within))?;
        let mut bytes = [0; size_of::<CommContext>()];
        timed(LIMIT, || comm.read(window.context, &mut bytes))?;
        let peer = CommContext::decode(&bytes)?.window_in(1 - self.rank)?;
        timed(LIMIT, || comm.write(peer, &[100 + self.rank as u8]))?;
        let (words, word) = (comm.device_words().ok_or("no words")?, DeviceAddr(peer.0 + 64));
        for _ in 0..2 {
            timed(LIMIT, || words.add_word(word, 1 + self.rank, within))?;
        }
        assert!(words.add_word(DeviceAddr(peer.0 - 4), 1, within).is_err(), "outside of every window");
        timed(LIMIT, || comm.barrier(within))?;
        let mut sum = [0; 4];
        timed(LIMIT, || comm.read(DeviceAddr(window.base.0 + 64), &mut sum))?;
        assert_eq!(u32::from_le_bytes(sum), 2 * (2 - self.rank), "what the peer added is here");
        let mut byte = [0];
        timed(LIMIT, || comm.read(window.base, &mut byte))?;
        assert_eq!(byte, [101 - self.rank as u8], "what the peer wrote is here");
        let view = SubsetView { ranks: &[self.rank], domain_rank: 0, offset: 64, size: 64 };
        timed(LIMIT, || comm.derive_context(&view))?;
        let spec =
            DomainSpec { id: AllocationId(3), ranks: &[1, 0], domain_rank: 1 - self.rank, window_size: 4096 };
        for _ in 0..2 {
            timed(LIMIT, || comm.alloc_domain(&spec, within))?;
            timed(LIMIT, || comm.release_domain(spec.id, within))?;
        }
        Ok(timed(LIMIT, || comm.barrier(within))?)
    }
}
