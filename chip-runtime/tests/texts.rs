//! What the errors of a graph say: each is provoked, and its whole text compared. docs/errors.md lists all of them, with those
//! that other tests provoke.

mod common;

use chip_runtime::signals::{Domain, NamedBuffer, Signal, SignalOp, Signaller, Signals, Wait};
use chip_runtime::{
    Buffer, Compare, Create, FrontEnd, Graph, KernelId, Kernels, Limits, Predicate, Runtime, RuntimeError,
    ScopeMode, TaskArgs, TaskId, Tensor,
};
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use common::soon;
use deadline::Deadline;
use std::fmt::Display;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The whole text is this, where `…` stands for anything.
#[track_caller]
fn says(error: impl Display, expected: &str) {
    let told = error.to_string();
    let mut rest = told.as_str();
    for (at, part) in expected.split('…').enumerate() {
        let found = if at == 0 { rest.starts_with(part).then_some(0) } else { rest.find(part) };
        let found = found.unwrap_or_else(|| panic!("expected: {expected}\n    told: {told}"));
        rest = &rest[found + part.len()..];
    }
    assert!(rest.is_empty() || expected.ends_with('…'), "expected: {expected}\n    told: {told}");
}

fn small() -> (Runtime, KernelId) {
    let limits = Limits { clusters: 2, slots: 8, heap: 16 << 10, scope_depth: 4, edges: 2 };
    let mut runtime = Runtime::new(limits).unwrap();
    let reads = runtime.kernel("reads", |block| block.read::<i32>(0).map(drop).map_err(Into::into));
    (runtime, reads)
}

/// A graph of this front end fails so, without its place.
#[track_caller]
fn graph(
    front_end: FrontEnd,
    orchestration: impl FnOnce(&mut Graph<'_>, KernelId) -> Result<(), RuntimeError>,
    expected: &str,
) {
    let (mut runtime, kernel) = small();
    let error = runtime.run(front_end, soon(), |graph| orchestration(graph, kernel)).unwrap_err();
    says(error.kind, expected);
}

fn inferred(
    orchestration: impl FnOnce(&mut Graph<'_>, KernelId) -> Result<(), RuntimeError>,
    expected: &str,
) {
    graph(FrontEnd::Inferred, orchestration, expected);
}

fn dummy(graph: &mut Graph<'_>) -> Result<TaskId, RuntimeError> {
    Ok(graph.submit_dummy(&TaskArgs::new())?.task)
}

#[test]
fn limits_that_are_set_wrong_or_reached() {
    for (limits, expected) in [
        (Limits { clusters: 65, ..Limits::default() }, "`clusters` cannot be 65; set it to 1 to 64"),
        (Limits { heap: 1, ..Limits::default() }, "`heap` cannot be 1; set it to 1 KiB to 1 TiB"),
    ] {
        says(Runtime::new(limits).unwrap_err(), &format!("the limit {expected}"));
    }
    inferred(
        |graph, _| loop {
            graph.scope_begin(ScopeMode::Auto)?;
        },
        "scopes are nested 4 deep, which is the limit; close some first, or raise `scope_depth`",
    );
    inferred(
        |graph, _| graph.scope_begin(ScopeMode::Auto),
        "1 scopes are open at the end of the orchestration; close each scope that it opens",
    );
    inferred(|graph, _| graph.scope_end(), "scope_end without a scope_begin; close each scope once");
    inferred(
        |graph, _| loop {
            dummy(graph)?;
        },
        "ring 0 has 8 slots and all are taken by tasks of the scope that is still open: they are freed when it closes; \
         close it earlier, use an inner scope, or raise `slots`",
    );
    inferred(
        |graph, _| graph.allocate(&[Create::of::<i32>(&[1 << 20])]).map(drop),
        "the heap of ring 0 has 16384 bytes, and 4194304 more do not fit beside what the scope that is still open holds; \
         close it earlier, use an inner scope, or raise `heap`",
    );
    graph(
        FrontEnd::Explicit,
        |graph, _| {
            let first = dummy(graph)?;
            loop {
                let next = dummy(graph)?;
                graph.add_dependency(next, first)?;
            }
        },
        "2 edges between unfinished tasks are the limit, and none of these tasks can end; publish tasks earlier, or raise \
         `edges`",
    );
    inferred(
        |graph, kernel| graph.submit(Kernels::aic(kernel), &TaskArgs::new().blocks(3).sync_start()).map(drop),
        "3 blocks that start together need 3 AIC cores, and the chip has 2; use fewer blocks, or leave `sync_start` out",
    );
}

/// As another user, who may have no more processes and threads than it has: root may have as many as it likes.
#[test]
fn a_system_that_is_out_of_threads() {
    const ROLE: &str = "CHIP_RUNTIME_TEXTS";
    if std::env::var_os(ROLE).is_some() {
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NPROC, 1, 1).unwrap();
        return inferred(
            |graph, kernel| {
                let tensor = graph.allocate(&[Create::of::<i32>(&[1])])?.outputs[0];
                graph.submit(Kernels::aiv(kernel), &TaskArgs::new().input(&tensor)).map(drop)
            },
            "the system refused a core thread: Resource temporarily unavailable (os error 11); set lower limits, or see those \
             of this process and container",
        );
    }
    if !nix::unistd::geteuid().is_root() {
        return println!("not run: needs root, to be a user without other processes");
    }
    let mut again = Command::new("/proc/self/exe");
    again.args(["--exact", "a_system_that_is_out_of_threads", "--test-threads", "1", "--nocapture"]);
    let ran = again.env(ROLE, "1").uid(54_325).output().unwrap();
    let out = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ran.status.success() && out.contains("1 passed"), "{out}");
}

#[test]
fn tasks_that_cannot_be() {
    inferred(
        |graph, _| graph.submit(Kernels::aiv(KernelId(77)), &TaskArgs::new()).map(drop),
        "kernel 77 is not registered; register it with the runtime before the run",
    );
    inferred(
        |graph, _| graph.submit(Kernels::default(), &TaskArgs::new()).map(drop),
        "the task has no kernel; submit it as a dummy task if it only orders others",
    );
    inferred(
        |graph, _| graph.submit_dummy(&TaskArgs::new().after(TaskId(5))).map(drop),
        "task 0.5 is not a task that was submitted to this graph; take its id from what submit returned",
    );
    inferred(
        |graph, _| graph.submit_dummy(&TaskArgs::new().blocks(0)).map(drop),
        "a task with 0 blocks; it has 1 to 65535: give each block more of the work",
    );
    let many = (0..17).fold(TaskArgs::new(), |args, value| args.scalar(value));
    inferred(
        |graph, _| graph.submit_dummy(&many).map(drop),
        "a task or an entry has at most 16 scalars, not 17; join tensors that lie side by side, or pass scalars in a tensor",
    );
    graph(
        FrontEnd::Explicit,
        |graph, _| {
            let (first, second) = (dummy(graph)?, dummy(graph)?);
            graph.add_dependency(second, first)?;
            graph.add_dependency(first, second)
        },
        "the edge from task 0.1 to task 0.0 closes a cycle: task 0.0 comes before task 0.1 already; leave one of the two out",
    );
    inferred(
        |graph, _| {
            let (first, second) = (dummy(graph)?, dummy(graph)?);
            graph.add_dependency(second, first)
        },
        "task 0.1 is published already; add its dependencies before",
    );
}

#[test]
fn tensors_that_cannot_be_used() {
    let float = |addr: u64| TensorDesc::builder(DeviceAddr(addr), 4, DType::Float32, &[1]).build().unwrap();
    let wild = Tensor::<f32>::new(float(0x1000)).unwrap();
    inferred(
        |graph, kernel| graph.submit(Kernels::aiv(kernel), &TaskArgs::new().input(&wild)).map(drop),
        "tensor 0: 4 bytes at 0x1000 lie in no buffer that was given to the graph; import the buffer first, or pass it to \
         the entry",
    );
    let output = || TaskArgs::new().output(Create::filled(&[4], 0i32));
    inferred(
        |graph, _| {
            let made = graph.scope(ScopeMode::Auto, |graph| graph.submit_dummy(&output()))?;
            graph.submit_dummy(&TaskArgs::new().input(&made.tensor::<i32>(0)?)).map(drop)
        },
        "tensor 0 is an output of task 1.0, whose scope has ended, and the tensor with it; use it inside, or allocate it \
         outside",
    );
    inferred(
        |graph, _| {
            let (first, second) = (graph.submit_dummy(&output())?, graph.submit_dummy(&output())?);
            let mut desc = second.outputs[0];
            desc.owner_task_id = first.task.0;
            graph.submit_dummy(&TaskArgs::new().input(&Tensor::<i32>::new(desc)?)).map(drop)
        },
        "tensor 0 says that task 0.0 made it, which did not make a tensor there; take it from what submit returned",
    );
    inferred(
        |graph, _| {
            let made = graph.submit_dummy(&output())?;
            graph.get(&made.tensor::<i32>(0)?, &[4]).map(drop)
        },
        "the index [4] is outside a tensor of shape [4]; give one number for each dimension, counted from 0",
    );
    inferred(
        |graph, _| graph.submit_dummy(&output())?.tensor::<f32>(0).map(drop),
        "the tensor has elements of type Int32, and the call is for Float32; use the type of the tensor",
    );
    inferred(
        |graph, _| graph.submit_dummy(&output())?.tensor::<i32>(1).map(drop),
        "there is no argument 1; there are 1, counted from 0",
    );
    inferred(
        |graph, _| {
            let made = graph.allocate(&[Create::new(DType::Bfloat16, &[4])])?;
            let predicate = Predicate::new(&made.outputs[0], &[0], Compare::Gt, 0);
            graph.submit_dummy(&TaskArgs::new().when(predicate)).map(drop)
        },
        "elements of type Bfloat16 cannot be accessed one by one; use a kernel",
    );
    let mut short = Buffer::of(&[1i32, 2]);
    says(
        short.write(&[1, 2, 3]).unwrap_err(),
        "elements up to 3 do not fit into 2; access fewer, or make it longer",
    );
    graph(
        FrontEnd::Explicit,
        |graph, _| {
            let made = graph.submit_dummy(&output())?;
            graph.get(&made.tensor::<i32>(0)?, &[0]).map(drop)
        },
        "get or set of an element is not a call of the front end `explicit`: read it in a kernel, or use a predicate",
    );
    graph(
        FrontEnd::Prebuilt,
        |graph, _| {
            let made = graph.submit_dummy(&output())?;
            graph.get(&made.tensor::<i32>(0)?, &[0]).map(drop)
        },
        "a prebuilt graph starts when it is complete: while it is built, tensors that its tasks make hold nothing yet",
    );
}

#[test]
fn kernels_and_orchestrations_that_fail() {
    let (mut runtime, reads) = small();
    let error = runtime.run::<()>(FrontEnd::Inferred, soon(), |_| panic!("lost")).unwrap_err();
    says(error.kind, "the orchestration ended abruptly: lost");
    inferred(|graph, _| Err(graph.fail(-7, "no cake")), "no cake (code -7, reported by the orchestration)");
    let error = runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            graph.submit(Kernels::aiv(reads), &TaskArgs::new()).map(drop)
        })
        .unwrap_err();
    says(
        error,
        "task 0.0, kernel 0 `reads`: the kernel failed: there is no argument 0; there are 0, counted from 0 (submitted at \
         …texts.rs:…",
    );
    let writes = runtime.kernel("writes", |block| Ok(block.write(0, &[1i32])?));
    let mut data = Buffer::of(&[1i32]);
    let error = runtime
        .run(FrontEnd::Inferred, soon(), |graph| {
            let data = graph.import(&mut data)?;
            graph.submit(Kernels::aiv(writes), &TaskArgs::new().input(&data)).map(drop)
        })
        .unwrap_err();
    says(
        error.kind,
        "the kernel failed: the task only reads this tensor; name it as inout or output to write it",
    );
}

#[test]
fn a_kernel_that_asks_for_too_many_completions() {
    says(
        common::raw::too_many_completions(),
        "the kernel failed: it asked for 1000 completions; there are 64",
    );
}

#[test]
fn a_kernel_that_has_not_returned() {
    let (mut runtime, _) = small();
    let go_on = Arc::new(AtomicBool::new(false));
    let seen = go_on.clone();
    let waits = runtime.kernel("waits", move |_| {
        while !seen.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let mut data = Buffer::of(&[1i32]);
    // Its time is over when the kernel has it, however slow the machine is: the kernel does not end before.
    let short = Deadline::after(Duration::from_millis(200)).unwrap();
    let error = runtime
        .run(FrontEnd::Inferred, short, |graph| {
            let data = graph.import(&mut data)?;
            graph.submit(Kernels::aic(waits), &TaskArgs::new().inout(&data)).map(drop)
        })
        .unwrap_err();
    says(error.kind, "the graph did not end within 200ms; give it more time, or see what it was doing: …");
    let runs = "task 0.0 runs block 0 of kernel 1 `waits` on cluster 0 AIC since …, submitted at …texts.rs:…; 0 tasks are \
                ready, 1 have not ended";
    if runtime.is_running() {
        says(
            data.to_vec().unwrap_err(),
            "the buffer is in use by a kernel that has not returned; wait for it with `await_kernels`",
        );
        let next = runtime.run(FrontEnd::Inferred, soon(), |_| Ok(())).unwrap_err();
        let start = "a kernel of an earlier run has not returned, and nothing else can run before; wait with \
                     `await_kernels`, or end this process: ";
        says(next.kind, &format!("{start}{runs}"));
    }
    go_on.store(true, Ordering::Release);
    assert!(runtime.await_kernels(soon()));
}

#[test]
fn waits_and_signals_that_are_refused() {
    let chips = Signals::in_process(2, 4096).unwrap();
    let wait = |domain, offset| Wait { domain, offset, at_least: 1, from: Signaller::Rank(1) };
    let check = |wait: Wait| chips[0].check_wait(&wait).unwrap_err();
    says(
        check(wait(Domain(7), 0)),
        "this chip has no window 7; allocate one, or name a domain that it is a member of",
    );
    says(
        check(wait(Domain::BASE, 4096)),
        "a word at 0x1000 is outside window `base`, which has 0x1000 bytes; name one inside, or allocate more",
    );
    says(check(wait(Domain::BASE, 2)), "a word at 0x2 is not at a multiple of 4; choose another");
    let signal = Signal { domain: Domain::BASE, rank: 2, offset: 0, op: SignalOp::Add(1) };
    says(chips[0].send(&signal).unwrap_err(), "there is no rank 2; window `base` has 2, counted from 0");
    let x = NamedBuffer { name: "x".into(), offset: 64, count: 4, element: 4 };
    chips[0].name_buffer(Domain::BASE, x).unwrap();
    let address = |name, index| chips[0].table().address(Domain::BASE, 0, name, index).unwrap_err();
    says(address("y", 0), "the window has no buffer `y`; it has [\"x\"]");
    says(address("x", 4), "`x` has no element 4; it has 4, counted from 0");
}
