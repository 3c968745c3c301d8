//! Whether a process lives, and how it died.

use crate::pidfd::{self, Which};
use crate::pipes::LivenessEnd;
use deadline::{Deadline, HowDied};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor whose state says whether one process lives.
#[derive(Debug)]
pub struct ProcessWatch {
    pid: i32,
    seen_by: SeenBy,
}

/// How a process is watched.
#[derive(Debug)]
enum SeenBy {
    /// A pidfd, and for a child of ours the pipe in which it notes its exit code.
    Pidfd(OwnedFd, Option<LivenessEnd>),
    /// The pipe alone, where the kernel has no pidfds.
    Pipe(LivenessEnd),
}

impl ProcessWatch {
    /// Watches `pid` through a pidfd. The caller makes sure that `pid` still is the process it means: a
    /// child that it has not reaped, or the peer credentials of a socket.
    pub fn of_process(pid: i32) -> std::io::Result<Self> {
        Ok(Self { pid, seen_by: SeenBy::Pidfd(pidfd::open(pid)?, None) })
    }

    /// Watches a child through the pipe alone, of which it holds the other end, as no other process does.
    pub(crate) fn of_child(pid: i32, liveness: LivenessEnd) -> Self {
        Self { pid, seen_by: SeenBy::Pipe(liveness) }
    }

    /// Watches a child that was just started through a pidfd as well, if `open` gives its own.
    ///
    /// A child that has ended already may have been reaped by the kernel (SIGCHLD is ignored) or by
    /// another thread, and `open` may have found a stranger under its number. But if its end of the pipe
    /// is open *after* that, it was alive, and the pidfd is its own. Otherwise the pipe must do: it
    /// reads end-of-file when the process is gone. The same where the kernel has no pidfds.
    pub(crate) fn open_pidfd(&mut self, open: impl FnOnce(i32) -> nix::Result<OwnedFd>) {
        let SeenBy::Pipe(liveness) = &self.seen_by else { return };
        let Ok(fd) = open(self.pid) else { return };
        if is_ready(liveness.as_fd(), PollFlags::POLLHUP, PollTimeout::ZERO) {
            return;
        }
        if let SeenBy::Pipe(liveness) = std::mem::replace(&mut self.seen_by, SeenBy::Pidfd(fd, None))
            && let SeenBy::Pidfd(_, notes) = &mut self.seen_by
        {
            *notes = Some(liveness);
        }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How the process died; `None` while it lives.
    pub fn death(&self) -> Option<HowDied> {
        self.is_gone(PollTimeout::ZERO).then(|| self.how_died())
    }

    /// Sleeps until the process is gone, at most until `deadline`. Says whether it is.
    pub fn wait_for_death(&self, deadline: Deadline) -> bool {
        loop {
            // Rounded up, so that the last sleep does not end just before the deadline.
            let left = deadline.left().as_millis().min(60_000) as u16 + 1;
            if self.is_gone(PollTimeout::from(left)) {
                return true;
            }
            if deadline.has_passed() {
                return false;
            }
        }
    }

    /// Sends a signal to this process and to no other. That it has just died is not an error.
    pub(crate) fn signal(&self, signal: i32) {
        match &self.seen_by {
            SeenBy::Pidfd(fd, _) => {
                let _ = pidfd::send_signal(fd.as_fd(), signal);
            }
            // By its number, but only while a child of ours runs under it. What remains is a child that
            // another thread reaps right here.
            SeenBy::Pipe(_) => {
                let running = pidfd::wait(self.which(), libc::WNOHANG | libc::WNOWAIT) == Ok(None);
                if running {
                    let signal = Signal::try_from(signal).ok();
                    let _ = kill(Pid::from_raw(self.pid), signal);
                }
            }
        }
    }

    /// Reaps this process, a child of ours: how it ended, `None` while it runs. `flags` as for
    /// [`pidfd::wait`].
    pub(crate) fn reap(&self, flags: i32) -> Option<HowDied> {
        match pidfd::wait(self.which(), flags) {
            Ok(how) => how,
            // Reaped elsewhere: SIGCHLD is ignored, or the program around us waits for all its children.
            Err(_) => Some(self.noted_end()),
        }
    }

    fn which(&self) -> Which<'_> {
        match &self.seen_by {
            SeenBy::Pidfd(fd, _) => Which::Pidfd(fd.as_fd(), self.pid),
            SeenBy::Pipe(_) => Which::Number(self.pid),
        }
    }

    fn is_gone(&self, within: PollTimeout) -> bool {
        is_ready(self.as_fd(), self.death_event(), within)
    }

    /// What `poll` reports on the descriptor when the process is gone.
    pub(crate) fn death_event(&self) -> PollFlags {
        match &self.seen_by {
            SeenBy::Pidfd(..) => PollFlags::POLLIN,
            SeenBy::Pipe(_) => PollFlags::POLLHUP,
        }
    }

    /// How the dead process ended, from what the system still knows of it: its wait status if it is our
    /// child, its entry in the process table while it is a zombie, or what it noted itself.
    fn how_died(&self) -> HowDied {
        match pidfd::wait(self.which(), libc::WNOHANG | libc::WNOWAIT) {
            Ok(Some(how)) => how,
            _ => self.zombie().unwrap_or_else(|| self.noted_end()),
        }
    }

    /// From the process table, where it stands under its number until it is reaped.
    fn zombie(&self) -> Option<HowDied> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let status = zombie_status(&stat)?;
        if let SeenBy::Pidfd(fd, _) = &self.seen_by {
            // Not reaped even now: so that was its line, not a successor's.
            pidfd::send_signal(fd.as_fd(), 0).ok()?;
        }
        Some(match status & 0x7f {
            0 => HowDied::Exited((status >> 8) & 0xff),
            signal => HowDied::Signalled(signal),
        })
    }

    /// What a child noted about its own end.
    fn noted_end(&self) -> HowDied {
        let (SeenBy::Pidfd(_, Some(liveness)) | SeenBy::Pipe(liveness)) = &self.seen_by else {
            return HowDied::Unknown;
        };
        liveness.exit_code().map_or(HowDied::Unknown, HowDied::Exited)
    }

    /// Gives the process another number, as if the kernel had given its own away.
    #[cfg(test)]
    pub(crate) fn renumber(&mut self, pid: i32) {
        self.pid = pid;
    }
}

/// For `epoll` and the like: ready to be read (or hung up) when [`death`](ProcessWatch::death) may have
/// something to report. Not to be read from.
impl AsFd for ProcessWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.seen_by {
            SeenBy::Pidfd(fd, _) => fd.as_fd(),
            SeenBy::Pipe(liveness) => liveness.as_fd(),
        }
    }
}

/// Whether `poll` reports `event`, in so much time.
fn is_ready(fd: BorrowedFd<'_>, event: PollFlags, within: PollTimeout) -> bool {
    // A hang-up is always reported; asking for it alone keeps a noted exit code from ending the wait.
    let mut fds = [PollFd::new(fd, event & PollFlags::POLLIN)];
    match poll(&mut fds, within) {
        Ok(0) | Err(_) => false,
        Ok(_) => fds[0].revents().is_some_and(|found| found.intersects(event)),
    }
}

/// The wait status of a zombie from its `/proc/PID/stat` line: the last field, valid in states Z and X.
fn zombie_status(stat: &str) -> Option<i32> {
    // The second field is the program's name in parentheses and may contain anything, parentheses too.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    matches!(fields.next(), Some("Z" | "X")).then_some(())?;
    fields.last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombies_status_is_read_whatever_its_program_is_called() {
        let line = |state, code| format!("17 (a b) Z (x) {state} 1 17 17 0 -1 4194560 0 0 0 0 0 {code}\n");
        assert_eq!(zombie_status(&line("Z", 9)), Some(9));
        assert_eq!(zombie_status(&line("Z", 256)), Some(256));
        assert_eq!(zombie_status(&line("R", 9)), None);
        assert_eq!(zombie_status(""), None);
        assert_eq!(zombie_status("17 (half"), None);
    }

    #[test]
    fn this_process_lives_and_an_impossible_pid_is_an_error() {
        assert_eq!(ProcessWatch::of_process(std::process::id() as i32).unwrap().death(), None);
        let refused = |pid| ProcessWatch::of_process(pid).unwrap_err().raw_os_error();
        assert_eq!(refused(-1), Some(libc::EINVAL));
        assert_eq!(refused(i32::MAX), Some(libc::ESRCH));
    }

    #[test]
    fn f58_the_end_of_a_pipe_is_a_death_and_the_byte_in_it_is_the_exit_code() {
        let pid = std::process::id() as i32;
        let watch =
            |read: std::io::PipeReader| ProcessWatch::of_child(pid, LivenessEnd::new(read.into()).unwrap());
        let (read, mut write) = std::io::pipe().unwrap();
        let noted = watch(read);
        assert_eq!(noted.death(), None);
        std::io::Write::write_all(&mut write, &[7]).unwrap();
        assert_eq!(noted.death(), None);
        drop(write);
        assert_eq!(noted.death(), Some(HowDied::Exited(7)));
        assert_eq!(noted.death(), Some(HowDied::Exited(7)), "the second time too");
        let (read, write) = std::io::pipe().unwrap();
        drop(write);
        let unknown = watch(read).death().unwrap();
        assert_eq!(unknown.to_string(), "gone, exit status not known here");
    }

    /// CP-5
    #[test]
    fn f57_a_pidfd_that_may_be_a_strangers_is_not_used() {
        let me = std::process::id() as i32;
        let (read, write) = std::io::pipe().unwrap();
        drop(write);
        // The child is gone before its pidfd was opened.
        let mut watch = ProcessWatch::of_child(me, LivenessEnd::new(read.into()).unwrap());
        watch.open_pidfd(pidfd::open);
        assert!(matches!(watch.seen_by, SeenBy::Pipe(_)));
        watch.signal(libc::SIGKILL);
        assert_eq!(watch.death(), Some(HowDied::Unknown));
    }
}
