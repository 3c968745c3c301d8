//! Descriptors of processes.
//!
//! # Safety
//! Plain system calls on integers and live locals.
#![allow(unsafe_code)]

use nix::errno::Errno;
use std::os::fd::{FromRawFd, OwnedFd};

/// Opens a descriptor for the process `pid`; it is close-on-exec.
pub(crate) fn open(pid: i32) -> nix::Result<OwnedFd> {
    // SAFETY: takes two integers and returns a descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    Errno::result(fd)?;
    // SAFETY: the kernel just made this descriptor for us; nothing else owns it. A descriptor fits in an int.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The wait status of a dead child, without reaping it; `None` if the process is not a child or runs.
pub(crate) fn peek_child_status(pid: i32) -> Option<(i32, i32)> {
    // SAFETY: an all-zero siginfo_t is a valid value of this plain C struct.
    let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is a live local of the type that the call fills; WNOWAIT leaves the child to
    // be reaped by its owner.
    let rc = unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) };
    // SAFETY: waitid filled the SIGCHLD variant of the union, or left it all zero, which reads as pid 0.
    let (found, status) = unsafe { (info.si_pid(), info.si_status()) };
    (rc == 0 && found == pid).then_some((info.si_code, status))
}
