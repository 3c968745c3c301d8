//! How a process died, and how that is reported to a waiter.

use std::fmt;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowDied {
    /// It left with an exit code.
    Exited(i32),
    /// A signal killed it.
    Signalled(i32),
    /// It is gone; only its parent got the exit status.
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

/// Reports whether the peers that a wait depends on live. A closure is one too.
pub trait Watch {
    /// The first peer found dead, or `None` while all live. Called about 20 times a second by a parked
    /// waiter; must not block.
    fn first_death(&self) -> Option<Death>;

    /// Whether [`first_death`](Self::first_death) has something to do before the next poll. Asked whenever a parked waiter wakes;
    /// must not block.
    fn has_news(&self) -> bool {
        false
    }
}

impl<F: Fn() -> Option<Death>> Watch for F {
    fn first_death(&self) -> Option<Death> {
        self()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f20_a_death_names_the_peer_its_process_and_how_it_died() {
        // DL-4
        let death = |how| Death { peer: 3, pid: 77, how }.to_string();
        assert_eq!(death(HowDied::Exited(1)), "peer 3 (pid 77) died: exited with code 1");
        assert_eq!(death(HowDied::Signalled(9)), "peer 3 (pid 77) died: killed by SIGKILL");
        assert_eq!(death(HowDied::Signalled(99)), "peer 3 (pid 77) died: killed by signal 99");
        assert_eq!(death(HowDied::Unknown), "peer 3 (pid 77) died: gone, exit status not known here");
    }

    #[test]
    fn a_closure_is_a_watch() {
        let dead = Death { peer: 0, pid: 1, how: HowDied::Unknown };
        let watch: &dyn Watch = &|| Some(dead);
        assert_eq!(watch.first_death(), Some(dead));
    }
}
