//! The trace file: what ran, what failed, what was skipped, and which task waited for which.
#![allow(missing_docs)]

mod support;

use serde_json::Value;
use support::builder;
use worker_orch::{Access, Args, Failure, Orchestrator, Program, Task, Worker};

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

#[test]
fn f74_an_arrow_leads_from_a_task_that_was_done_before_the_other_was_submitted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let mut worker = builder(2).trace(&path).build().unwrap();
    let nothing = worker.register_function("nothing", nothing);
    let x = worker.host_buffer::<f32>(4).unwrap();
    worker.init().unwrap();
    let (writes, reads) =
        (Args::new().tensor(&x.tensor(), Access::InOut), Args::new().tensor(&x.tensor(), Access::Input));
    worker
        .run(|orch| {
            orch.submit_next_level(nothing, &writes, 0)?;
            // More than a ring holds: the first is done, and the parent knows.
            (0..100).try_for_each(|_| orch.submit_next_level(nothing, &Args::new(), 0).map(drop))?;
            orch.submit_next_level(nothing, &reads, 1)
        })
        .unwrap();
    worker.close().unwrap();
    let events = events(&path);
    let arrow = |kind: &str, chip: u64| {
        events.iter().any(|event| event["ph"] == kind && event["tid"] == chip && event["name"] == "needs")
    };
    assert!(arrow("s", 0) && arrow("f", 1), "{events:#?}");
}

fn events(path: &std::path::Path) -> Vec<Value> {
    let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

/// Submits program number `scalar(i)` to child `i`, for each scalar; to a Worker as its orchestration number 0.
fn submit_each(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    for (chip, program) in task.scalars().iter().enumerate() {
        orch.submit_next_level(Program::from_number(*program as u32), &Args::new(), chip)?;
    }
    Ok(())
}

fn pass_down(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let args = task.scalars().iter().fold(Args::new(), |args, scalar| args.scalar(*scalar));
    orch.submit_next_level(Program::from_number(0), &args, 0).map(drop)
}

#[test]
fn f74_one_file_holds_the_tasks_of_all_levels_also_when_one_died() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let mut bottom = builder(2).build().unwrap();
    bottom.register_function("nothing", nothing);
    bottom.register_function("die", die);
    let mut middle = Worker::builder().level(4).build().unwrap();
    middle.register_orchestration("submit_each", submit_each);
    middle.add_worker(bottom).unwrap();
    let mut top = Worker::builder().level(5).trace(&path).build().unwrap();
    let down = top.register_orchestration("pass_down", pass_down);
    top.add_worker(middle).unwrap();
    for (second, outcome) in [(0, "done"), (1, "unfinished")] {
        top.init().unwrap();
        let args = Args::new().scalar(0).scalar(second);
        let ran = top.run(|orch| orch.submit_next_level(down, &args, 0));
        assert_eq!(ran.is_ok(), outcome == "done", "{ran:?}");
        top.close().unwrap();
        let events = events(&path);
        // What ran in the Worker of this name, with its outcome.
        let ran_in = |worker: &str, task: &str, chip: u64| {
            let named = |event: &&Value| event["name"] == "process_name" && event["args"]["name"] == worker;
            let pid = &events.iter().find(named).unwrap_or_else(|| panic!("no {worker}: {events:#?}"))["pid"];
            let bar = events.iter().find(|event| {
                event["ph"] == "X" && event["pid"] == *pid && event["tid"] == chip && event["name"] == task
            });
            bar.map(|bar| bar["args"]["outcome"].as_str().unwrap().to_owned())
        };
        assert!(ran_in("Worker", "pass_down", 0).is_some());
        assert!(ran_in("worker 0", "submit_each", 0).is_some());
        assert!(ran_in("worker 0, worker 0", "nothing", 0).is_some());
        let second = if second == 0 { "nothing" } else { "die" };
        assert_eq!(ran_in("worker 0, worker 0", second, 1).as_deref(), Some(outcome));
        // The Workers below leave no file of their own.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
