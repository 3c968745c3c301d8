//! Shared by the process tests: Workers of a size, kernels compiled on the spot, and what a test leaves
//! behind.
#![allow(dead_code, reason = "every test file uses its own part")]

use comm_context::abi::DType;
use comm_context::comm::{Membership, Timeout};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use worker_orch::{ChipConfig, Failure, Platform, Worker, WorkerBuilder};

pub(crate) fn secs(seconds: u64) -> Timeout {
    Timeout::new(Duration::from_secs(seconds)).unwrap()
}

/// What the tests run on: the simulation, or what `cargo xtask hw-test` chooses.
pub(crate) fn platform() -> Platform {
    std::env::var("CHIPCOMM_PLATFORM").map_or(Platform::Sim, |name| name.parse().unwrap())
}

/// A builder for a Worker of so many chips.
pub(crate) fn builder(chips: usize) -> WorkerBuilder {
    let devices: Vec<i32> = (0..chips as i32).collect();
    Worker::builder().platform(platform()).devices(&devices).init_within(secs(60)).run_within(secs(60))
}

/// Whether a descriptor belongs to the vendor double, which a test may run on.
pub(crate) fn is_the_doubles(name: &str) -> bool {
    let session = std::env::var("CANN_SIM_DIR").ok();
    session.is_some_and(|session| name.starts_with(&session) || name.contains("memfd:cann-sim"))
}

/// A Worker with plain chips.
pub(crate) fn plain(chips: usize) -> Worker {
    builder(chips).build().unwrap()
}

/// A Worker whose chips form a group, each with a buffer `data` of `count` floats and room for a kernel
/// barrier.
pub(crate) fn grouped(chips: usize, count: usize) -> Worker {
    let mut worker = plain(chips);
    form_group(&mut worker, chips, count);
    worker
}

/// Configures a Worker's chips as such a group.
pub(crate) fn form_group(worker: &mut Worker, chips: usize, count: usize) {
    let configs = (0..chips)
        .map(|rank| {
            ChipConfig::new(rank as i32)
                .communicator(Membership::new(rank as u32, chips as u32).unwrap())
                .window(count * 4 + 8192)
                .buffer("data", DType::Float32, count)
                .region("barrier", 4096)
        })
        .collect();
    worker.configure_chips(configs).unwrap();
}

/// Compiles a kernel against our headers, as its users do.
pub(crate) fn kernel(folder: &Path, name: &str, source: &str) -> PathBuf {
    let (cpp, so) = (folder.join(format!("{name}.cpp")), folder.join(format!("{name}.so")));
    std::fs::write(&cpp, source).unwrap();
    let built = Command::new("g++")
        .args([
            "-std=c++17",
            "-O2",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            comm_context::INCLUDE_DIR,
        ])
        .arg("-o")
        .arg(&so)
        .arg(&cpp)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    cann_sim::hw_test::describe_kernel(&so);
    so
}

/// This process's children and what is in the shared places of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    children: Vec<u32>,
    shared_memory: Vec<String>,
    descriptors: usize,
}

pub(crate) fn traces() -> Traces {
    let me = std::process::id();
    let names = |folder: &str| {
        let entries = std::fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    Traces {
        children: children_of(me),
        shared_memory: names("/dev/shm"),
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
    }
}

pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some(rest) = stat.rfind(')').map(|at| &stat[at + 2..]) else { continue };
        if rest.split(' ').nth(1).and_then(|ppid| ppid.parse().ok()) == Some(parent) {
            children.push(pid);
        }
    }
    children.sort_unstable();
    children
}

/// The whole text of a failure, with its causes.
pub(crate) fn text(failure: &Failure) -> String {
    failure.to_string()
}

/// The whole text of the failure is this, where `…` stands for anything.
#[track_caller]
pub(crate) fn says<T: Debug>(result: Result<T, Failure>, expected: &str) {
    is_text(&text(&result.expect_err("it must fail")), expected);
}

/// The same of a text.
#[track_caller]
pub(crate) fn is_text(told: &str, expected: &str) {
    let mut rest = told;
    for (at, part) in expected.split('…').enumerate() {
        let found = if at == 0 { rest.starts_with(part).then_some(0) } else { rest.find(part) };
        let found = found.unwrap_or_else(|| panic!("expected: {expected}\n    told: {told}"));
        rest = &rest[found + part.len()..];
    }
    assert!(rest.is_empty() || expected.ends_with('…'), "expected: {expected}\n    told: {told}");
}
