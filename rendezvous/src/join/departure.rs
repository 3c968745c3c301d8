//! A rank that goes away from a rendezvous.

use super::wire::Message;
use crate::group::how_died;
use crate::memory::death_word;
use child_process::ProcessWatch;
use comm_context::comm::{CommError, Phase};
use deadline::{Deadline, HowDied};
use std::num::NonZeroU32;
use std::time::Duration;

/// A process that ends closes its sockets a little before the system reports its death.
const EXIT_GRACE: Duration = Duration::from_millis(50);

/// Which rank is gone, and what is known of the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Its process is gone.
    Died { rank: u32, pid: u32, how: HowDied },
    /// Its process lives and does not wait any longer.
    Left { rank: u32, reason: String },
}

impl Departure {
    /// The connection to `rank` is closed: finds out whether its process has ended.
    pub(super) fn of_process(rank: u32, pid: i32, process_watch: Option<&ProcessWatch>) -> Self {
        let soon = Deadline::after(EXIT_GRACE);
        let lives = matches!((process_watch, soon), (Some(watch), Ok(soon)) if !watch.wait_for_death(soon));
        if lives {
            return Self::Left { rank, reason: "it closed its connection to the rendezvous".to_owned() };
        }
        let how = process_watch.and_then(ProcessWatch::death).unwrap_or(HowDied::Unknown);
        Self::Died { rank, pid: pid.unsigned_abs(), how }
    }

    pub(super) fn message(&self) -> Message {
        match self {
            Self::Died { rank, pid, how } => Message::Lost {
                departed: death_word::encode(*rank, *how).get(),
                pid: *pid,
                reason: String::new(),
            },
            Self::Left { rank, reason } => Message::Lost {
                departed: death_word::encode(*rank, HowDied::Unknown).get(),
                pid: 0,
                reason: reason.clone(),
            },
        }
    }

    /// The departure that [`message`](Self::message) encoded; `None` when a group of `nranks` has no such
    /// rank.
    pub(super) fn decode(departed: u32, pid: u32, reason: String, nranks: u32) -> Option<Self> {
        let death = death_word::decode(NonZeroU32::new(departed)?, nranks)?;
        Some(match pid {
            0 => Self::Left { rank: death.peer, reason },
            pid => Self::Died { rank: death.peer, pid, how: death.how },
        })
    }

    pub(super) fn into_error(self) -> CommError {
        match self {
            Self::Died { rank, pid, how } => {
                CommError::PeerDied { rank, pid: Some(pid), how: how_died(how), phase: Phase::Init }
            }
            Self::Left { rank, reason } => CommError::PeerLeft { rank, reason, phase: Phase::Init },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_departure_survives_the_wire() {
        let died = Departure::Died { rank: 3, pid: 77, how: HowDied::Signalled(9) };
        let left = Departure::Left { rank: 0, reason: "its own reasons".to_owned() };
        for departure in [died, left] {
            let Message::Lost { departed, pid, reason } = departure.message() else { panic!() };
            assert_eq!(Departure::decode(departed, pid, reason.clone(), 4), Some(departure.clone()));
            assert_eq!(Departure::decode(0, pid, reason, 4), None);
        }
        assert_eq!(Departure::decode(u32::MAX, 1, String::new(), 4), None);
    }
}
