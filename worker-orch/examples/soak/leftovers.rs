//! Whether processes are left after a cycle.

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// How long a process may outlive its parent.
const LAST_MOMENT: Duration = Duration::from_secs(1);

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
            Ok(WaitStatus::StillAlive) if start.elapsed() > LAST_MOMENT => {
                return Err(format!("processes are left: {:?}", crate::killer::children()));
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
