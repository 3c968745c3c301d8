//! Hardware tests: one process for each device, and what it returns.
//!
//! # Safety
//! Forks before any vendor call. The children use the chip only, and no lock of the test harness.
#![allow(unsafe_code, dead_code, reason = "it forks; each test program uses a part of this")]

use cann_sim::{Kind, hw_test, hw_test::session as double};
use child_process::Child;
use chip_bootstrap::Platform;
use comm_context::comm::Timeout;
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::time::Duration;
use worker_errors::{Failure, clip};

const TEXT: usize = 4096;

pub(crate) fn devices() -> Vec<i32> {
    hw_test::at_least(1).into_iter().map(|device| device as i32).collect()
}

pub(crate) fn platform() -> Platform {
    hw_test::platform().parse().unwrap()
}

pub(crate) fn patience() -> Timeout {
    Timeout::new(Duration::from_secs(120)).unwrap()
}

/// An error with its causes.
pub(crate) fn text(error: impl Into<Failure>) -> String {
    error.into().to_string()
}

/// Runs `body` for every device, each in its own process, and fails with their errors.
pub(crate) fn in_processes(
    devices: &[i32],
    keep: &[&Region],
    body: &dyn Fn(usize, i32) -> Result<(), String>,
) {
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
