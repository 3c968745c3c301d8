//! What the errors of a Worker say of causes outside of it: a chip whose answers are malformed, a system that is out of processes, Ctrl-C,
//! a folder that is gone. Each is provoked, and its whole text compared, as in proc_errors.rs.
//!
//! # Safety
//! Maps other memory in the place of a part of a chip's own, and handles SIGINT.
#![allow(unsafe_code, missing_docs)]

mod support;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::{geteuid, getppid};
use serial_test::serial;
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{builder, grouped, plain, says};
use worker_orch::runtime::{FrontEnd, KernelId, Kernels, Limits, TaskArgs};
use worker_orch::{Args, CollectivesOptions, DType, ErrorCode, Failure, Platform, Task, Timeout};

/// Which case this program is to be, where it was started again for one.
const ROLE: &str = "PROC_ERRORS_RARE";
const PAGE: usize = 4096;

/// Starts this program again for the one test `name`, which finds [`ROLE`] set, and holds it to pass.
fn again(name: &str, change: impl FnOnce(&mut Command)) {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", name, "--test-threads", "1", "--nocapture"]).env(ROLE, "1");
    change(&mut command);
    let ran = command.output().unwrap();
    let out = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ran.status.success() && out.contains("1 passed"), "{out}");
}

fn is_again() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// The chip, whose number is 1, writes failures and answers from now on where nobody reads them: its parent reads what was there
/// before, or zeros.
fn write_elsewhere(_: &mut Task<'_>) -> Result<(), Failure> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let block = maps.lines().find(|line| line.contains("memfd:chipcomm-worker")).unwrap();
    let start = usize::from_str_radix(block.split_once('-').unwrap().0, 16).unwrap();
    // In the control block: a page of the parent's, four of chip 0, and in those of chip 1 the failure behind the words, and then the
    // answer.
    let failure = NonZeroUsize::new(start + (1 + 4 + 1) * PAGE);
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: pages of the control block, which this process reads and writes by atomic words and copies: other memory of the same
    // access in their place holds no reference, and the mapping stays.
    unsafe { mmap_anonymous(failure, NonZeroUsize::new(2 * PAGE).unwrap(), access, flags) }.unwrap();
    Ok(())
}

fn refuse(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Task, "nobody reads this"))
}

#[test]
#[serial]
fn f29_answers_of_a_chip_that_make_no_sense() {
    if nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE) != Ok(Some(PAGE as i64)) {
        return println!("not run: pages of another size hold more than what is to be replaced");
    }
    let mut worker = grouped(2, 16);
    let write_elsewhere = worker.register_function("write_elsewhere", write_elsewhere);
    let refuse = worker.register_function("refuse", refuse);
    worker.init().unwrap();
    worker.run(|orch| orch.submit_next_level(write_elsewhere, &Args::new(), 1)).unwrap();
    says(
        worker.run(|orch| orch.submit_next_level(refuse, &Args::new(), 1)),
        "pid …, in run: task failed: `refuse` failed on chip 1\n  caused by: protocol error: its failure could not be read: …; it \
         runs another build, or something overwrote its memory",
    );
    says(
        worker.run(|orch| orch.allocate_domain("pair", &[0, 1], 64, &[("x", DType::Uint8, 8)])),
        "in allocate_domain: protocol error: chip 1 reported an impossible window for domain `pair`; it runs \
         another build, or something overwrote its memory",
    );
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: i32) {
    // Relaxed: nothing else is ordered by it.
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// What Ctrl-C sends, while the parent waits for this task.
fn press_ctrl_c(_: &mut Task<'_>) -> Result<(), Failure> {
    kill(getppid(), Signal::SIGINT).unwrap();
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// In a process of its own: who may interrupt waits is said once, for all of them.
#[test]
#[serial]
fn a_run_that_is_interrupted() {
    if !is_again() {
        return again("a_run_that_is_interrupted", |_| {});
    }
    let handler = SigAction::new(SigHandler::Handler(interrupt), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler stores one atomic.
    unsafe { sigaction(Signal::SIGINT, &handler) }.unwrap();
    // Relaxed: as above.
    mailbox_atomics::interrupt_waits(|| INTERRUPTED.load(Ordering::Relaxed));
    let mut worker = plain(1);
    let press_ctrl_c = worker.register_function("press_ctrl_c", press_ctrl_c);
    worker.init().unwrap();
    says(
        worker.run(|orch| orch.submit_next_level(press_ctrl_c, &Args::new(), 0)),
        "in run: aborted: this process was interrupted while it waited for its chips; they are stopped",
    );
}

/// As another user, who may have no more processes than it has: root may have as many as it likes.
#[test]
#[serial]
fn a_system_that_is_out_of_processes() {
    if !is_again() {
        if !geteuid().is_root() {
            return println!("not run: needs root, to be a user without other processes");
        }
        return again("a_system_that_is_out_of_processes", |command| {
            command.uid(54_321);
        });
    }
    let mut worker = plain(1);
    setrlimit(Resource::RLIMIT_NPROC, 1, 1).unwrap();
    says(
        worker.init(),
        "in init: system error: chip 0 could not be started: fork: Resource temporarily unavailable (os error 11); too \
         many processes: raise `ulimit -u`, or pids.max of the container",
    );
}

/// Chip 0 alone waits for both, until the run is over.
fn wait_for_the_other(task: &mut Task<'_>) -> Result<(), Failure> {
    let comm = task.chip().and_then(|chip| chip.comm());
    let comm = comm.ok_or_else(|| Failure::new(ErrorCode::Invalid, "no communicator"))?;
    Ok(comm.barrier(Timeout::MAX)?)
}

#[test]
#[serial]
fn a_run_that_takes_too_long_whose_chips_come_back() {
    let mut worker =
        builder(2).run_within(Timeout::new(Duration::from_millis(300)).unwrap()).build().unwrap();
    support::form_group(&mut worker, 2, 16);
    let wait = worker.register_function("wait", wait_for_the_other);
    worker.init().unwrap();
    says(
        worker.run(|orch| orch.submit_next_level(wait, &Args::new(), 0)),
        "in run: timed out: not finished after … of 300ms; what every process is doing:…every process has come back; the \
         next run starts clean. Give the run more time with run_within, or see what was awaited above",
    );
    worker.run(|_| Ok(())).unwrap();
}

/// On chips of the simulation, whose graphs are recorded for the trace.
#[test]
#[serial]
fn a_chip_whose_trace_has_no_folder_any_more() {
    if support::platform() != Platform::Sim {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut worker = builder(1).trace(&folder.path().join("trace.json")).build().unwrap();
    let graph = worker.register_graph("graph", |task| {
        let mut graphs = task.graphs(&Limits::default())?;
        graphs.runtime().set_kernel(KernelId(0), "nothing", |_| Ok(()));
        graphs.run(FrontEnd::Inferred, |graph| {
            graph.submit(Kernels::aiv(KernelId(0)), &TaskArgs::new()).map(drop)
        })
    });
    let graph = graph.unwrap();
    worker.init().unwrap();
    worker.run(|orch| orch.submit_next_level(graph, &Args::new(), 0)).unwrap();
    drop(folder);
    says(
        worker.close(),
        "in close: exited: chip 0 (pid …) ended with an error: …\n  caused by: in close: system error: the trace could not be \
         written: …/trace.json.chip-0: No such file or directory (os error 2); see that its folder exists and has room",
    );
}

#[test]
#[serial]
fn more_groups_than_there_are_numbers_for() {
    let mut worker = plain(1);
    worker.init().unwrap();
    let told = worker.run(|orch| {
        for number in 0..300 {
            let name = format!("domain {number}");
            let domain = orch.allocate_domain(&name, &[0], 1 << 20, &[])?;
            orch.domain_collectives(&domain, CollectivesOptions::new().pool(4096))?;
        }
        Ok(())
    });
    says(
        told,
        "in collectives: invalid argument: there are collectives of 255 groups of chips already; use these, or close the \
         Worker",
    );
}
