//! Ranks as processes, for the tests that fork.
//!
//! # Safety
//! Forks; the children use the communicator only, and no lock of the test harness.
#![allow(unsafe_code, dead_code, unreachable_pub, reason = "each test program uses a part of this")]

use child_process::Child;
use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use comm_sim::{Prepared, SimComm};
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use worker_errors::clip;

/// Bytes of the text that a process leaves when it fails.
const TEXT: usize = 4096;

pub fn secs(seconds: u64) -> Timeout {
    Timeout::new(Duration::from_secs(seconds)).unwrap()
}

pub fn millis(ms: u64) -> Timeout {
    Timeout::new(Duration::from_millis(ms)).unwrap()
}

/// Far beyond what any test takes, so that a hang is a failure.
pub fn far() -> Deadline {
    Deadline::after(Duration::from_secs(120)).unwrap()
}

/// How a rank joins its group.
#[derive(Clone, Copy)]
pub enum Entry<'a> {
    Forked(&'a Prepared),
    Path(&'a Path),
}

impl Entry<'_> {
    pub fn open(&self, rank: u32, nranks: u32, within: Timeout) -> Result<Box<dyn Communicator>, CommError> {
        Ok(match self {
            Self::Forked(prepared) => Box::new(SimComm::join(prepared, rank, within)?),
            Self::Path(path) => Box::new(SimComm::rendezvous(path, Membership::new(rank, nranks)?, within)?),
        })
    }

    pub fn fork(&self, body: impl FnOnce() -> i32) -> Child {
        let keep: Vec<_> = match self {
            Self::Forked(prepared) => prepared.fds().collect(),
            Self::Path(_) => Vec::new(),
        };
        // SAFETY: see the head of the file.
        unsafe { Child::fork(&keep, body) }.unwrap()
    }
}

/// One text from each of several processes.
pub struct Texts {
    region: Region,
    each: usize,
}

impl Texts {
    pub fn new(processes: usize, each: usize) -> Self {
        Self { region: Region::create("texts", processes * each).unwrap(), each }
    }

    pub fn write(&self, process: usize, text: &str) {
        self.region.write(process * self.each, clip(text, self.each).as_bytes()).unwrap();
    }

    pub fn read(&self, process: usize) -> String {
        let mut text = vec![0; self.each];
        self.region.read(process * self.each, &mut text).unwrap();
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    }
}

/// Runs `body` as every rank of a group, each in its own process, and fails with the errors that they return.
pub fn in_processes(nranks: u32, entry: Entry<'_>, body: impl Fn(u32) -> Result<(), String>) {
    let order: Vec<u32> = (0..nranks).collect();
    in_processes_started(&order, entry, body);
}

/// The same; the ranks are started in this order.
pub fn in_processes_started(order: &[u32], entry: Entry<'_>, body: impl Fn(u32) -> Result<(), String>) {
    let texts = Texts::new(order.len(), TEXT);
    let start = |&rank: &u32| {
        let child = entry.fork(|| match body(rank) {
            Ok(()) => 0,
            Err(text) => {
                texts.write(rank as usize, &text);
                1
            }
        });
        (rank, child)
    };
    let children: Vec<(u32, Child)> = order.iter().map(start).collect();
    let end = far();
    let ends: Vec<_> = children.iter().map(|(rank, child)| (*rank, child.reap(end))).collect();
    let failed: Vec<String> = ends
        .iter()
        .filter(|(_, end)| *end != Some(HowDied::Exited(0)))
        .map(|(rank, end)| format!("rank {rank} {end:?}: {}", texts.read(*rank as usize)))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A path where nothing is, in a folder that is removed with the test.
pub fn rendezvous_path() -> (tempfile::TempDir, PathBuf) {
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

/// Writes to standard error without the harness's locks.
pub fn print_error(text: &str) {
    let _ = nix::unistd::write(std::io::stderr().as_fd(), format!("{text}\n").as_bytes());
}
