//! Every device comes up and reports it through the bootstrap channel: `cargo xtask hw-test --layer bootstrap`.
#![cfg(feature = "ascend")]

mod support;

use bootstrap_channel::{ChannelSet, Deadline, Reply, Wait};
use chip_bootstrap::{ChipConfig, ChipGroup, Entry, bring_up_and_publish};
use comm_context::abi::DType;
use comm_context::comm::Membership;
use support::{devices, in_processes, patience, platform, text};

const WINDOW: usize = 1 << 20;

// BC-2, CB-1
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer bootstrap"]
fn every_device_comes_up_and_reports_its_context_and_window() {
    let (devices, platform) = (devices(), platform());
    let chips = devices.len() as u32;
    let set = ChannelSet::create(devices.len()).unwrap();
    let group = ChipGroup::prepare(platform, chips).unwrap();
    in_processes(&devices, &[group.region()], &|rank, device| {
        let config = ChipConfig::new(device)
            .communicator(Membership::new(rank as u32, chips).unwrap())
            .window(WINDOW)
            .buffer("first", DType::Float32, 256)
            .buffer("second", DType::Float32, 256);
        let entry = Entry::Forked(group.clone());
        let mut channel = set.writer(rank).map_err(|error| error.to_string())?;
        let chip = bring_up_and_publish(platform, &config, Some(&entry), patience(), &mut channel);
        let mut chip = chip.map_err(text)?;
        let comm = chip.comm().ok_or("no communicator")?;
        comm.barrier(patience()).map_err(|error| error.to_string())?;
        chip.tear_down().map_err(text)
    });
    // What a chip published stays there when it is gone.
    let wait = Wait::until(Deadline::after(patience().get()).unwrap());
    for (rank, device) in devices.iter().enumerate() {
        let reply = set.reader(rank).unwrap().wait(&wait).unwrap();
        let Reply::Success(up) = reply else { panic!("device {device}: {reply:?}") };
        assert!(up.device_ctx != 0 && up.window_base != 0, "device {device}: {up:x?}");
        assert!(up.window_size >= WINDOW as u64, "device {device}: {up:x?}");
        assert_eq!(up.buffers.len(), 2, "device {device}: {up:x?}");
        assert_eq!(
            up.buffers[0], up.window_base,
            "device {device}: the first buffer is where the window starts"
        );
    }
}
