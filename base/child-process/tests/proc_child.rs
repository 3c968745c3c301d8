//! Children and grandchildren, with real signals.
//!
//! # Safety
//! Forks. The children use pipes and system calls, and no lock of the test harness.
#![allow(unsafe_code, missing_docs)]

#[path = "support/hold_exit.rs"]
mod hold_exit;

use child_process::{Child, ProcessWatch};
use deadline::{Deadline, Death};
use hold_exit::{Held, allow_tracing};
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

/// A signal without a name.
const REAL_TIME: i32 = 40;

/// DL-4
#[test]
#[serial]
fn what_is_said_of_a_child_that_died() {
    let sleep = || loop {
        std::thread::sleep(Duration::from_secs(60));
    };
    for (signal, said) in [
        (None, "exited with code 3"),
        (Some(Signal::SIGKILL as i32), "killed by SIGKILL"),
        (Some(REAL_TIME), "killed by signal 40"),
    ] {
        // SAFETY: the body returns or sleeps.
        let child = unsafe { Child::fork(&[], || if signal.is_none() { 3 } else { sleep() }) }.unwrap();
        signal.into_iter().for_each(|signal| child.signal(signal));
        let death = Death { peer: 1, pid: child.pid(), how: child.reap(far()).expect("it ends") };
        assert_eq!(death.to_string(), format!("peer 1 (pid {}) died: {said}", child.pid()));
    }
}

/// CP-3
#[test]
#[serial]
fn f39_a_killed_child_that_the_kernel_holds_is_not_waited_for_and_reaped_later() {
    let (mut ready, write) = std::io::pipe().unwrap();
    let body = || {
        allow_tracing();
        (&write).write_all(&[1]).unwrap();
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    };
    // SAFETY: the body writes to a pipe that it keeps, and sleeps.
    let child = unsafe { Child::fork(&[write.as_fd()], body) }.unwrap();
    ready.read_exact(&mut [0]).unwrap();
    let pid = child.pid();
    let Some(held) = Held::at_exit_of(pid) else {
        println!("not run: this process may not trace another");
        return;
    };
    let watch = ProcessWatch::of_process(pid).unwrap();
    let (tells, dropped) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        drop(child);
        let _ = tells.send(());
    });
    let in_time = dropped.recv_timeout(Duration::from_secs(20));
    assert_eq!(watch.death(), None, "it was to be held");
    drop(held);
    in_time.expect("the drop waits for a process that does not end");
    thread.join().unwrap();
    assert!(watch.wait_for_death(far()));
    // SAFETY: the body returns.
    drop(unsafe { Child::fork(&[], || 0) }.unwrap());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "a zombie is left");
}
