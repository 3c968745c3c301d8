//! Children and grandchildren, with real signals.
//!
//! # Safety
//! Forks. The children use pipes and system calls, and no lock of the test harness.
#![allow(unsafe_code, missing_docs)]

use child_process::{Child, ProcessWatch};
use deadline::Deadline;
use nix::sys::signal::Signal;
use serial_test::serial;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// Far away: a test that gets here has hung.
fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}

/// CP-1
#[test]
#[serial]
fn f03_children_end_with_their_parent() {
    let (mut read, write) = std::io::pipe().unwrap();
    let spin = || {
        (&write).write_all(&std::process::id().to_le_bytes()).unwrap();
        loop {
            std::hint::spin_loop();
        }
    };
    let body = || {
        // SAFETY: the body writes to a pipe that it keeps, and spins.
        unsafe { Child::fork(&[write.as_fd()], spin) }.unwrap().reap(far());
        0
    };
    // SAFETY: the body forks and waits.
    let parent = unsafe { Child::fork(&[write.as_fd()], body) }.unwrap();
    let mut pid = [0; 4];
    read.read_exact(&mut pid).unwrap();
    let grandchild = ProcessWatch::of_process(i32::from_le_bytes(pid)).unwrap();
    assert_eq!(grandchild.death(), None);
    parent.signal(Signal::SIGKILL as i32);
    assert!(grandchild.wait_for_death(far()), "the grandchild spins on without its parent");
}
