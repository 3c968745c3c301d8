//! Waits and signals of tasks, between chips in one process.

mod common;

use chip_runtime::signals::{Domain, Signal, SignalOp, Signaller, Signals, Wait};
use chip_runtime::{
    Buffer, FrontEnd, KernelId, Kernels, Limits, Runtime, RuntimeError, TaskArgs, TraceProcess, TraceWriter,
};
use common::soon;
use std::sync::Arc;
use std::thread;

fn chip(signals: &Arc<Signals>) -> (Runtime, KernelId) {
    let mut runtime = Runtime::new(Limits { clusters: 1, ..Limits::default() }).unwrap();
    runtime.connect(signals.clone());
    let add = runtime.kernel("add", |block| {
        let sum = block.read::<i64>(0)?[0] + block.scalar(0)? as i64;
        Ok(block.write(0, &[sum])?)
    });
    (runtime, add)
}

fn wait(offset: u64, at_least: u32, rank: u32) -> Wait {
    Wait { domain: Domain::BASE, offset, at_least, from: Signaller::Rank(rank) }
}

fn signal(rank: u32, offset: u64) -> Signal {
    Signal { domain: Domain::BASE, rank, offset, op: SignalOp::Add(1) }
}

/// Two chips in turns: each round of one waits for the last round of the other.
#[test]
fn two_chips_take_turns() {
    const ROUNDS: u32 = 200;
    for front_end in FrontEnd::ALL {
        let chips = Signals::in_process(2, 4096).unwrap();
        let both: Vec<i64> = thread::scope(|scope| {
            let play = |me: u32| {
                let (mut runtime, add) = chip(&chips[me as usize]);
                let mut data = Buffer::of(&[0i64]);
                runtime.session(1, &[0, 1]);
                runtime.record();
                runtime
                    .run(front_end, soon(), |graph| {
                        let data = graph.import(&mut data)?;
                        let mut before = None;
                        for round in 0..ROUNDS {
                            let mut args = TaskArgs::new().inout(&data).scalar(1).signal(signal(1 - me, 0));
                            // Chip 0 begins.
                            args = args.wait(wait(0, round + me, 1 - me));
                            args = before.map_or(args.clone(), |before| args.after(before));
                            before = Some(graph.submit(Kernels::aiv(add), &args)?.task);
                        }
                        Ok(())
                    })
                    .unwrap();
                let recording = runtime.take_recording().unwrap();
                assert!(
                    recording.waits().iter().all(|wait| wait.met_ns.is_some_and(|met| met >= wait.armed_ns))
                );
                let mut events = Vec::new();
                let process = TraceProcess { pid: me, name: "chip", group: "pair", origin_ns: 0 };
                TraceWriter::new(&mut events, process).unwrap().add(&recording).unwrap();
                let events = String::from_utf8(events).unwrap();
                // The last signal to the other chip, as both name it.
                let arrow = |to: u32, value: u32| format!("\"id\":\"pair.base.{to}.0.{value}\"");
                assert!(
                    events.contains(&arrow(1 - me, ROUNDS)) && events.contains(&arrow(me, ROUNDS - 1)),
                    "{events}"
                );
                data.to_vec().unwrap()[0]
            };
            let threads = [0, 1].map(|me| scope.spawn(move || play(me)));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(both, [i64::from(ROUNDS); 2], "{front_end:?}");
    }
}

#[test]
fn a_wait_outside_the_window_and_a_signal_to_nobody_are_refused() {
    let chips = Signals::in_process(2, 4096).unwrap();
    let (mut runtime, add) = chip(&chips[0]);
    let mut refused = |args: TaskArgs| {
        let run =
            runtime.run(FrontEnd::Inferred, soon(), |graph| graph.submit(Kernels::aiv(add), &args).map(drop));
        let error: RuntimeError = run.unwrap_err();
        assert!(error.code() == 101 && error.at.site.is_some(), "{error:?}");
        error.to_string()
    };
    assert!(refused(TaskArgs::new().wait(wait(4096, 1, 1))).contains("outside the window"));
    assert!(refused(TaskArgs::new().signal(signal(2, 0))).contains("no rank 2"));
}

/// Chips that wait for each other for ever learn it, and not only when their time is over.
// F87
#[test]
fn chips_that_wait_for_each_other_are_found() {
    let chips = Signals::in_process(2, 4096).unwrap();
    let errors: Vec<RuntimeError> = thread::scope(|scope| {
        let stand = |me: u32| {
            let (mut runtime, add) = chip(&chips[me as usize]);
            runtime.session(1, &[0, 1]);
            let args = TaskArgs::new().wait(wait(64, 1, 1 - me)).signal(signal(1 - me, 64));
            let run = runtime
                .run(FrontEnd::Inferred, soon(), |graph| graph.submit(Kernels::aiv(add), &args).map(drop));
            run.unwrap_err()
        };
        let threads = [0, 1].map(|me| scope.spawn(move || stand(me)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors.iter().all(|error| error.code() == 103), "{errors:?}");
}

/// A kernel behind the C entry asks for its completion to wait for a word.
#[test]
fn a_completion_waits_for_the_words_that_a_kernel_names() {
    common::raw::completion_waits();
}
