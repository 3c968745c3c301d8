//! What a rank learns that cannot join because of something else than the ranks themselves: another build, another backend,
//! what listens at the address, a host without a route, a user who may not. Each text is compared whole.
//!
//! # Safety
//! Forks; the children use shared memory, sockets and system calls, and no lock of the test harness. Sets a variable
//! before any other thread of the test program reads it.
#![allow(unsafe_code, missing_docs)]

mod support;

use comm_context::comm::{CommError, Membership};
use deadline::HowDied;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, connect, listen, recv,
    send, socket,
};
use rendezvous::Group;
use serial_test::serial;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use support::{all_fine, await_table, far, fork, join, path, rank, secs, socket_name};

/// Users whom no process belongs to.
const STRANGER: u32 = 54_323;

/// Expects a failure that says this, where `…` stands for anything.
fn says(result: Result<Group, CommError>, expected: &str) -> Result<(), String> {
    let told = match result.map(drop) {
        Err(error) => error.to_string(),
        Ok(()) => "it joined".to_owned(),
    };
    let parts: Vec<&str> = expected.split('…').collect();
    let in_order = parts.iter().try_fold(told.as_str(), |rest, part| Some(rest.split_once(part)?.1));
    let whole = told.starts_with(parts[0]) && told.ends_with(parts[parts.len() - 1]);
    if whole && in_order.is_some() { Ok(()) } else { Err(format!("expected: {expected}\n    told: {told}")) }
}

fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("not run: only root can {what}");
    }
    root
}

/// Becomes another user, who may have no more processes and threads than this one.
fn become_a_stranger() {
    nix::unistd::setuid(nix::unistd::Uid::from_raw(STRANGER)).unwrap();
    let one = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: `one` is a live local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const one) }, 0);
}

#[test]
#[serial]
fn rv_9_ranks_of_two_backends_are_refused() {
    let (_folder, path) = path();
    let path = &path;
    let text = "…: the rendezvous failed: one of the ranks 1 and 0 has its windows in memory, the other has not; use one \
                backend for all ranks";
    let leader = rank(move || says(join(path, 0, 2, secs(20)), text));
    await_table(path, |table| table.contains("leader"));
    let other = Membership::new(1, 2).unwrap();
    let joiner = rank(move || says(Group::rendezvous(path, other, 0, secs(20)), text));
    all_fine(vec![leader, joiner]);
}

fn sequenced() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap()
}

/// What a rank sends to join, as a leader of ours at a path of its own sees it.
fn first_message(me: u32, nranks: u32) -> Vec<u8> {
    let (_folder, path) = path();
    let path = &path;
    let held = sequenced();
    bind(held.as_raw_fd(), &UnixAddr::new_abstract(socket_name(path).as_bytes()).unwrap()).unwrap();
    listen(&held, Backlog::new(1).unwrap()).unwrap();
    let joiner = rank(move || join(path, me, nranks, secs(20)).map(drop).map_err(|error| error.to_string()));
    let accepted = accept(held.as_raw_fd()).unwrap();
    // SAFETY: a new descriptor, which nothing else owns.
    let connection = unsafe { OwnedFd::from_raw_fd(accepted) };
    let mut bytes = vec![0; 256];
    let len = recv(connection.as_raw_fd(), &mut bytes, MsgFlags::empty()).unwrap();
    bytes.truncate(len);
    drop(joiner);
    bytes
}

/// Sends `message` to the leader at `path`, and returns what it answers.
fn answer_to(path: &Path, message: &[u8]) -> String {
    let connection = sequenced();
    connect(connection.as_raw_fd(), &UnixAddr::new_abstract(socket_name(path).as_bytes()).unwrap()).unwrap();
    send(connection.as_raw_fd(), message, MsgFlags::empty()).unwrap();
    let mut answer = vec![0; 4096];
    let len = recv(connection.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

/// The message of a rank: what all messages start with, its kind, a hash of the memory's layout, the rank.
#[test]
#[serial]
fn rv_9_a_rank_of_another_build_or_out_of_range_is_refused_by_name() {
    const HASH_AT: usize = 12;
    const RANK_AT: usize = 20;
    let message = first_message(1, 2);
    let (_folder, path) = path();
    let path = &path;
    let another_build = "rank 1 runs another build than rank 0; use one build for all ranks";
    let text = format!("…: the rendezvous failed: {another_build}");
    let leader = rank(move || says(join(path, 0, 2, secs(20)), &text));
    await_table(path, |table| table.contains("leader"));
    let mut out_of_range = message.clone();
    out_of_range[RANK_AT] = 7;
    let told = answer_to(path, &out_of_range);
    assert!(told.ends_with("rank 7 is out of range for 2 ranks; count them from 0"), "{told}");
    // The leader waits on, until a rank comes that no group can be made with.
    let mut other_layout = message;
    other_layout[HASH_AT] ^= 1;
    let told = answer_to(path, &other_layout);
    assert!(told.ends_with(another_build), "{told}");
    all_fine(vec![leader]);
}

/// An address of this host at which somebody listens, and the token in the environment.
fn listener() -> (TcpListener, PathBuf) {
    static TOKEN_SET: std::sync::Once = std::sync::Once::new();
    // SAFETY: see the head of the file.
    TOKEN_SET.call_once(|| unsafe { std::env::set_var("CHIPCOMM_TOKEN", "a token of this test program") });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap()).into();
    (listener, address)
}

/// As on the wire: its length in four bytes, then the message.
fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

/// What rank 0 says first: the kind of the message, what the protocol starts with, 32 random bytes.
fn hello() -> Vec<u8> {
    framed(&[&[1][..], b"chiphos1", &[5; 32]].concat())
}

/// What rank 0 answers to a rank that it accepts: the kind of the message, and a proof that it knows the token.
fn accepted() -> Vec<u8> {
    framed(&[&[3][..], &[6; 32]].concat())
}

#[test]
#[serial]
fn f78_a_service_that_speaks_the_protocol_and_is_not_rank_0_is_refused_at_once() {
    for (says_first, then, what) in [
        (accepted(), Vec::new(), "it sent something else than its challenge"),
        (hello(), accepted(), "it does not know the token"),
    ] {
        let (listener, path) = listener();
        let service = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.write_all(&says_first).unwrap();
            if !then.is_empty() {
                let mut len = [0; 4];
                socket.read_exact(&mut len).unwrap();
                socket.read_exact(&mut vec![0; u32::from_le_bytes(len) as usize]).unwrap();
                socket.write_all(&then).unwrap();
            }
            // Until the rank has closed its end.
            let _ = socket.read(&mut [0]);
        });
        let expected = format!(
            "…: what listens there is not rank 0 of this group ({what}); check the address, and use one build for all ranks"
        );
        says(join(&path, 1, 2, secs(120)), &expected).unwrap();
        service.join().unwrap();
    }
}

#[test]
#[serial]
fn f78_a_host_without_a_route_is_reported_as_such() {
    if !is_root("make a network of its own") {
        return;
    }
    let _ = listener();
    const NOT_PERMITTED: i32 = 9;
    let alone = fork(|| {
        if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
            return NOT_PERMITTED;
        }
        let told = says(
            join(Path::new("tcp://192.0.2.1:29500"), 1, 2, secs(120)),
            "…: rank 0 cannot be reached from this host (Network is unreachable (os error 101)); check the address, routes and \
             firewalls",
        );
        told.map_or(1, |()| 0)
    });
    match alone.reap(far()) {
        Some(HowDied::Exited(NOT_PERMITTED)) => {
            println!("not run: this process may not make a network of its own")
        }
        how => assert_eq!(how, Some(HowDied::Exited(0))),
    }
}

#[test]
#[serial]
fn f78_a_port_that_needs_privileges_is_reported_as_such() {
    if !is_root("act as another user") {
        return;
    }
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    if first.trim().parse::<u32>().unwrap() <= 1 {
        return println!("not run: on this machine every user may listen at every port");
    }
    let _ = listener();
    let stranger = rank(|| {
        become_a_stranger();
        says(
            join(Path::new("tcp://127.0.0.1:1"), 0, 2, secs(120)),
            "…: rank 0 cannot listen there (Permission denied (os error 13)); ports below 1024 need privileges; choose a \
             higher one",
        )
    });
    all_fine(vec![stranger]);
}

#[test]
#[serial]
fn f75_a_user_who_may_have_no_more_threads_learns_which_limit() {
    if !is_root("act as another user") {
        return;
    }
    let (listener, path) = listener();
    drop(listener);
    let path = &path;
    let stranger = rank(|| {
        become_a_stranger();
        says(
            join(path, 0, 1, secs(120)),
            "…: the thread that relays messages cannot be started; see `ulimit -u` and pids.max of the container (Resource \
             temporarily unavailable (os error 11))",
        )
    });
    all_fine(vec![stranger]);
}
