//! How a process ended.

use core::fmt;
use core::time::Duration;

/// How a peer's process ended, as far as this rank can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Death {
    /// It exited by itself.
    Exited {
        /// Its exit status.
        status: i32,
    },
    /// A signal ended it.
    Signalled {
        /// The number of the signal.
        signal: i32,
    },
    /// It is gone; only its parent learns how.
    Vanished,
    /// It is on another host, and its connection was closed.
    Disconnected,
    /// It is on another host, and nothing has come from there.
    Unanswering {
        /// For how long.
        within: Duration,
    },
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited { status } => write!(f, "exited with status {status}"),
            Self::Signalled { signal } => match signal_name(signal) {
                Some(name) => write!(f, "died ({name})"),
                None => write!(f, "died (signal {signal})"),
            },
            Self::Vanished => f.write_str("died (cause unknown here)"),
            Self::Disconnected => f.write_str("died (its connection from another host was closed)"),
            Self::Unanswering { within } => {
                write!(
                    f,
                    "is lost (nothing came from its host for {within:?}: the host or the network failed)"
                )
            }
        }
    }
}

/// The signals that end processes in practice, numbered as on Linux for x86-64 and AArch64.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}
