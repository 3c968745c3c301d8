//! Kernels on the thread that calls `run`, once the orchestration has returned (CR-9).

mod common;

use chip_runtime::signals::{Domain, Signaller, Signals, Wait};
use chip_runtime::{Buffer, ErrorKind, FrontEnd, KernelId, Kernels, Limits, Runtime, TaskArgs};
use common::soon;
use deadline::Deadline;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// A chip that is one of two, which share the processors; the other never begins.
fn one_of_two(session: u64) -> Runtime {
    let mut runtime = Runtime::new(Limits { clusters: 2, ..Limits::default() }).unwrap();
    runtime.connect(Signals::in_process(2, 4096).unwrap().swap_remove(0));
    runtime.session(session, &[0, 1]);
    runtime.use_calling_thread();
    runtime
}

fn after(millis: u64) -> Deadline {
    Deadline::after(Duration::from_millis(millis)).unwrap()
}

/// A kernel that says on which thread it runs.
fn says_where(runtime: &mut Runtime) -> (KernelId, Receiver<ThreadId>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let kernel = runtime.kernel("says where", move |_| {
        Ok(tell.lock().map_err(|error| error.to_string())?.send(thread::current().id())?)
    });
    (kernel, told)
}

/// CR-9: tasks that follow each other all run where the graph was built, and no other thread is called for them.
#[test]
fn cr_9_what_is_left_when_the_orchestration_returns_runs_on_its_thread() {
    let mut runtime = Runtime::new(Limits { clusters: 2, ..Limits::default() }).unwrap();
    runtime.use_calling_thread();
    let (kernel, told) = says_where(&mut runtime);
    let mut data = Buffer::of(&[0i32; 8]);
    for _ in 0..20 {
        runtime
            .run(FrontEnd::Prebuilt, soon(), |graph| {
                let args = TaskArgs::new().inout(&graph.import(&mut data)?);
                (0..5).try_for_each(|_| graph.submit(Kernels::aiv(kernel), &args).map(drop))
            })
            .unwrap();
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [thread::current().id(); 5]);
    }
}

/// CR-9: while the orchestration runs, or waits for a task, kernels run elsewhere, whatever share of the processors the
/// chip has.
#[test]
fn cr_9_no_kernel_runs_on_the_thread_of_an_orchestration_that_has_not_returned() {
    let mut runtime = one_of_two(1);
    let (kernel, told) = says_where(&mut runtime);
    let mut data = Buffer::of(&[7i32; 8]);
    for round in 1..=20 {
        runtime.session(round, &[0, 1]);
        runtime
            .run(FrontEnd::Inferred, soon(), |graph| {
                let data = graph.import(&mut data)?;
                let args = TaskArgs::new().inout(&data);
                // It is elsewhere, and then it waits for what was submitted.
                graph.submit(Kernels::aiv(kernel), &args)?;
                let first = told.recv_timeout(Duration::from_secs(20));
                graph.submit(Kernels::aiv(kernel), &args)?;
                assert_eq!(graph.get(&data, &[0])?, 7);
                let here = thread::current().id();
                assert_ne!(first, Ok(here));
                assert_ne!(told.try_recv(), Ok(here));
                Ok(())
            })
            .unwrap();
    }
}

/// Blocks that start together, lanes of a block, and tasks that wait for each other without saying so: each has a thread.
#[test]
fn kernels_that_wait_for_each_other_all_start() {
    let mut runtime = one_of_two(1);
    let all = Arc::new(Barrier::new(4));
    let wait = runtime.kernel("wait", move |_| {
        all.wait();
        Ok(())
    });
    let mut session = 1..;
    for _ in 0..5 {
        let together = TaskArgs::new().blocks(4).sync_start();
        let mixed = Kernels { aic: Some(wait), aiv0: None, aiv1: Some(wait) };
        for (kernels, tasks, args) in [
            (Kernels::aiv(wait), 1, together),
            (mixed, 1, TaskArgs::new().blocks(2).sync_start()),
            (Kernels::aiv(wait), 4, TaskArgs::new()),
        ] {
            for front_end in [FrontEnd::Inferred, FrontEnd::Explicit] {
                runtime.session(session.next().unwrap(), &[0, 1]);
                runtime
                    .run(front_end, soon(), |graph| {
                        (0..tasks).try_for_each(|_| graph.submit(kernels, &args).map(drop))
                    })
                    .unwrap();
            }
        }
    }
}

/// A kernel that does not return on the calling thread, and returns or fails elsewhere. It ends when the flag is set, or
/// the test has failed.
fn stuck_here(runtime: &mut Runtime, elsewhere: Result<(), &'static str>) -> (KernelId, Arc<AtomicBool>) {
    let (here, flag) = (thread::current().id(), Arc::new(AtomicBool::new(false)));
    let is_set = flag.clone();
    let kernel = runtime.kernel("stuck", move |_| {
        let begun = Instant::now();
        while thread::current().id() == here
            && !is_set.load(Ordering::Acquire)
            && begun.elapsed().as_secs() < 20
        {
            thread::sleep(Duration::from_millis(1));
        }
        if thread::current().id() == here { Ok(()) } else { elsewhere.map_err(Into::into) }
    });
    (kernel, flag)
}

/// CR-9: a kernel that holds the calling thread beyond the deadline is reported with its name; when it has returned, the run
/// has failed and the next one is right.
#[test]
fn cr_9_a_kernel_that_holds_the_calling_thread_is_told() {
    let mut runtime = one_of_two(1);
    let (stuck, flag) = stuck_here(&mut runtime, Ok(()));
    let (tell, told) = channel();
    let (tell, released) = (Mutex::new(tell), flag.clone());
    runtime
        .on_overdue(move |error| {
            tell.lock().unwrap().send(error.to_string()).unwrap();
            released.store(true, Ordering::Release);
        })
        .unwrap();
    let run = |runtime: &mut Runtime, deadline| {
        runtime.run(FrontEnd::Prebuilt, deadline, |graph| {
            graph.submit(Kernels::aiv(stuck), &TaskArgs::new()).map(drop)
        })
    };
    for _ in 0..3 {
        flag.store(false, Ordering::Release);
        let failed = run(&mut runtime, after(100)).unwrap_err();
        assert!(matches!(failed.kind, ErrorKind::TimedOut { .. }), "{failed}");
        let told = told.recv_timeout(Duration::from_secs(20)).unwrap();
        for text in [told, failed.to_string()] {
            assert!(text.contains("task 0.0 runs block 0 of kernel 0 `stuck`"), "{text}");
            assert!(text.contains("calling_thread.rs:"), "{text}");
        }
        assert!(!runtime.is_running());
        run(&mut runtime, soon()).unwrap();
    }
    assert!(told.try_recv().is_err());
}

/// CR-9: what failed before is what is reported.
#[test]
fn cr_9_the_first_failure_is_told_when_another_kernel_holds_the_calling_thread() {
    let mut runtime = one_of_two(1);
    let (stuck, flag) = stuck_here(&mut runtime, Err("on purpose"));
    let (tell, told) = channel();
    let (tell, released) = (Mutex::new(tell), flag);
    runtime
        .on_overdue(move |error| {
            tell.lock().unwrap().send(error.to_string()).unwrap();
            released.store(true, Ordering::Release);
        })
        .unwrap();
    let args = TaskArgs::new().blocks(2).sync_start();
    let failed = runtime
        .run(FrontEnd::Prebuilt, after(1500), |graph| graph.submit(Kernels::aiv(stuck), &args).map(drop));
    let told = told.recv_timeout(Duration::from_secs(20)).unwrap();
    for text in [told, failed.unwrap_err().to_string()] {
        assert!(text.contains("on purpose"), "{text}");
    }
}

/// CR-4: a kernel elsewhere that does not return does not keep the calling thread, which has nothing to run.
#[test]
fn a_kernel_on_another_thread_does_not_keep_the_calling_one() {
    let mut runtime = one_of_two(1);
    let (here, flag) = (thread::current().id(), Arc::new(AtomicBool::new(false)));
    let (is_set, begun) = (flag.clone(), AtomicBool::new(false));
    let stuck = runtime.kernel("stuck", move |_| {
        let is_here = thread::current().id() == here;
        begun.fetch_or(!is_here, Ordering::AcqRel);
        // The block on the calling thread leaves the other one to another thread.
        let ends = if is_here { &begun } else { &*is_set };
        while !ends.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let args = TaskArgs::new().blocks(2).sync_start();
    let start = |runtime: &mut Runtime, deadline| {
        runtime.run(FrontEnd::Prebuilt, deadline, |graph| graph.submit(Kernels::aiv(stuck), &args).map(drop))
    };
    let failed = start(&mut runtime, after(100)).unwrap_err();
    assert!(failed.to_string().contains("of kernel 0 `stuck`"), "{failed}");
    assert!(runtime.is_running());
    flag.store(true, Ordering::Release);
    assert!(runtime.await_kernels(soon()));
    start(&mut runtime, soon()).unwrap();
}

/// A wait that nobody meets ends with the deadline, though the calling thread is the one that looks at it.
#[test]
fn a_wait_that_is_not_met_ends_with_the_deadline() {
    for front_end in FrontEnd::ALL {
        let mut runtime = one_of_two(1);
        let nothing = runtime.kernel("nothing", |_| Ok(()));
        let wait = Wait { domain: Domain::BASE, offset: 64, at_least: 1, from: Signaller::Unknown };
        let start = Instant::now();
        let failed = runtime.run(front_end, after(200), |graph| {
            graph.submit(Kernels::aiv(nothing), &TaskArgs::new().wait(wait)).map(drop)
        });
        let failed = failed.unwrap_err().to_string();
        assert!(failed.contains("task 0.0 waits for somebody (word 0x40 of window"), "{failed}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

/// How long the calling thread runs before it is another's turn, where the kernel says that.
fn slice() -> Option<String> {
    let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
    text.lines().find(|line| line.starts_with("se.slice")).map(str::to_owned)
}

/// Threads that wait for signals run as soon as they are woken; where the caller is the one that waits, no other thread comes
/// before it. Kernels that know no slices have the same for all.
#[test]
fn core_threads_come_first_unless_the_caller_waits_for_signals() {
    let prompt = thread::spawn(|| {
        mailbox_atomics::wake_promptly();
        slice()
    });
    let prompt = prompt.join().unwrap();
    for caller_helps in [false, true] {
        let mut runtime = Runtime::new(Limits { clusters: 1, ..Limits::default() }).unwrap();
        if caller_helps {
            runtime.use_calling_thread();
        }
        // Two threads, one of which may be the caller.
        let (both, slices) = (Barrier::new(2), Arc::new(Mutex::new(Vec::new())));
        let found = slices.clone();
        let kernel = runtime.kernel("slice", move |_| {
            both.wait();
            found.lock().map_err(|error| error.to_string())?.push(slice());
            Ok(())
        });
        let args = TaskArgs::new().blocks(2).sync_start();
        let run = runtime
            .run(FrontEnd::Prebuilt, soon(), |graph| graph.submit(Kernels::aiv(kernel), &args).map(drop));
        run.unwrap();
        let expected = if caller_helps { slice() } else { prompt.clone() };
        assert_eq!(*slices.lock().unwrap(), [expected.clone(), expected], "{caller_helps}");
    }
}
