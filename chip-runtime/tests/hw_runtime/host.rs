//! Tensors in host memory that tasks on a device use.
//!
//! # Safety
//! Gives a graph the memory of cells that outlive it, to which there are no references.
#![allow(unsafe_code)]

use super::{COUNT, in_order, soon, with_device, with_kernels};
use chip_runtime::on_device::OnDeviceError;
use chip_runtime::{Buffer, Compare, FrontEnd, Kernels, Predicate, TaskArgs, Tensor};
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use std::cell::UnsafeCell;

/// Elements `from` to `to` of a vector.
fn part(of: &Tensor<f32>, from: u32, to: u32) -> Tensor<f32> {
    let desc = of.as_ref();
    let shape = [to - from];
    let part = TensorDesc::builder(DeviceAddr(desc.addr), desc.size, DType::Float32, &shape);
    Tensor::new(part.start_offset(u64::from(from)).build().unwrap()).unwrap()
}

// CA-7
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn what_tasks_write_of_host_memory_is_copied_back_and_nothing_beside_it() {
    with_device(|_, graphs, [scale, add]| {
        let mut x = Buffer::of(&vec![1.0f32; COUNT as usize]);
        let (mut y, mut kept) = (Buffer::<f32>::zeroed(&[COUNT]), Buffer::of(&vec![7.0f32; COUNT as usize]));
        for round in 1..=3u32 {
            let ended = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
                let (x, y) = (graph.import_host(&mut x)?, graph.import_host(&mut y)?);
                let kept = graph.import_host(&mut kept)?;
                graph.set_element(&x, &[0], u64::from((round as f32).to_bits()))?;
                assert_eq!(graph.get_element(&x, &[0])?, u64::from((round as f32).to_bits()));
                let half = COUNT / 2;
                let first = TaskArgs::new().input(&x).output_existing(&part(&y, 0, half)).scalar(10);
                // Written too, by a task that says that it reads it.
                let second = TaskArgs::new().input(&x).input(&part(&y, half, COUNT)).scalar(10);
                graph.submit(Kernels::aiv(scale), &first)?;
                graph.submit(Kernels::aic(scale), &second)?;
                graph.submit(Kernels::aic(scale), &TaskArgs::new().input(&x).input(&kept).scalar(3))?;
                // y[0] is 10 times the round.
                let when = Predicate::new(&y, &[0], Compare::Gt, 20);
                let args = TaskArgs::new().input(&y).input(&x).output_existing(&part(&y, 1, 2)).when(when);
                graph.submit(Kernels::aiv(add), &args).map(drop)
            });
            ended.unwrap();
            let (y, half) = (y.to_vec().unwrap(), COUNT as usize / 2);
            let second = if round > 2 { 10.0 * round as f32 + round as f32 } else { 10.0 };
            assert_eq!(y[..4], [10.0 * round as f32, second, 10.0, 10.0], "round {round}");
            assert_eq!((y[half - 1], y[half], y[COUNT as usize - 1]), (10.0, 0.0, 0.0), "round {round}");
        }
        assert_eq!(kept.to_vec().unwrap(), vec![7.0; COUNT as usize]);
    });
}

// CA-7
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn host_memory_stays_as_it_was_when_a_run_fails() {
    with_kernels(&["scale", "fail"], |_, graphs, [scale, fail]| {
        let (mut x, mut y) = (Buffer::of(&vec![1.0f32; COUNT as usize]), Buffer::<f32>::zeroed(&[COUNT]));
        let ended = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
            let (x, y) = (graph.import_host(&mut x)?, graph.import_host(&mut y)?);
            graph.submit(Kernels::aiv(scale), &TaskArgs::new().input(&x).output_existing(&y).scalar(10))?;
            graph.submit(Kernels::aiv(fail), &TaskArgs::new().input(&y).scalar(17)).map(drop)
        });
        let error = ended.unwrap_err();
        assert!(matches!(error, OnDeviceError::Kernel { task: 1, error: 17, .. }), "{error}");
        assert_eq!((x.to_vec().unwrap()[0], y.to_vec().unwrap()[0]), (1.0, 0.0));
    });
}

// CA-7
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn host_memory_that_cannot_be_used_is_refused_with_its_place() {
    with_device(|_, graphs, [scale, _]| {
        let cells: Box<[UnsafeCell<f32>]> = (0..COUNT).map(|_| UnsafeCell::new(1.0)).collect();
        let at = cells.as_ptr() as u64;
        let vector = |from: u64, count: u32| {
            let (at, shape) = (DeviceAddr(at + 4 * from), [count]);
            let desc = TensorDesc::builder(at, 4 * u64::from(count), DType::Float32, &shape);
            desc.build().unwrap()
        };
        let (left, right, all) = (vector(0, 600), vector(500, 500), vector(0, COUNT));
        let twice = |from: &TensorDesc| TaskArgs::new().input(from).output_existing(from).scalar(2);
        // Two that overlap have one copy.
        let ended = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
            // SAFETY: the cells outlive the run.
            unsafe { graph.import_host_raw(&left).and_then(|()| graph.import_host_raw(&right))? };
            graph.submit(Kernels::aiv(scale), &twice(&left))?;
            graph.submit(Kernels::aic(scale), &twice(&right)).map(drop)
        });
        ended.unwrap();
        // SAFETY: nobody else accesses them now.
        let values: Vec<f32> = cells.iter().map(|cell| unsafe { *cell.get() }).collect();
        assert_eq!(
            [values[499], values[500], values[599], values[600], values[1000]],
            [2.0, 4.0, 4.0, 2.0, 1.0]
        );
        let late = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
            // SAFETY: as above.
            unsafe { graph.import_host_raw(&left)? };
            graph.submit(Kernels::aiv(scale), &twice(&left))?;
            // SAFETY: as above.
            unsafe { graph.import_host_raw(&all) }
        });
        in_order(
            &late.unwrap_err(),
            "4096 bytes of host memory at … (imported at …host.rs:…) overlap what a task uses already, which was copied to the device by \
             itself; import host memory before the first task that uses any of it",
        );
        let unknown = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
            graph.submit(Kernels::aiv(scale), &twice(&left)).map(drop)
        });
        let error = unknown.unwrap_err().to_string();
        assert!(error.contains("lie in no buffer") && error.contains("host.rs:"), "{error}");
        // SAFETY: as above.
        assert_eq!(unsafe { *cells[0].get() }, 2.0);
    });
}

/// On a device that has less memory than this takes.
// CA-7
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn host_memory_that_does_not_fit_on_the_device_is_refused() {
    const ELEMENTS: u32 = 1 << 30;
    with_device(|_, graphs, [scale, _]| {
        let at = DeviceAddr(1 << 46);
        let desc = TensorDesc::builder(at, 1 << 44, DType::Float32, &[ELEMENTS, 16]).build().unwrap();
        let ended = graphs.run(FrontEnd::Prebuilt, soon(), |graph| {
            // SAFETY: nothing of it is read: there is no room for it on the device.
            unsafe { graph.import_host_raw(&desc)? };
            graph.submit(Kernels::aiv(scale), &TaskArgs::new().inout(&desc).scalar(2)).map(drop)
        });
        let error = ended.unwrap_err();
        assert!(matches!(error, OnDeviceError::Host { bytes, .. } if bytes == 1 << 44), "{error}");
        in_order(
            &error,
            "17592186044416 bytes of host memory at …, used by the task submitted at …host.rs:…, could not be copied to the device: …; \
             pass a smaller buffer, or keep the tensor in device memory",
        );
    });
}
