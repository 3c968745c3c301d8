//! Kernels that are replaced or forgotten: dropped when no core runs them, and not before.

mod common;

use chip_runtime::{ArgumentError, ErrorKind, FrontEnd, KernelId, Kernels, Limits, Runtime, TaskArgs};
use common::soon;
use deadline::Deadline;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn run(runtime: &mut Runtime, kernel: KernelId) -> Result<(), ErrorKind> {
    let ran = runtime.run(FrontEnd::Inferred, soon(), |graph| {
        graph.submit(Kernels::aiv(kernel), &TaskArgs::new()).map(drop)
    });
    ran.map_err(|error| error.kind)
}

/// CR-6: one kernel is kept for each number, however often it is registered, and whether graphs run in between or not.
#[test]
fn cr_6_kernels_that_are_registered_anew_do_not_add_up() {
    let mut runtime = Runtime::new(Limits::default()).unwrap();
    let kept = Arc::new(());
    for round in 0..100_000u32 {
        let held = kept.clone();
        runtime.set_kernel(KernelId(7), "again", move |_| {
            let _ = &held;
            Ok(())
        });
        let held = kept.clone();
        let own = runtime.kernel("own", move |_| {
            let _ = &held;
            Ok(())
        });
        if round % 1_000 == 0 {
            run(&mut runtime, KernelId(7)).unwrap();
            run(&mut runtime, own).unwrap();
        }
        assert_eq!(Arc::strong_count(&kept), 3, "round {round}: the test's own, and one for each kernel");
        assert!(runtime.forget_kernel(own));
    }
    assert_eq!(Arc::strong_count(&kept), 2);
    assert!(runtime.forget_kernel(KernelId(7)) && !runtime.forget_kernel(KernelId(7)));
    assert_eq!(Arc::strong_count(&kept), 1);
}

/// A number of the runtime's own does not come back, so that it never stands for another kernel.
#[test]
fn a_forgotten_kernel_is_refused() {
    let mut runtime = Runtime::new(Limits::default()).unwrap();
    runtime.set_kernel(KernelId(3), "numbered", |_| Ok(()));
    let own = runtime.kernel("own", |_| Ok(()));
    runtime.forget_own_kernels();
    let next = runtime.kernel("next", |_| Ok(()));
    assert_ne!(own, next);
    let refused = run(&mut runtime, own);
    assert_eq!(refused, Err(ErrorKind::Argument(ArgumentError::UnknownKernel(own))));
    run(&mut runtime, next).unwrap();
    run(&mut runtime, KernelId(3)).unwrap();
}

/// CR-5: what a core still runs is kept until it has returned.
#[test]
fn cr_5_a_kernel_that_runs_is_dropped_when_it_has_returned() {
    let mut runtime = Runtime::new(Limits::default()).unwrap();
    let kept = Arc::new(AtomicBool::new(false));
    let go_on = kept.clone();
    let late = runtime.kernel("late", move |_| {
        while !go_on.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let short = Deadline::after(Duration::from_millis(20)).unwrap();
    let args = TaskArgs::new();
    let ran =
        runtime.run(FrontEnd::Inferred, short, |graph| graph.submit(Kernels::aiv(late), &args).map(drop));
    assert!(matches!(ran.unwrap_err().kind, ErrorKind::TimedOut { .. }));
    assert!(runtime.forget_kernel(late));
    assert_eq!(Arc::strong_count(&kept), 2, "its core is in it");
    kept.store(true, Ordering::Relaxed);
    assert!(runtime.await_kernels(soon()));
    let nothing = runtime.kernel("nothing", |_| Ok(()));
    assert_eq!(Arc::strong_count(&kept), 1);
    run(&mut runtime, nothing).unwrap();
}
