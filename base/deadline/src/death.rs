//! How a process died, and who can tell.

use std::fmt;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowDied {
    /// It left with an exit code.
    Exited(i32),
    /// A signal killed it.
    Signalled(i32),
    /// It is gone; only its parent was told how.
    Unknown,
}

impl fmt::Display for HowDied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signalled(number) => match nix::sys::signal::Signal::try_from(number) {
                Ok(signal) => write!(f, "killed by {signal}"),
                Err(_) => write!(f, "killed by signal {number}"),
            },
            Self::Unknown => f.write_str("gone, exit status not known here"),
        }
    }
}

/// The end of a peer process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The number under which the peer is watched: a rank, a chip.
    pub peer: u32,
    /// Its process.
    pub pid: i32,
    /// How it ended.
    pub how: HowDied,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {} (pid {}) died: {}", self.peer, self.pid, self.how)
    }
}

/// Somebody who knows whether the peers of a wait live.
pub trait Watch {
    /// The first peer found dead, or `None` while all live. Called about 20 times a second by a parked waiter; must not
    /// block.
    fn first_death(&self) -> Option<Death>;
}
