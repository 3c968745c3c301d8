//! Bring-up, memory, a kernel and teardown on every device: `cargo xtask hw-test --layer chip`.
//!
//! # Safety
//! Forks before any vendor call. The children use the chip only, and no lock of the test harness.
#![cfg(feature = "ascend")]
#![allow(unsafe_code)]

use cann_sim::{Kind, hw_test, hw_test::session as double};
use child_process::Child;
use chip_bootstrap::{ChipConfig, Entry, HostSpan, Platform, bring_up};
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use comm_context::comm::{Membership, Timeout};
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use worker_errors::{Failure, clip};

const TEXT: usize = 4096;

fn devices() -> Vec<i32> {
    hw_test::devices().into_iter().map(|device| device as i32).collect()
}

fn platform() -> Platform {
    hw_test::platform().parse().unwrap()
}

fn patience() -> Timeout {
    Timeout::new(Duration::from_secs(120)).unwrap()
}

/// A kernel that adds its scalar to every float of its tensor: compiled here for the double, given for a
/// device.
fn kernel(folder: &Path) -> PathBuf {
    if double().is_none() {
        return hw_test::kernel_folder().join("add.o");
    }
    let (source, library) = (folder.join("add.cpp"), folder.join("add.so"));
    let text = r#"
#include "tensor.h"
extern "C" void kernel_entry(int64_t *args) {
    const TensorDesc *tensor = reinterpret_cast<const TensorDesc *>(args[0]);
    float *data = reinterpret_cast<float *>(tensor->addr) + tensor->start_offset;
    for (uint64_t i = 0; i < tensor->extent; i++) data[i] += static_cast<float>(args[1]);
}
"#;
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-shared", "-fPIC", "-I", comm_context::INCLUDE_DIR, "-o"]);
    assert!(compiler.arg(&library).arg(&source).status().expect("g++ is needed").success());
    library
}

/// An error with its causes.
fn text(error: impl Into<Failure>) -> String {
    error.into().to_string()
}

/// Runs `body` for every device, each in its own process, and fails with their errors.
fn in_processes(devices: &[i32], keep: &[&Region], body: &dyn Fn(usize, i32) -> Result<(), String>) {
    let before = double().map_or(0, |session| session.report().unwrap().processes.len());
    let texts = Region::create("texts", devices.len() * TEXT).unwrap();
    let keep: Vec<_> = keep.iter().map(|region| region.fd()).collect();
    let children: Vec<Child> = devices
        .iter()
        .enumerate()
        .map(|(rank, device)| {
            let run = || match body(rank, *device) {
                Ok(()) => 0,
                Err(text) => {
                    let _ = texts.write(rank * TEXT, clip(&text, TEXT).as_bytes());
                    1
                }
            };
            // SAFETY: see the head of the file.
            unsafe { Child::fork(&keep, run) }.unwrap()
        })
        .collect();
    let end = Deadline::after(Duration::from_secs(300)).unwrap();
    let mut failed = Vec::new();
    for (rank, child) in children.iter().enumerate() {
        let how = child.reap(end);
        let mut text = vec![0; TEXT];
        texts.read(rank * TEXT, &mut text).unwrap();
        if how != Some(HowDied::Exited(0)) {
            failed.push(format!(
                "rank {rank} {how:?}: {}",
                String::from_utf8_lossy(&text).trim_end_matches('\0')
            ));
        }
    }
    assert!(failed.is_empty(), "on devices {devices:?}:\n{}", failed.join("\n"));
    if let Some(session) = double() {
        let report = session.report().unwrap();
        let ours = &report.processes[before..];
        // The runtime itself lasts as long as the process.
        let holds =
            |process: &cann_sim::ProcessReport| process.live.iter().any(|(kind, _)| *kind != Kind::Runtime);
        let clean = |process: &cann_sim::ProcessReport| !holds(process) && process.reclaimed.is_empty();
        assert!(ours.len() == devices.len() && ours.iter().all(clean), "{report}");
    }
}

// CB-1, CB-4, CB-5
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer chip"]
fn chips_come_up_stage_run_a_kernel_store_and_go_down() {
    const COUNT: usize = 256;
    let (devices, platform) = (devices(), platform());
    let folder = tempfile::tempdir().unwrap();
    let (kernel, path) = (kernel(folder.path()), folder.path().join("rootinfo"));
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
        chip.launch(loaded, &[tensor(x.addr)], &[3], &[]).map_err(text)?;
        chip.flush_outputs().map_err(text)?;
        // The same on memory of the device's own, and on host memory, which is staged.
        let memory = chip.memory().ok_or("no device memory")?.allocate(x.bytes).map_err(text)?;
        chip.write(memory, &floats.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).map_err(text)?;
        chip.launch(loaded, &[tensor(memory)], &[5], &[]).map_err(text)?;
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
        chip.launch(loaded, &[tensor(DeviceAddr(output.addr()))], &[4], std::slice::from_ref(&host))
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
