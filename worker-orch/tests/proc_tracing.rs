//! The spans and events that a Worker gives to `tracing`.
#![allow(missing_docs)]

mod support;

use comm_context::abi::DType;
use std::sync::{Arc, Mutex};
use support::plain;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use worker_orch::{Args, Failure, Task};

/// Keeps the names of all spans and the targets of all events.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("worker_orch")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.lock().unwrap().push(span.metadata().name().to_owned());
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(event.metadata().target().to_owned());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

#[test]
fn bring_up_tasks_copies_and_domains_are_traced() {
    let recorder = Recorder::default();
    tracing::subscriber::with_default(recorder.clone(), || {
        let mut worker = plain(2);
        let nothing = worker.register_function("nothing", nothing);
        worker.init().unwrap();
        let memory = worker.chip_alloc(0, 64).unwrap();
        worker.copy_to(0, memory.addr(), &[1; 64]).unwrap();
        worker.copy_from(0, memory.addr(), &mut [0; 64]).unwrap();
        worker
            .run(|orch| {
                orch.allocate_domain("d", &[0, 1], 4096, &[("x", DType::Float32, 4)])?;
                (0..200)
                    .try_for_each(|step| orch.submit_next_level(nothing, &Args::new(), step % 2).map(drop))
            })
            .unwrap();
        worker.close().unwrap();
    });
    let seen = recorder.0.lock().unwrap();
    for span in ["init", "run", "copy_to", "copy_from", "allocate_domain", "release_domains", "close"] {
        assert!(seen.iter().any(|name| name == span), "{span} is missing: {seen:?}");
    }
    // 200 tasks and, for each chip: join, allocate and release a domain.
    assert!(seen.iter().filter(|name| *name == "worker_orch::tasks").count() >= 200, "{}", seen.len());
}
