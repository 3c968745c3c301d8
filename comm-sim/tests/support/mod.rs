//! Ranks as processes, for the tests that fork.
//!
//! # Safety
//! Forks; the children use the communicator only, and no lock of the test harness.
#![allow(unsafe_code, dead_code, unreachable_pub, reason = "each test program uses its part")]

use child_process::Child;
use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use comm_sim::{Prepared, SimComm};
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use worker_errors::clip;

pub fn secs(seconds: u64) -> Timeout {
    Timeout::new(Duration::from_secs(seconds)).unwrap()
}

pub fn millis(ms: u64) -> Timeout {
    Timeout::new(Duration::from_millis(ms)).unwrap()
}

pub fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}

/// The way that a rank comes in.
#[derive(Clone, Copy)]
pub enum Way<'a> {
    Forked(&'a Prepared),
    Met(&'a Path),
}

impl Way<'_> {
    pub fn open(&self, rank: u32, nranks: u32, within: Timeout) -> Result<Box<dyn Communicator>, CommError> {
        Ok(match self {
            Self::Forked(prepared) => Box::new(SimComm::join(prepared, rank, within)?),
            Self::Met(path) => Box::new(SimComm::rendezvous(path, Membership::new(rank, nranks)?, within)?),
        })
    }

    pub fn fork(&self, body: impl FnOnce() -> i32) -> Child {
        let region = match self {
            Self::Forked(prepared) => Some(prepared.region().fd()),
            Self::Met(_) => None,
        };
        let keep: Vec<_> = region.into_iter().collect();
        // SAFETY: see the head of the file.
        unsafe { Child::fork(&keep, body) }.unwrap()
    }
}

/// What each of some processes has to say at its end.
pub struct Says {
    texts: Region,
    each: usize,
}

impl Says {
    pub fn new(processes: usize, each: usize) -> Self {
        Self { texts: Region::create("says", processes * each).unwrap(), each }
    }

    pub fn write(&self, process: usize, text: &str) {
        self.texts.write(process * self.each, clip(text, self.each).as_bytes()).unwrap();
    }

    pub fn read(&self, process: usize) -> String {
        let mut text = vec![0; self.each];
        self.texts.read(process * self.each, &mut text).unwrap();
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    }
}

/// Runs `body` as every rank of a group, each in its own process, and fails with what they say.
pub fn in_processes(nranks: u32, way: Way<'_>, body: impl Fn(u32) -> Result<(), String>) {
    let says = Says::new(nranks as usize, 4096);
    let children: Vec<Child> = (0..nranks)
        .map(|rank| {
            way.fork(|| match body(rank) {
                Ok(()) => 0,
                Err(text) => {
                    says.write(rank as usize, &text);
                    1
                }
            })
        })
        .collect();
    let ends: Vec<_> = children.iter().map(|child| child.reap(far())).collect();
    let failed: Vec<String> = (0..nranks as usize)
        .filter(|rank| ends[*rank] != Some(HowDied::Exited(0)))
        .map(|rank| format!("rank {rank} {:?}: {}", ends[rank], says.read(rank)))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A path where nothing is, in a folder that goes away with the test.
pub fn meeting_place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    (folder, path)
}

/// The names in a folder.
pub fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

/// How many descriptors this process has.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// How many mappings this process has.
pub fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Writes to standard error past the harness's locks.
pub fn say(text: &str) {
    let _ = nix::unistd::write(std::io::stderr().as_fd(), format!("{text}\n").as_bytes());
}
