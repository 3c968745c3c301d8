//! Child processes that cannot outlive their parent and cannot be lost.
//!
//! # Safety
//! The one fork of the workspace, and the system calls that set up the child. After the fork the child
//! runs on a copy of the parent in which only the forking thread exists; what that forbids is said at
//! [`Child::fork`].
#![allow(unsafe_code)]

use crate::pipes::{ChildEnds, ParentEnds, pipes};
use crate::process_watch::ProcessWatch;
use deadline::{Deadline, HowDied};
use fault_points::fault_call;
use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// What a child ends with after a panic, as Rust programs do.
pub const PANIC_EXIT_CODE: i32 = 101;

/// A child process, forked or spawned. Dropping it kills and reaps it.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    watch: ProcessWatch,
    /// The parent's end of the parent-death pipe: closing it kills the child.
    _parent_death: OwnedFd,
    ended: Cell<Option<HowDied>>,
}

impl Child {
    /// Forks. The child runs `body` and ends with the exit code that it returns, without running
    /// destructors or exit handlers of the parent's copy; a panic ends it with [`PANIC_EXIT_CODE`] and
    /// its message on standard error.
    ///
    /// The child keeps standard input, output and error and the descriptors in `keep`; all others are
    /// closed in it. It is killed when the parent process ends, in whatever way and at whatever point,
    /// also before `body` starts. Unlike `PR_SET_PDEATHSIG`, this does not depend on the thread that
    /// forked.
    ///
    /// # Safety
    /// The parent may have other threads. They do not exist in the child, and a lock that one of them
    /// held at this moment stays locked there for ever. So `body` must not use anything that such a
    /// thread may hold: allocating is fine (the C library takes care of its own locks), but printing
    /// through `std::io::stdout`, a logger, or a mutex shared with other threads is not. Values that
    /// own closed descriptors must not be used or dropped in `body`.
    pub unsafe fn fork(keep: &[BorrowedFd<'_>], body: impl FnOnce() -> i32) -> nix::Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::fork_watched(ProcessWatch::of_process, keep, body) }
    }

    /// # Safety
    /// As [`Child::fork`].
    unsafe fn fork_watched(
        open: impl FnOnce(i32) -> nix::Result<ProcessWatch>,
        keep: &[BorrowedFd<'_>],
        body: impl FnOnce() -> i32,
    ) -> nix::Result<Self> {
        let (parent_ends, child_ends) = pipes()?;
        fault_call!("process.fork")?;
        // SAFETY: the caller promised that `body` keeps to what a forked child may do, and `enter` below
        // does.
        match unsafe { fork() }? {
            ForkResult::Child => {
                drop(parent_ends);
                let kept = keep.iter().map(AsRawFd::as_raw_fd).collect();
                enter(&child_ends, kept);
                let code =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(PANIC_EXIT_CODE);
                // SAFETY: ends the process at once; nothing of it is used afterwards.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => {
                drop(child_ends);
                Ok(Self::watched(child, open, parent_ends))
            }
        }
    }

    /// A process that was just started and holds the other ends.
    pub(crate) fn watched(
        pid: Pid,
        open: impl FnOnce(i32) -> nix::Result<ProcessWatch>,
        ends: ParentEnds,
    ) -> Self {
        let watch = ProcessWatch::of_pipe(pid.as_raw(), ends.liveness);
        // From here on dropping it reaps it.
        let mut child = Self { pid, watch, _parent_death: ends.parent_death, ended: Cell::new(None) };
        // An old kernel, or one that hides pidfds, leaves the pipe, which is as good while no other
        // process holds its write end.
        if let Ok(better) = fault_call!("process.watch").and_then(|()| open(pid.as_raw())) {
            child.watch = better;
        }
        child
    }

    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// The watch on the child.
    pub fn watch(&self) -> &ProcessWatch {
        &self.watch
    }

    /// How the child ended, reaping it; `None` while it runs. Remembers the answer.
    pub fn try_reap(&self) -> Option<HowDied> {
        self.collect(Some(WaitPidFlag::WNOHANG))
    }

    /// Waits for the child's end until `deadline`, and reaps it. `None` when it still runs then.
    pub fn reap(&self, deadline: Deadline) -> Option<HowDied> {
        if self.ended.get().is_none() && !self.watch.wait_for_death(deadline) {
            return None;
        }
        // It is gone, or, watched through a pipe, about to be: descriptors are closed a little before a
        // process can be reaped.
        self.collect(None)
    }

    /// Sends a signal, unless the child has been reaped.
    pub fn signal(&self, signal: Signal) {
        if self.ended.get().is_none() {
            // An unreaped child's pid cannot belong to another process; that it has just died is not an
            // error.
            let _ = nix::sys::signal::kill(self.pid, signal);
        }
    }

    fn collect(&self, flags: Option<WaitPidFlag>) -> Option<HowDied> {
        if self.ended.get().is_none() {
            let how = match waitpid(self.pid, flags) {
                Ok(WaitStatus::Exited(_, code)) => HowDied::Exited(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => HowDied::Signalled(signal as i32),
                // Reaped elsewhere (a SIGCHLD handler of the program around us).
                Err(Errno::ECHILD) => HowDied::Unknown,
                Ok(_) | Err(_) => return None,
            };
            self.ended.set(Some(how));
        }
        self.ended.get()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        // Bounded: nothing survives SIGKILL, and a child that was reaped answers at once.
        while self.collect(None).is_none() {}
    }
}

/// Sets up a fresh child: signals as in a new program, the parent-death pipe, only the descriptors in
/// `keep` beside the child's own, panics reported without locks.
pub(crate) fn enter(ends: &ChildEnds, mut keep: Vec<i32>) {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SIGSEGV and SIGBUS too: the standard library's handler returns from one that was sent by `kill`,
    // and the child would go on.
    use Signal::{SIGBUS, SIGCHLD, SIGHUP, SIGINT, SIGPIPE, SIGSEGV, SIGTERM};
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGPIPE, SIGSEGV, SIGBUS] {
        // SAFETY: installs the default action, so that no handler of ours runs.
        let _ = unsafe { sigaction(signal, &default) };
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    ends.bind_to_parent();
    keep.extend([ends.parent_death.as_raw_fd(), ends.liveness.as_raw_fd()]);
    close_all_but(keep);
    std::panic::set_hook(Box::new(|panic| {
        let text = format!("[pid {}] {panic}\n", std::process::id());
        // Straight to the descriptor: a thread that does not exist here may have held the lock around
        // `std::io::stderr`.
        // SAFETY: standard error is open for the process's life; nothing here owns or closes it.
        let _ = nix::unistd::write(unsafe { BorrowedFd::borrow_raw(2) }, text.as_bytes());
    }));
}

/// Closes every descriptor except 0, 1, 2 and `keep`.
fn close_all_but(mut keep: Vec<i32>) {
    keep.extend([0, 1, 2]);
    keep.sort_unstable();
    keep.dedup();
    let mut first = 0_u32;
    for next in keep.into_iter().map(|fd| fd as u32).chain([u32::MAX]) {
        if first < next {
            // SAFETY: closes descriptors that this process will not use, as the caller of `fork`
            // promised. A kernel without close_range leaves them open, which only wastes them.
            unsafe { libc::syscall(libc::SYS_close_range, first, next - 1, 0) };
        }
        first = next.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serial_test::serial;
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20)).unwrap()
    }

    /// CP-4
    #[test]
    #[serial]
    fn f02_the_end_of_a_child_is_reported_however_it_is_watched() {
        for open in [ProcessWatch::of_process, |_| Err(Errno::ENOSYS)] {
            // SAFETY: the bodies only return, panic or raise.
            let ends =
                |body: fn() -> i32| unsafe { Child::fork_watched(open, &[], body) }.unwrap().reap(soon());
            assert_eq!(ends(|| 7), Some(HowDied::Exited(7)));
            assert_eq!(ends(|| panic!("on purpose")), Some(HowDied::Exited(PANIC_EXIT_CODE)));
            assert_eq!(ends(kill_me), Some(HowDied::Signalled(libc::SIGKILL)));
        }
    }

    fn kill_me() -> i32 {
        nix::sys::signal::raise(Signal::SIGKILL).unwrap();
        0
    }

    /// CP-2
    #[test]
    #[serial]
    fn f04_a_child_keeps_only_the_descriptors_it_needs() {
        let (read, write) = std::io::pipe().unwrap();
        let kept = read.as_raw_fd();
        let body = move || {
            let open: Vec<_> = std::fs::read_dir("/proc/self/fd").unwrap().flatten().collect();
            // 0, 1, 2, the kept one, the ends of the two pipes, and the folder that is being read.
            let has = |fd: i32| open.iter().any(|entry| entry.file_name().to_str() == Some(&fd.to_string()));
            i32::from(!(has(kept) && open.len() <= 7))
        };
        // SAFETY: the body reads a folder and touches no lock of the parent.
        let child = unsafe { Child::fork(&[read.as_fd()], body) }.unwrap();
        assert_eq!(child.reap(soon()), Some(HowDied::Exited(0)));
        drop(write);
    }

    /// CP-3
    #[test]
    #[serial]
    fn dropping_a_child_kills_and_reaps_it() {
        // SAFETY: the body only sleeps.
        let child = unsafe {
            Child::fork(&[], || {
                loop {
                    std::thread::sleep(Duration::from_secs(60))
                }
            })
        }
        .unwrap();
        let pid = child.pid();
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
