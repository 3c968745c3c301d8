//! Graphs whose orchestration is a C++ object, on the chips of a Worker.
#![allow(missing_docs)]

mod support;

use serial_test::serial;
use std::path::Path;
use support::{grouped, kernel, text};
use worker_orch::runtime::{FrontEnd, Limits};
use worker_orch::{Access, Args, DType, Failure, GraphObject, HostBuffer, Platform, Program, Worker};

const COUNT: usize = 16;

/// Each rank of a domain tells its peer, and writes what it was given when the peer has told it. Scalars: the context, where the
/// words are, what to write.
const PAIR: &str = r#"
#include "orchestration.h"
extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
    const auto *context = args.scalar<const CommContext *>(0);
    const uint64_t words = args.scalar(1);
    const uint32_t domain = chip::domain_of(context);
    if (chip::is_fatal()) return;
    const uint32_t me = context->rankId, peer = 1 - me;
    chip::signal(peer, words + 4 * me, 1, domain);
    chip::submit_dummy(chip::TaskArgs());
    chip::wait_for(words + 4 * peer, 1, static_cast<int32_t>(peer), domain);
    chip::TaskArgs fill;
    fill.output(args.tensor(0));
    fill.scalar(args.scalar(2));
    chip::submit(chip::Kernels::aiv(4), fill);
}
"#;
const FILL: &str = r#"
#include "chip_tensor.h"
extern "C" void kernel_entry(int64_t *args) {
    const chip::Tensor &out = chip::tensor_of(args[0]);
    for (uint64_t i = 0; i < out.numel(); ++i) out.data_as<float>()[i] = static_cast<float>(args[1]);
}
"#;

/// Fills a ring inside one scope, and leaves the codes before and after on the host.
const FULL: &str = r#"
#include "orchestration.h"
extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
    auto *codes = args.tensor(0).data_as<float>();
    codes[0] = static_cast<float>(chip::failure_code());
    while (!chip::is_fatal()) chip::submit_dummy(chip::TaskArgs());
    codes[1] = static_cast<float>(chip::failure_code());
}
"#;

/// A task retains one that ends when it has run, in the way of scalar 0: the kernel of the first waits for the
/// word that the second writes.
const RETAINS: &str = r#"
#include "orchestration.h"
extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
    const uint8_t kind = static_cast<uint8_t>(args.scalar(0));
    chip::TaskArgs waits, tells;
    waits.no_dependency(args.tensor(0));
    /* Nobody would tell it if the second task were refused. */
    const bool refused = kind > 3;
    const chip::TaskId first =
        (refused ? chip::submit_dummy(waits) : chip::submit(chip::Kernels::aiv(0), waits)).task_id();
    tells.no_dependency(args.tensor(0));
    tells.after(&first, &kind, 1);
    const chip::TaskId second = chip::submit(chip::Kernels::aiv(1), tells).task_id();
    if (!chip::is_fatal()) { chip::publish(first); chip::publish(second); }
}
"#;
const WORD: &str = r#"
#include "chip_tensor.h"
extern "C" void waits(int64_t *args) {
    auto *word = chip::tensor_of(args[0]).data_as<uint32_t>();
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) {}
}
extern "C" void tells(int64_t *args) {
    __atomic_store_n(chip::tensor_of(args[0]).data_as<uint32_t>(), 1, __ATOMIC_RELEASE);
}
"#;

fn object(folder: &Path, front_end: FrontEnd) -> GraphObject {
    GraphObject {
        orchestration: (kernel(folder, "pair", PAIR), None),
        abi: "pto2-2026-08".into(),
        kernels: vec![(4, kernel(folder, "fill", FILL), None)],
        front_end,
        limits: Limits { clusters: 1, slots: 64, heap: 1 << 20, ..Limits::default() },
        dot: None,
    }
}

/// Runs it on chips 2 and 0, ranks 0 and 1 of a domain, which chip 0 has another number for; `off` is added to the context.
fn run(
    worker: &mut Worker,
    program: Program,
    outputs: &[HostBuffer<f32>],
    value: u64,
    off: u64,
) -> Result<(), Failure> {
    worker.run(|orch| {
        orch.allocate_domain("other", &[0, 1], 4096, &[("words", DType::Float32, 16)])?;
        let domain = orch.allocate_domain("pair", &[2, 0], 4096, &[("words", DType::Float32, 16)])?;
        let member = |member: &worker_orch::DomainContext| {
            let words = member.buffer("words").unwrap().addr.0 - member.window_base.0;
            let args = Args::new().tensor(&outputs[member.chip].tensor(), Access::Output);
            (member.chip, args.scalar(member.device_ctx.0 + off).scalar(words).scalar(value))
        };
        let members: Vec<_> = domain.contexts().iter().map(member).collect();
        orch.submit_group(program, &members).map(drop)
    })
}

#[test]
#[serial]
fn a_cpp_orchestration_waits_and_signals_in_a_domain() {
    if support::platform() != Platform::Sim {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut worker = grouped(3, COUNT);
    let names = ["prebuilt", "explicit", "inferred"];
    let register = |(name, front_end)| object(folder.path(), front_end).register(&mut worker, name).unwrap();
    let programs: Vec<_> = names.into_iter().zip(FrontEnd::ALL).map(register).collect();
    let outputs: Vec<_> = (0..3).map(|_| worker.host_buffer::<f32>(COUNT).unwrap()).collect();
    worker.init().unwrap();
    let mut value = 0;
    for _ in 0..3 {
        for program in &programs {
            value += 1;
            run(&mut worker, *program, &outputs, value, 0).unwrap();
            let written = [0, 2].map(|chip: usize| outputs[chip].to_vec()[COUNT - 1]);
            assert_eq!(written, [value as f32; 2]);
        }
        let failure = text(&run(&mut worker, programs[0], &outputs, 7, 8).unwrap_err());
        for part in [
            "the CommContext at 0x",
            " belongs to no window of this chip; pass that of the communicator",
            "pair.cpp:",
        ] {
            assert!(failure.contains(part), "no {part:?} in {failure}");
        }
    }
    worker.close().unwrap();
}

#[test]
#[serial]
fn the_code_of_a_failure_reaches_the_caller_and_the_orchestration() {
    if support::platform() != Platform::Sim {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut worker = grouped(1, COUNT);
    let full = GraphObject {
        orchestration: (kernel(folder.path(), "full", FULL), None),
        ..object(folder.path(), FrontEnd::Inferred)
    };
    let program = full.register(&mut worker, "full").unwrap();
    let codes = worker.host_buffer::<f32>(COUNT).unwrap();
    codes.write(&[-1.0; COUNT]).unwrap();
    worker.init().unwrap();
    let args = Args::new().tensor(&codes.tensor(), Access::InOut);
    let ran = worker.run(|orch| orch.submit_next_level(program, &args, 0).map(drop));
    let failure = text(&ran.unwrap_err());
    for part in ["ring 0 has 64 slots", "full.cpp:", "; scope opened at ", "; graph code 3"] {
        assert!(failure.contains(part), "no {part:?} in {failure}");
    }
    assert_eq!(codes.to_vec()[..3], [0.0, 3.0, -1.0]);
    worker.close().unwrap();
}

#[test]
#[serial]
fn a_dependency_that_only_retains_is_no_wait() {
    if support::platform() != Platform::Sim {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut worker = grouped(1, COUNT);
    let word = kernel(folder.path(), "word", WORD);
    let names = ["prebuilt", "explicit", "inferred"];
    let register = |(name, front_end)| {
        let object = GraphObject {
            orchestration: (kernel(folder.path(), "retains", RETAINS), None),
            kernels: vec![(0, word.clone(), Some("waits".into())), (1, word.clone(), Some("tells".into()))],
            ..object(folder.path(), front_end)
        };
        object.register(&mut worker, name).unwrap()
    };
    let programs: Vec<_> = names.into_iter().zip(FrontEnd::ALL).map(register).collect();
    let flag = worker.host_buffer::<f32>(COUNT).unwrap();
    worker.init().unwrap();
    let mut run = |program: Program, kind: u64| {
        flag.write(&[0.0; COUNT]).unwrap();
        let args = Args::new().tensor(&flag.tensor(), Access::InOut).scalar(kind);
        worker.run(|orch| orch.submit_next_level(program, &args, 0).map(drop))
    };
    for program in &programs {
        run(*program, 2).unwrap();
    }
    // The list of a prebuilt graph has no kinds.
    for program in &programs[1..] {
        let failure = text(&run(*program, 6).unwrap_err());
        let part = "dependency 0 is of the unknown kind 6; use an OrchDependency";
        assert!(failure.contains(part), "no {part:?} in {failure}");
    }
    worker.close().unwrap();
}
