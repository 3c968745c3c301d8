//! What graphs tell each other before they start.

use super::*;
use crate::objects;
use chip_runtime::{Buffer, TensorArg};

/// Rank `me` of a ring: `y` is `x` times a factor, once the rank before has signalled `word`; signals `told` of the next.
fn ring(
    rank: &mut Rank<'_>,
    (x, y): (&DeviceMemory, &DeviceMemory),
    (word, told): (u64, u64),
) -> Result<(), OnDeviceError> {
    let (me, nranks, [scale, ..]) = (rank.me, rank.nranks, rank.kernels);
    rank.run(Duration::from_secs(60), |graph| {
        let (x, y) = (graph.import::<f32>(x, &[COUNT])?, graph.import::<f32>(y, &[COUNT])?);
        graph.submit_dummy(&TaskArgs::new().signal(add((me + 1) % nranks, told)))?;
        let from = Signaller::Rank((me + nranks - 1) % nranks);
        let args = TaskArgs::new().input(&x).output_existing(&y).scalar(2).wait(wait(word, 1, from));
        graph.submit(Kernels::aiv(scale), &args).map(drop)
    })
}

fn everybody(rank: &Rank<'_>) -> Vec<u32> {
    (0..rank.nranks).collect()
}

/// Begins the session of this number with all ranks.
fn begin(rank: &mut Rank<'_>, number: u64) -> Result<(), String> {
    if number == 1 {
        rank.graphs.exchange_over(rank.words.clone(), 0).map_err(text)?;
    }
    let members = everybody(rank);
    rank.graphs.session(number, &members);
    Ok(())
}

// CA-8
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_wait_for_a_word_that_no_graph_signals_is_refused_before_anything_runs() {
    on_devices("exchange", &[], |rank| {
        let (x, y) = (floats(rank.device, 3.0), floats(rank.device, 0.0));
        begin(rank, 1)?;
        ring(rank, (&x, &y), (WORDS, WORDS)).map_err(text)?;
        if first_and_last(&y) != [6.0; 2] {
            return Err(format!("{:?}, not 6", first_and_last(&y)));
        }
        // Now rank 0 signals another word than rank 1 waits for.
        y.fill(0).map_err(text)?;
        begin(rank, 2)?;
        let told = if rank.me == 0 { WORDS + 128 } else { WORDS + 64 };
        let ended = ring(rank, (&x, &y), (WORDS + 64, told)).map_err(text);
        if rank.me == 1 {
            let error = ended.err().ok_or("a wait that nobody meets was started")?;
            let ends = "it waits for rank 0 to signal word 0x40040 of window `base`, and the graph of that rank never does";
            if !error.contains(ends) || !error.contains("rank 1, at ") || !error.contains("exchange.rs:") {
                return Err(error);
            }
            if first_and_last(&y) != [0.0; 2] {
                return Err("something of the graph ran".to_owned());
            }
        } else if rank.me == 2 % rank.nranks {
            // Rank 1 has said that it signals, and was refused then.
            let error = ended.err().ok_or("a wait for a graph that never ran was met")?;
            let told = "rank 1 has ended its graph without that signal";
            if !error.contains(told) || !error.contains("task 1, waits for rank 1 (word 0x40040 of") {
                return Err(error);
            }
        } else {
            ended?;
        }
        rank.barrier()?;
        // A rank that runs no graph of the session.
        let (me, other) = (rank.me, (rank.me + 1) % rank.nranks);
        rank.graphs.session(3, &[me]);
        let alone = rank.run(Duration::from_secs(60), |graph| {
            graph.submit_dummy(&TaskArgs::new().wait(wait(WORDS, 1, Signaller::Rank(other)))).map(drop)
        });
        let error = text(alone.err().ok_or("a wait for a rank without a graph was started")?);
        if !error.contains("that rank, which runs no graph of this session, never does") {
            return Err(error);
        }
        // Nobody knows who signals this one: it has the deadline, and is met.
        begin(rank, 4)?;
        let known = rank.run(Duration::from_secs(60), |graph| {
            graph.submit_dummy(&TaskArgs::new().signal(add(other, WORDS + 192)))?;
            graph.submit_dummy(&TaskArgs::new().wait(wait(WORDS + 192, 1, Signaller::Unknown))).map(drop)
        });
        known.map_err(text)?;
        rank.barrier()?;
        x.release().and_then(|()| y.release()).map_err(text)
    });
}

// CA-8
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_graph_that_was_not_built_ends_the_waits_for_it() {
    on_devices("unbuilt", &[], |rank| {
        let (x, y) = (floats(rank.device, 3.0), floats(rank.device, 0.0));
        begin(rank, 1)?;
        if rank.me == 0 {
            let failed = rank.run(Duration::from_secs(60), |_| -> Result<(), _> { panic!("not today") });
            let error = text(failed.err().ok_or("a panic was taken for a success")?);
            if !error.contains("not today") {
                return Err(error);
            }
        } else {
            let (me, nranks, [scale, ..]) = (rank.me, rank.nranks, rank.kernels);
            let ended = rank.run(Duration::from_secs(60), |graph| {
                let (x, y) = (graph.import::<f32>(&x, &[COUNT])?, graph.import::<f32>(&y, &[COUNT])?);
                let from = Signaller::Rank(me - 1);
                let args = TaskArgs::new().input(&x).output_existing(&y).scalar(2).wait(wait(WORDS, 1, from));
                let args = if me + 1 < nranks { args.signal(add(me + 1, WORDS)) } else { args };
                graph.submit(Kernels::aiv(scale), &args).map(drop)
            });
            // So it goes from rank to rank.
            let error = text(ended.err().ok_or("a wait for a graph that was not built was met")?);
            if !error.contains(&format!("rank {} has ended its graph without that signal", me - 1)) {
                return Err(error);
            }
        }
        rank.barrier()?;
        x.release().and_then(|()| y.release()).map_err(text)
    });
}

// CA-8
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_rank_that_dies_before_it_says_what_it_signals_is_named() {
    on_devices("early death", &[1], |rank| {
        let x = floats(rank.device, 1.0);
        begin(rank, 1)?;
        rank.barrier()?;
        match rank.me {
            1 => std::process::abort(),
            0 => {
                // Far longer than it takes to notice.
                let error = wait_for_rank_1(rank, &x, Duration::from_secs(60))?;
                let told = error.contains("rank 1") && !error.contains("no signal came within");
                x.release().map_err(text)?;
                if told { Ok(()) } else { Err(error) }
            }
            _ => x.release().map_err(text),
        }
    });
}

// CA-5, CA-8
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn graphs_in_cpp_signal_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let object = objects::object(folder.path());
    on_devices("C++", &[], |rank| {
        let entry = objects::orchestration(&object, "ring");
        objects::set_kernels(&mut rank.graphs);
        let (me, nranks) = (u64::from(rank.me), u64::from(rank.nranks));
        let run = |rank: &mut Rank<'_>, word: u64, told: u64| {
            let mut x = Buffer::of(&vec![5.0f32; COUNT as usize]);
            let mut y = Buffer::<f32>::zeroed(&[COUNT]);
            let ended = rank.run(Duration::from_secs(60), |graph| {
                let (x, y) = (graph.import_host(&mut x)?, graph.import_host(&mut y)?);
                let tensors = [TensorArg::Input(*x.as_ref()), TensorArg::OutputExisting(*y.as_ref())];
                entry.call_on_device(graph, &tensors, &[me, nranks, word, told])
            });
            ended.map(|()| y.to_vec().unwrap())
        };
        begin(rank, 1)?;
        let y = run(rank, WORDS, WORDS).map_err(text)?;
        if y != vec![5.0 * (me + 1) as f32; COUNT as usize] {
            return Err(format!("{} and so on, not 5 times {}", y[0], me + 1));
        }
        begin(rank, 2)?;
        let error = run(rank, WORDS + 64, WORDS + 128).map_err(text).err();
        let error = error.ok_or("a wait that nobody meets was started")?;
        if !error.contains("never does") || !error.contains("graphs.cpp:") {
            return Err(error);
        }
        rank.barrier()
    });
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_recording_has_waits_and_signals_of_all_ranks() {
    on_devices("recorded", &[], |rank| {
        let (x, y) = (floats(rank.device, 3.0), floats(rank.device, 0.0));
        rank.graphs.record();
        begin(rank, 1)?;
        ring(rank, (&x, &y), (WORDS, WORDS)).map_err(text)?;
        let recording = rank.graphs.take_recording().ok_or("nothing was recorded")?;
        let (me, next) = (rank.me, (rank.me + 1) % rank.nranks);
        let ([wait], [signal], [span]) = (recording.waits(), recording.signals(), recording.spans()) else {
            return Err(format!("{recording:?}"));
        };
        let met = wait.met_ns.ok_or("the wait is not met")?;
        let told = (signal.task.local(), signal.to, signal.value, &*signal.window);
        if (wait.task.local(), wait.rank, &*wait.window) != (1, me, "base") || told != (0, next, 1, "base") {
            return Err(format!("{wait:?} {signal:?}"));
        }
        if !(wait.armed_ns <= met && met <= span.start_ns && span.start_ns <= span.end_ns) {
            return Err(format!("{wait:?} {span:?}"));
        }
        rank.barrier()?;
        x.release().and_then(|()| y.release()).map_err(text)
    });
}
