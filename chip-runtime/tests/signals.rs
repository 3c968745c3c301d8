//! Waits and signals of tasks, between chips in one process.

mod common;

use chip_runtime::signals::{Domain, Signal, SignalOp, Signaller, Signals, Wait};
use chip_runtime::{
    Buffer, FrontEnd, KernelId, Kernels, Limits, Runtime, RuntimeError, TaskArgs, TaskId, TraceProcess,
    TraceWriter,
};
use common::soon;
use deadline::Deadline;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn chip(signals: &Arc<Signals>) -> (Runtime, KernelId) {
    let mut runtime = Runtime::new(Limits { clusters: 1, ..Limits::default() }).unwrap();
    runtime.connect(signals.clone());
    // Beside one whose kernels run on threads of their own.
    if signals.rank() == 1 {
        runtime.use_calling_thread();
    }
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
    assert!(refused(TaskArgs::new().wait(wait(4096, 1, 1))).contains("outside window `base`"));
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
    errors.iter().for_each(|error| assert_is_at(error, 0, "add"));
}

/// The error names this task of the chip that reports it, its kernel and the place of its submit.
fn assert_is_at(error: &RuntimeError, task: u64, kernel: &str) {
    let named = error.at.kernel.as_ref().map(|(_, name)| &**name);
    assert_eq!((error.at.task, named), (Some(TaskId(task)), Some(kernel)), "{error}");
    assert_eq!(error.at.site.map(|site| site.file), Some(file!()), "{error}");
}

/// The chip that tells of a deadlock, and each that only learns of it, name a task of their own, although the cycle begins with
/// another chip, which has another task under each number.
// CR-4
#[test]
fn a_deadlock_is_at_a_task_of_the_chip_that_reports_it() {
    let chips = Signals::in_process(3, 4096).unwrap();
    // Ranks 0 and 2 wait for each other, and rank 1 for rank 0.
    let waits_for = [2, 0, 0];
    let errors: Vec<RuntimeError> = thread::scope(|scope| {
        let stand = |me: usize| {
            let (mut runtime, add) = chip(&chips[me]);
            let other = runtime.kernel("other", |_| Ok(()));
            runtime.session(1, &[0, 1, 2]);
            let args = TaskArgs::new().wait(wait(64, 1, waits_for[me]));
            let run = runtime.run(FrontEnd::Inferred, soon(), |graph| {
                for _ in 0..me {
                    graph.submit(Kernels::aiv(other), &TaskArgs::new())?;
                }
                graph.submit(Kernels::aiv(add), &args).map(drop)
            });
            run.unwrap_err()
        };
        let threads = [0, 1, 2].map(|me| scope.spawn(move || stand(me)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(
        errors[0].to_string().contains("no chip can go on: task 0.2 of rank 2 waits for rank 0"),
        "{errors:?}"
    );
    for (me, error) in errors.iter().enumerate() {
        assert_is_at(error, me as u64, "add");
    }
}

/// Whoever notices first: the calling thread, which runs kernels or not, or the one that looks at the signals.
// CR-4
#[test]
fn a_wait_that_takes_too_long_is_named() {
    for helps in [false, true] {
        let chips = Signals::in_process(2, 4096).unwrap();
        let (mut runtime, add) = chip(&chips[usize::from(helps)]);
        let from = Signaller::Unknown;
        let args = TaskArgs::new().wait(Wait { domain: Domain::BASE, offset: 64, at_least: 1, from });
        let limit = Deadline::after(Duration::from_millis(60)).unwrap();
        let run =
            runtime.run(FrontEnd::Inferred, limit, |graph| graph.submit(Kernels::aiv(add), &args).map(drop));
        assert_is_at(&run.unwrap_err(), 0, "add");
    }
}

/// A kernel behind the C entry asks for its completion to wait for a word.
#[test]
fn a_completion_waits_for_the_words_that_a_kernel_names() {
    common::raw::completion_waits();
}

/// Runs a graph on each of `n` chips, with these front ends in turns, and returns how they ended.
fn together(
    n: u32,
    front_ends: &[FrontEnd],
    tasks: impl Fn(u32) -> Vec<TaskArgs> + Sync,
) -> Vec<Result<i64, RuntimeError>> {
    let chips = Signals::in_process(n, 4096).unwrap();
    let members: Vec<u32> = (0..n).collect();
    let play = |me: u32| {
        let (mut runtime, add) = chip(&chips[me as usize]);
        let mut data = Buffer::of(&[0i64]);
        runtime.session(1, &members);
        let front_end = front_ends[me as usize % front_ends.len()];
        runtime.run(front_end, soon(), |graph| {
            let data = graph.import(&mut data)?;
            tasks(me)
                .into_iter()
                .try_for_each(|args| graph.submit(Kernels::aiv(add), &args.inout(&data).scalar(1)).map(drop))
        })?;
        Ok(data.to_vec().unwrap()[0])
    };
    thread::scope(|scope| {
        let threads: Vec<_> = members.iter().map(|me| scope.spawn(move || play(*me))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A wait of a prebuilt graph for a word that the graph of the other rank signals nowhere is refused before anything of it
/// has run, whichever chip is the first.
#[test]
fn a_prebuilt_graph_that_waits_for_what_nobody_signals_is_refused() {
    for n in 2..=4u32 {
        for waits in 0..n {
            let from = (waits + 1) % n;
            let ended = together(n, &[FrontEnd::Prebuilt], |me| {
                let first = TaskArgs::new().signal(signal((me + 1) % n, 0));
                // What everybody signals to the next, and on one chip a word that nobody signals.
                let mut all = vec![first, TaskArgs::new().wait(wait(0, 1, (me + n - 1) % n))];
                all.extend((me == waits).then(|| TaskArgs::new().wait(wait(8, 1, from))));
                all
            });
            for (me, ended) in ended.into_iter().enumerate() {
                // The next one needs a signal of the chip that was refused: had anything run there, it would have it.
                if me as u32 == (waits + 1) % n {
                    assert!(
                        ended.as_ref().is_err_and(|error| error.code() == 103),
                        "{n}, {waits}: {ended:?}"
                    );
                    continue;
                }
                if me as u32 != waits {
                    assert!(matches!(&ended, Ok(2)), "{n}, {waits}: {ended:?}");
                    continue;
                }
                let error = ended.unwrap_err();
                let text = error.to_string();
                assert_eq!(error.code(), 101, "{text}");
                let parts = [
                    "task 0.2",
                    "kernel 0 `add`",
                    "word 0x8 of window `base`",
                    "the graph of that rank never does; add the signal there, or name `Unknown` as who signals if that is a \
                     kernel or the host",
                ];
                assert!(parts.iter().all(|part| text.contains(part)), "{text}");
                assert!(text.contains(&format!("rank {from}")) && text.contains("signals.rs:"), "{text}");
            }
        }
    }
}

/// A chip that waits for nobody may be done with several graphs before the other begins the first.
#[test]
fn a_chip_that_is_sessions_ahead_is_not_waited_for() {
    const SESSIONS: u64 = 3;
    let chips = Signals::in_process(2, 4096).unwrap();
    for (me, signals) in chips.iter().enumerate() {
        let (mut runtime, add) = chip(signals);
        let mut data = Buffer::of(&[0i64]);
        for session in 1..=SESSIONS {
            runtime.session(session, &[0, 1]);
            let run = runtime.run(FrontEnd::Prebuilt, soon(), |graph| {
                let args = TaskArgs::new().inout(&graph.import(&mut data)?).scalar(1);
                let args =
                    if me == 0 { args.signal(signal(1, 0)) } else { args.wait(wait(0, session as u32, 0)) };
                graph.submit(Kernels::aiv(add), &args).map(drop)
            });
            run.unwrap_or_else(|error| panic!("chip {me}, session {session}: {error}"));
        }
        assert_eq!(data.to_vec().unwrap(), [SESSIONS as i64]);
    }
}

/// What a graph that is built while it runs will signal is not known, and a graph that fails says nothing.
#[test]
fn a_graph_that_does_not_know_its_signals_is_believed() {
    let fits =
        |me: u32| vec![TaskArgs::new().wait(wait(0, u32::from(me == 1), 1 - me)).signal(signal(1 - me, 0))];
    for other in FrontEnd::ALL {
        for order in [[FrontEnd::Prebuilt, other], [other, FrontEnd::Prebuilt]] {
            let ended = together(2, &order, fits);
            assert!(ended.iter().all(|ended| matches!(ended, Ok(1))), "{order:?}: {ended:?}");
        }
    }
    let ended = together(2, &[FrontEnd::Prebuilt], |me| match me {
        0 => fits(0),
        _ => vec![TaskArgs::new().wait(wait(4096, 1, 0))],
    });
    assert!(ended.iter().any(|ended| ended.as_ref().is_err_and(|error| error.code() == 101)), "{ended:?}");
    // The first task of chip 0 waits for nothing, so that it may have ended well.
    let more = together(2, &[FrontEnd::Prebuilt, FrontEnd::Inferred], |me| match me {
        0 => vec![TaskArgs::new().wait(wait(8, 1, 1))],
        _ => vec![TaskArgs::new()],
    });
    assert!(more[0].as_ref().is_err_and(|error| error.code() == 103), "the proof finds it: {more:?}");
}

/// A graph that waits for itself, for a chip outside of its session, and one that signals more words than fit.
#[test]
fn waits_for_itself_for_strangers_and_of_large_graphs() {
    let own = |declared: bool| {
        together(1, &[FrontEnd::Prebuilt], |_| {
            let mut all = vec![TaskArgs::new().wait(wait(16, 1, 0))];
            all.extend(declared.then(|| TaskArgs::new().signal(signal(0, 16))));
            all
        })
    };
    // Both tasks use the buffer, so that the one that waits comes first: never met, but declared.
    assert!(own(true)[0].as_ref().is_err_and(|error| error.code() == 103));
    assert!(own(false)[0].as_ref().is_err_and(|error| error.code() == 101));

    let chips = Signals::in_process(3, 4096).unwrap();
    let (mut runtime, add) = chip(&chips[0]);
    runtime.session(1, &[0, 1]);
    let run = runtime.run(FrontEnd::Prebuilt, soon(), |graph| {
        graph.submit(Kernels::aiv(add), &TaskArgs::new().wait(wait(0, 1, 2))).map(drop)
    });
    let error = run.unwrap_err();
    assert!(error.code() == 101 && error.to_string().contains("runs no graph of this session"), "{error}");

    let many = together(2, &[FrontEnd::Prebuilt], |me| {
        let all = (0..600).map(|word| TaskArgs::new().signal(signal(1 - me, 4 * word)));
        all.chain([TaskArgs::new().wait(wait(4 * 599, 1, 1 - me))]).collect()
    });
    assert!(many.iter().all(|ended| matches!(ended, Ok(601))), "{many:?}");
}
