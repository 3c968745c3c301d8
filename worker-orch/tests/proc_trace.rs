//! The trace file: what ran, what failed, what was skipped, and which task waited for which.
#![allow(missing_docs)]

mod support;

use serde_json::Value;
use support::builder;
use worker_orch::{Access, Args, Failure, Task};

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(std::time::Duration::from_millis(5));
    Ok(())
}

fn refuse(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(worker_orch::ErrorCode::Invalid, "refused"))
}

fn die(_: &mut Task<'_>) -> Result<(), Failure> {
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
    Ok(())
}

#[test]
fn f74_the_trace_of_a_failed_run_holds_what_ran_and_marks_what_did_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let mut worker = builder(3).trace(&path).build().unwrap();
    let (nothing, refuse, die) = (
        worker.register_function("nothing", nothing),
        worker.register_function("refuse", refuse),
        worker.register_function("die", die),
    );
    let x = worker.host_buffer::<f32>(4).unwrap();
    worker.init().unwrap();
    let (writes, reads) =
        (Args::new().tensor(&x.tensor(), Access::InOut), Args::new().tensor(&x.tensor(), Access::Input));
    worker
        .run(|orch| {
            orch.submit_next_level(nothing, &writes, 0)?;
            orch.submit_next_level(refuse, &writes, 1)?;
            orch.submit_next_level(nothing, &reads, 2)
        })
        .unwrap_err();
    worker.run(|orch| orch.submit_next_level(die, &Args::new(), 1)).unwrap_err();
    worker.close().unwrap();
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let outcome = |name: &str, chip: u64| {
        let bar =
            events.iter().find(|event| event["ph"] == "X" && event["name"] == name && event["tid"] == chip);
        bar.map(|bar| bar["args"]["outcome"].as_str().unwrap().to_owned())
    };
    assert_eq!(outcome("nothing", 0).as_deref(), Some("done"), "{trace:#}");
    assert_eq!(outcome("refuse", 1).as_deref(), Some("failed"), "{trace:#}");
    assert_eq!(outcome("nothing", 2).as_deref(), Some("skipped"), "{trace:#}");
    assert_eq!(outcome("die", 1).as_deref(), Some("unfinished"), "{trace:#}");
    // An arrow from chip 0 to chip 1, and one from there to chip 2.
    let arrow = |from: u64, to: u64| {
        let starts = events.iter().filter(|event| event["ph"] == "s" && event["tid"] == from);
        starts.map(|event| &event["id"]).any(|id| {
            events.iter().any(|event| event["ph"] == "f" && event["id"] == *id && event["tid"] == to)
        })
    };
    assert!(arrow(0, 1) && arrow(1, 2), "{trace:#}");
}
