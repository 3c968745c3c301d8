//! Runs parts of a test as ranks: the test program starts itself again, as one process for each rank.
//!
//! The part of a rank is an ignored test, which the driver names. `CHIPCOMM_TEST_RANK` is set in the process of a rank. The
//! two ranks of a pair exchange bytes over a socket that is their standard input.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod devices;
pub(crate) mod hosts;
pub(crate) mod scenario;

use cann_sim::{Kind, Session};
use comm_hccl::{Device, LogicalDevice, Runtime, Vendor, VisibleDevices};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far above what any part takes, even on a loaded machine, so that a hang is a failure.
const LIMIT: Duration = Duration::from_secs(400);

/// A session in a directory of its own.
pub(crate) struct Double {
    pub(crate) session: Session,
    pub(crate) dir: tempfile::TempDir,
}

pub(crate) fn double(config: &str) -> Double {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(dir.path()).unwrap();
    session.configure(config).unwrap();
    Double { session, dir }
}

/// A command that runs one ignored test of this program as a rank.
pub(crate) fn rank_command(double: &Double, part: &str, rank: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([part, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("CHIPCOMM_TEST_RANK", rank.to_string()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    double.session.enlist_as(&mut command, rank);
    command
}

/// Waits for a child, and kills it when it takes far too long.
pub(crate) fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + LIMIT;
    // The output of a part fits into the pipes.
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Runs one part as rank 0 and returns its output.
pub(crate) fn run_part(double: &Double, part: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = rank_command(double, part, 0);
    command.envs(environment.iter().copied());
    finish(command.spawn().unwrap())
}

/// Starts two ranks with a socket between them, and waits for both.
pub(crate) fn run_pair(double: &Double, part: &str, environment: &[(&str, &str)]) -> [Output; 2] {
    let (left, right) = UnixStream::pair().unwrap();
    let children = [(0, left), (1, right)].map(|(rank, socket)| {
        let mut command = rank_command(double, part, rank);
        command.envs(environment.iter().copied()).stdin(OwnedFd::from(socket));
        command.spawn().unwrap()
    });
    children.map(finish)
}

pub(crate) fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}\n{}", output.status, text(output));
    // A filter that matches nothing succeeds too; the part must really have run.
    assert!(text(output).contains("1 passed"), "{}", text(output));
}

/// Both ranks succeeded. One that fails takes the other with it, so only both outputs show the cause.
pub(crate) fn assert_both(outputs: &[Output; 2]) {
    let both = || format!("rank 0: {}\nrank 1: {}", text(&outputs[0]), text(&outputs[1]));
    for output in outputs {
        assert!(
            output.status.success() && text(output).contains("1 passed"),
            "{}\n{}",
            output.status,
            both()
        );
    }
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Inside a part: this process's rank. `None` when a user runs the ignored tests.
pub(crate) fn my_rank() -> Option<u32> {
    std::env::var("CHIPCOMM_TEST_RANK").ok().map(|rank| rank.parse().unwrap())
}

/// Inside a part of a pair: the socket to the other rank.
pub(crate) fn other_rank() -> UnixStream {
    UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap())
}

/// Sends bytes to the other rank and receives as many.
pub(crate) fn swap<const N: usize>(socket: &mut UnixStream, mine: &[u8; N]) -> [u8; N] {
    socket.write_all(mine).unwrap();
    let mut theirs = [0; N];
    socket.read_exact(&mut theirs).unwrap();
    theirs
}

/// Inside a part: the runtime and the device with the rank's number.
pub(crate) fn open_device(rank: u32) -> (Runtime, Device) {
    let runtime = Runtime::start(Vendor::load(None).unwrap()).unwrap();
    let device = Device::open(runtime, LogicalDevice(rank), &VisibleDevices::from_env().unwrap()).unwrap();
    (runtime, device)
}

/// Objects that stay when the function fails, because it is the one that releases them. The reset of the device or the end
/// of the runtime cleans them up.
pub(crate) fn excused(function: &str) -> &'static [Kind] {
    match function {
        "aclrtFree" => &[Kind::Memory],
        "aclrtFreePhysical" => &[Kind::Physical, Kind::Imported],
        // A range cannot be released while something is mapped there.
        "aclrtUnmapMem" => &[Kind::Mapping, Kind::Reservation],
        "aclrtReleaseMemAddress" => &[Kind::Reservation],
        "aclrtIpcMemClose" => &[Kind::IpcKey, Kind::IpcImport],
        "aclrtDestroyEvent" => &[Kind::Event],
        "aclrtDestroyStream" => &[Kind::Stream],
        "aclrtBinaryUnLoad" => &[Kind::Binary],
        "HcclCommDestroy" => &[Kind::Communicator],
        "aclrtResetDevice" => &[Kind::Device],
        _ => &[],
    }
}
