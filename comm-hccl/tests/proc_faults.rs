//! Every vendor function that the device layer uses fails, or kills the process, at its first and second call. The error
//! names the function, and nothing is left behind. The cases come from the table of declared functions, not from a list.

mod support;

use cann_sim::{Kind, SessionReport};
use comm_hccl::sys::{AscendCl, Hccl};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use support::scenario::*;
use support::*;

/// Declared, but not called in a scenario without errors.
const NOT_CALLED: &[&str] = &[
    "aclrtGetDevice",
    // Its argument block is in device memory.
    "aclrtLaunchKernel",
    // Only after an error.
    "aclGetRecentErrMsg",
    "HcclGetErrorString",
    // For the users of `sys`.
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
];

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Return,
    Kill,
}

struct Case {
    function: &'static str,
    call: u32,
    fault: Fault,
    rank: usize,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for function in AscendCl::FUNCTIONS.iter().chain(Hccl::FUNCTIONS).map(|f| f.name) {
        // Only rank 0 makes the root info.
        let rank = if function == "HcclGetRootInfo" { 0 } else { 1 };
        // The context is saved and restored round several calls, releases among them.
        let calls = if function.ends_with("CurrentContext") { 6 } else { 2 };
        for call in 1..=calls {
            for fault in [Fault::Return, Fault::Kill] {
                cases.push(Case { function, call, fault, rank });
            }
        }
    }
    cases
}

/// Runs one case. Returns whether the fault happened.
fn run(case: &Case, kernel: &str) -> bool {
    let Case { function, call, fault, rank } = case;
    let code = if function.starts_with("Hccl") { 21 } else { 507015 };
    let what = if *fault == Fault::Kill { "kill".to_owned() } else { format!("return {code}") };
    let rule = format!("rank={rank} {function}#{call} {what}");
    let double = double("");
    double.session.script(&rule).unwrap();
    // The vendor's own limits end a wait inside HCCL for a rank that does not come. They are long enough for two healthy
    // ranks on a busy machine.
    let environment = [(KERNEL_VARIABLE, kernel), ("HCCL_CONNECT_TIMEOUT", "5"), ("HCCL_EXEC_TIMEOUT", "5")];
    let outputs = run_pair(&double, "part_scenario_with_faults", &environment);
    let report = double.session.report().unwrap();
    let all = format!("{rule}\n{report}{}\n{}", text(&outputs[0]), text(&outputs[1]));
    let injected =
        text(&outputs[*rank]).contains("cann-sim") && text(&outputs[*rank]).contains("fault: call");

    assert_success(&outputs[1 - rank]);
    let other = outcome(&outputs[1 - rank]).expect(&all);
    assert_clean(&report, 1 - rank, &[], &all);
    if *fault == Fault::Kill && injected {
        assert_eq!(outputs[*rank].status.signal(), Some(9), "{all}");
        assert_eq!(report.live_now(), 0, "{all}");
        return true;
    }
    assert_success(&outputs[*rank]);
    let faulty = outcome(&outputs[*rank]).expect(&all);
    // The chip's name is only shown; everything works without it.
    if injected && *function != "aclrtGetSocName" {
        assert!(faulty.contains(function) && faulty.contains(&code.to_string()), "{all}");
    } else {
        assert_eq!((faulty.as_str(), other.as_str()), ("ok", "ok"), "{all}");
    }
    assert_clean(&report, *rank, if injected { excused(function) } else { &[] }, &all);
    injected
}

/// HC-5: no object is alive, and the reset cleaned up none except for those that are excused.
fn assert_clean(report: &SessionReport, rank: usize, excused: &[Kind], all: &str) {
    let Some(process) = report.processes.iter().find(|p| p.rank == Some(rank as u32)) else {
        // Refused before it reached the double.
        return;
    };
    let not_finalised = all.contains("aclFinalize#1 return");
    let live: Vec<_> =
        process.live.iter().filter(|(kind, _)| !(not_finalised && *kind == Kind::Runtime)).collect();
    assert!(live.is_empty(), "{all}");
    for (kind, count) in &process.reclaimed {
        assert!(excused.contains(kind) && *count == 1, "{} {count} left to the reset\n{all}", kind.name());
    }
}

// F11
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn f11_every_vendor_call_that_fails_or_kills_is_named_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = compile_kernel(dir.path());
    let (cases, next) = (cases(), AtomicUsize::new(0));
    let injected = Mutex::new((BTreeSet::new(), 0));
    std::thread::scope(|scope| {
        // They mostly wait.
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
                    if run(case, kernel.to_str().unwrap()) {
                        let mut injected = injected.lock().unwrap();
                        injected.0.insert(case.function);
                        injected.1 += 1;
                    }
                }
            });
        }
    });
    let (functions, count) = injected.into_inner().unwrap();
    let declared: BTreeSet<_> = AscendCl::FUNCTIONS.iter().chain(Hccl::FUNCTIONS).map(|f| f.name).collect();
    let missed: Vec<_> = declared.difference(&functions).copied().collect();
    let mut expected = NOT_CALLED.to_vec();
    expected.sort_unstable();
    assert_eq!(missed, expected, "functions that no fault reached");
    println!("{} cases, {count} faults injected, {} functions", cases.len(), functions.len());
}

#[test]
#[ignore = "a part of f11_every_vendor_call_that_fails_or_kills_is_named_and_leaves_nothing"]
fn part_scenario_with_faults() {
    if let Some(rank) = my_rank() {
        report(full_cycle(rank));
    }
}
