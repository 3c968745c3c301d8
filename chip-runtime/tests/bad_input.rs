//! Graphs that cannot be, each refused with the task and the place, and a runtime that works afterwards.

mod common;

use chip_runtime::{
    ArgumentError, Buffer, Create, ErrorKind, FrontEnd, Graph, KernelId, Kernels, Limits, Runtime,
    RuntimeError, ScopeMode, TaskArgs, TaskId,
};
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use common::soon;
use deadline::Deadline;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn small() -> (Runtime, KernelId) {
    let mut runtime =
        Runtime::new(Limits { clusters: 2, slots: 8, heap: 16 << 10, ..Limits::default() }).unwrap();
    let add_one = runtime.kernel("add one", |block| {
        let values: Vec<i32> = block.read::<i32>(0)?.iter().map(|value| value + 1).collect();
        Ok(block.write(0, &values)?)
    });
    (runtime, add_one)
}

/// Runs a graph that must fail, and one that must not after it.
fn refused(
    front_end: FrontEnd,
    orchestration: impl FnOnce(&mut Graph<'_>, KernelId) -> Result<(), RuntimeError>,
) -> RuntimeError {
    let (mut runtime, kernel) = small();
    let error = runtime.run(front_end, soon(), |graph| orchestration(graph, kernel)).unwrap_err();
    // CR-5
    let mut data = Buffer::of(&[41]);
    runtime
        .run(front_end, soon(), |graph| {
            let data = graph.import(&mut data)?;
            graph.submit(Kernels::aiv(kernel), &TaskArgs::new().inout(&data)).map(drop)
        })
        .unwrap();
    assert_eq!(data.to_vec().unwrap(), [42]);
    assert!(
        error.at.site.or(error.scope()).is_some_and(|site| site.file.ends_with("bad_input.rs")),
        "{error:?}"
    );
    error
}

fn output(kernel: KernelId) -> (Kernels, TaskArgs) {
    (Kernels::aiv(kernel), TaskArgs::new().output(Create::filled(&[4], 0i32)))
}

/// CR-1, CR-3
// F88
#[test]
fn a_scope_that_fills_its_ring_is_reported_at_once() {
    for front_end in FrontEnd::ALL {
        let error = refused(front_end, |graph, _| {
            graph.scope(ScopeMode::Auto, |graph| {
                loop {
                    graph.submit_dummy(&TaskArgs::new())?;
                }
            })
        });
        assert_eq!(error.code(), 3, "{error}");
        assert!(error.to_string().contains("8 slots") && error.to_string().contains("`slots`"), "{error}");
    }
}

/// CR-1, CR-3
// F88
#[test]
fn a_scope_that_fills_its_heap_is_reported_at_once() {
    for front_end in FrontEnd::ALL {
        let error = refused(front_end, |graph, _| {
            loop {
                graph.allocate(&[Create::of::<i32>(&[1024])])?;
            }
        });
        assert_eq!(error.code(), 2, "{error}");
        let error = refused(front_end, |graph, _| graph.allocate(&[Create::of::<i32>(&[1 << 20])]).map(drop));
        assert!(matches!(error.kind, ErrorKind::HeapFull { need: 4194304, .. }), "{error}");
    }
}

#[test]
fn scopes_that_are_too_deep_open_or_not_open_are_refused() {
    let error = refused(FrontEnd::Inferred, |graph, _| {
        loop {
            graph.scope_begin(ScopeMode::Auto)?;
        }
    });
    assert!(matches!(error.kind, ErrorKind::ScopeDepth { limit: 64 }) && error.code() == 1, "{error}");
    let error = refused(FrontEnd::Explicit, |graph, _| graph.scope_begin(ScopeMode::Auto));
    assert!(matches!(error.kind, ErrorKind::OpenScopes { open: 1, .. }) && error.code() == 1, "{error}");
    let error = refused(FrontEnd::Prebuilt, |graph, _| graph.scope_end());
    assert_eq!(error.kind, ErrorKind::NoScope);
}

fn argument(
    orchestration: impl FnOnce(&mut Graph<'_>, KernelId) -> Result<(), RuntimeError>,
) -> ArgumentError {
    let error = refused(FrontEnd::Inferred, orchestration);
    assert_eq!(error.code(), 5, "{error}");
    match error.kind {
        ErrorKind::Argument(error) => error,
        other => panic!("{other:?}"),
    }
}

/// CR-7
#[test]
fn tensors_outside_of_known_memory_are_refused() {
    let wild = TensorDesc::builder(DeviceAddr(0x1000), 64, DType::Int32, &[16]).build().unwrap();
    let wild = chip_runtime::Tensor::<i32>::new(wild).unwrap();
    let error =
        argument(|graph, kernel| graph.submit(Kernels::aiv(kernel), &TaskArgs::new().inout(&wild)).map(drop));
    assert_eq!(error, ArgumentError::UnknownMemory { index: 0, addr: 0x1000, bytes: 64 });
    // Beyond its buffer, by a descriptor that was changed.
    let mut data = Buffer::of(&[0i32; 4]);
    let error = argument(|graph, kernel| {
        let mut desc = *graph.import(&mut data)?.desc();
        desc.start_offset = 1;
        let desc = chip_runtime::Tensor::<i32>::new(desc)?;
        graph.submit(Kernels::aiv(kernel), &TaskArgs::new().inout(&desc)).map(drop)
    });
    assert!(matches!(error, ArgumentError::Tensor { index: 0, .. }), "{error}");
    // Of a buffer of another run.
    let mut old = None;
    let (mut runtime, _) = small();
    runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            old = Some(graph.import(&mut data)?);
            Ok(())
        })
        .unwrap();
    let old = old.unwrap();
    let error =
        argument(|graph, kernel| graph.submit(Kernels::aiv(kernel), &TaskArgs::new().input(&old)).map(drop));
    assert!(matches!(error, ArgumentError::UnknownMemory { .. }), "{error}");
}

/// CR-7
#[test]
fn a_tensor_is_not_used_after_its_scope_or_with_a_false_owner() {
    // Prebuilt, the tensor's task has not begun; in the others it may have ended, and its slot refuses too.
    for front_end in FrontEnd::ALL {
        let error = refused(front_end, |graph, kernel| {
            let (kernels, args) = output(kernel);
            let inner = graph.scope(ScopeMode::Auto, |graph| graph.submit(kernels, &args))?;
            graph.submit(kernels, &TaskArgs::new().input(&inner.tensor::<i32>(0)?)).map(drop)
        });
        let ErrorKind::Argument(error) = error.kind else { panic!("{error:?}") };
        assert!(matches!(error, ArgumentError::ScopeEnded { index: 0, .. }), "{error}");
    }
    let error = argument(|graph, kernel| {
        let (kernels, args) = output(kernel);
        let (first, second) = (graph.submit(kernels, &args)?, graph.submit(kernels, &args)?);
        let mut desc = second.outputs[0];
        desc.owner_task_id = first.task.0;
        let desc = chip_runtime::Tensor::<i32>::new(desc)?;
        graph.submit(kernels, &TaskArgs::new().input(&desc)).map(drop)
    });
    assert!(matches!(error, ArgumentError::NotOwner { index: 0, .. }), "{error}");
}

#[test]
fn unknown_kernels_tasks_and_counts_are_refused() {
    let error = argument(|graph, _| graph.submit(Kernels::aiv(KernelId(77)), &TaskArgs::new()).map(drop));
    assert_eq!(error, ArgumentError::UnknownKernel(KernelId(77)));
    let error = argument(|graph, _| graph.submit(Kernels::default(), &TaskArgs::new()).map(drop));
    assert_eq!(error, ArgumentError::NoKernel);
    let error = argument(|graph, _| graph.submit_dummy(&TaskArgs::new().after(TaskId(5))).map(drop));
    assert_eq!(error, ArgumentError::UnknownTask(TaskId(5)));
    let error = argument(|graph, _| graph.submit_dummy(&TaskArgs::new().blocks(0)).map(drop));
    assert_eq!(error, ArgumentError::Blocks(0));
    let many = (0..17).fold(TaskArgs::new(), |args, value| args.scalar(value));
    let error = argument(|graph, _| graph.submit_dummy(&many).map(drop));
    assert_eq!(error, ArgumentError::TooMany { what: "scalars", most: 16, given: 17 });
}

#[test]
fn blocks_that_can_never_start_together_are_refused() {
    let error = refused(FrontEnd::Inferred, |graph, kernel| {
        graph.submit(Kernels::aic(kernel), &TaskArgs::new().blocks(3).sync_start()).map(drop)
    });
    assert_eq!(
        (error.code(), error.kind),
        (7, ErrorKind::SyncStart { blocks: 3, need: 3, cores: "AIC", have: 2 })
    );
}

#[test]
fn a_cycle_of_explicit_edges_is_refused() {
    for front_end in [FrontEnd::Explicit, FrontEnd::Prebuilt] {
        let error = refused(front_end, |graph, _| {
            let tasks: Vec<TaskId> = (0..3)
                .map(|_| Ok(graph.submit_dummy(&TaskArgs::new())?.task))
                .collect::<Result<_, RuntimeError>>()?;
            graph.add_dependency(tasks[0], tasks[2])?;
            graph.add_dependency(tasks[1], tasks[0])?;
            graph.add_dependency(tasks[2], tasks[1])
        });
        assert!(matches!(error.kind, ErrorKind::Cycle { before: TaskId(1), after: TaskId(2) }), "{error}");
    }
    let error = argument(|graph, _| {
        let tasks = [graph.submit_dummy(&TaskArgs::new())?.task, graph.submit_dummy(&TaskArgs::new())?.task];
        graph.add_dependency(tasks[1], tasks[0])
    });
    assert!(matches!(error, ArgumentError::Published(_)), "{error}");
}

/// CR-4
#[test]
fn a_kernel_that_fails_or_panics_is_named() {
    for (text, panics) in [("no luck", false), ("it panicked: no luck", true)] {
        let (mut runtime, _) = small();
        let bad =
            runtime.kernel("bad", move |_| if panics { panic!("no luck") } else { Err("no luck".into()) });
        for front_end in FrontEnd::ALL {
            let mut task = None;
            let error = runtime
                .run(front_end, soon(), |graph| {
                    task = Some(graph.submit(Kernels::aiv(bad), &TaskArgs::new())?.task);
                    Ok(())
                })
                .unwrap_err();
            assert_eq!(error.kind, ErrorKind::Kernel { text: text.into(), block: 0 });
            assert_eq!((error.at.task, error.at.kernel), (task, Some((bad, "bad".into()))));
            assert!(error.at.site.is_some());
        }
    }
}

#[test]
fn an_orchestration_that_panics_or_reports_a_failure_ends_the_run() {
    let (mut runtime, _) = small();
    let error = runtime.run::<()>(FrontEnd::Inferred, soon(), |_| panic!("lost")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Orchestration("lost".into()));
    let error = refused(FrontEnd::Explicit, |graph, _| {
        graph.fail(-7, "out of cake");
        assert!(graph.is_failed());
        graph.submit_dummy(&TaskArgs::new()).map(drop)
    });
    assert_eq!((error.code(), error.kind), (9, ErrorKind::Reported { code: -7, text: "out of cake".into() }));
}

/// CR-4, CR-5
#[test]
fn a_kernel_that_does_not_return_is_named_and_its_buffers_stay_in_use() {
    let (mut runtime, add_one) = small();
    let go_on = Arc::new(AtomicBool::new(false));
    let waits = {
        let go_on = go_on.clone();
        runtime.kernel("waits", move |_| {
            while !go_on.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
    };
    let mut data = Buffer::of(&[1i32]);
    let short = Deadline::after(Duration::from_millis(100)).unwrap();
    let error = runtime
        .run(FrontEnd::Inferred, short, |graph| {
            let data = graph.import(&mut data)?;
            graph.submit(Kernels::aic(waits), &TaskArgs::new().inout(&data))?;
            graph.submit(Kernels::aiv(add_one), &TaskArgs::new().inout(&data)).map(drop)
        })
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("`waits`") && text.contains("cluster 0 AIC") && text.contains("bad_input.rs"),
        "{text}"
    );
    assert_eq!(error.code(), 100);
    assert!(data.to_vec().is_err());
    let next = runtime.run(FrontEnd::Inferred, soon(), |_| Ok(())).unwrap_err();
    assert!(matches!(&next.kind, ErrorKind::StillRunning { table } if table.contains("`waits`")), "{next}");
    go_on.store(true, Ordering::Release);
    while data.to_vec().is_err() {
        std::thread::yield_now();
    }
    assert_eq!(data.to_vec().unwrap(), [1]);
    runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            let data = graph.import(&mut data)?;
            graph.submit(Kernels::aiv(add_one), &TaskArgs::new().inout(&data)).map(drop)
        })
        .unwrap();
    assert_eq!(data.to_vec().unwrap(), [2]);
}

#[test]
fn an_orchestration_that_submits_for_ever_ends_at_the_deadline() {
    let (mut runtime, _) = small();
    let short = Deadline::after(Duration::from_millis(50)).unwrap();
    let error = runtime
        .run(FrontEnd::Inferred, short, |graph| -> Result<(), RuntimeError> {
            loop {
                graph.scope(ScopeMode::Auto, |graph| graph.submit_dummy(&TaskArgs::new()).map(drop))?;
            }
        })
        .unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TimedOut { .. }), "{error}");
}

#[test]
fn a_kernel_writes_only_what_its_task_names_as_written() {
    let (mut runtime, add_one) = small();
    let mut data = Buffer::of(&[1i32]);
    let error = runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            let data = graph.import(&mut data)?;
            graph.submit(Kernels::aiv(add_one), &TaskArgs::new().input(&data)).map(drop)
        })
        .unwrap_err();
    assert!(error.to_string().contains("only reads this tensor"), "{error}");
    assert_eq!(data.to_vec().unwrap(), [1]);
}

/// CR-11: somebody learns of an orchestration that does not come back, with what it submitted last.
#[test]
fn an_orchestration_that_never_returns_is_told_with_its_last_task() {
    let (mut runtime, add_one) = small();
    let (told, errors) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    runtime.on_overdue(move |error| told.lock().unwrap().send(error).unwrap()).unwrap();
    // One that returns in time is not told, also when one that may take longer is waited for.
    for limit in [60_000, 600, 500] {
        let limit = Deadline::after(Duration::from_millis(limit)).unwrap();
        runtime.run(FrontEnd::Inferred, limit, |_| Ok(())).unwrap();
    }
    for tasks in [0, 3] {
        let short = Deadline::after(Duration::from_millis(250)).unwrap();
        let mut data = Buffer::of(&[0i32]);
        let error = runtime
            .run(FrontEnd::Inferred, short, |graph| {
                let data = graph.import(&mut data)?;
                for _ in 0..tasks {
                    graph.submit(Kernels::aiv(add_one), &TaskArgs::new().inout(&data))?;
                }
                // Until somebody knows; for ever, if nobody does.
                let told = errors.recv().unwrap();
                assert!(graph.is_failed());
                Err::<(), _>(told)
            })
            .unwrap_err();
        assert_eq!(error.code(), 100);
        let text = error.to_string();
        assert!(text.contains("the orchestration has not returned in 250ms"), "{text}");
        assert!(error.at.site.is_some_and(|site| site.file.ends_with("bad_input.rs")), "{error:?}");
        match tasks {
            0 => assert!(text.contains(" in 250ms and has submitted nothing; code that does not return cannot be stopped, its process can: ") && error.at.task.is_none(), "{text}"),
            _ => assert!(text.contains("task 0.2: ") && text.contains("250ms, and this is the last of 3 tasks that it submitted; "), "{text}"),
        }
    }
    // The limits of those that returned in time have passed.
    std::thread::sleep(Duration::from_millis(200));
    assert!(errors.try_recv().is_err());
    runtime.run(FrontEnd::Inferred, soon(), |graph| graph.submit_dummy(&TaskArgs::new()).map(drop)).unwrap();
}
