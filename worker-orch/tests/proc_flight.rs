//! Runs in flight: their order, what a failure takes with it, deadlines, and what a caller learns.
#![allow(missing_docs)]

mod support;

use serial_test::serial;
use std::time::{Duration, Instant};
use support::{builder, grouped, kernel, plain, says, secs, text};
use worker_orch::{Access, Args, DType, ErrorCode, Failure, Run, RunState, Task, TaskState, Timeout, Worker};

fn add_one(task: &mut Task<'_>) -> Result<(), Failure> {
    let values: Vec<f32> = task.read::<f32>(0)?.iter().map(|value| value + 1.0).collect();
    task.write(task.tensors().len() - 1, &values)
}

/// Returns when the first tensor is not 0.
fn await_word(task: &mut Task<'_>) -> Result<(), Failure> {
    while task.read::<f32>(0)?[0] == 0.0 {
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Says in the second tensor that it has begun, then returns when the first is not 0.
fn begin_and_await_word(task: &mut Task<'_>) -> Result<(), Failure> {
    task.write(1, &[1.0_f32])?;
    await_word(task)
}

/// Fails when the first tensor is not 0.
fn fails_when_told(task: &mut Task<'_>) -> Result<(), Failure> {
    while task.read::<f32>(0)?[0] == 0.0 {
        std::thread::sleep(Duration::from_micros(200));
    }
    Err(Failure::new(ErrorCode::Task, "on purpose"))
}

fn count(task: &mut Task<'_>) -> Result<(), Failure> {
    let values: Vec<f32> = task.read::<f32>(0)?.iter().map(|value| value + 1.0).collect();
    task.write(0, &values)
}

fn short(millis: u64) -> Timeout {
    Timeout::new(Duration::from_millis(millis)).unwrap()
}

fn done(run: &Run, worker: &mut Worker) {
    assert_eq!(run.wait(worker, secs(60)).unwrap(), RunState::Done);
}

// WO-17
#[test]
#[serial]
fn runs_in_flight_are_executed_in_order_and_wait_for_each_others_memory() {
    let mut worker = plain(2);
    let (add_one, hold) =
        (worker.register_function("add_one", add_one), worker.register_function("hold", await_word));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(4).unwrap());
    worker.init().unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input).tensor(&x.tensor(), Access::InOut);
    let next = Args::new().tensor(&x.tensor(), Access::InOut);
    // The first holds the memory that the others, on both chips, add to.
    let (_, first) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let mut runs = Vec::new();
    for step in 0..6 {
        runs.push(worker.submit_run(|orch| orch.submit_next_level(add_one, &next, step % 2)).unwrap().1);
    }
    assert_eq!(first.wait(&mut worker, short(20)).unwrap(), RunState::UnderWay);
    assert!(!first.is_done(&mut worker) && !runs[5].is_done(&mut worker));
    assert_eq!(x.to_vec(), [0.0; 4]);
    gate.write(&[1.0]).unwrap();
    done(&runs[2], &mut worker);
    assert!(first.is_done(&mut worker), "those in front are over");
    done(&runs[5], &mut worker);
    assert_eq!(x.to_vec(), [6.0; 4]);
    // Again, and with a run behind them that is waited for.
    let (_, last) = worker.submit_run(|orch| orch.submit_next_level(add_one, &next, 0)).unwrap();
    worker.run(|orch| orch.submit_next_level(add_one, &next, 1)).unwrap();
    assert_eq!(x.to_vec(), [8.0; 4]);
    done(&last, &mut worker);
    worker.close().unwrap();
    done(&last, &mut worker);
}

// WO-17
#[test]
#[serial]
fn a_submit_beyond_the_limit_waits_for_the_oldest() {
    let mut worker = builder(1).runs_in_flight(2).build().unwrap();
    let (hold, count) =
        (worker.register_function("hold", await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let args = Args::new().tensor(&x.tensor(), Access::InOut);
    let (_, first) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let mut runs = vec![first];
    runs.push(worker.submit_run(|orch| orch.submit_next_level(count, &args, 0)).unwrap().1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            gate.write(&[1.0]).unwrap();
        });
        runs.push(worker.submit_run(|orch| orch.submit_next_level(count, &args, 0)).unwrap().1);
        assert_eq!(gate.to_vec(), [1.0], "the third waited for the first");
    });
    runs.iter().for_each(|run| done(run, &mut worker));
    assert_eq!(x.to_vec(), [2.0]);
    assert!(builder(1).runs_in_flight(0).build().is_err());
}

// WO-18
#[test]
#[serial]
fn f84_a_failed_run_takes_those_behind_it_with_it_and_the_next_begins_clean() {
    let mut worker = plain(2);
    let fails = worker.register_function("fails", fails_when_told);
    let count = worker.register_function("count", count);
    let [gate, before, behind, apart] = [(); 4].map(|()| worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let args = |buffer: &worker_orch::HostBuffer<f32>| Args::new().tensor(&buffer.tensor(), Access::InOut);
    let told = Args::new().tensor(&gate.tensor(), Access::Input);
    for round in 1..4 {
        gate.write(&[0.0]).unwrap();
        let (_, first) = worker.submit_run(|orch| orch.submit_next_level(count, &args(&before), 0)).unwrap();
        let (_, failing) = worker.submit_run(|orch| orch.submit_next_level(fails, &told, 0)).unwrap();
        let (_, other) = worker.submit_run(|orch| orch.submit_next_level(count, &args(&behind), 0)).unwrap();
        // On another chip, and over before the failure: it is what it is.
        let (_, early) = worker
            .submit_run(|orch| {
                orch.submit_next_level(count, &args(&apart), 1)?;
                orch.settle_chips(&[1])
            })
            .unwrap();
        assert_eq!(apart.to_vec(), [round as f32]);
        gate.write(&[1.0]).unwrap();
        done(&first, &mut worker);
        let failure = failing.wait(&mut worker, secs(60)).unwrap_err();
        assert!(text(&failure).contains("`fails` failed on chip 0"), "{failure}");
        assert!(text(&failure).contains("on purpose"), "{failure}");
        says(
            other.wait(&mut worker, secs(60)),
            "in run: aborted: a run that was submitted before this one, and was in flight with it, failed or was cancelled, so \
             this one was cancelled; some of its tasks may have run. Submit it again\n  caused by: …on purpose",
        );
        done(&early, &mut worker);
        assert_eq!(behind.to_vec(), [0.0], "nothing of a run behind a failed one began");
        // WO-4
        worker.run(|orch| orch.submit_next_level(count, &args(&before), 1)).unwrap();
    }
    assert_eq!(before.to_vec(), [6.0]);
}

// WO-18
#[test]
#[serial]
fn f84_a_failure_that_nobody_waited_for_is_told_by_the_next_call_once() {
    let mut worker = plain(1);
    let fails = worker.register_function("fails", fails_when_told);
    let count = worker.register_function("count", count);
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    gate.write(&[1.0]).unwrap();
    worker.init().unwrap();
    let told = Args::new().tensor(&gate.tensor(), Access::Input);
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    for call in ["submit_run", "run", "chip_alloc"] {
        let (_, run) = worker.submit_run(|orch| orch.submit_next_level(fails, &told, 0)).unwrap();
        while !run.is_done(&mut worker) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(run);
        let submit = |worker: &mut Worker| match call {
            "run" => worker.run(|orch| orch.submit_next_level(count, &counted, 0)).map(drop),
            "submit_run" => worker
                .submit_run(|orch| orch.submit_next_level(count, &counted, 0))
                .and_then(|(_, run)| run.wait(worker, secs(60)))
                .map(drop),
            _ => worker.chip_alloc(0, 64).map(drop),
        };
        says(
            submit(&mut worker),
            "…aborted: a run that was submitted before failed, and this call came before anybody had waited for it; nothing was \
             done. Look at what that run was to do, then make this call again\n  caused by: …on purpose",
        );
        submit(&mut worker).unwrap();
    }
    assert_eq!(x.to_vec(), [2.0], "what was refused did nothing");
    // One that its handle reported is not reported again.
    let (_, run) = worker.submit_run(|orch| orch.submit_next_level(fails, &told, 0)).unwrap();
    assert!(run.wait(&mut worker, secs(60)).is_err());
    worker.run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
}

// WO-18
#[test]
#[serial]
fn a_closure_that_fails_cancels_its_run_only() {
    let mut worker = plain(1);
    let (hold, count) =
        (worker.register_function("hold", await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let (_, before) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let stopped = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            gate.write(&[1.0]).unwrap();
        });
        worker.submit_run(|orch| {
            orch.submit_next_level(count, &counted, 0)?;
            Err::<(), _>(Failure::new(ErrorCode::Invalid, "changed my mind"))
        })
    });
    assert!(text(&stopped.unwrap_err()).contains("changed my mind"));
    done(&before, &mut worker);
    assert_eq!(x.to_vec(), [0.0], "it had not begun");
    worker.run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    assert_eq!(x.to_vec(), [1.0]);
}

// WO-19
#[test]
#[serial]
fn a_cancelled_run_does_not_begin_those_in_front_end_well_and_those_behind_follow() {
    let mut worker = plain(1);
    let (hold, count) =
        (worker.register_function("hold", await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let (_, front) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let (_, run) = worker.submit_run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    let (_, behind) = worker.submit_run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    run.cancel(&mut worker).unwrap();
    gate.write(&[1.0]).unwrap();
    done(&front, &mut worker);
    let cancelled = run.wait(&mut worker, secs(60)).unwrap_err();
    assert_eq!(cancelled.code, ErrorCode::Aborted);
    assert!(text(&cancelled).contains("the run was cancelled by its caller"), "{cancelled}");
    assert_eq!(behind.wait(&mut worker, secs(60)).unwrap_err().code, ErrorCode::Aborted);
    assert_eq!(x.to_vec(), [0.0]);
    // What is over stays what it is.
    let (_, over) = worker.submit_run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    done(&over, &mut worker);
    over.cancel(&mut worker).unwrap();
    done(&over, &mut worker);
    worker.run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    assert_eq!(x.to_vec(), [2.0]);
}

/// Waits in a barrier of kernels, in which no other rank comes.
const BARRIER: &str = r#"
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *context = reinterpret_cast<CommContext *>(args[0]);
    (void)!comm_phase_barrier(context, reinterpret_cast<CommPhaseBarrier *>(args[1]));
}
"#;

// WO-19
#[test]
#[serial]
fn f46_kernels_that_wait_return_when_their_run_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = grouped(2, 16);
    let barrier = worker.register_kernel(&kernel(folder.path(), "barrier", BARRIER)).unwrap();
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let args = |chip: usize| {
        let context = &contexts[chip];
        Args::new().scalar(context.device_ctx.0).scalar(context.buffer("barrier").unwrap().addr.0)
    };
    for _ in 0..3 {
        let (_, stuck) = worker.submit_run(|orch| orch.submit_next_level(barrier, &args(0), 0)).unwrap();
        let (_, behind) = worker.submit_run(|orch| orch.submit_next_level(barrier, &args(0), 0)).unwrap();
        assert_eq!(stuck.wait(&mut worker, short(20)).unwrap(), RunState::UnderWay);
        stuck.cancel(&mut worker).unwrap();
        assert_eq!(stuck.wait(&mut worker, secs(60)).unwrap_err().code, ErrorCode::Aborted);
        assert!(behind.wait(&mut worker, secs(60)).is_err());
        // Afterwards kernels meet again.
        let members = [(0, args(0)), (1, args(1))];
        worker.run(|orch| orch.submit_group(barrier, &members).map(drop)).unwrap();
    }
}

// WO-17
#[test]
#[serial]
fn a_run_with_a_domain_is_over_before_the_next_begins() {
    let mut worker = grouped(2, 16);
    let count = worker.register_function("count", count);
    worker.init().unwrap();
    let mut runs = Vec::new();
    for _ in 0..3 {
        let (address, run) = worker
            .submit_run(|orch| {
                let domain = orch.allocate_domain("d", &[0, 1], 4096, &[("x", DType::Float32, 4)])?;
                for member in domain.contexts() {
                    let x = member.buffer("x")?.tensor()?;
                    orch.submit_next_level(count, &Args::new().tensor(&x, Access::InOut), member.chip)?;
                }
                Ok(domain.contexts()[0].window_base)
            })
            .unwrap();
        assert!(!address.is_null());
        runs.push(run);
    }
    assert!(runs[1].is_done(&mut worker), "the third waited for it");
    runs.iter().for_each(|run| done(run, &mut worker));
}

// WO-18
#[test]
#[serial]
fn f07_a_run_that_takes_too_long_ends_its_flight_and_a_death_is_told_by_all_handles() {
    let mut worker = builder(1).run_within(short(300)).build().unwrap();
    let (hold, count) =
        (worker.register_function("hold", await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    let (_, long) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let (_, behind) = worker.submit_run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    let failure = long.wait(&mut worker, secs(60)).unwrap_err();
    assert_eq!(failure.code, ErrorCode::TimedOut, "{failure}");
    assert!(text(&behind.wait(&mut worker, secs(60)).unwrap_err()).contains("not finished after"));
    // Its process got another one in its place.
    worker.set_run_within(secs(60));
    worker.run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    assert_eq!(x.to_vec(), [1.0]);

    let (_, held_run) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let (_, behind) = worker.submit_run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    let pid = nix::unistd::Pid::from_raw(worker.chip_contexts().unwrap()[0].pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(held_run.wait(&mut worker, secs(60)).unwrap_err().code, ErrorCode::Killed);
    assert!(text(&behind.wait(&mut worker, secs(60)).unwrap_err()).contains("died"));
    let repeated =
        worker.submit_run(|orch| orch.submit_next_level(count, &counted, 0)).map(drop).unwrap_err();
    assert!(text(&repeated).contains("closed and initialised again"), "{repeated}");
}

// WO-19
#[test]
#[serial]
fn close_ends_what_is_in_flight_and_a_handle_of_another_worker_is_refused() {
    let mut worker = plain(1);
    let hold = worker.register_function("hold", await_word);
    let gate = worker.host_buffer::<f32>(1).unwrap();
    worker.init().unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let (_, run) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let mut other = plain(1);
    other.init().unwrap();
    assert_eq!(run.wait(&mut other, secs(1)).unwrap_err().code, ErrorCode::Invalid);
    gate.write(&[1.0]).unwrap();
    worker.close().unwrap();
    let closed = run.wait(&mut worker, secs(1)).unwrap_err();
    assert!(text(&closed).contains("the Worker was closed"), "{closed}");
}

// WO-20
#[test]
#[serial]
fn a_task_says_what_became_of_it() {
    let mut worker = builder(2).measured().build().unwrap();
    let (hold, count) =
        (worker.register_function("hold", begin_and_await_word), worker.register_function("count", count));
    let fails = worker.register_function("fails", fails_when_told);
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    let begun = worker.host_buffer::<f32>(1).unwrap();
    worker.init().unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input).tensor(&begun.tensor(), Access::Output);
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    let ((first, second, failing, last), run) = worker
        .submit_run(|orch| {
            let first = orch.submit_next_level(hold, &held, 0)?;
            let second = orch.submit_next_level(count, &counted, 0)?;
            let failing = orch.submit_next_level(fails, &held, 0)?;
            Ok((first, second, failing, orch.submit_next_level(count, &counted, 0)?))
        })
        .unwrap();
    while begun.to_vec() == [0.0] {
        std::thread::yield_now();
    }
    let seen_running = Instant::now();
    assert_eq!(worker.task(first).unwrap().state, TaskState::Running);
    assert_eq!(worker.task(second).unwrap().state, TaskState::Waiting);
    std::thread::sleep(Duration::from_millis(20));
    let held_for = seen_running.elapsed();
    gate.write(&[1.0]).unwrap();
    assert!(run.wait(&mut worker, secs(60)).is_err());
    let report = |task| worker.task(task).unwrap();
    assert_eq!((report(first).state, report(second).state), (TaskState::Done, TaskState::Done));
    assert!(report(first).took.unwrap() >= held_for, "it was held");
    assert_eq!((report(failing).state, report(last).state), (TaskState::Failed, TaskState::Cancelled));
    assert!(text(&report(failing).failure.unwrap()).contains("on purpose"));
    assert!(report(failing).took.is_some() && report(last).took.is_none() && report(last).failure.is_none());
    // A later failure on the same chip takes its place.
    assert!(worker.run(|orch| orch.submit_next_level(fails, &held, 0)).is_err());
    assert_eq!(worker.task(first).unwrap_err().code, ErrorCode::Invalid);
    worker.close().unwrap();
    assert!(worker.task(first).is_err());
    worker.init().unwrap();
    assert!(worker.task(first).is_err() && worker.cancel_task(first).is_err());
}

// WO-20
#[test]
#[serial]
fn a_cancelled_task_does_not_begin_and_fails_its_run() {
    let mut worker = plain(2);
    let (hold, count) =
        (worker.register_function("hold", await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    let (first, front) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let (tasks, run) = worker
        .submit_run(|orch| {
            let all: Result<Vec<_>, _> = (0..3).map(|_| orch.submit_next_level(count, &counted, 0)).collect();
            all
        })
        .unwrap();
    // The later one first: the earlier one takes its place.
    worker.cancel_task(tasks[2]).unwrap();
    worker.cancel_task(tasks[1]).unwrap();
    gate.write(&[1.0]).unwrap();
    done(&front, &mut worker);
    let failure = run.wait(&mut worker, secs(60)).unwrap_err();
    assert!(text(&failure).contains("the task was cancelled by its caller"), "{failure}");
    assert_eq!(x.to_vec(), [1.0], "the first of three ran");
    let states: Vec<_> = tasks.iter().map(|task| worker.task(*task).unwrap().state).collect();
    assert_eq!(states, [TaskState::Done, TaskState::Failed, TaskState::Cancelled]);
    // What is over stays what it is; the next run begins clean.
    worker.cancel_task(first).unwrap();
    worker.run(|orch| orch.submit_next_level(count, &counted, 0)).unwrap();
    // One that runs counts as failed when it is over.
    gate.write(&[0.0]).unwrap();
    let (running, run) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 1)).unwrap();
    while worker.task(running).unwrap().state != TaskState::Running {
        std::thread::yield_now();
    }
    worker.cancel_task(running).unwrap();
    gate.write(&[1.0]).unwrap();
    assert!(text(&run.wait(&mut worker, secs(60)).unwrap_err()).contains("cancelled by its caller"));
    assert_eq!(worker.task(running).unwrap().state, TaskState::Failed);
    worker.run(|orch| orch.submit_next_level(count, &counted, 1)).unwrap();
    assert_eq!(x.to_vec(), [3.0]);
}

// WO-20
#[test]
#[serial]
fn a_task_that_waits_for_another_chip_does_not_begin_when_it_is_cancelled() {
    let mut worker = plain(2);
    let (hold, count) =
        (worker.register_function("hold", await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    let ([first, second], run) = worker
        .submit_run(|orch| {
            let first = orch.submit_next_level(hold, &held, 0)?;
            Ok([first, orch.submit_next_level(count, &counted.after(&[first]), 1)?])
        })
        .unwrap();
    // Chip 1 has the task and waits for chip 0 when the first task of this Worker is cancelled.
    while !worker.metrics().unwrap().children[1].activity.contains("waits for") {
        std::thread::yield_now();
    }
    worker.cancel_task(second).unwrap();
    assert_eq!(worker.task(second).unwrap().state, TaskState::Waiting);
    gate.write(&[1.0]).unwrap();
    assert!(text(&run.wait(&mut worker, secs(60)).unwrap_err()).contains("cancelled by its caller"));
    assert_eq!(x.to_vec(), [0.0]);
    let states = [first, second].map(|task| worker.task(task).unwrap().state);
    assert_eq!(states, [TaskState::Done, TaskState::Failed]);
}

/// Waits for peers that do not come.
const ALONE: &str = r#"
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    (void)!comm_phase_barrier(comm_pointer<CommContext>(args[0]), comm_pointer<CommPhaseBarrier>(args[1]));
}
"#;

// WO-20
#[test]
#[serial]
fn a_kernel_that_is_cancelled_as_it_begins_returns() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "alone", ALONE);
    for _ in 0..8 {
        let mut worker = grouped(2, 16);
        let alone = worker.register_kernel(&so).unwrap();
        worker.init().unwrap();
        let chip = worker.chip_contexts().unwrap()[1].clone();
        let args = Args::new().scalar(chip.device_ctx.0).scalar(chip.buffer("barrier").unwrap().addr.0);
        for round in 0..25 {
            let (task, run) = worker.submit_run(|orch| orch.submit_next_level(alone, &args, 1)).unwrap();
            (0..round * 40).for_each(|_| std::hint::spin_loop());
            worker.cancel_task(task).unwrap();
            let failure = run.wait(&mut worker, secs(60)).unwrap_err();
            assert!(text(&failure).contains("the task was cancelled by its caller"), "{round}: {failure}");
            assert_eq!(worker.task(task).unwrap().state, TaskState::Failed);
        }
        worker.close().unwrap();
    }
}

// WO-20
#[test]
#[serial]
fn f07_a_task_beyond_its_own_limit_ends_its_run_and_is_named() {
    let mut worker = plain(2);
    let (hold, count) =
        (worker.register_function("hold", await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    for round in 0..2 {
        let limited = held.clone().within(short(50));
        let failure = match round {
            0 => worker.run(|orch| orch.submit_next_level(hold, &limited, 0)).unwrap_err(),
            _ => {
                let (_, run) = worker.submit_run(|orch| orch.submit_next_level(hold, &limited, 0)).unwrap();
                run.wait(&mut worker, secs(60)).unwrap_err()
            }
        };
        assert_eq!(failure.code, ErrorCode::TimedOut);
        assert!(
            text(&failure).contains("`hold`, task") && text(&failure).contains("limit of 50ms"),
            "{failure}"
        );
        // WO-4
        worker.run(|orch| orch.submit_next_level(count, &counted.clone().within(secs(60)), 0)).unwrap();
    }
    assert_eq!(x.to_vec(), [2.0]);
    // The limit counts from when it begins: one that waits for another task longer than that is well.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            gate.write(&[1.0]).unwrap();
        });
        let first = held.clone().tensor(&x.tensor(), Access::InOut);
        worker
            .run(|orch| {
                orch.submit_next_level(hold, &first, 0)?;
                orch.submit_next_level(count, &counted.clone().within(short(100)), 1)
            })
            .unwrap();
    });
    assert_eq!(x.to_vec(), [3.0]);
}

/// Reads the layout that the control block says it has, by the code of `comm-inspect`.
#[test]
#[serial]
fn f44_a_running_worker_can_be_inspected_from_outside() {
    let mut worker = builder(2).sub_workers(1).build().unwrap();
    let (hold, count) =
        (worker.register_function("hold", await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    let own = std::process::id();
    assert_eq!(comm_sim::workers_of(own).unwrap(), Vec::<String>::new());
    worker.init().unwrap();
    let pids = support::children_of(own);
    let line = |name: &str, pid: u32, doing: &str| {
        let tables = comm_sim::workers_of(own).unwrap();
        assert_eq!(tables.len(), 1, "{tables:?}");
        assert!(tables[0].starts_with(&format!("Worker of process {own}:\n")), "{tables:?}");
        let begin = format!("  {name:<12} pid {pid:<8} ");
        let line = tables[0].lines().find(|line| line.starts_with(&begin));
        line.unwrap_or_else(|| panic!("{begin:?} in {tables:?}")).contains(doing)
    };
    assert!(line("chip 1", pids[1], "idle, 0 of 0 done") && line("sub-worker 0", pids[2], "idle"));
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    let (_, run) = worker
        .submit_run(|orch| {
            let first = orch.submit_next_level(hold, &held, 0)?;
            (0..3).try_for_each(|_| orch.submit_next_level(count, &counted, 1).map(drop))?;
            orch.submit_next_level(count, &counted.after(&[first]), 1)
        })
        .unwrap();
    // From the parent, and the same from a child.
    while !line("chip 0", pids[0], "in task 1 for ")
        || !line("chip 1", pids[1], "waits for task 1 of chip 0 before, 3 of 4 done")
    {
        std::thread::yield_now();
    }
    assert_eq!(comm_sim::workers_of(pids[2]).unwrap().len(), 1);
    gate.write(&[1.0]).unwrap();
    done(&run, &mut worker);
    assert!(line("chip 1", pids[1], "idle, 4 of 4 done"));
    worker.close().unwrap();
    assert_eq!(comm_sim::workers_of(own).unwrap(), Vec::<String>::new());
    assert!(comm_sim::workers_of(u32::MAX - 1).is_err());
}

// WO-21
#[test]
#[serial]
fn metrics_count_what_chips_did_and_how_long() {
    let mut worker = builder(2).measured().build().unwrap();
    let (hold, count) =
        (worker.register_function("hold", begin_and_await_word), worker.register_function("count", count));
    let (gate, x) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    assert!(worker.metrics().is_err(), "it is not up");
    worker.init().unwrap();
    let memory = worker.chip_alloc(1, 64).unwrap();
    worker.copy_to(1, memory.addr(), &[1; 64]).unwrap();
    worker.copy_from(1, memory.addr(), &mut [0; 16]).unwrap();
    let held = Args::new().tensor(&gate.tensor(), Access::Input).tensor(&x.tensor(), Access::InOut);
    let counted = Args::new().tensor(&x.tensor(), Access::InOut);
    let before = worker.metrics().unwrap();
    let (_, first) = worker.submit_run(|orch| orch.submit_next_level(hold, &held, 0)).unwrap();
    let (last, second) = worker.submit_run(|orch| orch.submit_next_level(count, &counted, 1)).unwrap();
    // The first is in its task and the second waits for it, for at least so long.
    let is_waiting = |worker: &Worker| worker.metrics().unwrap().children[1].activity.contains("waits for");
    while !is_waiting(&worker) || x.to_vec() == [0.0] {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    let during = worker.metrics().unwrap();
    assert_eq!(during.runs_in_flight, 2);
    assert!(during.children[0].activity.starts_with("in `hold`"), "{during}");
    assert_eq!(during.children.iter().map(|chip| chip.queued).collect::<Vec<_>>(), [1, 1]);
    gate.write(&[1.0]).unwrap();
    done(&first, &mut worker);
    done(&second, &mut worker);
    assert_eq!(worker.task(last).unwrap().state, TaskState::Done);
    let after = worker.metrics().unwrap();
    let finished = |metrics: &worker_orch::Metrics, chip: usize| metrics.children[chip].finished;
    for chip in 0..2 {
        assert_eq!(finished(&after, chip) - finished(&before, chip), 1);
        assert_eq!(after.children[chip].queued, 0);
    }
    let [held, waited] = [&after.children[0], &after.children[1]];
    assert!(held.busy.unwrap() >= Duration::from_millis(15), "{after}");
    assert!(waited.waiting.unwrap() >= Duration::from_millis(15), "it waited for the first: {after}");
    assert_eq!((waited.bytes_to, waited.bytes_from, held.bytes_to), (64, 16, 0));
    let text = after.to_string();
    assert!(
        text.contains("runs in flight: 0") && text.contains("chip 1 ") && text.contains("64 bytes to it"),
        "{text}"
    );
    // Without measuring there are counts and no times.
    let mut plain = plain(1);
    plain.init().unwrap();
    assert!(plain.metrics().unwrap().children[0].busy.is_none());
}
