//! Groups whose ranks are on two hosts: network namespaces that the tests make, and the double, for which each is a host.

mod support;

use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec, Membership, Timeout};
use comm_context::conformance::full_cycle;
use comm_hccl::{HcclComm, ShareMode};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::Duration;
use support::hosts::TwoHosts;
use support::scenario::{outcome, report, share_window};
use support::*;

const PATH: &str = "CHIPCOMM_TEST_PATH";
const RANKS: u32 = 4;
/// The names of the files that say that a rank has joined start so.
const JOINED: &str = "joined-";

fn within(seconds: u64) -> Timeout {
    Timeout::new(Duration::from_secs(seconds)).unwrap()
}

/// The token's file, which only this user can read.
fn token_file(double: &Double) -> PathBuf {
    let path = double.dir.path().join("token");
    // Ranks that run already may be reading it.
    if !path.exists() {
        std::fs::write(&path, "the token of this test\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    path
}

/// The command of a rank: the first two ranks are on the first host.
fn command(double: &Double, hosts: &TwoHosts, part: &str, rank: u32) -> Command {
    let mut command = rank_command(double, part, rank);
    command.env(PATH, format!("tcp://{}:29500", TwoHosts::ADDRESSES[0]));
    command.env("CHIPCOMM_TOKEN_FILE", token_file(double)).env("HCCL_CONNECT_TIMEOUT", "30");
    hosts.on((rank / 2) as usize, &command)
}

fn start(double: &Double, hosts: &TwoHosts, part: &str) -> Vec<Child> {
    (0..RANKS).map(|rank| command(double, hosts, part, rank).spawn().unwrap()).collect()
}

fn reported(output: &Output) -> String {
    outcome(output).unwrap_or_else(|| panic!("{}", text(output)))
}

fn join(device: &comm_hccl::Device, rank: u32, limit: u64) -> Result<HcclComm, CommError> {
    let path = std::env::var_os(PATH).unwrap();
    HcclComm::rendezvous(device, path.as_ref(), Membership::new(rank, RANKS).unwrap(), within(limit))
}

#[test]
#[ignore = "needs root and `ip`: cargo xtask ci slow"]
fn ranks_on_two_hosts_make_every_call_of_a_communicator() {
    let (double, hosts) = (double(""), TwoHosts::make());
    for output in start(&double, &hosts, "part_every_call").into_iter().map(finish) {
        assert_success(&output);
        assert_eq!(reported(&output), "ok", "{}", text(&output));
    }
    let left = double.session.report().unwrap();
    assert!(left.processes.len() == RANKS as usize && left.is_clean(), "{left}");
}

#[test]
#[ignore = "run by ranks_on_two_hosts_make_every_call_of_a_communicator"]
fn part_every_call() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let me = Membership::new(rank, RANKS).unwrap();
    let called = join(&device, rank, 120).and_then(|comm| full_cycle(Box::new(comm), me, within(120)));
    device.close().unwrap();
    runtime.finalise().unwrap();
    report(called.map_err(Into::into));
}

// CH-9
#[test]
#[ignore = "needs root and `ip`: cargo xtask ci slow"]
fn f83_without_fabric_windows_across_hosts_are_refused_and_those_of_one_host_are_not() {
    for machine in ["fabric = off", "soc = Ascend950PR"] {
        let (double, hosts) = (double(machine), TwoHosts::make());
        for output in start(&double, &hosts, "part_without_fabric").into_iter().map(finish) {
            assert_success(&output);
            let said = reported(&output);
            let named = said.contains("rank 0 on ") && said.contains("rank 2 on ");
            let why =
                "can share windows by Fabric only, which reaches other hosts in an Atlas A3 super node (";
            let next = "; give each host a domain of its own, or use HCCL's collectives between hosts";
            assert!(said.contains(why) && said.contains(next), "{said}");
            assert!(named && said.contains("domain by shareable handle"), "{said}");
        }
        let left = double.session.report().unwrap();
        assert!(left.processes.len() == RANKS as usize && left.is_clean(), "{left}");
    }
}

#[test]
#[ignore = "run by f83_without_fabric_windows_across_hosts_are_refused_and_those_of_one_host_are_not"]
fn part_without_fabric() {
    let Some(rank) = my_rank() else { return };
    let (runtime, device) = open_device(rank);
    let comm = join(&device, rank, 120).unwrap();
    let refused = comm.alloc_windows(4096, within(120)).unwrap_err();
    // The communicator can still be used, and the ranks of a host share windows.
    comm.barrier(within(120)).unwrap();
    let ranks = [rank / 2 * 2, rank / 2 * 2 + 1];
    let spec = DomainSpec { id: AllocationId(7), ranks: &ranks, domain_rank: rank % 2, window_size: 4096 };
    comm.alloc_domain(&spec, within(120)).unwrap();
    let mode = comm.share_mode().unwrap();
    comm.release_domain(AllocationId(7), within(120)).unwrap();
    comm.barrier(within(120)).unwrap();
    Box::new(comm).destroy(within(120)).unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
    report(Err(format!("{refused}; domain by {mode}").into()));
}

// CN-13: what the double refuses is what the vendor's driver could not know.
#[test]
#[ignore = "needs root and `ip`: cargo xtask ci slow"]
fn the_double_knows_handles_of_its_own_host_only() {
    let (double, hosts) = (double(""), TwoHosts::make());
    let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
    let children = [(0, left), (1, right)].map(|(rank, socket)| {
        let part = rank_command(&double, "part_shares_by_every_mode", rank);
        let mut there = hosts.on(rank as usize, &part);
        there.stdin(std::os::fd::OwnedFd::from(socket)).spawn().unwrap()
    });
    for output in children.map(finish) {
        assert_success(&output);
        let said = reported(&output);
        let parts: Vec<&str> = said.split(" | ").collect();
        let [fabric, shareable, key] = parts[..] else { panic!("{said}") };
        // The default export checks pids, and those of another host are unknown.
        assert!(fabric.contains("207006"), "{said}");
        assert!(shareable.contains("507899"), "{said}");
        assert!(key.contains("507899"), "{said}");
    }
}

#[test]
#[ignore = "run by the_double_knows_handles_of_its_own_host_only"]
fn part_shares_by_every_mode() {
    let Some(rank) = my_rank() else { return };
    let (_runtime, device) = open_device(rank);
    let mut socket = other_rank();
    let said = ShareMode::ALL.map(|mode| match share_window(&device, mode, rank, &mut socket) {
        Ok(()) => "shared".to_owned(),
        Err(error) => error.to_string(),
    });
    device.close().unwrap();
    report(Err(said.join(" | ").into()));
}

#[test]
#[ignore = "needs root and `ip`: cargo xtask ci slow"]
fn f81_a_rank_that_is_killed_on_another_host_is_named_by_all() {
    for victim in [0, 3] {
        let (double, hosts) = (double(""), TwoHosts::make());
        double.session.script(&format!("rank={victim} HcclBarrier#1 kill")).unwrap();
        for (rank, output) in (0..).zip(start(&double, &hosts, "part_barrier").into_iter().map(finish)) {
            if rank == victim {
                assert_eq!(output.status.signal(), Some(9), "{}", text(&output));
                continue;
            }
            let said = reported(&output);
            assert!(said.contains(&format!("rank {victim} (pid ")) && said.contains("died"), "{said}");
        }
    }
}

#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn f81_a_host_that_is_cut_off_is_named_with_the_seconds_of_its_silence() {
    let (double, hosts) = (double(""), TwoHosts::make());
    double.session.script("HcclBarrier#1 hang").unwrap();
    let children = start(&double, &hosts, "part_barrier");
    let joined = |rank: u32| double.dir.path().join(format!("{JOINED}{rank}")).exists();
    let end = std::time::Instant::now() + Duration::from_secs(120);
    while !(0..RANKS).all(joined) && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    hosts.cut();
    for (rank, output) in (0..).zip(children.into_iter().map(finish)) {
        let said = reported(&output);
        // Each side blames a rank of the other: rank 0, through which the second host talks, or the ranks there.
        let other: &[&str] = if rank < 2 { &["rank 2 ", "rank 3 "] } else { &["rank 0 "] };
        let blamed = other.iter().any(|other| said.contains(other));
        assert!(blamed && said.contains("nothing came from its host for 10s"), "rank {rank}: {said}");
    }
}

#[test]
#[ignore = "run by f81_*"]
fn part_barrier() {
    let Some(rank) = my_rank() else { return };
    let (_runtime, device) = open_device(rank);
    let done = join(&device, rank, 120).and_then(|comm| {
        let session = std::env::var_os("CANN_SIM_DIR").map(PathBuf::from).unwrap();
        std::fs::write(session.join(format!("{JOINED}{rank}")), "").unwrap();
        let met = comm.barrier(within(60));
        // A call of the vendor's may hang for good, and only the end of the process ends it.
        std::mem::forget(comm);
        met
    });
    report(done.map_err(Into::into));
    std::process::exit(0);
}

// The variables of launchers instead of an address: torchrun's, and a user's under Open MPI.
#[test]
#[ignore = "needs root and `ip`: cargo xtask ci slow"]
fn ranks_of_a_launcher_on_two_hosts_find_each_other_by_its_variables() {
    let (double, hosts) = (double(""), TwoHosts::make());
    for [rank_name, size_name] in [["RANK", "WORLD_SIZE"], ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]] {
        let children: Vec<Child> = (0..RANKS)
            .map(|rank| {
                let mut part = rank_command(&double, "part_launched", rank);
                part.env("CHIPCOMM_TOKEN_FILE", token_file(&double)).env("HCCL_CONNECT_TIMEOUT", "30");
                part.env(rank_name, rank.to_string()).env(size_name, RANKS.to_string());
                part.env("MASTER_ADDR", TwoHosts::ADDRESSES[0]).env("MASTER_PORT", "29501");
                hosts.on((rank / 2) as usize, &part).spawn().unwrap()
            })
            .collect();
        for output in children.into_iter().map(finish) {
            assert_success(&output);
            assert_eq!(reported(&output), "ok", "{}", text(&output));
        }
    }
}

#[test]
#[ignore = "run by ranks_of_a_launcher_on_two_hosts_find_each_other_by_its_variables"]
fn part_launched() {
    let Some(_) = my_rank() else { return };
    let me = rendezvous::from_launcher().unwrap().membership;
    let (runtime, device) = open_device(me.rank());
    let called = HcclComm::rendezvous(&device, "env://".as_ref(), me, within(120))
        .and_then(|comm| full_cycle(Box::new(comm), me, within(120)));
    device.close().unwrap();
    runtime.finalise().unwrap();
    report(called.map_err(Into::into));
}
