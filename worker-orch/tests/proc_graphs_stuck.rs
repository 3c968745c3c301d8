//! Graphs whose code does not return: the error says what and where, and the process is replaced.
#![allow(missing_docs)]

mod support;

use serial_test::serial;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{builder, children_of, form_group, kernel, secs, text};
use worker_orch::runtime::{FrontEnd, KernelId, Kernels, Limits, RuntimeError, TaskArgs};
use worker_orch::{Args, ErrorCode, Failure, GraphObject, Platform, Program, Task, Worker};

const NOTHING: KernelId = KernelId(0);
const STUCK: KernelId = KernelId(1);
/// What is stuck, by scalar 0.
const NO: u64 = 0;
const IN_KERNEL: u64 = 1;
const IN_ORCHESTRATION: u64 = 2;
const BEFORE_THE_FIRST_TASK: u64 = 3;
/// The kernel is, and the function hides that.
const HIDDEN: u64 = 4;

fn limits() -> Limits {
    Limits { clusters: 1, slots: 64, heap: 1 << 20, ..Limits::default() }
}

fn for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Three tasks, of which the last may not return.
fn three_tasks(task: &mut Task<'_>) -> Result<(), Failure> {
    let what = task.scalar(0)?;
    let mut graphs = task.graphs(&limits())?;
    graphs.runtime().set_kernel(NOTHING, "nothing", |_| Ok(()));
    graphs.runtime().set_kernel(STUCK, "stuck", move |_| {
        // What holds the thread of the function cannot be hidden by it: there, this waits for the block of another thread.
        static BEGUN: AtomicBool = AtomicBool::new(false);
        let is_core_thread = std::thread::current().name().is_some_and(|name| name.starts_with("core"));
        BEGUN.fetch_or(is_core_thread, Ordering::AcqRel);
        while what != HIDDEN || is_core_thread || !BEGUN.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let ran = graphs.run(FrontEnd::ALL[what as usize % 3], |graph| {
        if what == BEFORE_THE_FIRST_TASK {
            for_ever();
        }
        let last = if [IN_KERNEL, HIDDEN].contains(&what) { STUCK } else { NOTHING };
        for kernel in [NOTHING, NOTHING, last] {
            let blocks = if what == HIDDEN { 2 } else { 1 };
            let args = TaskArgs::new().blocks(blocks).sync_start();
            let submitted = graph.submit(Kernels::aiv(kernel), &args)?.task;
            graph.publish(submitted)?;
        }
        if what == IN_ORCHESTRATION {
            for_ever();
        }
        Ok::<_, RuntimeError>(())
    });
    if what == HIDDEN { Ok(()) } else { ran }
}

/// The same in C++; without HIDDEN and BEFORE_THE_FIRST_TASK.
const ORCHESTRATION: &str = r#"
#include "orchestration.h"
#include <unistd.h>
extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
    const int64_t what = args.scalar<int64_t>(0);
    for (int task = 0; task < 3; ++task) {
        chip::publish(chip::submit(chip::Kernels::aiv(task == 2 && what == 1 ? 1 : 0), chip::TaskArgs()).task_id());
    }
    while (what == 2) sleep(1);
}
"#;
const KERNELS: &str = r#"
#include <cstdint>
#include <unistd.h>
extern "C" void kernel_entry(int64_t *) {}
extern "C" void stuck(int64_t *) { for (;;) sleep(1); }
"#;

fn object(folder: &Path) -> GraphObject {
    let orchestration = kernel(folder, "stuck_graph", ORCHESTRATION);
    let kernels = kernel(folder, "stuck_kernels", KERNELS);
    GraphObject {
        orchestration: (orchestration, None),
        abi: "pto2-2026-08".into(),
        kernels: vec![(0, kernels.clone(), None), (1, kernels, Some("stuck".into()))],
        front_end: FrontEnd::Inferred,
        limits: limits(),
        dot: None,
    }
}

fn run(worker: &mut Worker, program: Program, what: u64) -> Result<(), Failure> {
    // What chip 0 does is none of chip 1's business.
    worker.run(|orch| {
        orch.submit_next_level(program, &Args::new().scalar(NO), 0)?;
        orch.submit_next_level(program, &Args::new().scalar(what), 1).map(drop)
    })
}

/// Runs what is stuck on chip 1, and returns the failure.
fn stuck(worker: &mut Worker, program: Program, what: u64) -> String {
    worker.set_run_within(secs(1));
    let begun = Instant::now();
    let failure = run(worker, program, what).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}: {failure}", begun.elapsed());
    worker.set_run_within(secs(60));
    assert_eq!(failure.root_cause().code, ErrorCode::TimedOut, "{failure}");
    text(&failure)
}

fn must_say(failure: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(failure.contains(part), "no {part:?} in {failure}"));
}

/// The parts of the failure of each.
const CASES: &[(u64, &[&str])] = &[
    (IN_KERNEL, &["task 0.2 runs block 0 of kernel 1 `stuck`", "proc_graphs_stuck.rs:", "cannot be stopped"]),
    (IN_ORCHESTRATION, &["the orchestration has not returned", "task 0.2", "proc_graphs_stuck.rs:"]),
    (BEFORE_THE_FIRST_TASK, &["the orchestration has not returned", "submitted nothing", "stuck.rs:"]),
    (HIDDEN, &["a kernel of a graph that has failed has not returned"]),
];

#[test]
#[serial]
fn code_that_does_not_return_is_named_and_its_process_replaced() {
    if support::platform() != Platform::Sim {
        return;
    }
    let mut worker = builder(2).build().unwrap();
    let program = worker.register_graph("three_tasks", three_tasks).unwrap();
    worker.init().unwrap();
    let first = children_of(std::process::id());
    for &(what, parts) in CASES {
        let failure = stuck(&mut worker, program, what);
        must_say(&failure, &["`three_tasks` failed on chip 1"]);
        must_say(&failure, parts);
        (0..3).for_each(|_| run(&mut worker, program, NO).unwrap());
    }
    let last = children_of(std::process::id());
    assert!(last.len() == 2 && last.contains(&first[0]) && !last.contains(&first[1]), "{first:?} {last:?}");
    worker.close().unwrap();
}

#[test]
#[ignore = "slow: cargo xtask ci slow"]
#[serial]
fn objects_in_cpp_that_do_not_return_are_named_and_their_process_replaced() {
    if support::platform() != Platform::Sim {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut worker = builder(2).build().unwrap();
    let program = object(folder.path()).register(&mut worker, "stuck_graph").unwrap();
    worker.init().unwrap();
    run(&mut worker, program, NO).unwrap();
    for (what, parts) in [
        (IN_KERNEL, &["task 0.2 runs block 0 of kernel 1 `stuck_kernels:stuck`", "stuck_graph"]),
        (IN_ORCHESTRATION, &["the orchestration has not returned", "task 0.2"]),
    ] {
        let failure = stuck(&mut worker, program, what);
        must_say(&failure, parts);
        must_say(&failure, &["stuck_graph.cpp:", "chip 1"]);
        (0..3).for_each(|_| run(&mut worker, program, NO).unwrap());
    }
    worker.close().unwrap();
}

#[test]
#[serial]
fn a_chip_of_a_group_whose_code_does_not_return_works_after_another_init() {
    if support::platform() != Platform::Sim {
        return;
    }
    let mut worker = builder(2).build().unwrap();
    form_group(&mut worker, 2, 16);
    let program = worker.register_graph("three_tasks", three_tasks).unwrap();
    for &(what, parts) in &CASES[..2] {
        worker.init().unwrap();
        must_say(&stuck(&mut worker, program, what), parts);
        must_say(&text(&run(&mut worker, program, NO).unwrap_err()), &["closed and initialised again"]);
        worker.close().unwrap();
        worker.init().unwrap();
        run(&mut worker, program, NO).unwrap();
        worker.close().unwrap();
    }
}
