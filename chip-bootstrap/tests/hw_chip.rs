//! Bring-up, memory, a kernel and teardown on every device: `cargo xtask hw-test --layer chip`.
//!
//! # Safety
//! Sets a variable of the environment in a process that it forked for this and that has one thread.
#![cfg(feature = "ascend")]
#![allow(unsafe_code)]

mod support;

use cann_sim::hw_test::{kernel, session};
use chip_bootstrap::{ChipConfig, ChipError, Entry, HostSpan, bring_up};
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use comm_context::comm::{Membership, Timeout};
use shared_memory::Region;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{devices, in_processes, patience, platform, text};

// CB-1, CB-4, CB-5
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer chip"]
fn chips_come_up_stage_run_a_kernel_store_and_go_down() {
    const COUNT: usize = 256;
    let (devices, platform) = (devices(), platform());
    let folder = tempfile::tempdir().unwrap();
    let (kernel, path) = (kernel("add"), folder.path().join("rootinfo"));
    let host = Arc::new(Region::create("host", devices.len() * 8192).unwrap());
    in_processes(&devices, &[&host], &|rank, device| {
        let span = |at: usize| HostSpan::new(host.clone(), at..at + COUNT * 4).unwrap();
        let (input, output) = (span(rank * 8192), span(rank * 8192 + 4096));
        let floats: Vec<f32> = (0..COUNT).map(|i| (i + 1000 * rank) as f32).collect();
        input.write(0, &floats.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        let config = ChipConfig::new(device)
            .communicator(Membership::new(rank as u32, devices.len() as u32).unwrap())
            .window(1 << 16)
            .buffer("x", DType::Float32, COUNT)
            .load_from(&input)
            .store_to(&output)
            .region("signals", 64);
        let entry = Entry::Path(path.clone());
        let mut chip = bring_up(platform, &config, Some(&entry), patience(), &mut |_| {}).map_err(text)?;
        let x = chip.buffer("x").ok_or("no buffer")?.clone();
        let tensor = |addr: DeviceAddr| {
            TensorDesc::builder(addr, x.bytes as u64, DType::Float32, &[COUNT as u32]).build().unwrap()
        };
        let loaded = chip.load(&kernel, "kernel_entry").map_err(text)?;
        chip.launch(loaded, 1, &[tensor(x.addr)], &[3], &[]).map_err(text)?;
        chip.flush_outputs().map_err(text)?;
        // The same on memory of the device's own, and on host memory, which is staged.
        let memory = chip.memory().ok_or("no device memory")?.allocate(x.bytes).map_err(text)?;
        chip.write(memory, &floats.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).map_err(text)?;
        chip.launch(loaded, 1, &[tensor(memory)], &[5], &[]).map_err(text)?;
        let mut bytes = vec![0; x.bytes];
        chip.read(memory, &mut bytes).map_err(text)?;
        let expect = |bytes: &[u8], plus: f32| {
            let found: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            let wanted: Vec<f32> = floats.iter().map(|x| x + plus).collect();
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{:?} instead of {:?}", &found[..4], &wanted[..4]))
            }
        };
        expect(&bytes, 5.0)?;
        chip.memory().ok_or("no device memory")?.free(memory).map_err(text)?;
        output.read(0, &mut bytes).unwrap();
        expect(&bytes, 3.0)?;
        chip.launch(loaded, 1, &[tensor(DeviceAddr(output.addr()))], &[4], std::slice::from_ref(&host))
            .map_err(text)?;
        output.read(0, &mut bytes).unwrap();
        expect(&bytes, 7.0)?;
        chip.comm().ok_or("no communicator")?.barrier(patience()).map_err(|error| error.to_string())?;
        chip.tear_down().map_err(text)?;
        chip.tear_down().map_err(text)
    });
}

// CB-3
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer chip"]
fn a_device_or_kernel_that_is_not_there_is_named() {
    let (devices, platform) = (devices(), platform());
    in_processes(&devices[..1], &[], &|_, device| {
        let missing = ChipConfig::new(63);
        let failure = match bring_up(platform, &missing, None, patience(), &mut |_| {}) {
            Err(error) => text(error),
            Ok(_) => return Err("device 63 was opened".to_owned()),
        };
        if !failure.contains("63") || !failure.contains("device") {
            return Err(failure);
        }
        let mut chip =
            bring_up(platform, &ChipConfig::new(device), None, patience(), &mut |_| {}).map_err(text)?;
        let failure = match chip.load(Path::new("/nonexistent/kernel.o"), "kernel_entry") {
            Err(error) => text(error),
            Ok(_) => return Err("a kernel that is not there was loaded".to_owned()),
        };
        let closed = chip.tear_down();
        if failure.contains("/nonexistent/kernel.o") { closed.map_err(text) } else { Err(failure) }
    });
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer chip"]
fn memory_that_is_not_there_is_named() {
    let (devices, platform) = (devices(), platform());
    in_processes(&devices[..1], &[], &|_, device| {
        let mut chip =
            bring_up(platform, &ChipConfig::new(device), None, patience(), &mut |_| {}).map_err(text)?;
        let memory = chip.memory().ok_or("no device memory")?;
        let addr = memory.allocate(64).map_err(text)?;
        let outside = [memory.write(addr, &[0; 65]), memory.read(addr, &mut [0; 65])];
        memory.free(addr).map_err(text)?;
        let again = memory.free(addr);
        chip.tear_down().map_err(text)?;
        let says = |call: Result<(), ChipError>, said: &str| match call.map_err(text) {
            Err(text) if text.contains(said) => Ok(()),
            other => Err(format!("{other:?} instead of {said}")),
        };
        let said = format!(
            "65 bytes at {addr} are not inside one allocation of this device; take addresses from what was allocated"
        );
        outside.into_iter().try_for_each(|call| says(call, &said))?;
        says(again, "the device memory is already released; release it once, and use it before")
    });
}

/// The double can be made to hang; a real device comes up.
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer chip"]
fn a_device_that_hangs_when_it_is_opened_is_reported_by_the_call() {
    let limit = match session() {
        Some(_) => Timeout::new(Duration::from_millis(500)).unwrap(),
        None => patience(),
    };
    in_processes(&devices()[..1], &[], &|_, device| {
        // SAFETY: see the head of the file.
        unsafe { std::env::set_var("CANN_SIM_FAULTS", "aclrtSetDevice#1 hang") };
        let text = match bring_up(platform(), &ChipConfig::new(device), None, limit, &mut |_| {}) {
            Err(error) => text(error),
            Ok(mut chip) if session().is_none() => return chip.tear_down().map_err(text),
            Ok(_) => return Err("a device that hangs was opened".to_owned()),
        };
        let parts = [
            "aclrtSetDevice has not come back after ",
            "; end this process, and see `npu-smi info` for the state of the device",
        ];
        if parts.iter().all(|part| text.contains(part)) { Ok(()) } else { Err(text) }
    });
}
