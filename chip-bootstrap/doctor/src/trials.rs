//! What is tried rather than read: the calls that the simulation makes, and the vendor's libraries.
//!
//! # Safety
//! Forks in a program with one thread; the children use the communicator only.
#![allow(unsafe_code)]

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use child_process::{Child, ProcessWatch};
use comm_context::comm::{CommError, Communicator, Timeout};
use comm_hccl::{Runtime, Vendor};
use comm_sim::SimComm;
use deadline::{Deadline, HowDied};
use shared_memory::Region;

/// The hidden flag of the process that loads the vendor's libraries.
pub(crate) const PROBE_VENDOR: &str = "probe-vendor";

/// Longer than a driver takes to answer, shorter than a user waits.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the vendor's libraries answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VendorAnswer {
    /// Version and files.
    pub(crate) libraries: String,
    pub(crate) soc: String,
    pub(crate) devices: u32,
}

/// Each tries one thing, and says what it found or why it failed.
pub(crate) struct Trials {
    pub(crate) shared_memory: fn() -> Result<String, String>,
    pub(crate) pidfd: fn() -> Result<String, String>,
    pub(crate) two_ranks: fn() -> Result<String, String>,
    pub(crate) vendor: fn() -> Result<VendorAnswer, String>,
}

impl Trials {
    /// Those of this machine.
    pub(crate) fn real() -> Self {
        Self { shared_memory, pidfd, two_ranks, vendor }
    }
}

fn shared_memory() -> Result<String, String> {
    Region::create("doctor", 1 << 20).map_err(|error| error.to_string())?;
    Ok("anonymous, sealed and reserved".to_owned())
}

fn pidfd() -> Result<String, String> {
    let this = i32::try_from(std::process::id()).map_err(|error| error.to_string())?;
    ProcessWatch::of_process(this).map_err(|error| error.to_string())?;
    Ok("processes can be watched".to_owned())
}

/// A group of two processes that share a window and wait for each other: all that the simulation rests on.
fn two_ranks() -> Result<String, String> {
    let within = Timeout::new(PATIENCE).map_err(|error| error.to_string())?;
    let prepared = SimComm::prepare_group(2).map_err(|error| error.to_string())?;
    let member = |rank: u32| -> Result<(), CommError> {
        let comm = SimComm::join(&prepared, rank, within)?;
        comm.alloc_windows(4096, within)?;
        comm.barrier(within)?;
        Box::new(comm).destroy(within)
    };
    let start = |rank: u32| {
        let body = || match member(rank) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("rank {rank}: {error}");
                1
            }
        };
        // SAFETY: this program has one thread, so no lock is held by another; the child uses the communicator only.
        unsafe { Child::fork(&prepared.fds().collect::<Vec<_>>(), body) }.map_err(|error| error.to_string())
    };
    let ranks = [start(0)?, start(1)?];
    let end = Deadline::after(PATIENCE).map_err(|error| error.to_string())?;
    for (rank, child) in ranks.iter().enumerate() {
        match child.reap(end) {
            Some(HowDied::Exited(0)) => {}
            Some(how) => return Err(format!("rank {rank} {how}")),
            None => return Err(format!("rank {rank} did not end within {PATIENCE:?}")),
        }
    }
    Ok("shared a window and met at a barrier".to_owned())
}

/// Asks another process of this program, so that a library that crashes or hangs takes only that one with it.
fn vendor() -> Result<VendorAnswer, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(this);
    command.arg(format!("--{PROBE_VENDOR}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            unfinished => {
                let _ = child.kill().and_then(|()| child.wait());
                let why = unfinished.err().map_or(String::new(), |error| format!(": {error}"));
                return Err(format!("the vendor's libraries did not answer within {PATIENCE:?}{why}"));
            }
        }
    };
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut said).map_err(|error| error.to_string())?;
    }
    read_answer(&said)
        .unwrap_or_else(|| Err(format!("the vendor's libraries ended the process: {status}; {said}")))
}

/// What [`answer_for_vendor`] printed; `None` for anything else. The vendor's own code may print lines of its own.
fn read_answer(said: &str) -> Option<Result<VendorAnswer, String>> {
    let field = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    if let Some(error) = field("chipcomm error") {
        return Some(Err(error.to_owned()));
    }
    Some(Ok(VendorAnswer {
        libraries: field("chipcomm libraries")?.to_owned(),
        soc: field("chipcomm soc")?.to_owned(),
        devices: field("chipcomm devices")?.parse().ok()?,
    }))
}

/// The other side of [`vendor`].
pub(crate) fn answer_for_vendor() -> ExitCode {
    match ask_libraries() {
        Ok(VendorAnswer { libraries, soc, devices }) => {
            println!("\nchipcomm libraries: {libraries}\nchipcomm soc: {soc}\nchipcomm devices: {devices}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("\nchipcomm error: {}", error.split_whitespace().collect::<Vec<_>>().join(" "));
            ExitCode::FAILURE
        }
    }
}

fn ask_libraries() -> Result<VendorAnswer, String> {
    let vendor = Vendor::load(None).map_err(|error| error.to_string())?;
    let runtime = Runtime::start(vendor).map_err(|error| error.to_string())?;
    let devices = runtime.device_count().map_err(|error| error.to_string())?;
    let answer = VendorAnswer { libraries: vendor.to_string(), soc: runtime.soc_name(), devices };
    runtime.finalise().map_err(|error| error.to_string())?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_among_lines_of_the_vendor() {
        let said =
            "[EVENT] plog\nchipcomm libraries: ACL 1.17\nchipcomm soc: Ascend910B2\nchipcomm devices: 8\n";
        let expected = VendorAnswer { libraries: "ACL 1.17".into(), soc: "Ascend910B2".into(), devices: 8 };
        assert_eq!(read_answer(said), Some(Ok(expected)));
        assert_eq!(read_answer("noise\nchipcomm error: none found\n"), Some(Err("none found".into())));
        assert_eq!(read_answer("Segmentation fault\n"), None);
    }
}
