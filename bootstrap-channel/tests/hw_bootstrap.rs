//! The channel once for each device: `cargo xtask hw-test --layer bootstrap`.
//!
//! The mailbox itself is plain memory, and what is under test is that it works on a machine with
//! devices, for as many chips as it has: kernel, memory limits, process limits.
//!
//! # Safety
//! Forks. The children use shared memory and system calls, and no lock of the test harness.
#![allow(unsafe_code, missing_docs)]

use bootstrap_channel::{ChannelSet, Success};
use child_process::Child;
use deadline::{Deadline, Death};
use mailbox_atomics::Wait;
use std::time::Duration;

/// The devices to use. A run without them has tested nothing, so it fails.
fn devices() -> Vec<u32> {
    const HOW: &str = "set it to device ids such as 0,1, or run `cargo xtask hw-test --layer bootstrap`";
    let listed =
        std::env::var("CHIPCOMM_DEVICES").unwrap_or_else(|error| panic!("CHIPCOMM_DEVICES: {error}; {HOW}"));
    let id =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("CHIPCOMM_DEVICES={listed}: `{text}`; {HOW}"));
    listed.split(',').map(id).collect()
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer bootstrap"]
fn every_device_reports_its_bring_up() {
    let devices = devices();
    let reply = |device: u32| Success { device_ctx: u64::from(device), ..Success::default() };
    let set = ChannelSet::create(devices.len()).unwrap();
    let children: Vec<Child> = devices
        .iter()
        .enumerate()
        .map(|(chip, device)| {
            let body = || {
                let mut writer = set.writer(chip).unwrap();
                writer.set_phase(1);
                writer.publish_success(&reply(*device)).unwrap();
                loop {
                    std::thread::sleep(Duration::from_secs(60));
                }
            };
            // SAFETY: see the top of the file.
            unsafe { Child::fork(&[], body) }.unwrap()
        })
        .collect();
    let watch = || {
        children
            .iter()
            .zip(0..)
            .find_map(|(child, peer)| child.watch().death().map(|how| Death { peer, pid: child.pid(), how }))
    };
    let wait = Wait::until(Deadline::after(Duration::from_secs(30)).unwrap()).watching(&watch);
    assert_eq!(set.gather(&wait), Ok(devices.into_iter().map(reply).collect()));
}
