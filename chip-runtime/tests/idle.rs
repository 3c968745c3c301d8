//! A runtime without work. Alone in its process, so that all its threads are those of the runtime.

mod common;

use chip_runtime::{FrontEnd, Kernels, Limits, Runtime, TaskArgs};
use common::soon;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often each core thread went to sleep so far.
fn sleeps() -> BTreeMap<String, u64> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let status =
        threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")).ok());
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned()).unwrap()
    };
    let cores = status.filter(|status| field(status, "Name:").starts_with("core thread"));
    cores
        .map(|status| (field(&status, "Name:"), field(&status, "voluntary_ctxt_switches:").parse().unwrap()))
        .collect()
}

/// CR-8: a thread that does not wake uses no processor.
#[test]
fn threads_without_work_sleep_and_do_not_wake() {
    let mut runtime = Runtime::new(Limits::default()).unwrap();
    let nothing = runtime.kernel("nothing", |_| Ok(()));
    let args = TaskArgs::new().blocks(16).sync_start();
    for front_end in FrontEnd::ALL {
        runtime.run(front_end, soon(), |graph| graph.submit(Kernels::aiv(nothing), &args).map(drop)).unwrap();
    }
    // They spin for a while, and one watches for some rounds; on a busy machine that takes longer.
    let asleep = (0..100).any(|_| {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(200));
        !before.is_empty() && before == sleeps()
    });
    assert!(asleep, "{:?}", sleeps());
    drop(runtime);
    // A thread that was joined may be listed for a moment.
    assert!((0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        sleeps().is_empty()
    }));
}
