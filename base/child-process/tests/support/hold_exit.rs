//! Processes that do not end when they are killed, as one does not that is inside the kernel: a tracer holds them at their
//! exit.

use child_process::Child;
use nix::libc;
use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsFd;

/// A process that has not ended until this is dropped.
pub(crate) struct Held {
    /// Closed before the tracer is dropped: it ends, and lets go.
    _release: PipeWriter,
    _tracer: Child,
}

/// In the process that is to be held, where a process may be traced by its ancestors only.
pub(crate) fn allow_tracing() {
    // SAFETY: a call with integers. A kernel without this restriction does not know it.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}

impl Held {
    /// Holds the process `pid` when it is about to end. `None` where this process may not trace another.
    pub(crate) fn at_exit_of(pid: i32) -> Option<Self> {
        let ((mut told, tells), (gate, release)) = (std::io::pipe().ok()?, std::io::pipe().ok()?);
        let body = || {
            let options = libc::PTRACE_O_TRACEEXIT as usize;
            // SAFETY: takes integers only, and writes to no memory.
            let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0_usize, options) } == 0;
            let _ = (&tells).write_all(&[u8::from(seized)]);
            let _ = (&gate).read(&mut [0]);
            0
        };
        // SAFETY: the body makes system calls on pipes that it keeps.
        let tracer = unsafe { Child::fork(&[tells.as_fd(), gate.as_fd()], body) }.ok()?;
        drop(tells);
        let mut seized = [0];
        told.read_exact(&mut seized).ok()?;
        (seized == [1]).then_some(Self { _release: release, _tracer: tracer })
    }
}
