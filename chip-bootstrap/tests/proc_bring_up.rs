//! Bring-up in real processes, with and without a channel, and its errors.
//!
//! # Safety
//! Forks; the children use chips, shared memory and channels, and no lock of the test harness.
#![cfg(feature = "sim")]
#![allow(unsafe_code, missing_docs)]

use bootstrap_channel::{ChannelSet, Reply};
use child_process::Child;
use chip_bootstrap::{
    BringUpPhase, ChipConfig, ChipGroup, Entry, HostSpan, Platform, bring_up, bring_up_and_publish,
};
use comm_context::abi::DType;
use comm_context::comm::{AllocationId, Communicator, Membership, Timeout};
use deadline::{Deadline, HowDied};
use mailbox_atomics::Wait;
use serial_test::serial;
use shared_memory::Region;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

fn limit() -> Timeout {
    Timeout::new(Duration::from_secs(60)).unwrap()
}

fn far() -> Deadline {
    Deadline::after(limit().get()).unwrap()
}

fn span(bytes: &[u8]) -> HostSpan {
    let region = Region::create("host", 4096).unwrap();
    region.write(0, bytes).unwrap();
    HostSpan::new(Arc::new(region), 0..bytes.len()).unwrap()
}

/// Forks one process for each configuration; each brings its chip up and publishes, then runs `body`.
fn chips(configs: &[ChipConfig], body: fn(&mut chip_bootstrap::Chip) -> i32) -> (ChannelSet, Vec<Child>) {
    let channels = ChannelSet::create(configs.len()).unwrap();
    let group = ChipGroup::prepare(Platform::Sim, configs.len() as u32).unwrap();
    let entry = Entry::Forked(group.clone());
    let children = configs
        .iter()
        .enumerate()
        .map(|(number, config)| {
            let main = || {
                let mut channel = channels.writer(number).unwrap();
                match bring_up_and_publish(Platform::Sim, config, Some(&entry), limit(), &mut channel) {
                    Ok(mut chip) => {
                        let code = body(&mut chip);
                        // CB-4: the second time does nothing.
                        i32::from(chip.tear_down().is_err() || chip.tear_down().is_err()) + code
                    }
                    Err(_) => 40,
                }
            };
            // SAFETY: see the head of the file.
            unsafe { Child::fork(&group.fds().collect::<Vec<_>>(), main) }.unwrap()
        })
        .collect();
    (channels, children)
}

fn config(rank: u32, nranks: u32) -> ChipConfig {
    ChipConfig::new(10 + rank as i32).communicator(Membership::new(rank, nranks).unwrap()).window(4096)
}

#[test]
#[serial]
fn chips_come_up_with_windows_laid_out_and_inputs_staged() {
    let input = span(&[5; 64]);
    let configs: Vec<ChipConfig> = (0..3)
        .map(|rank| config(rank, 3).buffer("x", DType::Uint8, 64).load_from(&input).region("signals", 100))
        .collect();
    let (channels, children) = chips(&configs, |chip| {
        let comm: &dyn Communicator = chip.comm().unwrap();
        comm.barrier(limit()).unwrap();
        let mut bytes = [0; 64];
        comm.read(chip.buffer("x").unwrap().addr, &mut bytes).unwrap();
        comm.barrier(limit()).unwrap();
        i32::from(bytes != [5; 64] || chip.buffer("signals").unwrap().bytes != 100)
    });
    let ready = channels.gather(&Wait::until(far())).unwrap();
    for (rank, reply) in ready.iter().enumerate() {
        assert_eq!(reply.buffers, [reply.window_base, reply.window_base + 64], "chip {rank}");
        assert!(reply.device_ctx != 0 && reply.window_size == 4096);
        assert_eq!(channels.reader(rank).unwrap().phase(), BringUpPhase::Ready as u32);
    }
    assert!(children.iter().all(|child| child.reap(far()) == Some(HowDied::Exited(0))));
}

#[test]
#[serial]
fn f01_a_failure_is_published_with_phase_device_and_rank() {
    // CB-3: the configuration of one chip cannot work.
    let configs = [config(0, 2), config(1, 2).buffer("x", DType::Float32, 4096)];
    let (channels, children) = chips(&configs, |_| 0);
    let Reply::Failed(failed) = channels.reader(1).unwrap().wait(&Wait::until(far())).unwrap() else {
        panic!()
    };
    assert_eq!(failed.error_code(), Some(ErrorCode::Invalid));
    for word in ["rank 1", "device 11", "configuration", "need 16384 bytes"] {
        assert!(failed.message.contains(word), "{word} is missing: {}", failed.message);
    }
    assert_eq!(children[1].reap(far()), Some(HowDied::Exited(40)));
}

#[test]
#[serial]
fn f31_outputs_reach_the_host_when_they_are_flushed() {
    // CB-5
    let output = span(&[0; 16]);
    let configs = [config(0, 1).region("out", 16).store_to(&output)];
    let (_channels, children) = chips(&configs, |chip| {
        chip.write(chip.buffer("out").unwrap().addr, &[9; 16]).unwrap();
        chip.flush_outputs().unwrap();
        0
    });
    assert_eq!(children[0].reap(far()), Some(HowDied::Exited(0)));
    let mut bytes = [0; 16];
    output.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 16]);
}

#[test]
#[serial]
fn a_chip_works_alone_without_channel_and_without_communicator() {
    let mut phases = Vec::new();
    let mut chip =
        bring_up(Platform::Sim, &ChipConfig::new(4), None, limit(), &mut |phase| phases.push(phase)).unwrap();
    assert_eq!(phases, [BringUpPhase::Configuration, BringUpPhase::Device, BringUpPhase::Ready]);
    assert!(chip.comm().is_none() && chip.window().is_none() && chip.device_id() == 4);
    assert!(chip.read(comm_context::abi::DeviceAddr(0x1000), &mut [0]).is_err());
    chip.tear_down().unwrap();
    chip.tear_down().unwrap();
}

#[test]
#[serial]
fn bad_devices_and_missing_entries_are_reported_with_their_phase() {
    let refused = |config: &ChipConfig| {
        let brought = bring_up(Platform::Sim, config, None, limit(), &mut |_| ());
        let error = brought.map(drop).unwrap_err();
        let place = format!("device {} did not come up: it failed in phase {}", error.device, error.phase);
        assert_eq!(error.to_string(), place);
        Failure::from(error).to_string()
    };
    let bad = refused(&ChipConfig::new(-3));
    assert!(
        bad.contains("there is no device -3; devices count from 0") && bad.contains("in device"),
        "{bad}"
    );
    let lost = refused(&config(0, 1));
    assert!(
        lost.contains("has a communicator, but nothing says where its group is; pass an Entry")
            && lost.contains("in communicator"),
        "{lost}"
    );
}

#[test]
fn a_chip_without_communicator_and_a_kernel_that_is_not_there_are_named() {
    let mut chip = bring_up(Platform::Sim, &ChipConfig::new(0), None, limit(), &mut |_| ()).unwrap();
    let released = chip.release_domain(AllocationId(7)).unwrap_err();
    assert_eq!(released.to_string(), "this chip has no communicator; give it one in its ChipConfig");
    let missing = chip.load(Path::new("/no/such/kernel.so"), "kernel_entry").map(drop).unwrap_err();
    let failure = Failure::from(missing);
    assert_eq!(failure.message, "kernel /no/such/kernel.so cannot be opened; check the path");
    assert!(failure.root_cause().message.starts_with("No such file or directory"), "{failure}");
    chip.tear_down().unwrap();
}
