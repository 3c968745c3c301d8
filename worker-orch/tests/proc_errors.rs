//! What the errors of a Worker say: each is provoked, and its whole text compared. docs/errors.md lists all of them, with
//! those that other tests provoke.
#![allow(missing_docs)]

mod support;

use serial_test::serial;
use support::{builder, grouped, plain, says, secs};
use worker_orch::{
    Access, Args, ChipConfig, CollectivesOptions, DType, DeviceAddr, Element, ErrorCode, Failure, Membership,
    Platform, Program, Signature, Start, Task, Timeout, Worker, flat_tensor,
};

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

#[test]
fn a_worker_that_cannot_be() {
    says(
        Worker::builder().level(2).build(),
        "in build: invalid argument: there is no level 2; a Worker of chips has level 3, one of Workers a higher one",
    );
    says(
        builder(2).level(4).build(),
        "in build: invalid argument: a Worker of Workers has no devices of its own; give them to the Workers below it",
    );
    says(
        Worker::builder().level(4).start(Start::Exec).build(),
        "in build: invalid argument: a Worker of Workers starts the Workers below it by fork; give Start::Exec to those \
         of level 3, which start the chips",
    );
    says(
        builder(1).runs_in_flight(0).build(),
        "in build: invalid argument: no run can be in flight; allow at least 1 with runs_in_flight",
    );
    for (devices, wrong) in [([0, 0], 0), ([0, -1], -1)] {
        let expected = format!(
            "in build: invalid argument: device {wrong} is negative or named twice; name each device once, from 0"
        );
        says(Worker::builder().devices(&devices).build(), &expected);
    }
    let mut above = Worker::builder().level(4).build().unwrap();
    let same = Worker::builder().level(4).build().unwrap();
    says(
        above.add_worker(same),
        "in add_worker: invalid argument: a Worker of level 4 cannot be under one of level 4; put it under one of a \
         higher level",
    );
    says(
        plain(2).configure_chips(vec![ChipConfig::new(1), ChipConfig::new(0)]),
        "in configure_chips: invalid argument: the configurations are for devices [1, 0], the Worker has [0, 1]; give \
         one for each, in that order",
    );
    let member = Membership::new(0, 2).unwrap();
    says(
        plain(2)
            .configure_chips(vec![ChipConfig::new(0).communicator(member).window(64), ChipConfig::new(1)]),
        "in configure_chips: invalid argument: the chips' ranks are [0]; give all 2 chips a communicator of 2 ranks, \
         each rank once, or none: a group is of the chips of one Worker",
    );
    says(
        builder(1).sub_workers(100_000).build().unwrap().init(),
        "in init: invalid argument: 100001 processes are asked for; the most is …: use fewer chips and sub-workers",
    );
}

#[test]
fn programs_that_cannot_be_registered() {
    let mut by_exec = builder(1).start(Start::Exec).build().unwrap();
    says(
        by_exec.register_closure("counts", |_| Ok(())),
        "in register: invalid argument: `counts` captures state, which children that are started by exec do not have; \
         start them by fork, or register a plain function and pass the state in tensors and scalars",
    );
    says(
        by_exec.register_graph("layer", |_| Ok(())),
        "in register: invalid argument: `layer` is a graph, which children that are started by exec do not have; start \
         them by fork",
    );
    says(
        by_exec.init(),
        "in init: invalid argument: children cannot be started by exec: this program would not serve them; with \
         Start::Exec, call `worker_orch::serve_if_child(&[…])` first thing in main, before anything else",
    );
}

#[test]
#[serial]
fn calls_at_the_wrong_time() {
    let mut worker = plain(1);
    says(worker.chip_alloc(0, 4), "in chip_alloc: invalid argument: the Worker is not up; call init first");
    let program = worker.register_function("nothing", nothing);
    worker.init().unwrap();
    says(worker.init(), "in init: invalid argument: the Worker is up already; close it first");
    let task = worker.run(|orch| orch.submit_next_level(program, &Args::new(), 0)).unwrap();
    worker.close().unwrap();
    worker.init().unwrap();
    says(
        worker.task(task),
        "in task: invalid argument: this task is of another Worker, or from before its last init; ask the one that it \
         was submitted to",
    );
    let (_, run) = worker.submit_run(|orch| orch.submit_next_level(program, &Args::new(), 0)).unwrap();
    let mut other = plain(1);
    other.init().unwrap();
    says(
        run.wait(&mut other, secs(9)),
        "in wait: invalid argument: this run is of another Worker; give the call the Worker that it was submitted to",
    );
    assert_eq!(run.wait(&mut worker, secs(30)).unwrap(), worker_orch::RunState::Done);
    let (_, left) = worker.submit_run(|orch| orch.submit_next_level(program, &Args::new(), 0)).unwrap();
    worker.close().unwrap();
    says(
        left.wait(&mut worker, Timeout::default()),
        "in run: aborted: the Worker was closed while the run was in flight; wait for it first",
    );
}

#[test]
#[serial]
fn submits_that_are_refused() {
    let mut worker = plain(2);
    let program = worker.register_function("nothing", nothing);
    let signed = worker.register_function("signed", nothing);
    let signature = Signature::new().tensor_of(Access::Output, DType::Float32, 4).scalars(1);
    worker.set_signature(signed, signature).unwrap();
    let gone = worker.register_function("gone", nothing);
    worker.init().unwrap();
    worker.unregister(gone).unwrap();
    let (x, whole) = (worker.host_buffer::<f32>(2).unwrap(), worker.host_buffer::<i32>(4).unwrap());
    let mut foreign = plain(1);
    let other: Program =
        (0..9).map(|at| foreign.register_function(&format!("f{at}"), nothing)).last().unwrap();
    let mut refused = |program: Program, args: &Args, chip: usize, expected: &str| {
        says(worker.run(|orch| orch.submit_next_level(program, args, chip)), expected);
    };
    let none = Args::new();
    refused(
        program,
        &none,
        2,
        "in submit: invalid argument: there is no chip 2; this Worker has 2, counted from 0",
    );
    refused(
        other,
        &none,
        0,
        "in submit: invalid argument: this program was registered with another Worker; register it here too",
    );
    refused(
        gone,
        &none,
        0,
        "in submit: invalid argument: `gone` was unregistered; register it again and use the new Program",
    );
    let mut wrong = x.tensor();
    wrong.extent = 3;
    refused(
        program,
        &Args::new().tensor(&x.tensor(), Access::Input).tensor(&wrong, Access::Output),
        0,
        "in submit: invalid argument: tensor 1 of the task is malformed: extent is 3, shape and strides say 2; make it with \
         flat_tensor or TensorDesc::builder, and change no field of it",
    );
    let of = |tensor, access| Args::new().tensor(&tensor, access).scalar(7);
    let set = "; pass what its signature says, or change that with Worker::set_signature";
    refused(
        signed,
        &none,
        0,
        &format!(
            "in submit: invalid argument: `signed` takes 1 tensors and 1 scalars, and the task has 0 and 0{set}"
        ),
    );
    refused(
        signed,
        &of(whole.tensor(), Access::Output),
        0,
        &format!(
            "in submit: invalid argument: tensor 0 of `signed` has elements of Float32, and the task's are Int32{set}"
        ),
    );
    refused(
        signed,
        &of(x.tensor(), Access::Input),
        0,
        &format!(
            "in submit: invalid argument: `signed` uses tensor 0 as Output, and the task declares it as Input, so \
             later tasks would not wait for it{set}"
        ),
    );
    refused(
        signed,
        &of(x.tensor(), Access::Output),
        0,
        &format!(
            "in submit: invalid argument: tensor 0 of `signed` has 4 elements or more, and the task's has 2{set}"
        ),
    );
    refused(
        program,
        &Args::new().blocks(2),
        0,
        "in submit: invalid argument: nothing is a Rust function, which runs once; only kernels have several blocks: leave `blocks` out, or \
         submit several tasks",
    );
    refused(
        program,
        &Args::new().blocks(2000),
        0,
        "in submit: invalid argument: a task with 2000 blocks; it has 1 to 1024: give each block more of the work",
    );
    refused(
        program,
        &(0..33).fold(Args::new(), |args, _| args.tensor(&x.tensor(), Access::Input)),
        0,
        "in submit: invalid argument: a task with 33 tensors and 0 scalars; it takes at most 32 tensors and 16 \
         scalars: join tensors that lie side by side, or pass scalars in a tensor",
    );
    says(
        worker.run(|orch| orch.submit_sub(program, &none)),
        "in submit: invalid argument: this Worker has no sub-workers; ask for some with `.sub_workers(n)`",
    );
    says(
        worker.run(|orch| orch.submit_sub_group(program, std::slice::from_ref(&none))),
        "in submit: invalid argument: a group of 1 tasks on 0 sub-workers, which run one task each at the same time; \
         ask for more with `.sub_workers(n)`, or submit them one by one",
    );
    says(
        worker.run(|orch| orch.submit_group(program, &[(0, none.clone()), (0, none.clone())])),
        "in submit: invalid argument: chip 0 is not there or is named twice; a group names each chip once",
    );
    worker.close().unwrap();
}

#[test]
#[serial]
fn memory_that_is_not_there() {
    let mut worker = grouped(2, 4);
    says(
        worker.host_buffer::<f32>(0),
        "invalid argument: a host buffer of 0 elements cannot be made; ask for 1 to 4294967295",
    );
    let x = worker.host_buffer::<f32>(2).unwrap();
    says(
        x.write(&[0.0; 3]),
        "invalid argument: 3 elements do not fit into a host buffer of 2; write fewer, or make it longer",
    );
    worker.init().unwrap();
    let context = worker.chip_contexts().unwrap()[1].clone();
    says(
        context.buffer("date"),
        "invalid argument: device 1 has no buffer `date`; it has [\"data\", \"barrier\"]",
    );
    says(
        context.buffer("barrier").unwrap().tensor(),
        "invalid argument: `barrier` is a region of bytes and not a tensor; use its address, or declare a buffer",
    );
    says(
        worker.chip_alloc(0, 0),
        "in chip_alloc: invalid argument: 0 bytes on chip 0 cannot be allocated; ask for 1 or more on one of the 2 chips, counted from 0",
    );
    says(
        worker.copy_to(2, DeviceAddr(0), &[1]),
        "in copy_to: invalid argument: there is no chip 2; this Worker has 2, counted from 0",
    );
    says(
        worker.copy_to(0, context.window_base, &[1]),
        "in copy_to: invalid argument: 1 bytes at … belong to chip 1, not to chip 0; name that chip",
    );
    says(
        worker.copy_from(0, DeviceAddr(64), &mut [0]),
        "in copy_from: invalid argument: 1 bytes at … are not inside memory or the window of chip 0; memory that was \
         freed, or allocated before the last init, is gone, and host memory is reached through its HostBuffer",
    );
    worker.close().unwrap();
}

#[test]
#[serial]
fn domains_and_collectives_that_cannot_be() {
    let mut worker = plain(2);
    worker.init().unwrap();
    let mut refused = |name: &str, chips: &[usize], bytes: usize, expected: &str| {
        let expected = format!("in allocate_domain: invalid argument: domain `{name}`: {expected}");
        says(worker.run(|orch| orch.allocate_domain(name, chips, bytes, &[])), &expected);
    };
    refused("empty", &[0, 1], 0, "ask for a window of at least one byte");
    refused("nobody", &[], 64, "name at least one chip");
    refused("twice", &[1, 1], 64, "chip 1 does not exist or is named twice; there are 2");
    let told = worker.run(|orch| {
        let pair = orch.allocate_domain("pair", &[0, 1], 64, &[("x", u8::DTYPE, 8)])?;
        says(
            pair.contexts()[0].buffer("y"),
            "invalid argument: this domain has no buffer `y`; it has [\"x\"]",
        );
        orch.release_domain(&pair)?;
        orch.release_domain(&pair)
    });
    says(
        told,
        "in release_domain: invalid argument: domain `pair` is of another run, or was released before; it ends with \
         its run",
    );
    says(
        worker.run(|orch| orch.collectives(&[0, 5], CollectivesOptions::new())),
        "in collectives: invalid argument: chip 5 does not exist or is named twice; there are 2",
    );
    worker.close().unwrap();

    let mut above = Worker::builder().level(4).build().unwrap();
    above.add_worker(plain(1)).unwrap();
    above.init().unwrap();
    says(
        above.run(|orch| orch.allocate_domain("above", &[0], 64, &[])),
        "in allocate_domain: invalid argument: domain `above`: these are Workers, and only chips of one Worker can form a \
         group; give all devices of this host to one Worker of level 3, or form a group in each Worker, in its orchestration",
    );
    above.close().unwrap();
}

/// What goes wrong inside a task, by scalar 0.
fn wrong(task: &mut Task<'_>) -> Result<(), Failure> {
    match task.scalar(0)? {
        0 => task.read::<f32>(5).map(drop),
        1 => task.scalar(3).map(drop),
        2 => task.read::<i32>(0).map(drop),
        3 => task.write(0, &[0.0_f32; 9]),
        4 => task.read::<f32>(1).map(drop),
        5 => task.collectives().map(drop),
        6 => task.collectives_of("pair").map(drop),
        7 => panic!("by mistake"),
        _ => task.graphs(&worker_orch::runtime::Limits::default()).map(drop),
    }
}

#[test]
#[serial]
fn mistakes_inside_a_task() {
    if support::platform() != Platform::Sim {
        return;
    }
    let mut worker = builder(1).sub_workers(1).build().unwrap();
    let program = worker.register_function("wrong", wrong);
    let (x, y) = (worker.host_buffer::<f32>(2).unwrap(), worker.host_buffer::<f32>(3).unwrap());
    let gaps = worker_orch::TensorDesc::builder(DeviceAddr(y.tensor().addr), 12, DType::Float32, &[2]);
    let gaps = gaps.strides(&[2]).build().unwrap();
    worker.init().unwrap();
    let mut cause = |mistake: u64, tensor: worker_orch::TensorDesc, expected: &str| {
        let args = Args::new()
            .tensor(&x.tensor(), Access::Input)
            .tensor(&tensor, Access::NoDependency)
            .scalar(mistake);
        let ran = worker.run(|orch| orch.submit_next_level(program, &args, 0));
        assert_eq!(ran.as_ref().unwrap_err().code, ErrorCode::Task);
        says(ran, &format!("pid …, in run: task failed: `wrong` failed on chip 0\n  caused by: {expected}"));
    };
    cause(0, gaps, "invalid argument: there is no tensor 5; the task has 2, counted from 0");
    cause(1, gaps, "invalid argument: there is no scalar 3; the task has 1, counted from 0");
    cause(
        2,
        gaps,
        "invalid argument: tensor 0 has elements of Float32, and the call is for Int32; use the type of the tensor",
    );
    cause(
        3,
        gaps,
        "invalid argument: 9 elements do not fit into tensor 0 of 2; write fewer, or pass a longer one",
    );
    cause(4, gaps, "invalid argument: tensor 1 is not contiguous; pass one that is, or use a kernel");
    cause(
        5,
        gaps,
        "in collectives: invalid argument: this task has no collectives; call `collectives` of the orchestrator with the \
         chips of a group, and then submit the task to that group",
    );
    cause(
        6,
        gaps,
        "in collectives: invalid argument: domain `pair` has no collectives on this chip; call \
         `domain_collectives` of the orchestrator in the same run, before the task is submitted",
    );
    cause(7, gaps, "panic: the task panicked: by mistake…");
    cause(
        8,
        gaps,
        "in graph: invalid argument: this task runs no graphs: register its closure with `register_graph`",
    );

    let elsewhere = flat_tensor(DeviceAddr(4096), DType::Float32, 1).unwrap();
    let args = |mistake: u64| {
        let args = Args::new().tensor(&x.tensor(), Access::Input);
        args.tensor(&elsewhere, Access::NoDependency).scalar(mistake)
    };
    says(
        worker.run(|orch| orch.submit_sub(program, &args(4))),
        "…invalid argument: the address is neither in a host buffer nor in a window of this chip; pass a tensor of \
         host_buffer or of a domain",
    );
    says(
        worker.run(|orch| orch.submit_sub(program, &args(5))),
        "…in collectives: invalid argument: collectives are between chips, and this task does not run on one; submit it \
         with `submit_group`",
    );
    worker.close().unwrap();
}

#[test]
#[serial]
fn a_graph_with_tensors_that_are_not_there() {
    if support::platform() != Platform::Sim {
        return;
    }
    let mut worker = plain(1);
    let program = worker
        .register_graph("graph", |task| {
            let mut graphs = task.graphs(&worker_orch::runtime::Limits::default())?;
            match graphs.tensor(0) {
                Ok(_) => graphs.run(worker_orch::runtime::FrontEnd::Inferred, |_| Ok(())),
                Err(failure) => Err(failure),
            }
        })
        .unwrap();
    let on_device = worker.register_graph("on_device", |task| task.device_graphs().map(drop)).unwrap();
    worker.init().unwrap();
    says(
        worker.run(|orch| orch.submit_next_level(on_device, &Args::new(), 0)),
        "…in graph: invalid argument: this chip has no device, where graphs could run: use `graphs`, which runs them in \
         its process",
    );
    says(
        worker.run(|orch| orch.submit_next_level(program, &Args::new(), 0)),
        "…invalid argument: there is no tensor 0; the task has 0, counted from 0",
    );
    let elsewhere = flat_tensor(DeviceAddr(4096), DType::Float32, 1).unwrap();
    let args = Args::new().tensor(&elsewhere, Access::NoDependency);
    says(
        worker.run(|orch| orch.submit_next_level(program, &args, 0)),
        "…in graph: invalid argument: tensor 0 lies neither in a host buffer nor in a window of chip 0; pass one of \
         host_buffer or of a domain",
    );
    worker.close().unwrap();
}

#[test]
#[serial]
fn a_task_that_kills_its_chip_or_takes_too_long() {
    let mut worker = plain(1);
    let killed = worker.register_closure("killed", |task| {
        let signal = if task.scalar(0)? == 0 { nix::sys::signal::SIGKILL } else { nix::sys::signal::SIGSEGV };
        let _ = nix::sys::signal::raise(signal);
        Ok(())
    });
    let slow = worker.register_closure("slow", |_| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        Ok(())
    });
    let (killed, slow) = (killed.unwrap(), slow.unwrap());
    for (signal, name, advice) in [
        (0, "SIGKILL", "somebody killed it, or the system was out of memory: see the system's log"),
        (1, "SIGSEGV", "run it with CHIPCOMM_CHECK=1, or look at it with gdb"),
    ] {
        worker.init().unwrap();
        let expected = format!(
            "pid …, in run: killed: chip 0 (pid …) died: killed by {name}, in `killed`, its task 1 of 1, for …; {advice}…"
        );
        says(worker.run(|orch| orch.submit_next_level(killed, &Args::new().scalar(signal), 0)), &expected);
        let later = "…a process of this Worker died; the Worker must be closed and initialised again: …";
        says(worker.run(|orch| orch.submit_next_level(slow, &Args::new(), 0)), later);
        let _ = worker.close();
    }
    worker.init().unwrap();
    let limited = Args::new().within(Timeout::new(std::time::Duration::from_millis(50)).unwrap());
    says(
        worker.run(|orch| orch.submit_next_level(slow, &limited, 0)),
        "…`slow`, task 1 of chip 0, takes longer than its limit of 50ms; give it more with Args::within; what every \
         process is doing:…chip 0 did not come back within 200ms and was ended; the next call starts a new process in \
         its place",
    );
    worker.close().unwrap();
}

#[test]
#[serial]
fn a_trace_that_cannot_be_written() {
    let mut worker = builder(1).trace("/nowhere/trace.json".as_ref()).build().unwrap();
    let ended = worker.init().and_then(|()| worker.close());
    says(ended, "…the trace could not be written: …; see that its folder exists and has room");
}

/// On chips of the simulation, in a Worker that is checked: 1024 floats end at a page, 10 do not.
#[test]
#[serial]
fn what_the_checks_of_memory_say() {
    if support::platform() != Platform::Sim {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut worker = builder(1).checked().build().unwrap();
    let mut program = |name: &str, body: &str| {
        let source = format!(
            "#include \"comm_kernel.h\"\nextern \"C\" void kernel_entry(int64_t *args) {{\n\
             auto *in = comm_tensor<float>(args[0]).data;\nauto out = comm_tensor<float>(args[1]);\n\
             (void)in;\n(void)out;\n{body}\n}}\n"
        );
        worker.register_kernel(&support::kernel(folder.path(), name, &source)).unwrap()
    };
    let reads = program("reads", "out.data[0] += 1;");
    let writes = program("writes", "in[1] = 7;");
    let behind = program("behind", "for (size_t i = 0; i <= out.count; ++i) {\nout.data[i] = 1;\n}");
    worker.init().unwrap();
    for (program, name, count, expected) in [
        (
            reads,
            "reads.so",
            1024,
            "task … read offset 0 of tensor 1 before it wrote it, and the tensor is an output that holds nothing yet; \
             write it first, or say Access::InOut",
        ),
        (
            writes,
            "writes.so",
            1024,
            "task … wrote to offset 4 of tensor 0, which is an input; if the program is to write it, say Access::InOut",
        ),
        (
            behind,
            "behind.so",
            1024,
            "task … wrote to offset 4096 of tensor 1, which ends at 4096; see the bounds of its loop",
        ),
        (
            behind,
            "behind.so",
            10,
            "offset 40 of tensor 1, which ends at 40, was overwritten, by task … or by what ran beside it on another \
             chip; see the bounds of its loop",
        ),
    ] {
        let (x, y) = (worker.host_buffer::<f32>(count).unwrap(), worker.host_buffer::<f32>(count).unwrap());
        let args = Args::new().tensor(&x.tensor(), Access::Input).tensor(&y.tensor(), Access::Output);
        let expected = format!(
            "pid …, in run: task failed: `{name}` failed on chip 0\n  caused by: in memory check: task failed: {expected}"
        );
        says(worker.run(|orch| orch.submit_next_level(program, &args, 0)), &expected);
    }
    // An input beside an output: in their page the task may write, so that the input is compared afterwards.
    let both = worker.host_buffer::<f32>(8).unwrap();
    let half = |at: u64| flat_tensor(DeviceAddr(both.tensor().addr + at), DType::Float32, 4).unwrap();
    let args = Args::new().tensor(&half(0), Access::Input).tensor(&half(16), Access::Output);
    says(
        worker.run(|orch| orch.submit_next_level(writes, &args, 0)),
        "pid …, in run: task failed: `writes.so` failed on chip 0\n  caused by: in memory check: task failed: offset … of \
         tensor 0, which is an input, changed while task … ran; if the program is to write it, say Access::InOut",
    );
    worker.close().unwrap();
}

#[test]
#[serial]
fn programs_and_tasks_in_the_wrong_place() {
    let mut worker = plain(2);
    let nothing = worker.register_function("nothing", nothing);
    let fails =
        worker.register_closure("fails", |_| Err(Failure::new(ErrorCode::Task, "on purpose"))).unwrap();
    let below = worker.register_orchestration("below", |_, _| Ok(()));
    worker.init().unwrap();
    says(
        worker.run(|orch| orch.submit_next_level(below, &Args::new(), 0)),
        "…an orchestration cannot run on a chip; see Worker::register_* for what runs where",
    );
    let old = worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 0)).unwrap();
    says(
        worker.run(|orch| orch.submit_next_level(fails, &Args::new(), 0)),
        "pid …, in run: task failed: `fails` failed on chip 0\n  caused by: task failed: on purpose",
    );
    says(
        worker.task(old),
        "in task: invalid argument: a later run has failed on the same chip, and what became of this task is not known \
         any more; ask for it before the next run",
    );
    let told = worker.run(|orch| {
        let pair = orch.allocate_domain("pair", &[0, 1], 4 << 20, &[])?;
        orch.domain_collectives(&pair, CollectivesOptions::new())?;
        let other = orch.allocate_domain("pair", &[1, 0], 4 << 20, &[])?;
        orch.domain_collectives(&other, CollectivesOptions::new())
    });
    says(
        told,
        "in collectives: invalid argument: there are collectives of another domain `pair`; use another name",
    );
    worker.close().unwrap();
}

/// In a process of its own, which has the setting in its environment.
#[test]
fn a_setting_that_is_neither_on_nor_off() {
    const NAME: &str = "a_setting_that_is_neither_on_nor_off";
    if std::env::var("CHIPCOMM_CHECK").as_deref() == Ok("maybe") {
        return says(
            Worker::builder().build(),
            "in build: invalid argument: CHIPCOMM_CHECK=maybe: write 1 or 0",
        );
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let ran = again.args(["--exact", NAME]).env("CHIPCOMM_CHECK", "maybe").output().unwrap();
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && out.contains("1 passed"), "{out}");
}
