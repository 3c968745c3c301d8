//! Prebuilt graphs on a device: `cargo xtask hw-test --layer runtime`.
#![cfg(feature = "ascend")]

#[path = "hw_runtime/double.rs"]
mod double;
#[path = "hw_runtime/host.rs"]
mod host;
#[path = "hw_runtime/objects.rs"]
mod objects;
#[path = "hw_runtime/ranks.rs"]
mod ranks;
#[path = "hw_runtime/traces.rs"]
mod traces;

use cann_sim::hw_test::{at_least, kernel};
use chip_runtime::on_device::GraphDevice;
use chip_runtime::signals::{Domain, Signaller, Wait};
use chip_runtime::{Compare, Create, FrontEnd, KernelId, Kernels, Predicate, ScopeMode, TaskArgs};
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use comm_hccl::{Device, DeviceMemory, LogicalDevice, Runtime, Vendor, VisibleDevices};
use deadline::Deadline;
use std::time::Duration;

const COUNT: u32 = 1024;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120)).unwrap()
}

/// Runs with a device that has the kernels `scale` and `add`, and checks that it lets go of everything.
fn with_device(test: impl FnOnce(&Device, &mut GraphDevice, [KernelId; 2])) {
    with_kernels(&["scale", "add"], test);
}

/// The same with these kernels.
fn with_kernels<const N: usize>(
    names: &[&str; N],
    test: impl FnOnce(&Device, &mut GraphDevice, [KernelId; N]),
) {
    let runtime = Runtime::start(Vendor::load(None).unwrap()).unwrap();
    let device = LogicalDevice(at_least(1)[0]);
    let device = Device::open(runtime, device, &VisibleDevices::from_env().unwrap()).unwrap();
    let mut graphs = GraphDevice::new(&device).unwrap();
    let kernels = names.map(|name| graphs.kernel(&kernel(name), "kernel_entry").unwrap());
    test(&device, &mut graphs, kernels);
    graphs.close().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

fn floats(device: &Device, value: f32) -> DeviceMemory {
    let memory = DeviceMemory::allocate(device, 4 * COUNT as usize).unwrap();
    memory.write(0, &value.to_le_bytes().repeat(COUNT as usize)).unwrap();
    memory
}

fn first_and_last(memory: &DeviceMemory) -> [f32; 2] {
    let mut bytes = vec![0; memory.size()];
    memory.read(0, &mut bytes).unwrap();
    let value = |at: usize| f32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    [value(0), value(4 * COUNT as usize - 4)]
}

// CA-1
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_graph_over_both_kinds_of_cores_computes_what_its_order_says() {
    with_kernels(&["scale", "late", "add"], |device, graphs, [scale, late, add]| {
        let (x, y) = (floats(device, 1.0), floats(device, 0.0));
        for round in 1..=3u8 {
            y.fill(0).unwrap();
            graphs
                .run(FrontEnd::Prebuilt, soon(), |graph| {
                    let (x, y) = (graph.import::<f32>(&x, &[COUNT])?, graph.import::<f32>(&y, &[COUNT])?);
                    let made = || Create::of::<f32>(&[COUNT]);
                    let times = |factor| TaskArgs::new().input(&x).output(made()).scalar(factor);
                    // The cube's result goes to the vector cores, and back, each time by an event.
                    let ten = graph.submit(Kernels::aic(late), &times(10))?.outputs[0];
                    let hundred = graph.submit(Kernels::aiv(scale), &times(100))?.outputs[0];
                    let sum = TaskArgs::new().input(&ten).input(&hundred).output(made());
                    let sum = graph.submit(Kernels::aiv(add), &sum)?;
                    let order = graph.submit_dummy(&TaskArgs::new().after(sum.task))?.task;
                    let twice = TaskArgs::new().input(&sum.outputs[0]).output(made()).scalar(2).after(order);
                    let twice = graph.submit(Kernels::aic(late), &twice)?.outputs[0];
                    let last = TaskArgs::new().input(&twice).input(&x).output_existing(&y);
                    graph.submit(Kernels::aiv(add), &last).map(drop)
                })
                .unwrap();
            assert_eq!(first_and_last(&y), [221.0, 221.0], "round {round}");
        }
        assert_eq!(first_and_last(&x), [1.0, 1.0]);
        x.release().unwrap();
        y.release().unwrap();
    });
}

/// The text of an error has these parts in their order, where `…` stands for anything.
#[track_caller]
fn in_order(error: &impl std::fmt::Display, expected: &str) {
    let told = error.to_string();
    let found = expected.split('…').try_fold(&*told, |rest, part| Some(rest.split_once(part)?.1));
    assert!(found.is_some(), "expected: {expected}\n    told: {told}");
}

// CA-4
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn what_a_host_cannot_do_is_refused_and_the_device_stays_usable() {
    with_device(|device, graphs, [scale, add]| {
        let x = floats(device, 1.0);
        for front_end in [FrontEnd::Explicit, FrontEnd::Inferred] {
            let error = graphs.run(front_end, soon(), |_| Ok(())).unwrap_err();
            in_order(
                &error,
                "the front end … submits tasks while others run, on the chip itself; a device is driven from the host, which runs \
                 prebuilt graphs: use the front end prebuilt, or a platform that simulates chips",
            );
        }
        let mut refused = |kernels: Kernels, args: &dyn Fn(TaskArgs) -> TaskArgs| {
            graphs
                .run(FrontEnd::Prebuilt, soon(), |graph| {
                    let x = graph.import::<f32>(&x, &[COUNT])?;
                    let args = args(TaskArgs::new().input(&x).output(Create::of::<f32>(&[COUNT])).scalar(2));
                    graph.submit(kernels, &args).map(drop)
                })
                .unwrap_err()
        };
        let one = Kernels::aiv(scale);
        let both = Kernels { aic: Some(scale), aiv0: Some(add), aiv1: None };
        in_order(
            &refused(both, &|args| args),
            "a task with several kernels on one cluster (submitted at …) is not there on a device: nothing makes kernels of two \
             streams start together; submit a task for each that does not wait for the other, or join them in one kernel; or use \
             a platform that simulates chips",
        );
        let wait = Wait { domain: Domain::BASE, offset: 0, at_least: 1, from: Signaller::Unknown };
        let alone = refused(one, &|args| args.wait(wait)).to_string();
        assert!(alone.contains("this chip has no window 0"), "{alone}");
        let unknown = refused(Kernels::aiv(KernelId(7)), &|args| args);
        assert!(unknown.to_string().contains('7'), "{unknown}");
        // The device is usable.
        graphs
            .run(FrontEnd::Prebuilt, soon(), |graph| {
                let x = graph.import::<f32>(&x, &[COUNT])?;
                graph.submit(one, &TaskArgs::new().input(&x).output_existing(&x).scalar(5)).map(drop)
            })
            .unwrap();
        assert_eq!(first_and_last(&x), [5.0, 5.0]);
        x.release().unwrap();
    });
}

// CA-3
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn tensors_outside_of_the_memory_of_the_graph_are_refused() {
    with_device(|device, graphs, [scale, _]| {
        let (x, elsewhere) = (floats(device, 1.0), floats(device, 0.0));
        let vector = |addr, bytes, owner: Option<u64>| {
            let shape = [(bytes / 4) as u32];
            let desc = TensorDesc::builder(addr, bytes, DType::Float32, &shape);
            let desc = if let Some(owner) = owner { desc.owner(owner) } else { desc };
            desc.build().unwrap()
        };
        let bytes = 4 * u64::from(COUNT);
        let mut refused = |why: &str, tensor: &dyn Fn(TensorDesc) -> TensorDesc| {
            for by_predicate in [false, true] {
                let ended = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
                    let known = graph.import::<f32>(&x, &[COUNT])?;
                    graph.scope_begin(ScopeMode::Auto)?;
                    let made = graph.allocate(&[Create::of::<f32>(&[COUNT])])?.outputs[0];
                    let tensor = tensor(made);
                    if tensor == made {
                        graph.scope_end()?;
                    }
                    let args = TaskArgs::new().input(&known).scalar(1);
                    let args = if by_predicate {
                        args.output_existing(&known).when(Predicate::new(&tensor, &[0], Compare::Gt, 0))
                    } else {
                        args.output_existing(&tensor)
                    };
                    graph.submit(Kernels::aiv(scale), &args).map(drop)
                });
                let error = ended.unwrap_err().to_string();
                assert!(error.contains(why) && error.contains("hw_runtime.rs:"), "{by_predicate}: {error}");
            }
        };
        refused("lie in no buffer", &|_| vector(elsewhere.addr(), bytes, None));
        refused("lie in no buffer", &|_| vector(x.addr(), bytes + 4, None));
        refused("lie in no buffer", &|made| vector(DeviceAddr(made.addr), bytes, None));
        refused("which did not make a tensor there", &|_| vector(x.addr(), bytes, Some(0)));
        refused("which did not make a tensor there", &|made| vector(DeviceAddr(made.addr), bytes, Some(7)));
        refused("whose scope has ended", &|made| made);
        assert_eq!(first_and_last(&elsewhere), [0.0, 0.0]);
        elsewhere.release().unwrap();
        x.release().unwrap();
    });
}

// CA-1
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_predicate_is_looked_at_when_what_its_task_comes_after_has_ended() {
    with_kernels(&["scale", "late", "add"], |device, graphs, [scale, late, add]| {
        let (x, y, z) = (floats(device, 1.0), floats(device, 0.0), floats(device, 7.0));
        for round in 1..=3 {
            y.fill(0).unwrap();
            graphs
                .run(FrontEnd::Prebuilt, soon(), |graph| {
                    let [x, y, z] = [
                        graph.import::<f32>(&x, &[COUNT])?,
                        graph.import::<f32>(&y, &[COUNT])?,
                        graph.import::<f32>(&z, &[COUNT])?,
                    ];
                    let flag = TaskArgs::new().input(&x).output(Create::of::<f32>(&[COUNT])).scalar(5);
                    let flag = graph.submit(Kernels::aic(late), &flag)?.outputs[0];
                    let flag = chip_runtime::Tensor::<f32>::new(flag)?;
                    let when = |compare, target| {
                        let predicate = Predicate::new(&flag, &[COUNT - 1], compare, target);
                        TaskArgs::new().input(&x).output_existing(&y).when(predicate)
                    };
                    graph.submit(Kernels::aiv(scale), &when(Compare::Eq, 5).scalar(3))?;
                    graph.submit(Kernels::aic(scale), &when(Compare::Gt, 5).scalar(100))?;
                    // Comes after both, one of which never ran, and after the look at the flag.
                    let last = TaskArgs::new().input(&y).input(&z).output_existing(&flag);
                    let sum = graph.submit(Kernels::aiv(add), &last)?.task;
                    let copy = TaskArgs::new().input(&flag).output_existing(&y).scalar(1).after(sum);
                    graph.submit(Kernels::aic(scale), &copy).map(drop)
                })
                .unwrap();
            assert_eq!(first_and_last(&y), [10.0, 10.0], "round {round}");
        }
        for memory in [x, y, z] {
            memory.release().unwrap();
        }
    });
}

// CA-4
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_kernel_that_defers_its_completion_is_refused_by_name() {
    with_kernels(&["defer"], |device, graphs, [defer]| {
        let x = floats(device, 1.0);
        let ended = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
            let x = graph.import::<f32>(&x, &[COUNT])?;
            graph.submit(Kernels::aiv(defer), &TaskArgs::new().input(&x)).map(drop)
        });
        in_order(
            &ended.unwrap_err(),
            "a completion that waits for words (submitted at …) is not there on a device: what comes after the kernel is queued \
             before the host can know of it; let the next task WAIT for the word, or let the kernel return when it is done; or use \
             a platform that simulates chips",
        );
        x.release().unwrap();
    });
}

// CA-2
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn what_the_host_does_too_late_is_named_by_its_task() {
    with_kernels(&["scale"], |device, graphs, [scale]| {
        let (x, y) = (floats(device, 0.0), floats(device, 1.0));
        let late = Deadline::after(Duration::from_millis(1)).unwrap();
        let ended = graphs.run(FrontEnd::Prebuilt, late, |graph| {
            let [x, y] = [graph.import::<f32>(&x, &[COUNT])?, graph.import::<f32>(&y, &[COUNT])?];
            while !late.has_passed() {
                std::thread::yield_now();
            }
            let args = TaskArgs::new().input(&x).output_existing(&y).scalar(1);
            graph.submit(Kernels::aic(scale), &args).map(drop)
        });
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("task 0 (submitted at ") && error.contains("hw_runtime.rs"), "{error}");
        let end = ") was not queued within 1ms; give the run more time, or see what its kernels wait for";
        assert!(error.contains(end), "{error}");
        for memory in [x, y] {
            memory.release().unwrap();
        }
    });
}

// CA-2
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_kernel_that_spins_ends_with_the_deadline_of_the_run() {
    let runtime = Runtime::start(Vendor::load(None).unwrap()).unwrap();
    let device = LogicalDevice(at_least(1)[0]);
    let device = Device::open(runtime, device, &VisibleDevices::from_env().unwrap()).unwrap();
    let mut graphs = GraphDevice::new(&device).unwrap();
    let spin = graphs.kernel(&kernel("spin"), "kernel_entry").unwrap();
    let (x, y) = (floats(&device, 0.0), floats(&device, 1.0));
    let mut run = |memory: &DeviceMemory| {
        graphs.run(FrontEnd::Prebuilt, Deadline::after(Duration::from_secs(1)).unwrap(), |graph| {
            let data = graph.import::<f32>(memory, &[COUNT])?;
            graph.submit(Kernels::aic(spin), &TaskArgs::new().input(&data)).map(drop)
        })
    };
    run(&y).unwrap();
    let error = run(&x).unwrap_err().to_string();
    assert!(
        error.contains("one of the 1 tasks of the graph (run at ") && error.contains("hw_runtime.rs"),
        "{error}"
    );
    // It has faulted: nothing is released on it.
    device.abandon().unwrap();
    drop((graphs, x, y, device));
    runtime.finalise().unwrap();
}
