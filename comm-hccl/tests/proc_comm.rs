//! The communicator on the double: which way windows take and why, what a rank's end does to the others.

mod support;

use comm_context::abi::DeviceAddr;
use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use comm_hccl::{HcclComm, Stream};
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::time::{Duration, Instant};
use support::life::outcome;
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

fn told(output: &Output) -> String {
    outcome(output).unwrap_or_else(|| panic!("{}", text(output)))
}

fn within(seconds: u64) -> Timeout {
    Timeout::new(Duration::from_secs(seconds)).unwrap()
}

fn meet(device: &comm_hccl::Device, rank: u32) -> Result<HcclComm, CommError> {
    let path = std::env::var_os(PATH).unwrap();
    HcclComm::rendezvous(device, path.as_ref(), Membership::new(rank, 2).unwrap(), within(30))
}

// CH-1: what one rank lacks, none uses; everybody knows whose fault it was.
#[test]
fn a_way_that_one_rank_lacks_is_taken_by_none() {
    let unsupported = "rank=1 aclrtMemExportToShareableHandleV2#1 return 207000";
    for (machine, script, way, reasons) in [
        ("", "", "Fabric", &[][..]),
        ("", unsupported, "shareable handle", &["Fabric: rank 1: ", "207000"]),
        (
            "fabric = off\npeer-access = off",
            "",
            "IPC key",
            &["Fabric: rank 0: ", "shareable handle: rank 0: "],
        ),
    ] {
        let double = double(machine);
        double.session.script(script).unwrap();
        let outputs = run_ranks(&double, "part_way");
        for told in outputs.iter().map(told) {
            // Without any path between the cards no way is left at all.
            let expected = if machine.contains("peer-access") { "no way to share" } else { way };
            assert!(told.contains(expected) && reasons.iter().all(|reason| told.contains(reason)), "{told}");
        }
        let report = double.session.report().unwrap();
        assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
    }
}

#[test]
#[ignore = "a part of a_way_that_one_rank_lacks_is_taken_by_none"]
fn part_way() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = meet(&device, rank).unwrap();
    match comm.alloc_windows(4096, within(30)) {
        Ok(_) => println!("\noutcome: {}; {}", comm.way().unwrap(), comm.refusals().join("; ")),
        Err(error) => println!("\noutcome: {error}"),
    }
    // Whatever came of it, the communicator still works.
    comm.barrier(within(30)).unwrap();
    Box::new(comm).destroy(within(30)).unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CH-4, F28: one member's failure is everybody's, and the next try works.
#[test]
fn f28_a_window_that_one_rank_cannot_make_is_made_by_none() {
    let double = double("");
    double.session.script("rank=1 aclrtMemset#1 return 507015").unwrap();
    let outputs = run_ranks(&double, "part_undone");
    let [zero, one] = [&outputs[0], &outputs[1]].map(told);
    assert!(zero.contains("rank 1 failed in alloc_windows: aclrtMemset returned 507015"), "{zero}");
    assert!(
        one.contains("aclrtMemset returned 507015") && one.contains("rank 1 on logical device 1"),
        "{one}"
    );
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of f28_a_window_that_one_rank_cannot_make_is_made_by_none"]
fn part_undone() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = meet(&device, rank).unwrap();
    let error = comm.alloc_windows(4096, within(30)).expect_err("rank 1 cannot");
    println!("\noutcome: {error}");
    // CH-3, F25: the double's memory is dirty, so this zero is ours.
    let window = comm.alloc_windows(4096, within(30)).unwrap();
    let mut bytes = vec![1; window.size];
    comm.read(window.base, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    // CH-6, F14: the barrier's switch of the context does not reach this thread.
    let stream = Stream::create(&device).unwrap();
    comm.barrier(within(30)).unwrap();
    stream.synchronize().unwrap();
    stream.release().unwrap();
    Box::new(comm).destroy(within(30)).unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// F20: a taken port is told by every rank, as rank 0's failure.
#[test]
fn f20_a_port_that_is_taken_is_told_by_every_rank() {
    let double = double("root-port = taken");
    let outputs = run_ranks(&double, "part_no_root");
    let [zero, one] = [&outputs[0], &outputs[1]].map(told);
    assert!(zero.contains("HcclGetRootInfo returned 7") && zero.contains("60000"), "{zero}");
    assert!(one.contains("rank 0 failed in init: HcclGetRootInfo returned 7"), "{one}");
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of f20_a_port_that_is_taken_is_told_by_every_rank"]
fn part_no_root() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    println!("\noutcome: {}", meet(&device, rank).expect_err("no port"));
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CH-5, F20: the survivor is told now, not at its deadline, though it waits inside the vendor's code.
#[test]
fn f20_a_rank_that_dies_inside_the_vendors_barrier_is_named_at_once() {
    let double = double("");
    double.session.script("rank=1 HcclBarrier#1 kill").unwrap();
    let outputs = run_ranks(&double, "part_survivor");
    assert_eq!(outputs[1].status.signal(), Some(9), "{}", text(&outputs[1]));
    let told = told(&outputs[0]);
    assert!(told.contains("rank 1 (pid ") && told.contains("in barrier"), "{told}");
    assert!(told.contains("again: this communicator failed before"), "{told}");
    let survivor =
        double.session.report().unwrap().processes.into_iter().find(|p| p.rank == Some(0)).unwrap();
    assert!(survivor.is_clean(), "{survivor:?}");
}

#[test]
#[ignore = "a part of f20_a_rank_that_dies_inside_the_vendors_barrier_is_named_at_once"]
fn part_survivor() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = meet(&device, rank).unwrap();
    let began = Instant::now();
    let error = comm.barrier(within(60)).expect_err("rank 1 dies");
    // Far from the deadline. That it is not the vendor's own limit which ends it, the error says.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let again = comm.barrier(within(60)).expect_err("broken");
    println!("\noutcome: {error}; again: {again}");
    assert!(Box::new(comm).destroy(within(20)).is_err());
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// F46: kernels look at a word on the device; the parent's is in the host's memory.
#[test]
fn f46_the_parents_abort_word_reaches_the_device_and_is_taken_back() {
    let double = double("");
    let output = finish(rank_command(&double, "part_abort", 0).spawn().unwrap());
    assert_eq!(told(&output), "words [0, 1, 1, 0]");
    let report = double.session.report().unwrap();
    assert!(report.is_clean(), "{report}");
}

#[test]
#[ignore = "a part of f46_the_parents_abort_word_reaches_the_device_and_is_taken_back"]
fn part_abort() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let prepared = comm_hccl::prepare(1).unwrap();
    let comm = HcclComm::join(&device, &prepared, 0, within(30)).unwrap();
    // Before there is anything that a kernel could look at.
    comm.relay_abort().unwrap();
    let window = comm.alloc_windows(4096, within(30)).unwrap();
    let mut workspace = [0; 8];
    comm.read(window.context, &mut workspace).unwrap();
    let workspace = DeviceAddr(u64::from_le_bytes(workspace));
    let mut words = Vec::new();
    let mut look = || {
        comm.relay_abort().unwrap();
        let mut word = [0; 4];
        device.read(workspace, &mut word).unwrap();
        words.push(u32::from_le_bytes(word));
    };
    look();
    prepared.cancel_kernels();
    look();
    look();
    prepared.resume_kernels();
    look();
    println!("\noutcome: words {words:?}");
    Box::new(comm).destroy(within(30)).unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}
