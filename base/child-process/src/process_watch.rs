//! Whether a process lives, and how it died.

use crate::pidfd;
use deadline::{Deadline, HowDied};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, OwnedFd};

/// A descriptor whose state says whether one process lives.
#[derive(Debug)]
pub struct ProcessWatch {
    pid: i32,
    fd: OwnedFd,
    /// What `poll` reports when the process is gone.
    gone: PollFlags,
}

impl ProcessWatch {
    /// Watches `pid` through a pidfd. The caller makes sure that `pid` still is the process it means: a
    /// child that it has not reaped, or the peer credentials of a socket.
    pub fn of_process(pid: i32) -> nix::Result<Self> {
        Ok(Self { pid, fd: pidfd::open(pid)?, gone: PollFlags::POLLIN })
    }

    /// Watches `pid` through a pipe whose write end only that process holds: it reads end-of-file when
    /// the process is gone. Suffices where the kernel has no pidfds.
    pub(crate) fn of_pipe(pid: i32, read_end: OwnedFd) -> Self {
        Self { pid, fd: read_end, gone: PollFlags::POLLHUP }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How the process died; `None` while it lives.
    pub fn death(&self) -> Option<HowDied> {
        self.is_gone(PollTimeout::ZERO).then(|| how_died(self.pid))
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

    fn is_gone(&self, within: PollTimeout) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, within) {
            Ok(0) | Err(_) => false,
            Ok(_) => fds[0].revents().is_some_and(|found| found.intersects(self.gone)),
        }
    }
}

/// How the dead process `pid` ended, from what the system still knows of it: its wait status if it is
/// our child, its entry in the process table while it is a zombie.
fn how_died(pid: i32) -> HowDied {
    if let Some((code, status)) = pidfd::peek_child_status(pid) {
        return match code {
            libc::CLD_EXITED => HowDied::Exited(status),
            _ => HowDied::Signalled(status),
        };
    }
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| zombie_status(&stat)).map_or(
        HowDied::Unknown,
        |status| match status & 0x7f {
            0 => HowDied::Exited((status >> 8) & 0xff),
            signal => HowDied::Signalled(signal),
        },
    )
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
    use nix::errno::Errno;

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
        assert_eq!(ProcessWatch::of_process(-1).unwrap_err(), Errno::EINVAL);
        assert_eq!(ProcessWatch::of_process(i32::MAX).unwrap_err(), Errno::ESRCH);
    }

    #[test]
    fn the_end_of_a_pipe_is_a_death_and_bytes_in_it_are_not() {
        let (read, mut write) = std::io::pipe().unwrap();
        let watch = ProcessWatch::of_pipe(std::process::id() as i32, read.into());
        assert_eq!(watch.death(), None);
        std::io::Write::write_all(&mut write, b"x").unwrap();
        assert_eq!(watch.death(), None);
        drop(write);
        assert_eq!(watch.death(), Some(HowDied::Unknown));
    }
}
