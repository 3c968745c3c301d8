//! The conformance suite with one process for each device: `cargo xtask hw-test --layer comm`.
//!
//! # Safety
//! Forks before any vendor call. The children use the communicator only, and no lock of the test harness.
#![allow(unsafe_code)]

use cann_sim::hw_test::devices;
use child_process::Child;
use comm_context::comm::{Communicator, Timeout};
use comm_context::conformance::{self, TestRank};
use comm_hccl::{Device, HcclComm, LogicalDevice, Runtime, Vendor, VisibleDevices};
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use worker_errors::clip;

const TEXT: usize = 4096;

fn timeout() -> Timeout {
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
fn in_processes(
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

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer comm"]
fn forked_ranks_pass_the_suite() {
    let devices = devices();
    let nranks = devices.len() as u32;
    let mut ran = 0;
    for case in conformance::cases(nranks) {
        let prepared = HcclComm::prepare_group(nranks).unwrap();
        in_processes(case.name, &devices, &prepared.fds().collect::<Vec<_>>(), &|rank, device| {
            let open = |_| {
                Ok(Box::new(HcclComm::join(device, &prepared, rank, timeout())?) as Box<dyn Communicator>)
            };
            (case.run)(&TestRank { rank, nranks, open: &open, timeout: timeout() })
        });
        ran += 1;
    }
    assert!(ran >= 14, "only {ran} cases");
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer comm"]
fn ranks_that_join_at_a_path_pass_the_suite() {
    let devices = devices();
    let nranks = devices.len() as u32;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    let mut ran = 0;
    for case in conformance::cases(nranks) {
        in_processes(case.name, &devices, &[], &|rank, device| {
            let open = |me| {
                Ok(Box::new(HcclComm::rendezvous(device, &path, me, timeout())?) as Box<dyn Communicator>)
            };
            (case.run)(&TestRank { rank, nranks, open: &open, timeout: timeout() })
        });
        ran += 1;
    }
    assert!(ran >= 14, "only {ran} cases");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was left at the path");
}
