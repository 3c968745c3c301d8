//! Workers that are started while other threads of the process log, panic and print.
#![allow(missing_docs)]

mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{plain, secs, text};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use worker_orch::{Args, Failure, Orchestrator, Program, Task, Worker};

/// A logger with a lock that is taken most of the time.
struct Locked(Mutex<()>);

impl Locked {
    fn write(&self) {
        let _guard = self.0.lock().unwrap();
        busy();
    }
}

impl Subscriber for Locked {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.write();
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.write();
    }
    fn enter(&self, _: &Id) {
        self.write();
    }
    fn exit(&self, _: &Id) {
        self.write();
    }
}

fn busy() {
    let until = Instant::now() + Duration::from_micros(50);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

static PANICS: Mutex<()> = Mutex::new(());
static OVER: AtomicBool = AtomicBool::new(false);

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

fn panics(_: &mut Task<'_>) -> Result<(), Failure> {
    panic!("on purpose")
}

fn submit(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    orch.submit_next_level(Program::from_number(task.scalar(0)? as u32), &Args::new(), 0).map(drop)
}

#[test]
fn f56_nested_workers_start_while_other_threads_log_and_panic() {
    tracing::subscriber::set_global_default(Locked(Mutex::new(()))).unwrap();
    std::panic::set_hook(Box::new(|_| {
        let _guard = PANICS.lock();
        busy();
    }));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !OVER.load(Ordering::Relaxed) {
                    tracing::error!("another thread logs");
                }
            });
            scope.spawn(|| {
                while !OVER.load(Ordering::Relaxed) {
                    let _ = std::panic::catch_unwind(|| panic!("another thread panics"));
                }
            });
        }
        let tried = std::panic::catch_unwind(|| (0..10).for_each(start_and_run));
        OVER.store(true, Ordering::Relaxed);
        tried.unwrap();
    });
}

fn start_and_run(round: u64) {
    let mut below = plain(2);
    below.register_function("nothing", nothing);
    below.register_function("panics", panics);
    let mut top = Worker::builder().level(4).init_within(secs(20)).run_within(secs(20)).build().unwrap();
    top.add_worker(below).unwrap();
    let submit = top.register_orchestration("submit", submit);
    if let Err(failure) = top.init() {
        panic!("round {round}: {failure}");
    }
    top.run(|orch| orch.submit_next_level(submit, &Args::new().scalar(0), 0)).unwrap();
    let failed = top.run(|orch| orch.submit_next_level(submit, &Args::new().scalar(1), 0)).unwrap_err();
    assert!(text(&failed).contains("on purpose"), "{failed}");
    top.close().unwrap();
}
