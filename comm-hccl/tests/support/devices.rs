//! Hardware tests: one process for each device, and what it returns.
//!
//! # Safety
//! Forks before any vendor call. The children use the device and the communicator only, and no lock of the test harness.
#![allow(unsafe_code)]

use child_process::Child;
use comm_context::comm::Timeout;
use comm_hccl::{Device, LogicalDevice, Runtime, Vendor, VisibleDevices};
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use worker_errors::clip;

const TEXT: usize = 4096;

pub(crate) fn timeout() -> Timeout {
    Timeout::new(Duration::from_secs(120)).unwrap()
}

/// Runs `body` as one rank on one device, in this process, which is a child of the test.
fn on_device(device: u32, body: impl FnOnce(&Device) -> Result<(), String>) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let runtime = Runtime::start(Vendor::load(None).map_err(|e| text(&e))?).map_err(|e| text(&e))?;
    let list = VisibleDevices::from_env().map_err(|e| text(&e))?;
    let device = Device::open(runtime, LogicalDevice(device), &list).map_err(|e| text(&e))?;
    let done = body(&device);
    let closed = device.close().and_then(|()| runtime.finalise());
    done.and(closed.map_err(|e| text(&e)))
}

/// Runs `body` as every rank, each in its own process, and fails with the errors that they return.
pub(crate) fn in_processes(
    name: &str,
    devices: &[u32],
    keep: &[BorrowedFd<'_>],
    body: &dyn Fn(u32, &Device) -> Result<(), String>,
) {
    let texts = Region::create("texts", devices.len() * TEXT).unwrap();
    let children: Vec<Child> = devices
        .iter()
        .enumerate()
        .map(|(rank, device)| {
            let run = || match on_device(*device, |device| body(rank as u32, device)) {
                Ok(()) => 0,
                Err(text) => {
                    let _ = texts.write(rank * TEXT, clip(&text, TEXT).as_bytes());
                    1
                }
            };
            // SAFETY: see the head of the file.
            unsafe { Child::fork(keep, run) }.unwrap()
        })
        .collect();
    let end = Deadline::after(Duration::from_secs(300)).unwrap();
    let mut failed = Vec::new();
    for (rank, child) in children.iter().enumerate() {
        let how = child.reap(end);
        if how != Some(HowDied::Exited(0)) {
            let mut text = vec![0; TEXT];
            texts.read(rank * TEXT, &mut text).unwrap();
            failed.push(format!(
                "rank {rank} {how:?}: {}",
                String::from_utf8_lossy(&text).trim_end_matches('\0')
            ));
        }
    }
    assert!(failed.is_empty(), "{name} on devices {devices:?}:\n{}", failed.join("\n"));
}
