//! Graphs of a Worker on devices.

use super::*;
use comm_context::abi::TensorDesc;
use std::path::Path;
use worker_orch::runtime::signals::{Domain, Signal, SignalOp, Signaller, Wait};
use worker_orch::runtime::{Kernels, Limits, TaskArgs, Tensor};

const PARTS: [&str; 3] = ["data", "inbox", "signals"];

/// A chip of a group: its tensor, its context as a kernel gets it, and where the parts are in its window.
struct Member {
    chip: usize,
    data: TensorDesc,
    context: u64,
    places: [u64; 3],
}

/// Passes the data of this chip on to the next, plus 10, and then takes what has arrived, plus 100. Scalars: the round, the context
/// of the domain or 0, the chip that fails or one that is not there, rank, ranks, and the places.
fn pass_on(task: &mut Task<'_>, add: &Path) -> Result<(), Failure> {
    let scalars: Vec<u64> = (0..8).map(|at| task.scalar(at)).collect::<Result<_, _>>()?;
    let [round, context, fails, me, nranks, data, inbox, words] = scalars.try_into().unwrap();
    let (me, nranks) = (me as u32, nranks as u32);
    let own = task.tensors()[0];
    let mut graphs = task.device_graphs()?;
    let add = graphs.kernel(add, "kernel_entry")?;
    let domain = match context {
        0 => Domain::BASE,
        context => graphs.domain(comm_context::abi::DeviceAddr(context)).unwrap(),
    };
    let (next, before) = ((me + 1) % nranks, (me + nranks - 1) % nranks);
    graphs.run(|graph| {
        let window = |rank, at| graph.window::<f32>(domain, rank, at, &[COUNT as u32]);
        let (there, arrived, mine) = (window(next, inbox)?, window(me, inbox)?, Tensor::<f32>::new(own)?);
        assert_eq!(*window(me, data)?.as_ref(), own, "the tensor of the task is that of the window");
        let word = if fails == u64::from(me) { words + 1 } else { words };
        let signal = Signal { domain, rank: next, offset: word, op: SignalOp::Add(1) };
        let send = TaskArgs::new().input(&mine).output_existing(&there).scalar(10).signal(signal);
        graph.submit(Kernels::aiv(add), &send)?;
        let from = Signaller::Rank(before);
        let wait = Wait { domain, offset: words, at_least: round as u32, from };
        let take = TaskArgs::new().input(&arrived).output_existing(&mine).scalar(100).wait(wait);
        graph.submit(Kernels::aic(add), &take).map(drop)
    })
}

fn of_chips(worker: &Worker) -> Vec<Member> {
    let member = |(chip, of): (usize, &ChipContext)| Member {
        chip,
        data: of.buffer("data").unwrap().tensor().unwrap(),
        context: 0,
        places: PARTS.map(|name| of.buffer(name).unwrap().addr.0 - of.window_base.0),
    };
    worker.chip_contexts().unwrap().iter().enumerate().map(member).collect()
}

fn of_domain(domain: &worker_orch::Domain) -> Vec<Member> {
    let member = |of: &DomainContext| Member {
        chip: of.chip,
        data: of.buffer("data").unwrap().tensor().unwrap(),
        context: of.device_ctx.0,
        places: PARTS.map(|name| of.buffer(name).unwrap().addr.0 - of.window_base.0),
    };
    domain.contexts().iter().map(member).collect()
}

fn group(members: &[Member], round: u64, fails: u64) -> Vec<(usize, Args)> {
    let member = |(rank, of): (usize, &Member)| {
        let scalars = [round, of.context, fails, rank as u64, members.len() as u64];
        let args = Args::new().tensor(&of.data, Access::InOut);
        (of.chip, scalars.into_iter().chain(of.places).fold(args, |args, scalar| args.scalar(scalar)))
    };
    members.iter().enumerate().map(member).collect()
}

fn first(worker: &mut Worker, member: &Member) -> f32 {
    let mut bytes = [0; 4];
    worker.copy_from(member.chip, comm_context::abi::DeviceAddr(member.data.addr), &mut bytes).unwrap();
    f32::from_le_bytes(bytes)
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn graphs_of_a_worker_run_on_its_devices_and_signal_each_other() {
    const NONE: u64 = 99;
    let before = seen();
    let mut worker = grouped();
    let add = kernel("add");
    let pass = worker.register_graph("pass", move |task| pass_on(task, &add)).unwrap();
    worker.init().unwrap();
    let chips = of_chips(&worker);
    for round in 1..=3u64 {
        worker.run(|orch| orch.submit_group(pass, &group(&chips, round, NONE)).map(drop)).unwrap();
        let got: Vec<f32> = chips.iter().map(|member| first(&mut worker, member)).collect();
        assert_eq!(got, vec![110.0 * round as f32; chips.len()], "round {round}");
    }
    // The failure of one is reported, and ends the wait of the other for its signal.
    let failed = worker.run(|orch| orch.submit_group(pass, &group(&chips, 4, 0)).map(drop));
    let said = text(&failed.unwrap_err());
    assert!(said.contains("chip 0") && said.contains("is not at a multiple of 4"), "{said}");
    assert!(said.contains("graphs.rs:"), "{said}");
    // The same in a domain, whose ranks have another order; again after that failure.
    let reversed: Vec<usize> = (0..chips.len()).rev().collect();
    for _ in 0..2 {
        let parts = [
            ("data", DType::Float32, COUNT),
            ("inbox", DType::Float32, COUNT),
            ("signals", DType::Float32, 16),
        ];
        let ran = worker.run(|orch| {
            let domain = orch.allocate_domain("pair", &reversed, 1 << 16, &parts)?;
            orch.submit_group(pass, &group(&of_domain(&domain), 1, NONE)).map(drop)
        });
        ran.unwrap();
    }
    worker.close().unwrap();
    assert_released_since(before, devices().len());
}

/// Tensors: x and y on the host. Scalars: rank, ranks, the context of the domain, where its words are, and whether it signals.
fn told(task: &mut Task<'_>, add: &Path) -> Result<(), Failure> {
    let scalars: Vec<u64> = (0..5).map(|at| task.scalar(at)).collect::<Result<_, _>>()?;
    let [me, nranks, context, words, signals] = scalars.try_into().unwrap();
    let (me, nranks) = (me as u32, nranks as u32);
    let mut graphs = task.device_graphs()?;
    let add = graphs.kernel(add, "kernel_entry")?;
    let domain = graphs.domain(comm_context::abi::DeviceAddr(context)).unwrap();
    let (x, y) = (graphs.tensor(0)?, graphs.tensor(1)?);
    graphs.run(|graph| {
        let signal = Signal { domain, rank: (me + 1) % nranks, offset: words, op: SignalOp::Add(1) };
        let signal = if signals == 1 { TaskArgs::new().signal(signal) } else { TaskArgs::new() };
        graph.submit_dummy(&signal)?;
        let from = Signaller::Rank((me + nranks - 1) % nranks);
        let wait = Wait { domain, offset: words, at_least: 1, from };
        let args = TaskArgs::new().input(&x).output_existing(&y).scalar(u64::from(me) + 10).wait(wait);
        graph.submit(Kernels::aiv(add), &args).map(drop)
    })
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn graphs_on_host_buffers_tell_each_other_what_they_signal() {
    let before = seen();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let platform = hw_test::platform().parse().unwrap();
    let builder = Worker::builder().platform(platform).devices(&devices()).trace(&trace);
    let mut worker =
        builder.init_within(secs(120)).run_within(secs(120)).close_within(secs(20)).build().unwrap();
    let add = kernel("add");
    let told = worker.register_graph("told", move |task| told(task, &add)).unwrap();
    let chips = devices().len();
    let buffers = |worker: &mut Worker| {
        (0..chips).map(|_| worker.host_buffer::<f32>(COUNT).unwrap()).collect::<Vec<_>>()
    };
    let (x, y) = (buffers(&mut worker), buffers(&mut worker));
    worker.init().unwrap();
    for of in &x {
        of.write(&[1.0; COUNT]).unwrap();
    }
    let all: Vec<usize> = (0..chips).collect();
    let mut run = |silent: usize| {
        worker.run(|orch| {
            let ring = orch.allocate_domain("ring", &all, 1 << 16, &[("words", DType::Uint32, 16)])?;
            let member = |(rank, of): (usize, &DomainContext)| {
                let words = of.buffer("words").unwrap().addr.0 - of.window_base.0;
                let scalars = [rank as u64, chips as u64, of.device_ctx.0, words, u64::from(rank != silent)];
                let args = Args::new()
                    .tensor(&x[rank].tensor(), Access::Input)
                    .tensor(&y[rank].tensor(), Access::Output);
                (of.chip, scalars.into_iter().fold(args, |args, scalar| args.scalar(scalar)))
            };
            let group: Vec<(usize, Args)> = ring.contexts().iter().enumerate().map(member).collect();
            orch.submit_group(told, &group).map(drop)
        })
    };
    run(chips).unwrap();
    for (rank, of) in y.iter().enumerate() {
        assert_eq!(of.to_vec(), [11.0 + rank as f32; COUNT], "chip {rank}");
        of.write(&[0.0; COUNT]).unwrap();
    }
    // Chip 0 signals nothing now, and chip 1 waits for it: it is refused, with both ends, and by the domain's name.
    let said = text(&run(0).unwrap_err());
    let ends = "rank 1, at worker-orch/tests/hw_worker/graphs.rs:";
    let window = "it waits for rank 0 to signal word 0x0 of window `ring#";
    assert!(said.contains(ends) && said.contains(window) && said.contains("never does"), "{said}");
    assert_eq!(y[1].to_vec(), [0.0; COUNT]);
    run(chips).unwrap();
    worker.close().unwrap();
    assert_released_since(before, chips);
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(trace.contains("\"name\":\"stream of AIV\"") && trace.contains("\"cat\":\"signal\""), "{trace}");
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn graphs_of_the_simulation_are_refused_on_a_device() {
    let mut worker = plain();
    let graphs = worker.register_graph("graphs", |task| task.graphs(&Limits::default()).map(drop)).unwrap();
    worker.init().unwrap();
    let said = text(&worker.run(|orch| orch.submit_next_level(graphs, &Args::new(), 0)).unwrap_err());
    let wanted = "this chip has memory of its own, where kernels do not run in its process: use `device_graphs`, which runs \
                  prebuilt graphs there";
    assert!(said.contains(wanted), "{said}");
    worker.close().unwrap();
}

/// y = x + 3 + 4; with the scalar 1 it gives up.
const TWICE: &str = r#"
#include <stdexcept>
#include "orchestration.h"
extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
    const chip::Tensor &x = args.tensor(0), &y = args.tensor(1);
    chip::TaskArgs first, second;
    first.input(x);
    first.output(y);
    first.scalar(int64_t{3});
    chip::submit(chip::Kernels::aiv(0), first);
    if (args.scalar<int64_t>(0) == 1) throw std::runtime_error("nothing more to build");
    second.inout(y);
    second.inout(y);
    second.scalar(int64_t{4});
    chip::submit(chip::Kernels::aic(0), second);
}
"#;

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer worker"]
fn a_graph_object_runs_on_a_device_and_is_drawn_when_it_was_built() {
    let before = seen();
    let folder = tempfile::tempdir().unwrap();
    let object = |name: &str| GraphObject {
        orchestration: (support::kernel(folder.path(), name, TWICE), None),
        abi: "pto2-2026-08".into(),
        kernels: vec![(0, kernel("add"), None)],
        front_end: worker_orch::runtime::FrontEnd::Prebuilt,
        limits: Limits::default(),
        dot: Some(folder.path().join(format!("{name}.dot"))),
    };
    let mut worker = plain();
    let twice = object("twice").register(&mut worker, "twice").unwrap();
    let given_up = object("given_up").register(&mut worker, "given_up").unwrap();
    let [x, y] = [1.0, 0.0].map(|value| {
        let buffer = worker.host_buffer::<f32>(COUNT).unwrap();
        buffer.write(&[value; COUNT]).unwrap();
        buffer
    });
    worker.init().unwrap();
    let mut run = |program, scalar: u64| {
        let args = Args::new().tensor(&x.tensor(), Access::Input).tensor(&y.tensor(), Access::Output);
        worker.run(|orch| orch.submit_next_level(program, &args.scalar(scalar), 0).map(drop))
    };
    run(twice, 0).unwrap();
    assert_eq!(y.to_vec(), [8.0; COUNT]);
    let dot = std::fs::read_to_string(folder.path().join("twice.dot")).unwrap();
    assert!(dot.contains("->"), "{dot}");
    let said = text(&run(given_up, 1).unwrap_err());
    assert!(said.contains("std::runtime_error: nothing more to build"), "{said}");
    assert!(!folder.path().join("given_up.dot").exists());
    run(given_up, 0).unwrap();
    worker.close().unwrap();
    assert_released_since(before, devices().len());
}
