//! Tasks that keep the tensors of others without an order between the two.

mod common;

use chip_runtime::{Create, FrontEnd, Kernels, Limits, Runtime, ScopeMode, TaskArgs};
use common::soon;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The whole heap can be given out again only when the task that retains a part of it has ended.
#[test]
fn a_tensor_is_kept_for_a_task_that_retains_it() {
    let mut runtime = Runtime::new(Limits { heap: 64 << 10, ..Limits::default() }).unwrap();
    let [go_on, given_out, saw_it] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
    let flags = (go_on.clone(), given_out.clone(), saw_it.clone());
    let uses = runtime.kernel("uses", move |_| {
        wait_for(&flags.0);
        flags.2.fetch_or(flags.1.load(Ordering::Acquire), Ordering::AcqRel);
        Ok(())
    });
    let nothing = runtime.kernel("nothing", |_| Ok(()));
    let set = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        go_on.store(true, Ordering::Release);
    });
    let whole = Create::of::<u8>(&[64 << 10]);
    let ran = runtime.run(FrontEnd::Inferred, soon(), |graph| {
        graph.scope(ScopeMode::Auto, |graph| {
            let args = TaskArgs::new().output(Create::of::<i32>(&[1]));
            let made = graph.submit(Kernels::aiv(nothing), &args)?;
            graph.get_element(&made.outputs[0], &[0])?;
            graph.submit(Kernels::aiv(uses), &TaskArgs::new().retain(made.task)).map(drop)
        })?;
        graph.scope(ScopeMode::Auto, |graph| {
            graph.allocate(&[whole])?;
            given_out.store(true, Ordering::Release);
            Ok(())
        })
    });
    ran.unwrap();
    set.join().unwrap();
    assert!(!saw_it.load(Ordering::Acquire), "the memory was given to another task");
}

#[test]
fn a_task_does_not_wait_for_one_that_it_retains() {
    let mut runtime = Runtime::new(Limits::default()).unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let (waits, tells) = (told.clone(), told);
    let waits = runtime.kernel("waits", move |_| {
        wait_for(&waits);
        Ok(())
    });
    let tells = runtime.kernel("tells", move |_| {
        tells.store(true, Ordering::Release);
        Ok(())
    });
    let ran = runtime.run(FrontEnd::Inferred, soon(), |graph| {
        let first = graph.submit(Kernels::aiv(waits), &TaskArgs::new())?.task;
        graph.submit(Kernels::aiv(tells), &TaskArgs::new().retain(first)).map(drop)
    });
    ran.unwrap();
}
