//! Whether processes are left after a cycle.

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// How long a process may outlive its parent.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// How long one may that was killed, and that a busy machine has given no processor since.
const KILLED: Duration = Duration::from_secs(20);

/// Whether processes may be found here whose own parent was killed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Orphans {
    /// They may, and must end by themselves.
    Expected,
    /// No process may be left, dead or alive.
    None,
}

/// Fails unless this process has no children any more, dead or alive. Those that it finds are reaped.
pub(crate) fn check(orphans: Orphans) -> Result<(), String> {
    let start = Instant::now();
    let mut left = Vec::new();
    loop {
        match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => break,
            Ok(WaitStatus::StillAlive) if is_too_long(start.elapsed()) => {
                let left: Vec<_> = crate::killer::children().into_iter().map(describe).collect();
                return Err(format!("processes are left: {}", left.join("; ")));
            }
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(1)),
            Ok(status) => left.push(status),
            Err(errno) => return Err(format!("waitpid: {errno}")),
        }
    }
    match orphans {
        Orphans::None if !left.is_empty() => Err(format!("zombies were left: {left:?}")),
        _ => Ok(()),
    }
}

fn is_too_long(took: Duration) -> bool {
    took > KILLED || took > LAST_MOMENT && !crate::killer::children().into_iter().all(is_killed)
}

/// Whether a process is about to end by SIGKILL, or has ended.
fn is_killed(pid: i32) -> bool {
    let Some(status) = status(pid) else { return true };
    let pending = |field: &str| u64::from_str_radix(&value(&status, field), 16).unwrap_or(0);
    let kill = 1 << (nix::libc::SIGKILL - 1);
    (pending("SigPnd") | pending("ShdPnd")) & kill != 0 || is_exiting(pid)
}

/// Whether it is inside its exit: the kernel has taken the signal already.
fn is_exiting(pid: i32) -> bool {
    const PF_EXITING: u32 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // State, parent, group, session, terminal, its group, flags.
    let flags = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u32>().ok()).is_none_or(|flags| flags & PF_EXITING != 0)
}

fn describe(pid: i32) -> String {
    let Some(status) = status(pid) else { return format!("{pid}") };
    let killed = if is_killed(pid) { "killed" } else { "not killed" };
    format!("{pid} ({}, {}, {killed})", value(&status, "Name"), value(&status, "State"))
}

fn status(pid: i32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

fn value(status: &str, field: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
