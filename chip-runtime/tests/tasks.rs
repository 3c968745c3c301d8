//! What tasks can be: blocks, lanes of one cluster, predicates, initial values, single elements, a long stream.

mod common;

use chip_runtime::{
    Block, Buffer, Compare, Create, FrontEnd, Graph, KernelResult, Kernels, Lane, Limits, Predicate, Runtime,
    RuntimeError, ScopeMode, TaskArgs,
};
use common::soon;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};

fn two_clusters() -> Runtime {
    Runtime::new(Limits { clusters: 2, ..Limits::default() }).unwrap()
}

/// Blocks that start together can wait for each other; so can the lanes of a block.
#[test]
fn blocks_and_lanes_that_start_together_run_at_the_same_time() {
    let mut runtime = two_clusters();
    let all = Arc::new(Barrier::new(4));
    let wait = {
        let all = all.clone();
        runtime.kernel("wait", move |_| {
            all.wait();
            Ok(())
        })
    };
    for _ in 0..10 {
        let blocks = TaskArgs::new().blocks(4).sync_start();
        runtime
            .run(FrontEnd::Inferred, soon(), |graph| graph.submit(Kernels::aiv(wait), &blocks).map(drop))
            .unwrap();
        // Two clusters, two lanes each.
        let kernels = Kernels { aic: Some(wait), aiv0: None, aiv1: Some(wait) };
        let blocks = TaskArgs::new().blocks(2).sync_start();
        runtime.run(FrontEnd::Prebuilt, soon(), |graph| graph.submit(kernels, &blocks).map(drop)).unwrap();
    }
}

/// Tasks that wait for each other inside their kernels do so on cores of their own, more of them than processors.
#[test]
fn kernels_that_wait_for_each_other_all_start() {
    let mut runtime = Runtime::new(Limits { clusters: 4, ..Limits::default() }).unwrap();
    let all = Arc::new(Barrier::new(8));
    let wait = runtime.kernel("wait", move |_| {
        all.wait();
        Ok(())
    });
    for _ in 0..5 {
        runtime
            .run(FrontEnd::Inferred, soon(), |graph| {
                (0..8).try_for_each(|_| graph.submit(Kernels::aiv(wait), &TaskArgs::new()).map(drop))
            })
            .unwrap();
    }
}

#[test]
fn a_block_knows_its_place_and_its_core() {
    let mut runtime = two_clusters();
    let seen: Arc<Mutex<Vec<(u32, u32, Lane)>>> = Arc::default();
    let look = {
        let seen = seen.clone();
        runtime.kernel("look", move |block: &Block<'_>| -> KernelResult {
            seen.lock().unwrap().push((block.index(), block.count(), block.lane()));
            Ok(())
        })
    };
    let kernels = Kernels { aic: Some(look), aiv0: Some(look), aiv1: Some(look) };
    runtime
        .run(FrontEnd::Explicit, soon(), |graph| graph.submit(kernels, &TaskArgs::new().blocks(5)).map(drop))
        .unwrap();
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_by_key(|(index, _, lane)| (*index, *lane as u32));
    let lanes = [Lane::Aic, Lane::Aiv0, Lane::Aiv1];
    let expected: Vec<_> = (0..5).flat_map(|index| lanes.map(|lane| (index, 5, lane))).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_task_whose_predicate_is_false_completes_without_its_kernel() {
    let mut runtime = two_clusters();
    let add = runtime.kernel("add", |block| {
        let sum = block.read::<i32>(0)?[0] + block.scalar(0)? as i32;
        Ok(block.write(0, &[sum])?)
    });
    for front_end in [FrontEnd::Prebuilt, FrontEnd::Inferred] {
        let mut data = Buffer::of(&[0i32]);
        runtime
            .run(front_end, soon(), |graph| {
                let data = graph.import(&mut data)?;
                let args = |value| TaskArgs::new().inout(&data).scalar(value);
                let when = |compare, target| Predicate::new(&data, &[0], compare, target);
                graph.submit(Kernels::aiv(add), &args(5))?;
                graph.submit(Kernels::aiv(add), &args(100).when(when(Compare::Gt, 5)))?;
                graph.submit(Kernels::aiv(add), &args(10).when(when(Compare::Eq, 5)))?;
                graph.submit(Kernels::aiv(add), &args(1000).when(when(Compare::Lt, 15)))?;
                graph.submit(Kernels::aiv(add), &args(1)).map(drop)
            })
            .unwrap();
        assert_eq!(data.to_vec().unwrap(), [16], "{front_end:?}");
    }
}

#[test]
fn the_builder_reads_and_writes_single_elements() {
    let mut runtime = two_clusters();
    let double = runtime.kernel("double", |block| {
        let values: Vec<i16> = block.read::<i16>(0)?.iter().map(|value| 2 * value).collect();
        Ok(block.write(0, &values)?)
    });
    let mut data = Buffer::of(&[1i16, 2, 3, 4]);
    let sum = runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            let data = graph.import(&mut data)?;
            let made = graph.allocate(&[Create::filled(&[2, 2], -7i16)])?.tensor::<i16>(0)?;
            let mut sum = 0;
            for _ in 0..3 {
                graph.submit(Kernels::aiv(double), &TaskArgs::new().inout(&data))?;
                graph.submit(Kernels::aic(double), &TaskArgs::new().inout(&made))?;
                sum += graph.get(&data, &[3])?;
                graph.set(&data, &[0], 10)?;
            }
            Ok(sum + graph.get(&made, &[1, 1])?)
        })
        .unwrap();
    assert_eq!(sum, 8 + 16 + 32 - 56);
    assert_eq!(data.to_vec().unwrap(), [10, 16, 24, 32]);
    let set = runtime.run(FrontEnd::Prebuilt, soon(), |graph| {
        let data = graph.import(&mut data)?;
        graph.set(&data, &[1], 5)?;
        graph.submit(Kernels::aiv(double), &TaskArgs::new().inout(&data))?;
        let made = graph.allocate(&[Create::of::<i16>(&[1])])?.tensor::<i16>(0)?;
        graph.get(&made, &[0])
    });
    assert_eq!(set.unwrap_err().code(), 8);
}

/// A manual scope infers nothing, and neither does a tensor that is named so.
#[test]
fn what_is_manual_has_no_edges() {
    let mut runtime = two_clusters();
    let nothing = runtime.kernel("nothing", |_| Ok(()));
    runtime.record();
    let mut data = Buffer::of(&[0i32; 8]);
    runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            let data = graph.import(&mut data)?;
            let inout = TaskArgs::new().inout(&data);
            let submit = |graph: &mut Graph<'_>, args: &TaskArgs| {
                graph.submit(Kernels::aiv(nothing), args).map(|done| done.task)
            };
            graph.scope(ScopeMode::Manual, |graph| submit(graph, &inout).and(submit(graph, &inout)))?;
            submit(graph, &TaskArgs::new().no_dep(&data))?;
            submit(graph, &TaskArgs::new().inout(&data.manual_dependencies()))?;
            let first = submit(graph, &inout)?;
            submit(graph, &inout.clone().after(first)).map(drop)
        })
        .unwrap();
    let recording = runtime.take_recording().unwrap();
    assert_eq!((recording.tasks().count(), recording.edges().count(), recording.spans().len()), (6, 1, 6));
    let dot = recording.dot();
    assert!(
        dot.starts_with("digraph") && dot.matches(" -> ").count() == 1 && dot.contains("tasks.rs"),
        "{dot}"
    );
    let mut trace = Vec::new();
    recording.write_trace(&mut trace, "chip \"0\"").unwrap();
    let trace = String::from_utf8(trace).unwrap();
    assert!(trace.contains("\"chip \\\"0\\\"\"") && trace.matches("\"ph\":\"X\"").count() == 6, "{trace}");
}

/// CR-6: many more tasks than slots, each of which needs memory.
#[test]
fn a_long_stream_passes_through_a_small_window() {
    for front_end in [FrontEnd::Explicit, FrontEnd::Inferred] {
        let limits = Limits { clusters: 1, slots: 8, heap: 8 << 10, ..Limits::default() };
        let mut runtime = Runtime::new(limits).unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let count = {
            let runs = runs.clone();
            runtime.kernel("count", move |block| {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(block.write(0, &[7u64])?)
            })
        };
        runtime
            .run(front_end, soon(), |graph| {
                for _ in 0..2000 {
                    graph.scope(ScopeMode::Auto, |graph| {
                        for _ in 0..3 {
                            let args = TaskArgs::new().output(Create::of::<u64>(&[1]));
                            graph.submit(Kernels::aiv(count), &args)?;
                        }
                        Ok::<_, RuntimeError>(())
                    })?;
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 6000);
    }
}

/// A task is handed to a core thread, and the orchestration may not come back for a long time: what waits for the task
/// starts all the same, and an error is found.
#[test]
fn tasks_follow_each_other_while_the_orchestration_is_elsewhere() {
    let mut runtime = two_clusters();
    let (tell, told) = std::sync::mpsc::channel::<i32>();
    let nothing = runtime.kernel("nothing", |_| Ok(()));
    let last = runtime.kernel("tell", move |block| Ok(tell.send(block.scalar(0)? as i32)?));
    let fails = runtime.kernel("fails", |_| Err("on purpose".into()));
    let mut data = Buffer::of(&[0i32; 8]);
    for round in 0..300 {
        let received = runtime.run(FrontEnd::Inferred, soon(), |graph| {
            let data = graph.import(&mut data)?;
            let inout = TaskArgs::new().inout(&data);
            // A thread that spins takes these from its mailbox, in some rounds the second one too.
            for _ in 0..round % 4 {
                graph.submit(Kernels::aiv(nothing), &inout)?;
            }
            graph.submit(Kernels::aiv(last), &inout.scalar(round))?;
            Ok(told.recv_timeout(std::time::Duration::from_secs(20)))
        });
        assert_eq!(received.unwrap(), Ok(round as i32));
        let failed = runtime.run(FrontEnd::Inferred, soon(), |graph| {
            graph.submit(Kernels::aiv(fails), &TaskArgs::new())?;
            let start = std::time::Instant::now();
            while !graph.is_failed() && start.elapsed().as_secs() < 20 {
                std::thread::yield_now();
            }
            Ok(graph.is_failed())
        });
        assert!(failed.unwrap_err().to_string().contains("on purpose"));
    }
}
