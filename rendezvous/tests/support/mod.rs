//! Ranks as processes, for the tests that fork.
//!
//! # Safety
//! Forks; the children use shared memory, sockets and system calls, and no lock of the test harness.
#![allow(unsafe_code, dead_code, unreachable_pub, reason = "each test program uses a part of this")]

use child_process::Child;
use comm_context::comm::{CommError, Membership, Timeout};
use deadline::{Deadline, HowDied};
use rendezvous::{Group, ranks_at};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const EXTENT: usize = 1 << 20;

pub fn secs(seconds: u64) -> Timeout {
    Timeout::new(Duration::from_secs(seconds)).unwrap()
}

/// For what takes seconds at most on a machine that does nothing else. Only a hang reaches it.
pub fn far() -> Deadline {
    Deadline::after(Duration::from_secs(300)).unwrap()
}

pub fn fork(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: see the head of the file.
    unsafe { Child::fork(&[], body) }.unwrap()
}

/// A path where nothing exists, in a folder that is removed with the test.
pub fn path() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    (folder, path)
}

pub fn join(path: &Path, rank: u32, nranks: u32, within: Timeout) -> Result<Group, CommError> {
    Group::rendezvous(path, Membership::new(rank, nranks).unwrap(), EXTENT, within)
}

/// Runs `body` in a process, which exits with 1 and prints the text when it fails.
pub fn rank(body: impl FnOnce() -> Result<(), String>) -> Child {
    fork(|| match body() {
        Ok(()) => 0,
        Err(text) => {
            let _ = nix::unistd::write(std::io::stderr().as_fd(), format!("{text}\n").as_bytes());
            1
        }
    })
}

pub fn all_fine(children: Vec<Child>) {
    for child in children {
        assert_eq!(child.reap(far()), Some(HowDied::Exited(0)));
    }
}

/// Expects an error that names the death of `rank`.
pub fn names_death(result: Result<(), CommError>, rank: u32) -> Result<(), String> {
    match result {
        Err(CommError::PeerDied { rank: named, pid: Some(_), .. }) if named == rank => Ok(()),
        other => Err(format!("expected the death of rank {rank}, got {other:?}")),
    }
}

/// Polls the table of the ranks at `path` until it is as wanted.
pub fn await_table(path: &Path, wanted: impl Fn(&str) -> bool) {
    let end = far();
    while !ranks_at(path, secs(5)).unwrap().is_some_and(|table| wanted(&table)) {
        assert!(!end.has_passed(), "{:?}", ranks_at(path, secs(5)));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The name that the ranks at `path` use.
pub fn socket_name(path: &Path) -> String {
    let folder = nix::sys::stat::stat(path.parent().unwrap()).unwrap();
    let name = path.file_name().unwrap().as_encoded_bytes();
    let hash = shared_memory::fnv1a(shared_memory::FNV_OFFSET, name);
    let uid = nix::unistd::geteuid();
    format!("chipcomm/{uid}/{:x}.{:x}/{hash:016x}", folder.st_dev, folder.st_ino)
}
