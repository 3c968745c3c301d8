//! `comm-inspect` on a rendezvous, on a group, and in wrong use (F44).
#![allow(missing_docs)]

mod support;

use comm_context::comm::{Communicator, Membership};
use comm_sim::SimComm;
use serial_test::serial;
use shared_memory::Region;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use support::{Entry, far, rendezvous_path, secs};

/// Exit status, standard output and standard error.
fn inspect(target: &str) -> (Option<i32>, String, String) {
    let out =
        Command::new(env!("CARGO_BIN_EXE_comm-inspect")).args(target.split_whitespace()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

/// Runs it until the output holds all words.
fn await_output(target: &str, words: &[&str]) {
    let end = far();
    while !words.iter().all(|word| inspect(target).1.contains(word)) {
        assert!(!end.has_passed(), "{target}: {:?} lacks {words:?}", inspect(target));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[serial]
fn f44_a_rendezvous_and_a_group_can_be_inspected() {
    let (_folder, path) = rendezvous_path();
    let rank = |rank: u32| {
        Entry::Path(&path).fork(|| {
            let comm = SimComm::rendezvous(&path, Membership::new(rank, 3).unwrap(), secs(60)).unwrap();
            if rank != 2 {
                let _ = comm.barrier(secs(60));
            }
            std::thread::sleep(Duration::from_secs(60));
            0
        })
    };
    let place = path.display().to_string();
    assert_eq!(inspect(&place).0, Some(1));
    let first = rank(0);
    await_output(&place, &["rank  0  pid", "rank  2  not joined yet"]);
    let second = rank(1);
    await_output(&place, &["rank  1  pid"]);
    let third = rank(2);
    let pid = second.pid().to_string();
    await_output(&pid, &[&format!("rank  1  pid {pid}"), "barrier", "idle", &third.pid().to_string()]);
    let (code, _, error) = inspect(&place);
    assert!(
        code == Some(1)
            && error.contains(": no rank has come yet, or all have joined (then give the pid of one)"),
        "{error}"
    );
    drop(first);
}

/// The layout of version 1, as a Worker of two children writes it; worker-orch tests the same with a real one.
#[test]
#[serial]
fn f44_the_memory_of_a_worker_can_be_inspected() {
    let region = Region::create("chipcomm-worker", 3 * 4096).unwrap();
    let pid = std::process::id();
    let put = |at: usize, word: u64| region.write(at, &word.to_le_bytes()).unwrap();
    let legend = [1, pid, 2, 4096, 4096, 2176, 0, 256, 3072, 128, 8].map(u32::to_le_bytes).concat();
    region.write(264, &legend).unwrap();
    let own = pid.to_string();
    assert!(inspect(&own).2.contains("no group and no Worker"), "without its magic it is none");
    put(256, u64::from_le_bytes(*b"CHIPWORK"));
    let (code, out, _) = inspect(&own);
    assert!(code == Some(0) && out.matches("not started yet").count() == 2, "{out}");
    for (at, name) in [(4096, "chip 0"), (8192, "chip 1")] {
        put(at + 2176, 4711);
        region.write(at + 2180, name.as_bytes()).unwrap();
        // Of eight frames the last is number 9.
        (2..10).for_each(|number| put(at + 3072 + (number % 8) * 128, number as u64));
        put(at, 6);
    }
    // Chip 1 waits for task 3 of chip 0, before its task 7; and for somebody who is not there.
    put(8192 + 256, 7);
    for (need, word) in
        [(3, "waits for task 3 of chip 0 before"), (9 << 48, "task 0 of ? before"), (u64::MAX, "?")]
    {
        put(8192 + 256 + 16, need);
        let (_, out, _) = inspect(&own);
        assert!(
            out.contains(&format!("Worker of process {pid}:\n  chip 0       pid 4711     idle, 6 of 9 done")),
            "{out}"
        );
        assert!(out.contains("chip 1       pid 4711     in task 7 for ") && out.contains(word), "{out}");
    }
    region.write(264, &2_u32.to_le_bytes()).unwrap();
    assert_eq!(inspect(&own).0, Some(1), "another version");
}

/// What a user sees who asks for a process of root.
#[test]
#[serial]
fn f44_a_process_of_another_user_is_not_inspected() {
    if !nix::unistd::geteuid().is_root() {
        return println!("not run: only root can act as another user");
    }
    // Started from its descriptor: its folder may be closed to that user.
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_comm-inspect")).unwrap();
    nix::fcntl::fcntl(&program, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let me = std::process::id().to_string();
    let mut stranger = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    let out = stranger.arg(&me).uid(54_324).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&out.stderr),
        format!("process {me} belongs to another user; run this as that user\n")
    );
}

#[test]
#[serial]
fn wrong_use_is_explained() {
    let help = "\
comm-inspect PATH   which ranks have come to the rendezvous at PATH, and which are missing
comm-inspect PID    the groups that the process PID is a rank of: every rank, its phase, and since when;
                    and its Workers, and the one that it is a child of: what every child does, and since when

Write a path that looks like a number as ./123. Exit status: 0 found, 1 nothing found, 2 wrong use.";
    for (wrong, code, word) in [
        ("", 2, help),
        ("a b", 2, help),
        ("4294967294", 1, "there is no process 4294967294; give the pid of one that runs on this host"),
        ("/no/such/folder/x", 1, "the folder of the rendezvous path cannot be used"),
        ("/etc/passwd", 1, "a file"),
    ] {
        let (status, _, error) = inspect(wrong);
        assert!(status == Some(code) && error.contains(word), "{wrong:?}: {status:?} {error}");
    }
    let own = std::process::id().to_string();
    assert!(
        inspect(&own).2.contains("belongs to no group and no Worker; it has not joined yet, or has left"),
        "{:?}",
        inspect(&own)
    );
    assert_eq!(inspect("--help").0, Some(0));
}
