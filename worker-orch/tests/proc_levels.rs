//! Deaths below a nested Worker, and runs that take too long: what is reported, and what goes on afterwards.
#![allow(missing_docs)]

mod support;

use comm_context::comm::Timeout;
use nix::sys::signal::{Signal, raise};
use serial_test::serial;
use std::time::{Duration, Instant};
use support::{children_of, grouped, kernel, plain, says, secs, text};
use worker_orch::{Args, ErrorCode, Failure, Orchestrator, Program, Task, Worker};

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

fn die(_: &mut Task<'_>) -> Result<(), Failure> {
    raise(Signal::SIGKILL).unwrap();
    Ok(())
}

fn wait_long(_: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Submits program number `scalar(i)` to chip `i`, for each scalar.
fn submit_each(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    for (chip, program) in task.scalars().iter().enumerate() {
        orch.submit_next_level(Program::from_number(*program as u32), &Args::new(), chip)?;
    }
    Ok(())
}

/// Gives the Worker below the same scalars for the orchestration number 0 there.
fn pass_down(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let args = task.scalars().iter().fold(Args::new(), |args, scalar| args.scalar(*scalar));
    orch.submit_next_level(Program::from_number(0), &args, 0).map(drop)
}

/// A Worker of two chips with `wait_long`, `die` and `nothing` as programs 0, 1 and 2.
fn pair() -> Worker {
    let mut pair = plain(2);
    pair.register_function("wait_long", wait_long);
    pair.register_function("die", die);
    pair.register_function("nothing", nothing);
    pair
}

fn short(worker: &mut Worker) {
    worker.set_run_within(Timeout::new(Duration::from_millis(300)).unwrap());
}

#[test]
#[serial]
fn f72_a_death_below_a_nested_worker_is_told_at_once_with_the_chain_of_levels() {
    // WO-10
    let mut middle = Worker::builder().level(4).build().unwrap();
    middle.register_orchestration("submit_each", submit_each);
    middle.add_worker(pair()).unwrap();
    middle.add_worker(pair()).unwrap();
    let mut top = Worker::builder().level(5).build().unwrap();
    let down = top.register_orchestration("pass_down", pass_down);
    top.add_worker(middle).unwrap();
    top.init().unwrap();
    let started = Instant::now();
    // Beside the chip that dies: a chip of the same Worker that takes ten minutes.
    let args = Args::new().scalar(0).scalar(1);
    let reported = top.run(|orch| orch.submit_next_level(down, &args, 0)).unwrap_err();
    let (took, reported) = (started.elapsed(), text(&reported));
    assert!(took < Duration::from_secs(10), "told after {took:?}: {reported}");
    let levels = ["worker 0 (pid", "worker 0 (pid", "chip 1 (pid"];
    let mut rest = reported.as_str();
    for level in levels {
        let at = rest.find(level).unwrap_or_else(|| panic!("`{level}` is missing: {reported}"));
        rest = &rest[at + level.len()..];
    }
    assert!(rest.contains("killed by SIGKILL") && rest.contains("`die`"), "{reported}");
    assert!(reported.to_string().contains("lost a process below it"), "{reported}");
    assert!(top.run(|_| Ok(())).is_err(), "the Worker has lost processes");
    top.close().unwrap();
    assert!(children_of(std::process::id()).is_empty());
    top.init().unwrap();
    let args = Args::new().scalar(2).scalar(2);
    top.run(|orch| orch.submit_next_level(down, &args, 0)).unwrap();
}

#[test]
#[serial]
fn f72_a_death_in_one_nested_worker_does_not_wait_for_the_tasks_of_another() {
    let mut top = Worker::builder().level(4).build().unwrap();
    let each = top.register_orchestration("submit_each", submit_each);
    top.add_worker(pair()).unwrap();
    top.add_worker(pair()).unwrap();
    top.init().unwrap();
    let started = Instant::now();
    let reported = top.run(|orch| {
        orch.submit_next_level(each, &Args::new().scalar(0).scalar(0), 0)?;
        orch.submit_next_level(each, &Args::new().scalar(2).scalar(1), 1)
    });
    let (took, reported) = (started.elapsed(), text(&reported.unwrap_err()));
    assert!(took < Duration::from_secs(10), "told after {took:?}: {reported}");
    assert!(reported.contains("worker 1 (pid") && reported.contains("chip 1 (pid"), "{reported}");
}

/// Waits for a peer that may not come, and polls the abort word as kernels should.
const POLITE: &str = r#"
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *ctx = reinterpret_cast<CommContext *>(args[0]);
    (void)!comm_phase_barrier(ctx, reinterpret_cast<CommPhaseBarrier *>(args[1]));
}
"#;

#[test]
#[serial]
fn f39_after_a_time_out_the_worker_goes_on_when_its_chips_come_back() {
    // WO-11
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "polite", POLITE);
    let mut worker = grouped(2, 16);
    let wait = worker.register_kernel(&so).unwrap();
    worker.init().unwrap();
    let before = children_of(std::process::id());
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let args = |chip: usize| {
        let context = &contexts[chip];
        Args::new().scalar(context.device_ctx.0).scalar(context.buffer("barrier").unwrap().addr.0)
    };
    for _ in 0..2 {
        short(&mut worker);
        let reported = worker.run(|orch| orch.submit_next_level(wait, &args(1), 1)).unwrap_err();
        assert_eq!(reported.root_cause().code, ErrorCode::TimedOut, "{reported}");
        worker.set_run_within(secs(60));
        worker
            .run(|orch| (0..2).try_for_each(|chip| orch.submit_next_level(wait, &args(chip), chip).map(drop)))
            .unwrap();
    }
    assert_eq!(children_of(std::process::id()), before, "the same processes");
    worker.close().unwrap();
}

#[test]
#[serial]
fn f39_a_child_that_does_not_come_back_ends_with_the_run_and_is_replaced() {
    // WO-11
    let mut worker = support::builder(2).sub_workers(1).build().unwrap();
    let long = worker.register_function("wait_long", wait_long);
    let nothing = worker.register_function("nothing", nothing);
    worker.init().unwrap();
    let before = children_of(std::process::id());
    short(&mut worker);
    let reported = worker.run(|orch| {
        orch.submit_next_level(long, &Args::new(), 1)?;
        // What was submitted behind it is gone with it.
        orch.submit_next_level(nothing, &Args::new(), 1)?;
        orch.submit_sub(long, &Args::new())
    });
    let reported = reported.unwrap_err();
    assert_eq!(reported.root_cause().code, ErrorCode::TimedOut, "{reported}");
    let reported = text(&reported);
    assert!(reported.contains("chip 1") && reported.contains("a new process"), "{reported}");
    assert!(!reported.contains("died"), "nobody died: {reported}");
    assert_eq!(children_of(std::process::id()), [before[0]], "the stuck ones have ended with the run");
    worker.set_run_within(secs(60));
    for _ in 0..40 {
        worker
            .run(|orch| {
                (0..2).try_for_each(|chip| orch.submit_next_level(nothing, &Args::new(), chip).map(drop))?;
                orch.submit_sub(nothing, &Args::new())
            })
            .unwrap();
    }
    let after = children_of(std::process::id());
    assert!(after.len() == 3 && after.contains(&before[0]), "{before:?} {after:?}");
    worker.close().unwrap();
    assert!(children_of(std::process::id()).is_empty());
}

#[test]
#[serial]
fn f39_a_stuck_chip_of_a_group_ends_with_the_run_and_the_error_says_what_to_do() {
    let mut worker = grouped(2, 16);
    let long = worker.register_function("wait_long", wait_long);
    let nothing = worker.register_function("nothing", nothing);
    worker.init().unwrap();
    short(&mut worker);
    says(
        worker.run(|orch| orch.submit_next_level(long, &Args::new(), 1)),
        "…`wait_long`…chip 1 did not come back within 200ms and was ended; the ranks of a communicator share memory with the \
         process that joined, and no other can take its place: close the Worker and initialise it again",
    );
    assert_eq!(children_of(std::process::id()).len(), 1, "the stuck one has ended with the run");
    let later = worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 0)).unwrap_err();
    assert_eq!(later.root_cause().code, ErrorCode::TimedOut, "{later}");
    worker.close().unwrap();
    worker.init().unwrap();
    worker.set_run_within(secs(60));
    worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 1)).unwrap();
}
