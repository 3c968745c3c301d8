//! The two pipes that tie a child to its parent: one ends the child with its parent, one shows the
//! parent whether the child lives.
//!
//! # Safety
//! System calls with integers and live locals on descriptors that the callee owns.
#![allow(unsafe_code)]

use fault_points::fault_call;
use nix::fcntl::OFlag;
use std::os::fd::{AsRawFd, OwnedFd};

/// What the parent holds.
#[derive(Debug)]
pub(crate) struct ParentEnds {
    /// The write end of the parent-death pipe. The kernel kills the child when the last copy of it is
    /// closed, which the parent's death does.
    pub(crate) parent_death: OwnedFd,
    /// The read end of the liveness pipe. It reads end-of-file when the child is gone.
    pub(crate) liveness: OwnedFd,
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
        ParentEnds { parent_death: parent_death_end, liveness: parent_liveness_end },
        ChildEnds { parent_death: child_death_end, liveness: child_liveness_end },
    ))
}

/// The read end and the write end.
fn pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    fault_call!("process.pipe").and_then(|()| nix::unistd::pipe2(OFlag::O_CLOEXEC))
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
