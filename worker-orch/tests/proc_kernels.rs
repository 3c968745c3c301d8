//! Kernels that run on several blocks, kernels that throw, and kernels that cannot be loaded, on the simulation. Blocks on devices and on the double are in
//! `hw_worker.rs`; nothing throws there.
#![allow(missing_docs)]

mod support;

use comm_context::comm::Membership;
use serial_test::serial;
use std::process::Command;
use support::{children_of, grouped, kernel, plain, text};
use worker_orch::{Access, Args, ChipConfig, ErrorCode, Failure, Orchestrator, Task, Worker, group_bytes};

/// The same source as on devices.
const BLOCKS: &str = include_str!("hw_kernels/blocks.cpp");

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

fn nothing_below(_: &mut Orchestrator<'_>, _: &Task<'_>) -> Result<(), Failure> {
    Ok(())
}

// WO-13
#[test]
#[serial]
fn a_kernel_runs_once_for_each_block_and_knows_which() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = plain(2);
    let program = worker.register_kernel(&kernel(folder.path(), "blocks", BLOCKS)).unwrap();
    worker.init().unwrap();
    for blocks in [1, 2, 7, Args::MAX_BLOCKS] {
        let slots = blocks as usize;
        let outs = [(); 2].map(|()| worker.host_buffer::<f32>(slots * 16).unwrap());
        let args = |chip: usize| Args::new().tensor(&outs[chip].tensor(), Access::InOut).blocks(blocks);
        worker
            .run(|orch| {
                orch.submit_group(program, &[(0, args(0)), (1, args(1))])?;
                // The task is done when all its blocks are: this one finds what they left.
                orch.submit_next_level(program, &args(0), 1)
            })
            .unwrap();
        for (times, out) in [(2.0, &outs[0]), (1.0, &outs[1])] {
            for (block, slot) in out.to_vec().chunks_exact(16).enumerate() {
                assert_eq!(slot[..3], [times * (block + 1) as f32, blocks as f32, 0.0], "block {block}");
            }
        }
    }
    worker.close().unwrap();
}

/// 16 barriers, then a sum of all ranks or a broadcast.
const SUM_OR_BROADCAST: &str = r#"
#include "comm_collectives.h"
extern "C" void kernel_entry(int64_t *args) {
    const auto data = comm_tensor<float>(args[0]);
    const auto *ctx = comm_pointer<const CommContext>(args[1]);
    CommGroup group(args, ctx, comm_pointer<void>(args[2]), static_cast<size_t>(args[3]));
    for (int call = 0; call < 16; ++call) {
        if (!comm_barrier(group)) return;
    }
    if (args[4] == 0) {
        (void)!comm_all_reduce(group, data.data, data.data, data.count, CommOp::Sum);
    } else {
        (void)!comm_broadcast(group, data.data, data.count, 0);
    }
}
"#;

// CO-3
// F85
#[test]
#[serial]
fn kernels_that_make_different_calls_fail_with_both_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "sum_or_broadcast", SUM_OR_BROADCAST);
    let mut worker = plain(2);
    let group = group_bytes(2, 0).unwrap();
    let chip = |rank: u32| {
        let member = Membership::new(rank, 2).unwrap();
        ChipConfig::new(rank as i32).communicator(member).window(group).region("group", group)
    };
    worker.configure_chips([0, 1].map(chip).into()).unwrap();
    let program = worker.register_kernel(&so).unwrap();
    let data = [(); 2].map(|()| worker.host_buffer::<f32>(1024).unwrap());
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    // Calls are counted from the last run that failed. In the third one the root of a broadcast ends well, and before the other chip
    // fails, so that nothing is left to be cancelled.
    for (first, second, number) in [(0, 1, 17), (0, 0, 17), (1, 0, 34), (1, 1, 17)] {
        let args = |chip: usize, call: u64| {
            let context = &contexts[chip];
            let args = Args::new().tensor(&data[chip].tensor(), Access::InOut).scalar(context.device_ctx.0);
            args.scalar(context.buffer("group").unwrap().addr.0).scalar(group as u64).scalar(call)
        };
        let members = [(0, args(0, first)), (1, args(1, second))];
        let ended = worker.run(|orch| orch.submit_group(program, &members).map(drop));
        if first == second {
            ended.unwrap();
            continue;
        }
        let calls = [first, second]
            .map(|call| ["all_reduce f32 sum × 1024", "broadcast f32 × 1024 from 0"][call as usize]);
        let wanted = format!(
            "the kernel reports error 9 in its completion slab: ranks made different calls: rank 0: {}, call {number}; \
             rank 1: {}, call {number}; let every rank make the same calls in the same order",
            calls[0], calls[1]
        );
        let failed = text(&ended.unwrap_err());
        assert!(failed.contains(&wanted), "{failed}");
    }
    worker.close().unwrap();
}

fn refused(worker: &mut Worker, submit: impl FnOnce(&mut Orchestrator<'_>) -> Result<(), Failure>) -> String {
    let failure = worker.run(submit).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Invalid);
    text(&failure)
}

// WO-10, WO-13
#[test]
#[serial]
fn blocks_that_cannot_be_are_refused_at_submit() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = support::builder(1).sub_workers(1).build().unwrap();
    let program = worker.register_kernel(&kernel(folder.path(), "blocks", BLOCKS)).unwrap();
    let function = worker.register_function("nothing", nothing);
    let orchestration = worker.register_orchestration("nothing_below", nothing_below);
    worker.init().unwrap();
    let out = worker.host_buffer::<f32>(16).unwrap();
    for blocks in [0, Args::MAX_BLOCKS + 1, 65_537, u32::MAX] {
        let args = Args::new().tensor(&out.tensor(), Access::InOut).blocks(blocks);
        let told = format!("a task with {blocks} blocks; it has 1 to 1024");
        let one = refused(&mut worker, |orch| orch.submit_next_level(program, &args, 0).map(drop));
        assert!(one.contains(&told) && one.contains("submit"), "{one}");
        let group = refused(&mut worker, |orch| orch.submit_group(program, &[(0, args)]).map(drop));
        assert!(group.contains(&told), "{group}");
    }
    assert_eq!(out.to_vec(), [0.0; 16], "nothing ran");
    let two = Args::new().blocks(2);
    for told in [
        refused(&mut worker, |orch| orch.submit_next_level(function, &two, 0).map(drop)),
        refused(&mut worker, |orch| orch.submit_group(function, &[(0, two.clone())]).map(drop)),
        refused(&mut worker, |orch| orch.submit_sub(function, &two).map(drop)),
        refused(&mut worker, |orch| orch.submit_next_level(orchestration, &two, 0).map(drop)),
    ] {
        assert!(
            told.contains("is a Rust function, which runs once; only kernels have several blocks"),
            "{told}"
        );
    }
    worker.run(|orch| orch.submit_next_level(function, &Args::new().blocks(1), 0)).unwrap();
    worker.close().unwrap();
}

/// Throws on the chip whose last argument is 1; the others wait for it.
const THROWS: &str = r#"
#include <stdexcept>
#include "comm_kernel.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *ctx = reinterpret_cast<CommContext *>(args[0]);
    if (args[2] == 1) throw std::runtime_error("the matrix is singular");
    (void)!comm_phase_barrier(ctx, reinterpret_cast<CommPhaseBarrier *>(args[1]));
}
"#;

#[test]
#[serial]
fn f46_a_kernel_that_throws_fails_the_run_with_the_text_and_its_chip_runs_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "throws", THROWS);
    let mut worker = grouped(3, 16);
    let throws = worker.register_kernel(&so).unwrap();
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let run = |worker: &mut Worker, who: usize| {
        worker.run(|orch| {
            for (chip, context) in contexts.iter().enumerate() {
                let barrier = context.buffer("barrier")?.addr.0;
                let args =
                    Args::new().scalar(context.device_ctx.0).scalar(barrier).scalar((chip == who).into());
                orch.submit_next_level(throws, &args, chip)?;
            }
            Ok(())
        })
    };
    let before = children_of(std::process::id());
    for _ in 0..2 {
        let reported = text(&run(&mut worker, 1).unwrap_err());
        assert!(reported.contains("`throws.so` failed on chip 1"), "{reported}");
        assert!(
            reported.contains("throws.so threw std::runtime_error: the matrix is singular"),
            "{reported}"
        );
        // The same processes go on.
        run(&mut worker, 3).unwrap();
    }
    assert_eq!(children_of(std::process::id()), before);
}

/// Calls what nothing defines.
const LACKS: &str = r#"
#include <cstdint>
extern "C" void not_there();
extern "C" void kernel_entry(int64_t *) { not_there(); }
"#;

/// Has no entry.
const NO_ENTRY: &str = r#"
extern "C" void kernel_main() {}
"#;

#[test]
#[serial]
fn f75_a_kernel_that_cannot_be_loaded_is_reported_in_the_loaders_words() {
    let folder = tempfile::tempdir().unwrap();
    let (lacks, no_entry) =
        (kernel(folder.path(), "lacks", LACKS), kernel(folder.path(), "no_entry", NO_ENTRY));
    let mut worker = plain(1);
    let told = [&lacks, &no_entry].map(|so| {
        let failure = worker.register_kernel(so).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Load);
        text(&failure)
    });
    let lacks = lacks.display();
    let object = format!(
        "kernel {lacks} cannot be loaded: {lacks}: undefined symbol: not_there; define the symbol in the kernel, \
         or link the library that does"
    );
    assert!(told[0].contains(&object), "{}", told[0]);
    let no_entry = no_entry.display();
    let symbol = format!(
        "kernel {no_entry} has no `kernel_entry`; export it as extern \"C\" void (int64_t *); \
         the loader says: {no_entry}: undefined symbol: kernel_entry"
    );
    assert!(told[1].contains(&symbol), "{}", told[1]);
    for text in &told {
        assert_eq!(text.matches("undefined symbol").count(), 1, "the cause is said once: {text}");
    }
}

/// Linked to a library that is taken away.
#[test]
#[serial]
fn f75_a_kernel_whose_library_is_gone_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let library = kernel(folder.path(), "libgone", "extern \"C\" void not_there() {}\n");
    let (source, object) = (folder.path().join("needs.cpp"), folder.path().join("needs.so"));
    std::fs::write(&source, LACKS).unwrap();
    let mut compiler = Command::new("g++");
    compiler
        .args(["-fPIC", "-shared", "-o"])
        .arg(&object)
        .arg(&source)
        .arg("-L")
        .arg(folder.path())
        .arg("-lgone");
    assert!(compiler.status().unwrap().success());
    std::fs::remove_file(library).unwrap();
    let told = text(&plain(1).register_kernel(&object).unwrap_err());
    let missing = "cannot open shared object file: No such file or directory; a library that the kernel needs is \
                   missing: see ldd, and set its rpath";
    assert!(told.contains("libgone.so: ") && told.ends_with(missing), "{told}");
}
