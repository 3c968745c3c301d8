//! Descriptors of processes.
//!
//! # Safety
//! Plain system calls on integers and live locals.
#![allow(unsafe_code)]

use deadline::HowDied;
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Opens a descriptor for the process `pid`; it is close-on-exec.
pub(crate) fn open(pid: i32) -> nix::Result<OwnedFd> {
    // SAFETY: takes two integers and returns a descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    Errno::result(fd)?;
    // SAFETY: the kernel just made this descriptor for us; nothing else owns it. A descriptor fits in an int.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends a signal to the process of `pidfd`, and to no other, whatever has become of its number. Signal 0
/// only asks whether it has been reaped (`ESRCH`).
pub(crate) fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> nix::Result<()> {
    let (fd, no_info) = (pidfd.as_raw_fd(), core::ptr::null::<libc::siginfo_t>());
    // SAFETY: takes integers and a null pointer, which stands for what `kill` would send.
    Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, no_info, 0) }).map(drop)
}

/// Which child to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    /// The process of a pidfd.
    Pidfd(BorrowedFd<'a>, i32),
    /// The child that has this number now. Only for kernels without pidfds.
    Number(i32),
}

/// How a child of ours ended. `Ok(None)` while it runs, `ECHILD` if it is not our child, or was reaped.
///
/// `flags`: `WNOHANG` not to wait for its end, `WNOWAIT` not to reap it.
pub(crate) fn wait(which: Which<'_>, flags: i32) -> nix::Result<Option<HowDied>> {
    let (kind, id, number) = match which {
        Which::Pidfd(fd, number) => (libc::P_PIDFD, fd.as_raw_fd() as libc::id_t, number),
        Which::Number(number) => (libc::P_PID, number as libc::id_t, number),
    };
    // SAFETY: an all-zero siginfo_t is a valid value of this plain C struct.
    let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
    // SAFETY: `info` is a live local of the type that the call fills.
    let answer = Errno::result(unsafe { libc::waitid(kind, id, &mut info, libc::WEXITED | flags) });
    match (answer, which) {
        (Err(Errno::EINTR), _) => return wait(which, flags),
        // Linux 5.3 has pidfds and cannot wait for them.
        (Err(Errno::EINVAL), Which::Pidfd(..)) => return wait(Which::Number(number), flags),
        (answer, _) => answer?,
    };
    // SAFETY: waitid filled the SIGCHLD variant of the union, or left it all zero, which reads as pid 0.
    let (found, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((found != 0).then_some(match info.si_code {
        libc::CLD_EXITED => HowDied::Exited(status),
        _ => HowDied::Signalled(status),
    }))
}
