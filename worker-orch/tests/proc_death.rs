//! Processes that die, hang or never come up: what is reported, and that nothing is left behind.
//!
//! # Safety
//! Forks whole parents to kill them; the children use Workers, signals and shared memory, and no lock of the
//! test harness.
#![allow(unsafe_code, missing_docs)]

#[path = "../../base/child-process/tests/support/hold_exit.rs"]
mod hold_exit;
mod support;

use child_process::{Child, ProcessWatch};
use comm_context::comm::{Membership, Timeout};
use deadline::{Deadline, HowDied};
use hold_exit::{Held, allow_tracing};
use mailbox_atomics::{Wait, WordU32};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serial_test::serial;
use shared_memory::Region;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{builder, children_of, grouped, is_text, kernel, plain, secs, text, traces};
use worker_orch::{Access, Args, ChipConfig, ErrorCode, Failure, Orchestrator, Program, Task, Worker};

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

fn die(task: &mut Task<'_>) -> Result<(), Failure> {
    let signal = Signal::try_from(task.scalar(0)? as i32).unwrap();
    nix::sys::signal::raise(signal).unwrap();
    Ok(())
}

fn leave(task: &mut Task<'_>) -> Result<(), Failure> {
    std::process::exit(task.scalar(0)? as i32)
}

#[test]
#[serial]
fn f02_a_chip_that_dies_in_a_task_is_reported_and_reaped_and_the_worker_can_start_again() {
    let before = traces();
    let mut worker = plain(3);
    let (die, leave, nothing) = (
        worker.register_function("die", die),
        worker.register_function("leave", leave),
        worker.register_function("nothing", nothing),
    );
    for (program, number, word) in [
        (die, 9, "killed by SIGKILL"),
        (die, 11, "killed by SIGSEGV"),
        (die, 6, "killed by SIGABRT"),
        (leave, 7, "exited with code 7"),
    ] {
        worker.init().unwrap();
        let started = Instant::now();
        let reported =
            worker.run(|orch| orch.submit_next_level(program, &Args::new().scalar(number), 1)).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(10), "reported after {:?}", started.elapsed());
        let first = text(&reported);
        assert!(first.contains("chip 1 (pid") && first.contains(word), "{first}");
        // WO-4: later calls repeat the cause and say what to do.
        for _ in 0..2 {
            let later =
                text(&worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 0)).unwrap_err());
            assert!(later.contains(word) && later.contains("initialised again"), "{later}");
        }
        assert!(worker.chip_alloc(0, 8).is_err());
        worker.close().unwrap();
        assert!(children_of(std::process::id()).is_empty());
    }
    worker.init().unwrap();
    worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 1)).unwrap();
    drop(worker);
    assert_eq!(traces(), before);
}

#[test]
#[serial]
fn f02_a_chip_killed_while_idle_is_reported_at_the_next_run() {
    let mut worker = plain(2);
    let nothing = worker.register_function("nothing", nothing);
    worker.init().unwrap();
    let victim = children_of(std::process::id())[0];
    kill(Pid::from_raw(victim as i32), Signal::SIGKILL).unwrap();
    let reported = worker.run(|orch| {
        (0..2).try_for_each(|chip| orch.submit_next_level(nothing, &Args::new(), chip).map(drop))
    });
    let reported = text(&reported.unwrap_err());
    assert!(reported.contains("killed by SIGKILL") && reported.contains("while it was idle"), "{reported}");
}

#[test]
#[serial]
fn f02_a_death_that_a_submit_runs_into_is_first_reported_without_advice() {
    let mut worker = plain(2);
    let die = worker.register_function("die", die);
    worker.init().unwrap();
    // More than the ring holds: the submit has to wait, and what it waits for never comes.
    let reported = worker.run(|orch| {
        (0..1000).try_for_each(|_| orch.submit_next_level(die, &Args::new().scalar(9), 1).map(drop))
    });
    let reported = text(&reported.unwrap_err());
    assert!(reported.contains("chip 1 (pid") && reported.contains("killed by SIGKILL"), "{reported}");
    assert!(!reported.contains("initialised again"), "the advice comes later: {reported}");
    let later = text(&worker.run(|_| Ok(())).unwrap_err());
    assert!(later.contains("killed by SIGKILL") && later.contains("initialised again"), "{later}");
}

fn barrier(task: &mut Task<'_>) -> Result<(), Failure> {
    let comm = task.chip().and_then(|chip| chip.comm());
    let comm = comm.ok_or_else(|| Failure::new(ErrorCode::Invalid, "no communicator"))?;
    Ok(comm.barrier(secs(60))?)
}

#[test]
#[serial]
fn f46_functions_that_wait_in_the_communicator_for_a_failed_task_return() {
    let mut worker = grouped(3, 16);
    // The task fails when the others are about to wait: one that comes later would not begin at all.
    let began = Arc::new(Region::create("began", 4096).unwrap());
    let begins = Arc::clone(&began);
    let wait = worker.register_closure("wait", move |task| {
        begins.words::<WordU32>(64 * task.scalar(0)? as usize).unwrap().store_and_wake(1);
        barrier(task)
    });
    let refuse = worker.register_closure("refuse", move |task| {
        for chip in [0, 2] {
            let word = began.words::<WordU32>(64 * chip).unwrap();
            Wait::until(far()).on(word, None, |value| (value == 1).then_some(())).unwrap();
        }
        refuse(task)
    });
    let (wait, refuse) = (wait.unwrap(), refuse.unwrap());
    let (barrier, nothing) =
        (worker.register_function("barrier", barrier), worker.register_function("nothing", nothing));
    worker.init().unwrap();
    let started = Instant::now();
    let reported = worker.run(|orch| {
        orch.submit_next_level(wait, &Args::new().scalar(0), 0)?;
        orch.submit_next_level(wait, &Args::new().scalar(2), 2)?;
        orch.submit_next_level(refuse, &Args::new(), 1)
    });
    let reported = text(&reported.unwrap_err());
    assert!(reported.contains("`refuse` failed on chip 1"), "{reported}");
    assert!(started.elapsed() < Duration::from_secs(20), "reported after {:?}", started.elapsed());
    // The chips stay usable; only the communicator is not, and says what to do.
    worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 0)).unwrap();
    let broken = worker.run(|orch| orch.submit_next_level(barrier, &Args::new(), 0));
    let broken = text(&broken.unwrap_err());
    assert!(broken.contains("a task of the run failed"), "{broken}");
}

#[test]
#[serial]
fn f07_a_death_is_reported_as_the_parent_knows_it_and_not_as_a_peer_does() {
    let mut worker = grouped(3, 16);
    let barrier = worker.register_function("barrier", barrier);
    // Either the parent or a chip that waits for the dead one may notice first.
    for _ in 0..2 {
        worker.init().unwrap();
        let victim = children_of(std::process::id())[1];
        kill(Pid::from_raw(victim as i32), Signal::SIGKILL).unwrap();
        let reported = worker.run(|orch| {
            [0, 2]
                .into_iter()
                .try_for_each(|chip| orch.submit_next_level(barrier, &Args::new(), chip).map(drop))
        });
        let reported = text(&reported.unwrap_err());
        assert!(reported.contains("chip 1 (pid") && reported.contains("killed by SIGKILL"), "{reported}");
        worker.close().unwrap();
    }
}

/// Gives every chip of the Worker below a task that does not end.
fn get_stuck(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let wait_long = Program::from_number(task.scalar(0)? as u32);
    orch.submit_next_level(wait_long, &Args::new(), 0).map(drop)
}

#[test]
#[serial]
fn f07_the_deadlines_of_levels_nest_from_inside_out() {
    let mut below = plain(2);
    let wait_long = below.register_function("wait_long", wait_long);
    // The Worker below may take longer than the one above, if it is asked.
    below.set_run_within(secs(600));
    let mut cluster = Worker::builder().level(4).build().unwrap();
    cluster.add_worker(below).unwrap();
    let stuck = cluster.register_orchestration("get_stuck", get_stuck);
    cluster.init().unwrap();
    cluster.set_run_within(secs(2));
    let args = Args::new().scalar(wait_long.number().into());
    let reported = text(&cluster.run(|orch| orch.submit_next_level(stuck, &args, 0)).unwrap_err());
    // Where the chip's memory is gone with its process, the Worker below ends too, and says so.
    assert!(reported.contains("`get_stuck`") && reported.contains("worker 0"), "{reported}");
    assert!(
        reported.contains("chip 0       pid") && reported.contains("in `wait_long`, its task 1 of 1"),
        "{reported}"
    );
}

#[test]
#[serial]
fn f07_a_death_two_levels_down_is_named_when_it_is_found_at_close() {
    let mut cluster = Worker::builder().level(4).build().unwrap();
    cluster.add_worker(plain(2)).unwrap();
    cluster.init().unwrap();
    let middle = children_of(std::process::id())[0];
    kill(Pid::from_raw(children_of(middle)[1] as i32), Signal::SIGKILL).unwrap();
    let reported = text(&cluster.close().unwrap_err());
    assert!(reported.contains("worker 0 (pid"), "{reported}");
    assert!(reported.contains("chip 1 (pid") && reported.contains("killed by SIGKILL"), "{reported}");
}

/// Waits for a peer that never comes, and polls the abort word as kernels should.
const POLITE: &str = r#"
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *ctx = reinterpret_cast<CommContext *>(args[0]);
    (void)!comm_phase_barrier(ctx, reinterpret_cast<CommPhaseBarrier *>(args[1]));
}
"#;

/// Spins on a bare word and polls nothing else.
const RUDE: &str = r#"
#include <cstdint>
extern "C" void kernel_entry(int64_t *args) {
    while (*reinterpret_cast<volatile uint32_t *>(args[1]) != 12345) {}
}
"#;

#[test]
#[serial]
fn f46_a_kernel_that_waits_for_a_dead_peer_ends_with_that_death() {
    let folder = tempfile::tempdir().unwrap();
    for (name, source) in [("polite", POLITE), ("rude", RUDE)] {
        let so = kernel(folder.path(), name, source);
        let mut worker = grouped(3, 16);
        let (wait, die) = (worker.register_kernel(&so).unwrap(), worker.register_function("die", die));
        worker.init().unwrap();
        let contexts = worker.chip_contexts().unwrap().to_vec();
        let reported = worker.run(|orch| {
            for chip in [0, 2] {
                let context = &contexts[chip];
                let args = Args::new().scalar(context.device_ctx.0).scalar(context.buffer("barrier")?.addr.0);
                orch.submit_next_level(wait, &args, chip)?;
            }
            orch.submit_next_level(die, &Args::new().scalar(11), 1)
        });
        let reported = text(&reported.unwrap_err());
        assert!(reported.contains("chip 1 (pid") && reported.contains("SIGSEGV"), "{name}: {reported}");
        drop(worker);
        assert!(children_of(std::process::id()).is_empty(), "{name}");
    }
}

#[test]
#[serial]
fn f44_a_run_that_takes_too_long_says_what_every_chip_is_doing() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "rude", RUDE);
    let mut worker = grouped(2, 16);
    let wait = worker.register_kernel(&so).unwrap();
    worker.init().unwrap();
    worker.set_run_within(Timeout::new(Duration::from_millis(300)).unwrap());
    let barrier = worker.chip_contexts().unwrap()[1].buffer("barrier").unwrap().addr.0;
    let args = Args::new().scalar(0).scalar(barrier);
    let reported = worker.run(|orch| orch.submit_next_level(wait, &args, 1)).unwrap_err();
    assert_eq!(reported.root_cause().code, ErrorCode::TimedOut);
    let reported = text(&reported);
    assert!(
        reported.contains("chip 0")
            && reported.contains("idle")
            && reported.contains("in `rude.so`, its task 1 of 1"),
        "{reported}"
    );
    // Later calls repeat it, and do not call it a death.
    let later = text(&worker.run(|_| Ok(())).unwrap_err());
    assert!(
        later.contains("a call on this Worker took too long and left it in an unknown state")
            && later.contains("initialised again"),
        "{later}"
    );
    assert!(!later.contains("died") && !later.contains("lost"), "{later}");
    // F38, F39: the wedged chip does not keep the Worker from closing.
    let started = Instant::now();
    worker.close().unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "closed after {:?}", started.elapsed());
    assert!(children_of(std::process::id()).is_empty());
}

/// Rank 1 waits for a signal that nobody sends; the others wait for rank 1.
const UNSENT: &str = r#"
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *ctx = reinterpret_cast<CommContext *>(args[0]);
    auto *signals = reinterpret_cast<int32_t *>(args[2]);
    if (ctx->rankId == 1) {
        comm_notify(ctx, &signals[2], 3);
        if (!comm_wait(ctx, &signals[2], 4)) return;
    }
    (void)!comm_phase_barrier(ctx, reinterpret_cast<CommPhaseBarrier *>(args[1]));
}
"#;

#[test]
#[serial]
fn f44_a_run_that_takes_too_long_says_which_signal_every_kernel_waits_for() {
    if support::platform() != worker_orch::Platform::Sim {
        // A kernel on a device leaves no record of what it waits for.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unsent = kernel(folder.path(), "unsent", UNSENT);
    let mut worker = grouped(3, 16);
    let unsent = worker.register_kernel(&unsent).unwrap();
    worker.init().unwrap();
    worker.set_run_within(secs(2));
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let args = |chip: usize| -> Result<Args, Failure> {
        let context = &contexts[chip];
        let [barrier, data] = [context.buffer("barrier")?.addr.0, context.buffer("data")?.addr.0];
        Ok(Args::new().scalar(context.device_ctx.0).scalar(barrier).scalar(data))
    };
    let reported = worker
        .run(|orch| (0..3).try_for_each(|chip| orch.submit_next_level(unsent, &args(chip)?, chip).map(drop)));
    let reported = text(&reported.unwrap_err());
    let line = |chip: &str| reported.lines().find(|line| line.contains(chip)).unwrap_or_default().to_owned();
    assert!(line("chip 1 ").ends_with(": waits for data[2] of rank 1: has 3, wants 4"), "{reported}");
    for chip in ["chip 0 ", "chip 2 "] {
        assert!(line(chip).ends_with(": waits for rank 1 at `barrier`: has 0, wants 1"), "{reported}");
    }
    // A death in a wait says the same. The signal has come to 6 by now, and no other rank comes to the barrier.
    worker.set_run_within(secs(60));
    let died = worker.run(|orch| {
        orch.submit_next_level(unsent, &args(1)?, 1)?;
        // Long enough for a kernel beside other programs to come to its wait, and to record it.
        std::thread::sleep(Duration::from_secs(2));
        kill(Pid::from_raw(children_of(std::process::id())[1] as i32), Signal::SIGKILL).unwrap();
        Ok(())
    });
    let died = text(&died.unwrap_err());
    assert!(died.contains("killed by SIGKILL, in `unsent.so`, its task 2 of 2"), "{died}");
    assert!(died.contains(": waits for rank 0 at `barrier`: has 0, wants 1"), "{died}");
}

fn wait_long(_: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

#[test]
#[serial]
fn f38_one_wedged_chip_does_not_eat_the_time_of_the_others() {
    // WO-6
    let patience = Timeout::new(Duration::from_millis(200)).unwrap();
    let mut worker = builder(3).close_within(patience).build().unwrap();
    let wait_long = worker.register_function("wait_long", wait_long);
    worker.init().unwrap();
    worker.set_run_within(Timeout::new(Duration::from_millis(100)).unwrap());
    worker.run(|orch| orch.submit_next_level(wait_long, &Args::new(), 1)).unwrap_err();
    let started = Instant::now();
    worker.close().unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "closed after {:?}", started.elapsed());
    assert!(children_of(std::process::id()).is_empty());
}

#[test]
#[serial]
fn f01_a_chip_that_cannot_come_up_is_reported_with_its_phase_and_init_may_be_called_again() {
    // WO-1: each way in which one chip's bring-up fails.
    let before = traces();
    let member = |rank| Membership::new(rank, 2).unwrap();
    let good = |rank: u32| ChipConfig::new(rank as i32).communicator(member(rank)).window(4096);
    let mut worker = plain(2);
    let reported = |worker: &mut Worker, bad: ChipConfig| {
        worker.configure_chips(vec![good(0), bad]).unwrap();
        let failure = worker.init().unwrap_err();
        assert!(children_of(std::process::id()).is_empty());
        assert!(worker.chip_contexts().is_err());
        text(&failure)
    };
    // More memory than there is, on one chip only: it fails there, and the other learns it from its peer.
    let huge = reported(&mut worker, good(1).window(1 << 36));
    assert!(huge.contains("bootstrap failed") && huge.contains("window"), "{huge}");
    // A size that differs.
    let other = reported(&mut worker, good(1).window(1 << 20));
    assert!(other.contains("bootstrap failed") && other.contains("size of the window"), "{other}");
    assert!(other.contains("chip 0") && other.contains("chip 1"), "the table of phases is missing:\n{other}");
    worker.configure_chips(vec![good(0), good(1)]).unwrap();
    worker.init().unwrap();
    assert!(worker.init().is_err(), "it is up already");
    assert_eq!(worker.chip_contexts().unwrap().len(), 2);
    drop(worker);
    assert_eq!(traces(), before);
}

#[test]
#[serial]
fn configurations_that_cannot_work_are_refused_before_anything_runs() {
    let member = |rank, nranks| Membership::new(rank, nranks).unwrap();
    let mut worker = plain(2);
    let chip = |device| ChipConfig::new(device);
    for (chips, word) in [
        (vec![chip(0)], "the Worker has [0, 1]"),
        (vec![chip(1), chip(0)], "the Worker has [0, 1]"),
        (vec![chip(0).communicator(member(0, 2)), chip(1).communicator(member(0, 2))], "each rank once"),
        (vec![chip(0).communicator(member(0, 3)), chip(1).communicator(member(1, 3))], "each rank once"),
        (vec![chip(0).communicator(member(0, 2)), chip(1)], "each rank once"),
        (vec![chip(0), chip(1).region("x", 8)], "no communicator"),
    ] {
        let reported = text(&worker.configure_chips(chips).unwrap_err());
        assert!(reported.contains(word), "{reported}");
    }
    assert!(Worker::builder().devices(&[1, 1]).build().is_err());
    assert!(Worker::builder().devices(&[-1]).build().is_err());
    assert!(Worker::builder().level(2).build().is_err());
    assert!(Worker::builder().level(4).devices(&[0]).build().is_err());
    assert!(plain(1).add_worker(plain(1)).is_err());
    assert!(plain(1).run(|_| Ok(())).is_err());
    assert!(plain(1).chip_contexts().is_err());
}

/// Runs `body` in a process that can be killed.
fn parent(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: see the head of the file.
    unsafe { Child::fork(&[], body) }.unwrap()
}

#[test]
#[serial]
fn f03_chips_end_with_their_parent_at_any_point_of_its_life() {
    // WO-6
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "rude", RUDE);
    for delay_us in (0..30).map(|step| step * 150) {
        let pids = Region::create("pids", 4096).unwrap();
        let ready = pids.words::<WordU32>(0).unwrap();
        let doomed = parent(|| {
            ready.store_and_wake(1);
            let mut worker = grouped(3, 16);
            let spin = worker.register_kernel(&so).unwrap();
            if worker.init().is_err() {
                return 1;
            }
            let contexts = worker.chip_contexts().unwrap().to_vec();
            let _ = worker.run(|orch| {
                (0..3).try_for_each(|chip| {
                    let args = Args::new().scalar(0).scalar(contexts[chip].buffer("barrier")?.addr.0);
                    orch.submit_next_level(spin, &args, chip).map(drop)
                })
            });
            0
        });
        Wait::until(far()).on(ready, None, |word| (word == 1).then_some(())).unwrap();
        std::thread::sleep(Duration::from_micros(delay_us));
        let chips: Vec<ProcessWatch> = children_of(doomed.pid() as u32)
            .into_iter()
            .filter_map(|pid| ProcessWatch::of_process(pid as i32).ok())
            .collect();
        doomed.signal(Signal::SIGKILL as i32);
        assert_eq!(doomed.reap(far()), Some(HowDied::Signalled(9)));
        assert!(chips.iter().all(|chip| chip.wait_for_death(far())), "a chip outlived its parent");
    }
}

fn refuse(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Task, "it does not want to"))
}

/// A library whose unloading never returns.
const STICKY: &str = r#"
#include <cstdint>
#include <unistd.h>
extern "C" void kernel_entry(int64_t *) {}
__attribute__((destructor)) static void stay() { for (;;) pause(); }
"#;

#[test]
#[serial]
fn f39_f40_a_teardown_that_blocks_is_ended_by_the_parent() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "sticky", STICKY);
    let mut worker =
        builder(2).close_within(Timeout::new(Duration::from_millis(300)).unwrap()).build().unwrap();
    // Loaded by a function: a kernel that is registered is opened, and closed again, in the parent too.
    let sticky = worker.register_function("load", load);
    worker.init().unwrap();
    let path = worker.host_buffer::<u8>(4096).unwrap();
    let line = format!("{}\0", so.display());
    path.write(&[line.as_bytes(), &vec![0; 4096 - line.len()]].concat()).unwrap();
    let args = Args::new().tensor(&path.tensor(), Access::Input);
    worker.run(|orch| orch.submit_next_level(sticky, &args, 1)).unwrap();
    let started = Instant::now();
    let reported = text(&worker.close().unwrap_err());
    assert!(
        reported.contains("chip 1 (pid")
            && reported.contains(") did not end within ")
            && reported.contains(" and was killed"),
        "{reported}"
    );
    assert!(started.elapsed() < Duration::from_secs(10), "closed after {:?}", started.elapsed());
    assert!(children_of(std::process::id()).is_empty());
    worker.init().unwrap();
    worker.close().unwrap();
}

fn be_traceable(_: &mut Task<'_>) -> Result<(), Failure> {
    allow_tracing();
    Ok(())
}

#[test]
#[serial]
fn f39_close_does_not_wait_for_a_process_that_the_kernel_holds() {
    // WO-6
    let mut worker =
        builder(3).close_within(Timeout::new(Duration::from_millis(300)).unwrap()).build().unwrap();
    let be_traceable = worker.register_function("be_traceable", be_traceable);
    worker.init().unwrap();
    worker.run(|orch| orch.submit_next_level(be_traceable, &Args::new(), 1)).unwrap();
    let pid = worker.chip_contexts().unwrap()[1].pid;
    let Some(held) = Held::at_exit_of(pid) else {
        println!("not run: this process may not trace another");
        return;
    };
    let process = ProcessWatch::of_process(pid).unwrap();
    let (tells, closed) = std::sync::mpsc::channel();
    let release = std::thread::spawn(move || {
        let in_time = closed.recv_timeout(Duration::from_secs(20)).is_ok();
        drop(held);
        in_time
    });
    let reported = text(&worker.close().unwrap_err());
    let _ = tells.send(());
    assert!(release.join().unwrap(), "close has waited for it: {reported}");
    is_text(
        &reported,
        "in close: timed out: chip 1 (pid …) did not end within 300ms and was killed, which has not ended it yet: it is \
         inside the kernel, where a device may not answer; see /proc/…/stack and the system's log",
    );
    assert!(process.wait_for_death(far()));
    worker.init().unwrap();
    worker.close().unwrap();
    assert!(children_of(std::process::id()).is_empty());
}

/// Loads a kernel into the chip's own process.
fn load(task: &mut Task<'_>) -> Result<(), Failure> {
    let bytes = task.read::<u8>(0)?;
    let path = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default());
    let chip = task.chip().ok_or_else(|| Failure::new(ErrorCode::Invalid, "no chip"))?;
    Ok(chip.load(std::path::Path::new(path.as_ref()), "kernel_entry").map(drop)?)
}

/// Submits the barrier kernel to all chips but `absent`, and `other` to that one.
fn barrier_without(worker: &mut Worker, wait: Program, absent: usize, other: Program) -> Result<(), Failure> {
    let contexts = worker.chip_contexts()?.to_vec();
    worker.run(|orch| {
        for (chip, context) in contexts.iter().enumerate().filter(|(chip, _)| *chip != absent) {
            let args = Args::new().scalar(context.device_ctx.0).scalar(context.buffer("barrier")?.addr.0);
            orch.submit_next_level(wait, &args, chip)?;
        }
        orch.submit_next_level(other, &Args::new(), absent).map(drop)
    })
}

#[test]
#[serial]
fn f46_kernels_that_wait_for_a_failed_task_return_and_the_worker_stays_usable() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "polite", POLITE);
    let mut worker = grouped(3, 16);
    let wait = worker.register_kernel(&so).unwrap();
    let (refuse, nothing) =
        (worker.register_function("refuse", refuse), worker.register_function("nothing", nothing));
    worker.init().unwrap();
    for _ in 0..3 {
        let started = Instant::now();
        let reported = text(&barrier_without(&mut worker, wait, 1, refuse).unwrap_err());
        assert!(reported.contains("`refuse` failed on chip 1"), "{reported}");
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        worker
            .run(|orch| {
                (0..3).try_for_each(|chip| orch.submit_next_level(nothing, &Args::new(), chip).map(drop))
            })
            .unwrap();
    }
}

#[test]
#[serial]
fn f07_a_run_whose_closure_fails_half_way_does_not_wait_for_what_was_never_submitted() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "polite", POLITE);
    let mut worker = grouped(2, 16);
    let (wait, nothing) =
        (worker.register_kernel(&so).unwrap(), worker.register_function("nothing", nothing));
    worker.init().unwrap();
    let context = worker.chip_contexts().unwrap()[0].clone();
    let args = Args::new().scalar(context.device_ctx.0).scalar(context.buffer("barrier").unwrap().addr.0);
    for panics in [false, true] {
        let started = Instant::now();
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            worker.run(|orch| -> Result<(), Failure> {
                orch.submit_next_level(wait, &args, 0)?;
                assert!(!panics, "on purpose");
                Err(Failure::new(ErrorCode::Invalid, "half-way"))
            })
        }));
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        match ran {
            Ok(reported) => assert!(text(&reported.unwrap_err()).contains("half-way")),
            Err(panic) => assert!(panics, "{panic:?}"),
        }
        // WO-4: the next run starts clean.
        worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 0)).unwrap();
    }
    worker.close().unwrap();
}

#[test]
#[serial]
fn f07_a_deadline_that_passes_does_not_hide_the_failure_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "rude", RUDE);
    let mut worker = grouped(2, 16);
    let (wait, refuse) = (worker.register_kernel(&so).unwrap(), worker.register_function("refuse", refuse));
    worker.init().unwrap();
    worker.set_run_within(Timeout::new(Duration::from_millis(300)).unwrap());
    let reported = text(&barrier_without(&mut worker, wait, 1, refuse).unwrap_err());
    assert!(
        reported.contains("`refuse` failed on chip 1") && reported.contains("it does not want to"),
        "{reported}"
    );
}

fn finish_late(_: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_millis(400));
    Ok(())
}

#[test]
#[serial]
fn f32_a_late_reply_does_not_erase_the_shutdown() {
    let mut worker = plain(2);
    let finish_late = worker.register_function("finish_late", finish_late);
    worker.init().unwrap();
    worker.set_run_within(Timeout::new(Duration::from_millis(100)).unwrap());
    worker
        .run(|orch| {
            (0..2).try_for_each(|chip| orch.submit_next_level(finish_late, &Args::new(), chip).map(drop))
        })
        .unwrap_err();
    // Both answer after the shutdown was raised.
    worker.close().unwrap();
    assert!(children_of(std::process::id()).is_empty());
}

#[test]
#[serial]
fn f42_sixteen_chips_on_one_core_make_progress() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "polite", POLITE);
    let doomed = parent(|| {
        let mut only = nix::sched::CpuSet::new();
        only.set(0).unwrap();
        nix::sched::sched_setaffinity(Pid::from_raw(0), &only).unwrap();
        let mut worker = grouped(16, 16);
        let wait = worker.register_kernel(&so).unwrap();
        worker.init().unwrap();
        let contexts = worker.chip_contexts().unwrap().to_vec();
        let args: Vec<(usize, Args)> = contexts
            .iter()
            .map(|context| {
                Args::new().scalar(context.device_ctx.0).scalar(context.buffer("barrier").unwrap().addr.0)
            })
            .enumerate()
            .collect();
        let ran = worker.run(|orch| (0..100).try_for_each(|_| orch.submit_group(wait, &args).map(drop)));
        i32::from(ran.is_err())
    });
    assert_eq!(doomed.reap(far()), Some(HowDied::Exited(0)));
}
