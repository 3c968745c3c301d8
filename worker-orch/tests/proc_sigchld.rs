//! Workers in programs that treat their children in their own way: that ignore SIGCHLD, that reap every
//! child themselves, or whose standard output is a pipe.
//!
//! # Safety
//! Sets the action for SIGCHLD, reaps all children of the process, and prints with `printf`.
#![allow(unsafe_code, missing_docs)]

mod support;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serial_test::serial;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{builder, kernel, text};
use worker_orch::{Args, Failure, Task, Worker};

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

fn die(_: &mut Task<'_>) -> Result<(), Failure> {
    std::process::abort()
}

/// Sets SIGCHLD's action until it is dropped.
struct OnChild(SigAction);

impl OnChild {
    fn ignored() -> Self {
        let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: installs no handler.
        Self(unsafe { sigaction(Signal::SIGCHLD, &ignored) }.unwrap())
    }
}

impl Drop for OnChild {
    fn drop(&mut self) {
        // SAFETY: what was there before.
        unsafe { sigaction(Signal::SIGCHLD, &self.0) }.unwrap();
    }
}

fn worker_of_two_levels() -> Result<Worker, Failure> {
    let mut worker = Worker::builder().level(4).sub_workers(1).build()?;
    worker.add_worker(builder(2).build()?)?;
    Ok(worker)
}

/// Runs and closes twice, one level and two.
fn run_and_close() -> Result<(), Failure> {
    for _ in 0..2 {
        let mut worker = builder(2).sub_workers(1).build()?;
        let nothing = worker.register_function("nothing", nothing);
        worker.init()?;
        worker.run(|orch| {
            orch.submit_next_level(nothing, &Args::new(), 0)?;
            orch.submit_next_level(nothing, &Args::new(), 1)
        })?;
        worker.close()?;
        let mut above = worker_of_two_levels()?;
        above.init()?;
        above.close()?;
    }
    Ok(())
}

#[test]
#[serial]
fn f58_a_program_that_ignores_sigchld_closes_cleanly() {
    let ignored = OnChild::ignored();
    let closed = run_and_close();
    drop(ignored);
    closed.unwrap_or_else(|failure| panic!("{}", text(&failure)));
}

#[test]
#[serial]
fn f58_a_program_that_reaps_all_children_itself_closes_cleanly() {
    let stop = AtomicBool::new(false);
    let closed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if waitpid(Pid::from_raw(-1), None).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let closed = std::panic::catch_unwind(run_and_close);
        stop.store(true, Ordering::Relaxed);
        closed.unwrap()
    });
    closed.unwrap_or_else(|failure| panic!("{}", text(&failure)));
}

#[test]
#[serial]
fn f58_a_death_is_a_death_although_sigchld_is_ignored() {
    let ignored = OnChild::ignored();
    let mut worker = builder(2).build().unwrap();
    let die = worker.register_function("die", die);
    worker.init().unwrap();
    let reported = worker.run(|orch| orch.submit_next_level(die, &Args::new(), 1)).unwrap_err();
    worker.close().unwrap();
    drop(ignored);
    assert!(text(&reported).contains("chip 1 (pid "), "{}", text(&reported));
}

/// Set for the program that prints.
const ROLE: &str = "PROC_SIGCHLD_PRINTS";

const PRINTS: &str = "#include <cstdint>\n#include <cstdio>\n\
    extern \"C\" void kernel_entry(int64_t *) { std::printf(\"of the kernel\\n\"); }\n";

#[test]
#[serial]
fn f65_what_a_kernel_prints_into_a_pipe_arrives_once() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "prints", PRINTS);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_program_that_prints", "--nocapture"])
        .env(ROLE, &so)
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(printed.matches("of the kernel").count(), 4, "{printed}");
    assert_eq!(printed.matches("of the parent, before").count(), 1, "{printed}");
    assert_eq!(printed.matches("of the parent, after").count(), 1, "{printed}");
    // What the parent had printed before it started the chips comes first.
    assert!(printed.find("before") < printed.find("of the kernel"), "{printed}");
}

/// Not a test: the program of the test above.
#[test]
#[serial]
fn the_program_that_prints() {
    let Some(so) = std::env::var_os(ROLE) else { return };
    // SAFETY: a literal without directives.
    unsafe { libc::printf(c"of the parent, before\n".as_ptr()) };
    let mut worker = builder(2).build().unwrap();
    let prints = worker.register_kernel(std::path::Path::new(&so)).unwrap();
    worker.init().unwrap();
    for chip in [0, 1, 0, 1] {
        worker.run(|orch| orch.submit_next_level(prints, &Args::new(), chip)).unwrap();
    }
    worker.close().unwrap();
    // SAFETY: as above.
    unsafe { libc::printf(c"of the parent, after\n".as_ptr()) };
}
