//! Why ranks on several hosts cannot join.

use comm_context::comm::CommError;
use std::sync::Arc;
use std::time::Duration;

/// Why ranks on several hosts cannot join. Nothing was created when one of these is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostsError {
    /// The text is not the address of a host and a port.
    #[error(
        "{given:?} {problem}; write tcp://HOST:PORT, with an IPv6 address in brackets: tcp://[fd00::1]:29500"
    )]
    BadAddress {
        /// The text.
        given: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The environment names no address.
    #[error("env:// needs the address of rank 0 in the environment, and {problem}")]
    NoAddress {
        /// What was found there.
        problem: String,
    },
    /// The host has no address that this process can find.
    #[error(
        "{address}: the host cannot be resolved ({reason}); check the name on this host, or give the IP address"
    )]
    NotResolved {
        /// The address as given.
        address: String,
        /// What the resolver says.
        reason: String,
    },
    /// Rank 0 cannot listen at the address.
    #[error("{address}: rank 0 cannot listen there ({reason}); {advice}")]
    CannotListen {
        /// The address as given.
        address: String,
        /// What the system says.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// This host has no route to the address, or may not use it.
    #[error(
        "{address}: rank 0 cannot be reached from this host ({reason}); check the address, routes and firewalls"
    )]
    Unreachable {
        /// The address as given.
        address: String,
        /// What the system says.
        reason: String,
    },
    /// What listens at the address is not rank 0 of a group of this version.
    #[error(
        "{address}: what listens there is not rank 0 of this group ({what}); check the address, and use one build for all ranks"
    )]
    NotRankZero {
        /// The address as given.
        address: String,
        /// What it sent.
        what: String,
    },
    /// There is no usable token.
    #[error(
        "ranks on several hosts need a shared token, and {problem}; set CHIPCOMM_TOKEN_FILE to a file that only you can \
             read (chmod 600) with at least 16 random bytes, the same on every host, or CHIPCOMM_TOKEN to the token itself"
    )]
    Token {
        /// What is wrong.
        problem: String,
    },
    /// Rank 0 refused this rank, or ranks disagree.
    #[error("{address}: the rendezvous failed: {reason}")]
    Refused {
        /// The address as given.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The backend shares memory, which ends at the host.
    #[error(
        "{given:?} names ranks on several hosts, but simulated ranks share memory, which ends at the host; \
             use a file path as rootinfo_path and start all ranks on one host, or use the Ascend backend"
    )]
    OneHostOnly {
        /// The address as given.
        given: String,
    },
    /// The group's messages cannot be relayed.
    #[error(
        "{address}: the thread that relays messages cannot be started; see `ulimit -u` and pids.max of the container ({reason})"
    )]
    NoRelay {
        /// The address as given.
        address: String,
        /// What the system says.
        reason: String,
    },
}

impl From<HostsError> for CommError {
    fn from(error: HostsError) -> Self {
        Self::Backend { what: "init".to_owned(), source: Arc::new(error) }
    }
}

/// How the connection to a rank was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It was closed: the process at the other end has ended.
    Closed,
    /// Nothing has come for [`super::connection::SILENCE`]: host or network failed.
    Silent,
    /// The other end sent what no rank sends, or does not take what is sent to it.
    Malformed,
}

impl Lost {
    pub(super) const ALL: [Self; 3] = [Self::Closed, Self::Silent, Self::Malformed];

    /// The same in the terms of a communicator.
    pub(crate) fn death(self) -> comm_context::comm::Death {
        use comm_context::comm::Death::{Disconnected, Unanswering};
        match self {
            Self::Closed | Self::Malformed => Disconnected,
            Self::Silent => Unanswering { within: SILENCE_LIMIT },
        }
    }
}

const SILENCE_LIMIT: Duration = super::connection::SILENCE;
