//! The double itself: what it counts, what it refuses, and how its ranks communicate.
//!
//! # Safety
//! Makes vendor calls directly with buffers of this test, and forks once; each says why it is sound.
#![allow(unsafe_code)]

mod support;

use cann_sim::Kind;
use comm_hccl::sys::*;
use comm_hccl::*;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};
use support::scenario::{outcome, try_swap};
use support::*;

// CN-1
#[test]
fn what_a_program_forgets_is_counted_apart_as_reclaimed() {
    let double = double("");
    let output = run_part(&double, "part_forgets", &[]);
    assert_success(&output);
    assert!(text(&output).contains("test double of the Ascend libraries"), "the banner: {}", text(&output));
    let report = double.session.report().unwrap();
    let [process] = report.processes.as_slice() else { panic!("{report}") };
    assert!(!report.is_clean() && process.live.is_empty());
    assert_eq!(process.reclaimed, [(Kind::Stream, 1), (Kind::Memory, 2)]);
    assert!(report.to_string().contains("stream 1, memory 2"), "{report}");
}

#[test]
#[ignore = "a part of what_a_program_forgets_is_counted_apart_as_reclaimed"]
fn part_forgets() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    for _ in 0..2 {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a valid place for one address.
        assert_eq!(unsafe { (device.vendor().acl().aclrtMalloc)(&mut pointer, 1, 0) }, 0);
    }
    let mut stream = std::ptr::null_mut();
    // SAFETY: a valid place for one handle.
    assert_eq!(unsafe { (device.vendor().acl().aclrtCreateStream)(&mut stream) }, 0);
    device.close().unwrap();
    runtime.finalise().unwrap();
}

// CN-3
#[test]
fn what_a_killed_process_held_is_gone_and_the_report_shows_it() {
    let double = double("");
    double.session.script("rank=1 aclrtGetSocName#2 kill").unwrap();
    let [first, killed] = run_pair(&double, "part_killed_exporter", &[]);
    assert_success(&first);
    assert_eq!(killed.status.signal(), Some(9));
    let report = double.session.report().unwrap();
    assert_eq!(report.live_now(), 0);
    let process = report.processes.iter().find(|p| p.rank == Some(1)).unwrap();
    assert!(!process.running && process.live.contains(&(Kind::Mapping, 1)), "{report}");
    assert!(report.to_string().contains("is gone; at its end it held"), "{report}");
}

#[test]
#[ignore = "a part of what_a_killed_process_held_is_gone_and_the_report_shows_it"]
fn part_killed_exporter() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let window = LocalWindow::create(&device, ShareMode::Fabric, 1).unwrap();
    let peer = i32::from_le_bytes(swap(&mut socket, &device.vendor_pid().unwrap().0.to_le_bytes()));
    window.allow(&[VendorPid(peer)]).unwrap();
    let ticket = WindowTicket::from_bytes(&swap(&mut socket, &window.ticket().to_bytes())).unwrap();
    if rank == 1 {
        runtime.soc_name();
        unreachable!("the script kills this rank");
    }
    assert!(try_swap(&mut socket, &[0]).is_err(), "the peer is dead");
    let error = PeerWindow::open(&device, &ticket, Instant::now()).expect_err("the peer's memory is gone");
    assert!(matches!(&error, DeviceError::Vendor(e) if e.code == Code::Acl(507899)), "{error}");
    window.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
fn a_call_hangs_or_aborts_when_the_script_says_so() {
    let double = double("");
    let output = {
        let mut command = rank_command(&double, "part_opens", 0);
        command.env("CANN_SIM_FAULTS", "rank=0 aclrtSetDevice#1 abort");
        finish(command.spawn().unwrap())
    };
    assert_eq!(output.status.signal(), Some(6));
    let mut command = rank_command(&double, "part_opens", 0);
    let mut hung = command.env("CANN_SIM_FAULTS", "aclrtSetDevice#* hang").spawn().unwrap();
    let mut lines = BufReader::new(hung.stderr.take().unwrap()).lines();
    lines
        .find(|line| line.as_ref().unwrap().contains("fault: call 1 of aclrtSetDevice: Hang"))
        .unwrap()
        .unwrap();
    assert!(hung.try_wait().unwrap().is_none(), "it hangs");
    let report = double.session.report().unwrap();
    assert!(report.processes[1].running && report.live_now() == 1, "{report}");
    hung.kill().unwrap();
    hung.wait().unwrap();
    assert_eq!(double.session.report().unwrap().live_now(), 0);
}

#[test]
fn without_a_rank_the_device_is_the_rank() {
    let double = double("");
    double.session.script("rank=5 aclrtCreateStream#1 return 207008").unwrap();
    let mut command = rank_command(&double, "part_opens", 0);
    double.session.enlist(&mut command).env(VisibleDevices::VARIABLE, "5");
    let output = finish(command.spawn().unwrap());
    assert_success(&output);
    let outcome = outcome(&output).unwrap();
    assert!(outcome.contains("aclrtCreateStream") && outcome.contains("207008"), "{outcome}");
    assert_eq!(double.session.report().unwrap().processes[0].rank, Some(5));
}

#[test]
#[ignore = "a part of without_a_rank_the_device_is_the_rank and others"]
fn part_opens() {
    alone(|device| Stream::create(device)?.release());
}

// CN-4
#[test]
fn a_malformed_session_is_refused_with_the_malformed_line() {
    let double = double("");
    std::fs::write(double.dir.path().join("config"), "fabrik = off").unwrap();
    let output = run_part(&double, "part_loads", &[]);
    assert_success(&output);
    let outcome = outcome(&output).unwrap();
    assert!(outcome.contains("500000") && text(&output).contains("fabrik = off"), "{outcome}");
}

#[test]
#[ignore = "a part of a_malformed_session_is_refused_with_the_malformed_line"]
fn part_loads() {
    if my_rank().is_some() {
        println!("\noutcome: {}", Vendor::load(None).expect_err("a broken session"));
    }
}

// CN-5
#[test]
fn a_vendor_call_after_a_fork_is_refused() {
    let double = double("");
    assert_success(&run_part(&double, "part_forks", &[]));
}

#[test]
#[ignore = "a part of a_vendor_call_after_a_fork_is_refused"]
fn part_forks() {
    if my_rank().is_none() {
        return;
    }
    let vendor = Vendor::load(None).unwrap();
    // SAFETY: the child makes one call, whose locks no other thread of this single test holds, and ends in
    // _exit.
    unsafe {
        match libc::fork() {
            0 => {
                let mut count = 0;
                libc::_exit(i32::from((vendor.acl().aclrtGetDeviceCount)(&mut count) != 507000))
            }
            child => {
                let mut status = 0;
                assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
            }
        }
    }
}

#[test]
fn missing_ranks_taken_ports_and_stale_root_infos_are_errors() {
    for (config, part, code) in [
        ("", "part_waits_alone", "9 (HCCL_E_TIMEOUT)"),
        ("root-port = taken", "part_opens_root", "7 (HCCL_E_UNAVAIL)"),
        ("", "part_stale_root", "11 (HCCL_E_TCP_CONNECT)"),
    ] {
        let double = double(config);
        let start = Instant::now();
        let output = run_part(&double, part, &[("HCCL_CONNECT_TIMEOUT", "1")]);
        assert_success(&output);
        let outcome = outcome(&output).unwrap();
        assert!(outcome.contains(code), "{outcome}");
        assert!(part != "part_waits_alone" || start.elapsed() >= Duration::from_secs(1), "it really waits");
        let report = double.session.report().unwrap();
        assert!(report.is_clean(), "{report}");
    }
}

fn alone(body: impl FnOnce(&Device) -> Result<(), DeviceError>) {
    if my_rank().is_some() {
        let (runtime, device) = open_device(0);
        println!("\noutcome: {}", body(&device).expect_err("an error"));
        device.close().unwrap();
        runtime.finalise().unwrap();
    }
}

#[test]
#[ignore = "a part of missing_ranks_taken_ports_and_stale_root_infos_are_errors"]
fn part_waits_alone() {
    alone(|device| Group::join(device, &RootInfo::open(device)?, 2, 0).map(drop));
}

#[test]
#[ignore = "a part of missing_ranks_taken_ports_and_stale_root_infos_are_errors"]
fn part_opens_root() {
    alone(|device| RootInfo::open(device).map(drop));
}

#[test]
#[ignore = "a part of missing_ranks_taken_ports_and_stale_root_infos_are_errors"]
fn part_stale_root() {
    alone(|device| {
        let root = RootInfo::open(device)?;
        Group::join(device, &root, 1, 0)?.release()?;
        Group::join(device, &root, 1, 0).map(drop)
    });
}

#[test]
fn collectives_compute_the_right_result_across_piece_borders() {
    let double = double("");
    assert_both(&run_pair(&double, "part_collectives", &[]));
    let report = double.session.report().unwrap();
    assert!(report.processes.len() == 2 && report.is_clean(), "{report}");
}

/// A communicator of the two ranks.
fn join(device: &Device, rank: u32, socket: &mut UnixStream) -> Group {
    let root = (rank == 0).then(|| RootInfo::open(device).unwrap());
    let sent = root.map_or([0; RootInfo::LEN], |r| *r.as_bytes());
    let received = swap(socket, &sent);
    Group::join(device, &RootInfo::from_bytes(if rank == 0 { &sent } else { &received }), 2, rank).unwrap()
}

#[test]
#[ignore = "a part of collectives_compute_the_right_result_across_piece_borders"]
fn part_collectives() {
    // More than one staging piece of 64 KiB, and not a multiple of it.
    const COUNT: usize = 20_000;
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let group = join(&device, rank, &mut other_rank());
    let stream = Stream::create(&device).unwrap();
    let value = |rank: u32, i: usize| (i as i32 - 700) * (rank as i32 + 1);
    let write = |memory: &DeviceMemory, count: usize| {
        let bytes: Vec<u8> = (0..count).flat_map(|i| value(rank, i).to_le_bytes()).collect();
        memory.write(0, &bytes).unwrap();
    };
    let read = |memory: &DeviceMemory, count: usize| -> Vec<i32> {
        let mut bytes = vec![0; count * 4];
        memory.read(0, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let memory = |count: usize| DeviceMemory::allocate(&device, count * 4).unwrap();
    let (send, receive) = (memory(2 * COUNT), memory(2 * COUNT));
    let (from, to) = (send.addr().0 as *mut _, receive.addr().0 as *mut _);
    let (comm, queue, kind, n) = (group.as_raw(), stream.as_raw(), HCCL_DATA_TYPE_INT32, COUNT as u64);
    let hccl = device.vendor().hccl();
    let check = |code| assert_eq!(code, HCCL_SUCCESS);

    write(&send, COUNT);
    // SAFETY: buffers of at least the counted elements, and a communicator and stream that are alive; also
    // below.
    check(unsafe { hccl.HcclAllReduce.unwrap()(from, to, n, kind, HCCL_REDUCE_SUM, comm, queue) });
    assert!(read(&receive, COUNT).iter().enumerate().all(|(i, &v)| v == value(0, i) + value(1, i)));
    // SAFETY: as above.
    check(unsafe { hccl.HcclAllReduce.unwrap()(from, to, n, kind, HCCL_REDUCE_MAX, comm, queue) });
    assert!(read(&receive, COUNT).iter().enumerate().all(|(i, &v)| v == value(0, i).max(value(1, i))));
    // SAFETY: as above; the receiving buffer holds both ranks' parts.
    check(unsafe { hccl.HcclAllGather.unwrap()(from, to, n, kind, comm, queue) });
    let all = read(&receive, 2 * COUNT);
    assert!(all.iter().enumerate().all(|(i, &v)| v == value((i / COUNT) as u32, i % COUNT)));
    write(&send, 2 * COUNT);
    // SAFETY: as above; the sending buffer holds a part for both ranks.
    check(unsafe { hccl.HcclReduceScatter.unwrap()(from, to, n, kind, HCCL_REDUCE_SUM, comm, queue) });
    let mine = rank as usize * COUNT;
    let expected = |i: usize| value(0, mine + i) + value(1, mine + i);
    assert!(read(&receive, COUNT).iter().enumerate().all(|(i, &v)| v == expected(i)));
    // SAFETY: as above.
    check(unsafe { hccl.HcclBroadcast.unwrap()(from, n, kind, 1, comm, queue) });
    assert!(read(&send, COUNT).iter().enumerate().all(|(i, &v)| v == value(1, i)));
    // SAFETY: as above; the count is more than the buffer holds, which is refused before anything is read.
    let code = unsafe { hccl.HcclBroadcast.unwrap()(from, 10 * n, kind, 1, comm, queue) };
    assert_eq!(code, HCCL_E_PARA);

    group.release().unwrap();
    drop((send, receive, stream));
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
fn a_communicator_can_be_made_again_any_number_of_times() {
    let double = double("");
    assert_both(&run_pair(&double, "part_communicators", &[]));
    assert!(double.session.report().unwrap().is_clean());
}

#[test]
#[ignore = "a part of a_communicator_can_be_made_again_any_number_of_times"]
fn part_communicators() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    join(&device, rank, &mut socket).release().unwrap();
    let before = descriptors();
    // More than the session has slots for.
    for _ in 0..300 {
        join(&device, rank, &mut socket).release().unwrap();
    }
    assert_eq!(descriptors(), before);
    device.close().unwrap();
    runtime.finalise().unwrap();
}
