//! Sentences of the contract that no other test would miss: each is here because code that broke it passed all others.

mod common;

use chip_runtime::{
    Buffer, ErrorKind, FrontEnd, Graph, Kernels, Limits, Runtime, RuntimeError, ScopeMode, TaskArgs,
};
use common::soon;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

fn small() -> Runtime {
    Runtime::new(Limits { clusters: 2, slots: 8, ..Limits::default() }).unwrap()
}

#[test]
fn cr_3_the_scope_that_fills_its_ring_is_told() {
    for front_end in FrontEnd::ALL {
        let mut opened = 0;
        let error = small()
            .run(front_end, soon(), |graph| {
                opened = line!() + 1;
                graph.scope_begin(ScopeMode::Auto)?;
                loop {
                    graph.submit_dummy(&TaskArgs::new())?;
                }
                #[expect(unreachable_code, reason = "says what the closure returns")]
                Ok(())
            })
            .unwrap_err();
        let ErrorKind::SlotsFull { scope, .. } = &error.kind else { panic!("{error}") };
        assert_eq!(scope.map(|site| site.line), Some(opened), "{front_end:?}: {error}");
        assert_eq!(error.at.site.map(|site| site.line), Some(opened + 2), "{front_end:?}: {error}");
    }
}

/// The second fails when the first is known to have failed, and still runs then.
#[test]
fn cr_4_of_two_failures_the_first_is_told() {
    let mut runtime = small();
    let both_run = Arc::new(AtomicBool::new(false));
    let runs = both_run.clone();
    let first = runtime.kernel("first", move |_| {
        while !runs.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Err("the first".into())
    });
    let second = runtime.kernel("second", move |_| {
        both_run.store(true, Ordering::Release);
        // Nothing tells a kernel that its graph has failed.
        std::thread::sleep(Duration::from_millis(300));
        Err("the second".into())
    });
    let error = runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            graph.submit(Kernels::aiv(first), &TaskArgs::new())?;
            graph.submit(Kernels::aiv(second), &TaskArgs::new()).map(drop)
        })
        .unwrap_err();
    assert!(matches!(&error.kind, ErrorKind::Kernel { text, .. } if text == "the first"), "{error}");
}

#[test]
fn cr_4_a_run_that_is_right_has_done_all_tasks() {
    for front_end in FrontEnd::ALL {
        let mut runtime = small();
        let done = Arc::new(AtomicU32::new(0));
        let counts = done.clone();
        let slow = runtime.kernel("slow", move |_| {
            std::thread::sleep(Duration::from_millis(20));
            counts.fetch_add(1, Ordering::Release);
            Ok(())
        });
        runtime
            .run(front_end, soon(), |graph| {
                (0..4).try_for_each(|_| graph.submit(Kernels::aiv(slow), &TaskArgs::new()).map(drop))
            })
            .unwrap();
        assert_eq!(done.load(Ordering::Acquire), 4, "{front_end:?}");
    }
}

/// One element too many, in either direction, of a tensor that is the middle of a buffer.
#[test]
fn cr_7_a_kernel_stays_inside_its_tensors() {
    let mut runtime = small();
    let reads = runtime.kernel("reads", |block| {
        let mut values = [0i32; 3];
        Ok(block.elements::<i32>(0)?.read(0, &mut values)?)
    });
    let writes = runtime.kernel("writes", |block| Ok(block.elements::<i32>(0)?.write(1, &[7, 7])?));
    for kernel in [reads, writes] {
        let mut data = Buffer::of(&[1i32, 2, 3, 4]);
        let error = runtime
            .run(FrontEnd::Inferred, soon(), |graph| -> Result<(), RuntimeError> {
                let middle = graph.import(&mut data)?.range(1..3)?;
                graph.submit(Kernels::aiv(kernel), &TaskArgs::new().inout(&middle)).map(drop)
            })
            .unwrap_err();
        assert!(error.to_string().contains("elements up to 3 do not fit into 2"), "{error}");
        assert_eq!(data.to_vec().unwrap(), [1, 2, 3, 4]);
    }
}

/// What must not have started yet gets some time to do so.
#[test]
fn cr_10_a_task_starts_when_its_front_end_says() {
    let a_while = || std::thread::sleep(Duration::from_millis(50));
    for front_end in FrontEnd::ALL {
        let mut runtime = small();
        let started = Arc::new(AtomicBool::new(false));
        let starts = started.clone();
        let kernel = runtime.kernel("starts", move |_| {
            starts.store(true, Ordering::Release);
            Ok(())
        });
        let has_started = || started.load(Ordering::Acquire);
        let until_it_has = |graph: &Graph<'_>| {
            while !has_started() && !graph.deadline().has_passed() {
                std::thread::yield_now();
            }
            has_started()
        };
        runtime
            .run(front_end, soon(), |graph| {
                let task = graph.submit(Kernels::aiv(kernel), &TaskArgs::new())?.task;
                if front_end != FrontEnd::Inferred {
                    a_while();
                    assert!(!has_started(), "{front_end:?}");
                }
                match front_end {
                    FrontEnd::Prebuilt => return Ok(()),
                    FrontEnd::Explicit => graph.publish(task)?,
                    FrontEnd::Inferred => {}
                }
                assert!(until_it_has(graph), "{front_end:?}");
                Ok(())
            })
            .unwrap();
        assert!(has_started(), "{front_end:?}");
    }
}
