//! An orchestration that waits for data.

mod common;

use chip_runtime::{Buffer, ErrorKind, FrontEnd, Kernels, Limits, Runtime, TaskArgs};
use common::soon;
use deadline::Deadline;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// CR-4
#[test]
fn an_element_that_is_not_written_in_time_is_code_8_at_its_task() {
    let mut runtime = Runtime::new(Limits::default()).unwrap();
    let go_on = Arc::new(AtomicBool::new(false));
    let seen = go_on.clone();
    let late = runtime.kernel("late", move |block| {
        while !seen.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(block.write(0, &[7])?)
    });
    let mut buffer = Buffer::of(&[1i32]);
    let short = Deadline::after(Duration::from_millis(50)).unwrap();
    let mut code = 0;
    let ran = runtime.run(FrontEnd::Inferred, short, |graph| {
        let x = graph.import(&mut buffer)?;
        graph.submit_dummy(&TaskArgs::new())?;
        graph.submit(Kernels::aiv(late), &TaskArgs::new().output_existing(&x))?;
        assert_eq!(graph.failure_code(), 0);
        let read = graph.get_element(&x, &[0]);
        code = graph.failure_code();
        read.map(drop)
    });
    let error = ran.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::DataTimedOut { .. }), "{error}");
    assert_eq!((error.code(), code), (8, 8));
    let text = error.to_string();
    for part in [
        "task 0.1, kernel 0 `late`: the orchestration waits for its tensor, and it has not ended within 50ms; give it more time",
        "task 0.1 runs block 0 of kernel 0 `late`",
        "(submitted at ",
        "data_wait.rs:",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    go_on.store(true, Ordering::Relaxed);
    assert!(runtime.await_kernels(soon()));
    let read = runtime.run(FrontEnd::Inferred, soon(), |graph| {
        let x = graph.import(&mut buffer)?;
        graph.get_element(&x, &[0])
    });
    assert_eq!(read.unwrap(), 7);
}
