//! The communicator on the double: which share mode is used and why, and what a rank's end does to the others.

mod support;

use comm_context::abi::{CommContextTail, DeviceAddr, PlacedContext};
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec, Membership, Timeout};
use comm_hccl::{HcclComm, Refusal, Stream};
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::time::{Duration, Instant};
use support::scenario::outcome;
use support::*;

const PATH: &str = "CHIPCOMM_TEST_PATH";

fn run_ranks(double: &Double, part: &str) -> [Output; 2] {
    let path = double.dir.path().join("rootinfo");
    let children = [0, 1].map(|rank| {
        let mut command = rank_command(double, part, rank);
        command.env(PATH, &path).env("HCCL_CONNECT_TIMEOUT", "3").env("HCCL_EXEC_TIMEOUT", "3");
        command.spawn().unwrap()
    });
    children.map(finish)
}

fn reported(output: &Output) -> String {
    outcome(output).unwrap_or_else(|| panic!("{}", text(output)))
}

fn texts(refusals: &[Refusal]) -> Vec<String> {
    refusals.iter().map(Refusal::to_string).collect()
}

fn within(seconds: u64) -> Timeout {
    Timeout::new(Duration::from_secs(seconds)).unwrap()
}

fn join(device: &comm_hccl::Device, rank: u32) -> Result<HcclComm, CommError> {
    let path = std::env::var_os(PATH).unwrap();
    HcclComm::rendezvous(device, path.as_ref(), Membership::new(rank, 2).unwrap(), within(30))
}

// CH-1: a mode that one rank does not support is used by none, and every rank reports whose refusal it was.
#[test]
fn a_mode_that_one_rank_refuses_is_used_by_none() {
    let unsupported = "rank=1 aclrtMemExportToShareableHandleV2#1 return 207000";
    for (machine, script, mode, reasons) in [
        ("", "", "Fabric", &[][..]),
        ("", unsupported, "shareable handle", &["Fabric: rank 1: ", "207000"]),
        // A5 never tries Fabric.
        ("soc = Ascend950PR", "", "shareable handle", &["Fabric: rank 0: ", "not used on Ascend A5"]),
        // The vendor may never report the path to a peer as up.
        ("fabric = off\npeer-status = off", "", "shareable handle", &["Fabric: rank 0: "]),
        (
            "fabric = off\npeer-access = off",
            "",
            "IPC key",
            &["Fabric: rank 0: ", "shareable handle: rank 0: "],
        ),
    ] {
        let double = double(machine);
        double.session.script(script).unwrap();
        let outputs = run_ranks(&double, "part_mode");
        for text in outputs.iter().map(reported) {
            // Without a path between the devices no mode works.
            let expected =
                if machine.contains("peer-access") { "windows cannot be shared in any mode (" } else { mode };
            assert!(text.contains(expected) && reasons.iter().all(|reason| text.contains(reason)), "{text}");
            let advised = text.contains(
                "); check the driver, ASCEND_RT_VISIBLE_DEVICES and the CANN version of every rank",
            );
            assert_eq!(advised, machine.contains("peer-access"), "{text}");
        }
        for output in &outputs {
            let text = text(output);
            let warned = text.contains("[chipcomm] warning: access to the peer's visible device");
            assert_eq!(warned, machine.contains("peer-status"), "{text}");
            assert_eq!(warned, text.contains(" was enabled, but was not reported as up in "), "{text}");
        }
        let report = double.session.report().unwrap();
        assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
    }
}

#[test]
#[ignore = "a part of a_mode_that_one_rank_refuses_is_used_by_none"]
fn part_mode() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = join(&device, rank).unwrap();
    match comm.alloc_windows(4096, within(30)) {
        Ok(_) => println!("\noutcome: {} {:?}", comm.share_mode().unwrap(), texts(&comm.refusals())),
        Err(error) => println!("\noutcome: {error}"),
    }
    // The communicator works in either case.
    comm.barrier(within(30)).unwrap();
    Box::new(comm).destroy(within(30)).unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CH-1
#[test]
fn a_mode_that_was_refused_is_not_tried_again() {
    let double = double("");
    // Only the first export: the next one would succeed.
    double.session.script("rank=1 aclrtMemExportToShareableHandleV2#1 return 207000").unwrap();
    for output in run_ranks(&double, "part_two_allocations") {
        assert_eq!(reported(&output), "shareable handle after 1, then shareable handle after 1");
    }
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of a_mode_that_was_refused_is_not_tried_again"]
fn part_two_allocations() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = join(&device, rank).unwrap();
    let mode = || format!("{} after {}", comm.share_mode().unwrap(), comm.refusals().len());
    comm.alloc_windows(4096, within(30)).unwrap();
    let first = mode();
    let spec = DomainSpec { id: AllocationId(7), ranks: &[0, 1], domain_rank: rank, window_size: 4096 };
    comm.alloc_domain(&spec, within(30)).unwrap();
    println!("\noutcome: {first}, then {}", mode());
    Box::new(comm).destroy(within(30)).unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CH-1: only what the vendor does not support leads to the next mode.
#[test]
fn an_export_that_fails_for_another_reason_is_an_error_and_not_the_next_mode() {
    for (code, outcome) in [(200001, "shareable handle"), (200006, "shareable handle"), (507899, "507899")] {
        let double = double("");
        double.session.script(&format!("rank=1 aclrtMemExportToShareableHandleV2#1 return {code}")).unwrap();
        let outputs = run_ranks(&double, "part_mode");
        for text in outputs.iter().map(reported) {
            assert!(text.contains(outcome) && text.contains(&code.to_string()), "{text}");
            assert_eq!(text.contains("shareable handle"), code != 507899, "{text}");
        }
        assert!(double.session.report().unwrap().is_clean());
    }
}

// The peer cannot be reached: the import fails, and the error has the warning that came before.
#[test]
fn a_warning_of_a_peer_is_in_the_error_of_what_fails_later() {
    let double = double("fabric = off");
    double.session.script("rank=1 aclrtDeviceEnablePeerAccess#1 return 507899").unwrap();
    let outputs = run_ranks(&double, "part_mode");
    let text = reported(&outputs[1]);
    for part in [
        "aclrtMemImportFromShareableHandle returned 507899",
        "before that, access to the peer's visible device 0 could not be enabled",
        "aclrtDeviceEnablePeerAccess failed with 507899",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(double.session.report().unwrap().is_clean());
}

// CH-8: the double reports a window that is freed while a peer has it open as an error.
#[test]
fn a_rank_frees_its_windows_after_the_living_ranks_have_closed_them() {
    for machine in ["", "fabric = off", "fabric = off\nshareable = off"] {
        let double = double(machine);
        for output in run_ranks(&double, "part_leaves_early") {
            assert_eq!(reported(&output), "Ok(())");
        }
        let report = double.session.report().unwrap();
        assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
    }
}

#[test]
#[ignore = "a part of a_rank_frees_its_windows_after_the_living_ranks_have_closed_them"]
fn part_leaves_early() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = join(&device, rank).unwrap();
    let window = comm.alloc_windows(4096, within(30)).unwrap();
    if rank == 1 {
        // Longer than rank 0 needs to free its window.
        std::thread::sleep(Duration::from_secs(1));
        comm.write(window.base, &[1]).unwrap();
    }
    let began = Instant::now();
    let destroyed = Box::new(comm).destroy(within(60));
    println!("\noutcome: {destroyed:?}");
    assert!(rank == 1 || began.elapsed() >= Duration::from_millis(500), "rank 0 waits for rank 1");
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CH-8: without the dead.
#[test]
fn a_rank_does_not_wait_for_a_dead_one_to_close_its_windows() {
    let double = double("");
    double.session.script("rank=1 aclrtUnmapMem#1 kill").unwrap();
    let outputs = run_ranks(&double, "part_leaves_early");
    assert_eq!(outputs[1].status.signal(), Some(9), "{}", text(&outputs[1]));
    assert_eq!(reported(&outputs[0]), "Ok(())");
}

// CH-5: the vendor's barrier would hold the survivor for ten minutes, and destroy until its deadline.
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn a_hung_call_does_not_hold_destroy_when_a_peer_has_failed() {
    let double = double("");
    double.session.script("rank=1 HcclBarrier#1 kill").unwrap();
    let path = double.dir.path().join("rootinfo");
    let children = [0, 1].map(|rank| {
        let mut command = rank_command(&double, "part_destroys_with_a_hung_call", rank);
        command.env(PATH, &path).env("HCCL_EXEC_TIMEOUT", "600").spawn().unwrap()
    });
    let outputs = children.map(finish);
    let text = reported(&outputs[0]);
    assert!(text.contains("rank 1 (pid ") && !text.contains("late"), "{text}");
}

#[test]
#[ignore = "a part of a_hung_call_does_not_hold_destroy_when_a_peer_has_failed"]
fn part_destroys_with_a_hung_call() {
    let Some(rank) = my_rank() else { return };
    let (_runtime, device) = open_device(rank);
    let comm = join(&device, rank).unwrap();
    comm.barrier(within(120)).expect_err("rank 1 dies");
    let began = Instant::now();
    let error = Box::new(comm).destroy(within(120)).expect_err("broken");
    let late = if began.elapsed() > Duration::from_secs(30) { "late: " } else { "" };
    println!("\noutcome: {late}{error}");
}

// CH-4, F28: one member's failure fails all members, and the next attempt works.
#[test]
fn f28_a_window_that_one_rank_cannot_allocate_is_allocated_by_none() {
    let double = double("");
    double.session.script("rank=1 aclrtMemset#1 return 507015").unwrap();
    let outputs = run_ranks(&double, "part_undone");
    let [zero, one] = [&outputs[0], &outputs[1]].map(reported);
    assert!(zero.contains("rank 1 failed in alloc_windows: aclrtMemset returned 507015"), "{zero}");
    assert!(
        one.contains("aclrtMemset returned 507015") && one.contains("rank 1 on logical device 1"),
        "{one}"
    );
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of f28_a_window_that_one_rank_cannot_allocate_is_allocated_by_none"]
fn part_undone() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = join(&device, rank).unwrap();
    let error = comm.alloc_windows(4096, within(30)).expect_err("rank 1 cannot");
    println!("\noutcome: {error}");
    // CH-3, F25: the double's memory is not zero at first.
    let window = comm.alloc_windows(4096, within(30)).unwrap();
    let mut bytes = vec![1; window.size];
    comm.read(window.base, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    // CH-6, F14: the barrier switches the context of its own thread only.
    let stream = Stream::create(&device).unwrap();
    comm.barrier(within(30)).unwrap();
    stream.synchronize().unwrap();
    stream.release().unwrap();
    Box::new(comm).destroy(within(30)).unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// F20: every rank reports a taken port, as rank 0's failure.
#[test]
fn f20_a_taken_port_is_reported_by_every_rank() {
    let double = double("root-port = taken");
    let outputs = run_ranks(&double, "part_no_root");
    let [zero, one] = [&outputs[0], &outputs[1]].map(reported);
    assert!(zero.contains("HcclGetRootInfo returned 7") && zero.contains("60000"), "{zero}");
    assert!(one.contains("rank 0 failed in init: HcclGetRootInfo returned 7"), "{one}");
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of f20_a_taken_port_is_reported_by_every_rank"]
fn part_no_root() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    println!("\noutcome: {}", join(&device, rank).expect_err("no port"));
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CH-5, F20: the survivor learns of the death at once, not at its deadline, though it waits inside the vendor's code.
#[test]
fn f20_a_rank_that_dies_inside_the_vendors_barrier_is_named_at_once() {
    let double = double("");
    double.session.script("rank=1 HcclBarrier#1 kill").unwrap();
    let outputs = run_ranks(&double, "part_survivor");
    assert_eq!(outputs[1].status.signal(), Some(9), "{}", text(&outputs[1]));
    let text = reported(&outputs[0]);
    assert!(text.contains("rank 1 (pid ") && text.contains("in barrier"), "{text}");
    assert!(text.contains("again: this communicator failed before"), "{text}");
    let survivor =
        double.session.report().unwrap().processes.into_iter().find(|p| p.rank == Some(0)).unwrap();
    assert!(survivor.is_clean(), "{survivor:?}");
}

#[test]
#[ignore = "a part of f20_a_rank_that_dies_inside_the_vendors_barrier_is_named_at_once"]
fn part_survivor() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = join(&device, rank).unwrap();
    let began = Instant::now();
    let error = comm.barrier(within(60)).expect_err("rank 1 dies");
    // Long before the deadline. The error shows that the vendor's own limit did not end the wait.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let again = comm.barrier(within(60)).expect_err("broken");
    println!("\noutcome: {error}; again: {again}");
    assert!(Box::new(comm).destroy(within(20)).is_err());
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CH-5: the vendor's barrier fails on rank 1, which goes on; rank 0 is inside it.
#[test]
fn ch_5_a_rank_whose_barrier_fails_is_named_to_the_others() {
    let double = double("");
    double.session.script("rank=1 HcclBarrier#1 return 21").unwrap();
    let outputs = run_ranks(&double, "part_barrier_fails");
    let [zero, one] = [&outputs[0], &outputs[1]].map(reported);
    assert!(zero.contains("rank 1 ") && !zero.contains("has not come back"), "{zero}");
    assert!(
        one.contains("HcclBarrier returned 21") && one.contains("again: this communicator failed"),
        "{one}"
    );
}

#[test]
#[ignore = "a part of ch_5_a_rank_whose_barrier_fails_is_named_to_the_others"]
fn part_barrier_fails() {
    let Some(rank) = my_rank() else { return };
    let (_runtime, device) = open_device(rank);
    let comm = join(&device, rank).unwrap();
    let error = comm.barrier(within(25)).expect_err("rank 1 fails");
    let again = comm.barrier(within(25)).expect_err("broken");
    println!("\noutcome: {error}; again: {again}");
    // Rank 1 lives until rank 0 has learnt of it, or has waited to its deadline.
    let seen = std::path::PathBuf::from(std::env::var_os(PATH).unwrap()).with_extension("seen");
    if rank == 0 {
        std::fs::write(seen, "").unwrap();
        return;
    }
    let end = Instant::now() + Duration::from_secs(60);
    while !seen.exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
}

// F46: kernels poll a word on the device; the parent's word is in host memory.
#[test]
fn f46_f52_the_parents_words_are_copied_to_the_device() {
    let double = double("");
    let output = finish(rank_command(&double, "part_abort", 0).spawn().unwrap());
    assert_eq!(reported(&output), "words [[0, 0], [1, 0], [1, 0], [0, 1]]");
    let report = double.session.report().unwrap();
    assert!(report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of f46_f52_the_parents_words_are_copied_to_the_device"]
fn part_abort() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let prepared = HcclComm::prepare_group(1).unwrap();
    let comm = HcclComm::join(&device, &prepared, 0, within(30)).unwrap();
    // Before there is a word that a kernel could poll.
    comm.relay_abort().unwrap();
    let window = comm.alloc_windows(4096, within(30)).unwrap();
    let mut bytes = [0; size_of::<PlacedContext>()];
    device.read(window.context, &mut bytes).unwrap();
    let PlacedContext { context, tail } = PlacedContext::decode(&bytes).unwrap();
    assert_eq!((tail.magic, context.work_space, context.work_space_size), (CommContextTail::MAGIC, 0, 0));
    let mut words = Vec::new();
    let mut relay = || {
        comm.relay_abort().unwrap();
        words.push([tail.abort, tail.generation].map(|at| {
            let mut word = [0; 4];
            device.read(DeviceAddr(at), &mut word).unwrap();
            u32::from_le_bytes(word)
        }));
    };
    relay();
    prepared.cancel_kernels();
    relay();
    relay();
    prepared.resume_kernels();
    relay();
    println!("\noutcome: words {words:?}");
    Box::new(comm).destroy(within(30)).unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}
