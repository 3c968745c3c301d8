//! Child processes that cannot outlive their parent and cannot be lost.
//!
//! # Safety
//! The one fork of the workspace, and the system calls that set up the child. After the fork the child
//! runs on a copy of the parent in which only the forking thread exists; what that forbids is said at
//! [`Child::fork`].
#![allow(unsafe_code)]

use crate::forked;
use crate::left;
use crate::pidfd;
use crate::pipes::{ChildEnds, ParentEnds, note_exit_code, pipes};
use crate::process_watch::ProcessWatch;
use crate::stdio;
use deadline::{Deadline, HowDied, monotonic_ns};
use fault_points::fault_call;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::{ForkResult, Pid, fork};
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What a child ends with after a panic, as Rust programs do.
pub const PANIC_EXIT_CODE: i32 = 101;

/// Ends this process with `code`, as `std::process::exit` does, after noting `code` for the parent if it was
/// started by [`Child::respawn`]: a parent that ignores SIGCHLD gets no exit status from the system.
pub fn exit(code: i32) -> ! {
    note_exit_code(code);
    std::process::exit(code)
}

/// A child process, forked or spawned. Dropping it kills and reaps it; one that the kernel holds for longer than most of
/// a second is reaped later.
#[derive(Debug)]
pub struct Child {
    watch: Arc<ProcessWatch>,
    /// The parent's end of the parent-death pipe: closing it kills the child.
    _parent_death: OwnedFd,
    ended: Cell<Option<HowDied>>,
    /// Until when to wait for its end, once it was killed.
    killed: Cell<Option<Deadline>>,
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
    /// through `std::io::stdout`, a logger, or a mutex shared with other threads is not: ask
    /// [`is_forked_child`](crate::is_forked_child). A panic hook of the parent is not called. Values that
    /// own closed descriptors must not be used or dropped in `body`.
    pub unsafe fn fork(keep: &[BorrowedFd<'_>], body: impl FnOnce() -> i32) -> std::io::Result<Self> {
        // SAFETY: the caller's promise.
        Ok(unsafe { Self::fork_watched(pidfd::open, keep, body) }?)
    }

    /// # Safety
    /// As [`Child::fork`].
    unsafe fn fork_watched(
        open: impl FnOnce(i32) -> nix::Result<OwnedFd>,
        keep: &[BorrowedFd<'_>],
        body: impl FnOnce() -> i32,
    ) -> nix::Result<Self> {
        left::reap_ended();
        let (parent_ends, child_ends) = pipes()?;
        fault_call!("process.fork").map_err(Errno::from_raw)?;
        stdio::flush_before_fork();
        // Neither dropped nor needed in the child, which never returns from here.
        let forking = forked::before_fork();
        // SAFETY: the caller promised that `body` keeps to what a forked child may do, and `enter` below
        // does.
        match unsafe { fork() }? {
            ForkResult::Child => {
                forked::set_forked();
                drop(parent_ends);
                stdio::discard_inherited();
                let kept = keep.iter().map(AsRawFd::as_raw_fd).collect();
                enter(&child_ends, kept);
                let code =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(PANIC_EXIT_CODE);
                stdio::flush_before_exit();
                note_exit_code(code);
                // SAFETY: ends the process at once; nothing of it is used afterwards.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => {
                drop((forking, child_ends));
                Ok(Self::watched(child, open, parent_ends))
            }
        }
    }

    /// A process that was just started and holds the other ends.
    pub(crate) fn watched(
        pid: Pid,
        open: impl FnOnce(i32) -> nix::Result<OwnedFd>,
        ends: ParentEnds,
    ) -> Self {
        // First a value whose drop kills and reaps: from here on a panic leaves no process behind.
        let watch = Arc::new(ProcessWatch::of_child(pid.as_raw(), ends.liveness));
        let (ended, killed) = (Cell::new(None), Cell::new(None));
        let mut child = Self { watch, _parent_death: ends.parent_death, ended, killed };
        // The number is good for one thing, to open the pidfd now; after that it may be a stranger's.
        if let Some(watch) = Arc::get_mut(&mut child.watch) {
            watch.open_pidfd(|pid| {
                fault_call!("process.watch").map_err(Errno::from_raw).and_then(|()| open(pid))
            });
        }
        child
    }

    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.watch.pid()
    }

    /// The watch on the child.
    pub fn watch(&self) -> &ProcessWatch {
        &self.watch
    }

    /// How the child ended, reaping it; `None` while it runs. Remembers the answer.
    pub fn try_reap(&self) -> Option<HowDied> {
        self.collect(libc::WNOHANG)
    }

    /// Waits for the child's end until `deadline`, and reaps it. `None` when it still runs then.
    pub fn reap(&self, deadline: Deadline) -> Option<HowDied> {
        if self.ended.get().is_none() && !self.watch.wait_for_death(deadline) {
            return None;
        }
        // It is gone, or, watched through a pipe, about to be: descriptors are closed a little before a
        // process can be reaped.
        self.collect(0)
    }

    /// Sends a signal, by its number, unless the child has ended. It never reaches another process, even if the child was
    /// reaped behind our back and its number is in use again.
    pub fn signal(&self, signal: i32) {
        if self.ended.get().is_none() {
            self.watch.signal(signal);
        }
        if signal == libc::SIGKILL && self.killed.get().is_none() {
            self.killed.set(Some(Deadline::since(monotonic_ns(), left::ENDS_WITHIN)));
        }
    }

    fn collect(&self, flags: i32) -> Option<HowDied> {
        if self.ended.get().is_none() {
            self.ended.set(self.watch.reap(flags));
        }
        self.ended.get()
    }
}

/// That of its [watch](Child::watch): ready when the child has ended, for `epoll` and the like.
impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        if self.killed.get().is_some_and(|until| self.reap(until).is_none()) {
            left::keep(&self.watch);
        }
        left::reap_ended();
    }
}

/// Sets up a fresh child: signals as in a new program, the parent-death pipe, only the descriptors in
/// `keep` beside the child's own.
pub(crate) fn enter(ends: &ChildEnds, mut keep: Vec<i32>) {
    reset_signals();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    ends.bind_to_parent();
    keep.extend([ends.parent_death.as_raw_fd(), ends.liveness.as_raw_fd()]);
    close_all_but(keep);
}

/// Signals as `execve` leaves them: those that are caught have their default action again, also SIGSEGV and
/// SIGBUS (the standard library's handler returns from one that was sent by `kill`, and the child would go
/// on), and those that are ignored stay ignored, as under `nohup`. SIGTERM and SIGCHLD have their default
/// action in any case: a parent ends its children by the one, and they may have children of their own.
/// SIGPIPE is ignored, as in every Rust program.
fn reset_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: an all-zero sigaction is a valid value of this plain C struct: the default action, no
        // flags, an empty mask.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        let default = action;
        // SAFETY: fills a live local. Numbers that are not for us are answered with EINVAL.
        if unsafe { libc::sigaction(signal, core::ptr::null(), &mut action) } != 0 {
            continue;
        }
        let wanted = match signal {
            libc::SIGPIPE => libc::SIG_IGN,
            libc::SIGTERM | libc::SIGCHLD => libc::SIG_DFL,
            _ if action.sa_sigaction == libc::SIG_IGN => libc::SIG_IGN,
            _ => libc::SIG_DFL,
        };
        if action.sa_sigaction != wanted {
            let action = libc::sigaction { sa_sigaction: wanted, ..default };
            // SAFETY: a live local; installs no handler.
            unsafe { libc::sigaction(signal, &action, core::ptr::null_mut()) };
        }
    }
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
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, Signal, sigaction};
    use serial_test::serial;
    use std::time::Duration;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20)).unwrap()
    }

    /// CP-4
    #[test]
    #[serial]
    fn f02_the_end_of_a_child_is_reported_however_it_is_watched() {
        for open in [pidfd::open, |_| Err(Errno::ENOSYS)] {
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

    /// CP-5
    #[test]
    #[serial]
    fn f57_a_process_that_has_the_number_of_a_reaped_child_is_left_alone() {
        use nix::sys::wait::waitpid;
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        for (ignores, by_pidfd) in [(false, true), (true, true), (false, false), (true, false)] {
            let action = if ignores { &ignored } else { &default };
            // SAFETY: no handler is installed, only the default action or none.
            unsafe { sigaction(Signal::SIGCHLD, action) }.unwrap();
            let (read, write) = std::io::pipe().unwrap();
            let open = |pid| if by_pidfd { pidfd::open(pid) } else { Err(Errno::ENOSYS) };
            let body = || {
                let _ = std::io::Read::read(&mut &read, &mut [0]);
                0
            };
            // SAFETY: the body waits for the end of a pipe.
            let mut child = unsafe { Child::fork_watched(open, &[read.as_fd()], body) }.unwrap();
            drop(write);
            // Somebody else reaps it: the kernel, or a loop over all children in the program around us.
            let _ = waitpid(Pid::from_raw(child.pid()), None);
            // SAFETY: as above.
            unsafe { sigaction(Signal::SIGCHLD, &default) }.unwrap();
            let stranger = orphan();
            // What the kernel does when the numbers have wrapped around.
            Arc::get_mut(&mut child.watch).unwrap().renumber(stranger);
            child.signal(libc::SIGKILL);
            let reaped = child.try_reap();
            drop(child);
            let stat = std::fs::read_to_string(format!("/proc/{stranger}/stat")).unwrap_or_default();
            let _ = nix::sys::signal::kill(Pid::from_raw(stranger), Signal::SIGKILL);
            let case = format!("ignored {ignores}, pidfd {by_pidfd}");
            assert!(stat.contains("(sleep) S"), "{case}: the other process was killed: {stat:?}");
            assert_eq!(reaped, Some(HowDied::Exited(0)), "{case}");
        }
    }

    /// A process that sleeps and is not a child of this one.
    fn orphan() -> i32 {
        let script = "sleep 60 > /dev/null 2>&1 & echo $!";
        let out = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
        let pid = String::from_utf8_lossy(&out.stdout).trim().parse().unwrap();
        // Until it is no longer the shell's copy that becomes it.
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains("(sleep) S") {
            std::thread::yield_now();
        }
        pid
    }

    /// CP-4
    #[test]
    #[serial]
    fn f02_death_by_a_real_time_signal_is_reported() {
        // SAFETY: the body only raises.
        let child = unsafe { Child::fork(&[], || libc::raise(libc::SIGRTMIN() + 3)) }.unwrap();
        assert_eq!(child.reap(soon()), Some(HowDied::Signalled(libc::SIGRTMIN() + 3)));
    }

    /// CP-6
    #[test]
    #[serial]
    fn a_child_runs_no_handler_of_its_parent() {
        extern "C" fn exits(_: i32) {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(99) }
        }
        let handler = SigAction::new(SigHandler::Handler(exits), SaFlags::empty(), SigSet::empty());
        let signals = [Signal::SIGUSR1, Signal::SIGWINCH, Signal::SIGALRM, Signal::SIGTERM];
        // SAFETY: the handler only ends the process.
        let before = signals.map(|signal| unsafe { sigaction(signal, &handler) }.unwrap());
        // Ignored by default.
        // SAFETY: the body only raises.
        let quiet = unsafe { Child::fork(&[], || libc::raise(libc::SIGWINCH)) }.unwrap().reap(soon());
        let deadly = [libc::SIGUSR1, libc::SIGALRM, libc::SIGTERM].map(|signal| {
            // SAFETY: as above.
            (signal, unsafe { Child::fork(&[], || libc::raise(signal)) }.unwrap().reap(soon()))
        });
        // A pipe without a reader is an error, as in every Rust program.
        let writes = || {
            let (read, mut write) = std::io::pipe().unwrap();
            drop(read);
            let error = std::io::Write::write(&mut write, b"x").unwrap_err();
            i32::from(error.kind() != std::io::ErrorKind::BrokenPipe)
        };
        // SAFETY: the body writes to a pipe of its own.
        let broken = unsafe { Child::fork(&[], writes) }.unwrap().reap(soon());
        for (signal, action) in signals.iter().zip(before) {
            // SAFETY: what was there before.
            unsafe { sigaction(*signal, &action) }.unwrap();
        }
        assert_eq!(quiet, Some(HowDied::Exited(0)));
        for (signal, how) in deadly {
            assert_eq!(how, Some(HowDied::Signalled(signal)));
        }
        assert_eq!(broken, Some(HowDied::Exited(0)));
    }
}
