//! The two pipes that tie a child to its parent: one ends the child with its parent, one shows the
//! parent whether the child lives, and what it exited with.
//!
//! # Safety
//! System calls with integers and live locals on descriptors that the callee owns.
#![allow(unsafe_code)]

use fault_points::fault_call;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// What the parent holds.
#[derive(Debug)]
pub(crate) struct ParentEnds {
    /// The write end of the parent-death pipe. The kernel kills the child when the last copy of it is
    /// closed, which the parent's death does.
    pub(crate) parent_death: OwnedFd,
    /// The parent's end of the liveness pipe.
    pub(crate) liveness: LivenessEnd,
}

/// The read end of a liveness pipe. It reads end-of-file when the child is gone, and before that the exit
/// code of a child that ended by itself.
///
/// The wait status says that too, but only to whoever reaps the child, which is the kernel itself if
/// SIGCHLD is ignored.
#[derive(Debug)]
pub(crate) struct LivenessEnd {
    fd: OwnedFd,
    noted: OnceLock<Option<u8>>,
}

impl LivenessEnd {
    pub(crate) fn new(fd: OwnedFd) -> nix::Result<Self> {
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { fd, noted: OnceLock::new() })
    }

    /// What the child, which is gone, noted as its exit code.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let read = || {
            let mut code = [0];
            (nix::unistd::read(&self.fd, &mut code) == Ok(1)).then_some(code[0])
        };
        self.noted.get_or_init(read).map(i32::from)
    }
}

impl AsFd for LivenessEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// This process's end of its liveness pipe; -1 in a process that is not a child.
static LIVENESS: AtomicI32 = AtomicI32::new(-1);

/// In a child that is about to exit: notes `code` for the parent.
pub(crate) fn note_exit_code(code: i32) {
    // Relaxed: a number that was stored before this process had other threads.
    let fd = LIVENESS.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: the end stays open for the life of a child. One byte from a live local; a parent that is
        // gone is an error here and not a signal, since children ignore SIGPIPE.
        unsafe { libc::write(fd, [code as u8].as_ptr().cast(), 1) };
    }
}

/// What the child holds, for its whole life.
#[derive(Debug)]
pub(crate) struct ChildEnds {
    /// The read end of the parent-death pipe.
    pub(crate) parent_death: OwnedFd,
    /// The write end of the liveness pipe. Only the child may hold it.
    pub(crate) liveness: OwnedFd,
}

/// Both pipes. All ends are close-on-exec.
pub(crate) fn pipes() -> nix::Result<(ParentEnds, ChildEnds)> {
    let (child_death_end, parent_death_end) = pipe()?;
    let (parent_liveness_end, child_liveness_end) = pipe()?;
    Ok((
        ParentEnds { parent_death: parent_death_end, liveness: LivenessEnd::new(parent_liveness_end)? },
        ChildEnds { parent_death: child_death_end, liveness: child_liveness_end },
    ))
}

/// The read end and the write end.
fn pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    fault_call!("process.pipe").map_err(Errno::from_raw).and_then(|()| nix::unistd::pipe2(OFlag::O_CLOEXEC))
}

impl ChildEnds {
    /// Has the kernel send SIGKILL to process `pid`, which holds these ends too, when the parent's end
    /// of the parent-death pipe is closed.
    pub(crate) fn kill_at_parent_death(&self, pid: i32) {
        let fd = self.parent_death.as_raw_fd();
        // SAFETY: fcntl with integers on a descriptor that we own.
        unsafe {
            libc::fcntl(fd, libc::F_SETOWN, pid);
            // F_SETSIG is Linux's 10 on all its processors; it chooses the signal that O_ASYNC sends.
            libc::fcntl(fd, 10, libc::SIGKILL);
            libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC);
        }
    }

    /// In the child: ends this process together with its parent, at once if the parent is gone.
    pub(crate) fn bind_to_parent(&self) {
        // Relaxed: nothing else is published by it.
        LIVENESS.store(self.liveness.as_raw_fd(), Ordering::Relaxed);
        self.kill_at_parent_death(std::process::id() as i32);
        let mut poll = libc::pollfd { fd: self.parent_death.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live `pollfd`, as the count says; the call does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) };
        if poll.revents & libc::POLLHUP != 0 {
            // SAFETY: ends the process at once; nothing of it is used afterwards.
            unsafe { libc::_exit(1) }
        }
    }
}
