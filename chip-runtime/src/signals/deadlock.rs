//! Chips that wait for each other: what the words say, as a chain.

use super::table::RemoteAddressTable;
use crate::task::TaskId;
use mailbox_atomics::{PublishedWait, Quiet};
use std::fmt;

/// A wait of one chip, as its words says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckWait {
    /// The chip that waits: a rank of the communicator.
    pub rank: u32,
    /// The task that waits.
    pub task: TaskId,
    /// The name of the window; `None` for that of a domain of others.
    pub window: Option<String>,
    /// Where the word is in it.
    pub offset: u64,
    /// What the word holds.
    pub have: u32,
    /// What it must reach.
    pub want: u32,
    /// Who should signal it: a rank of the communicator.
    pub from: u32,
}

/// What a wait says of its window: every chip numbers its domains for itself, but they have the same names.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl StuckWait {
    /// What the rank that waits publishes.
    pub(super) fn encode(task: TaskId, word: (&str, u64), from: u32, have: u32, want: u32) -> PublishedWait {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let (window, offset) = word;
        [task.0, pair(hash(window), from), offset, pair(have, want)]
    }

    /// What `rank` published, with the name of its window where `table` has it.
    pub(super) fn decode(rank: u32, wait: &PublishedWait, table: &RemoteAddressTable) -> Self {
        let [task, place, offset, values] = *wait;
        let (high, low) = (|word: u64| (word >> 32) as u32, |word: u64| word as u32);
        let window = table.names().find(|name| hash(name) == high(place)).map(str::to_owned);
        let (from, have, want) = (low(place), high(values), low(values));
        Self { rank, task: TaskId(task), window, offset, have, want, from }
    }
}

impl fmt::Display for StuckWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, task, window, offset, have, want, from } = self;
        write!(f, "{task} of rank {rank} waits for rank {from} (word {offset:#x} of ")?;
        match window {
            Some(name) => write!(f, "window `{name}`")?,
            None => f.write_str("a window of other ranks")?,
        }
        write!(f, " is {have}, not {want})")
    }
}

/// No chip can move any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Waits, each for the chip of the next one.
    pub chain: Vec<StuckWait>,
    /// Whether the last of them waits for a chip that is in the chain; if not, that chip has finished without the signal.
    pub is_cycle: bool,
}

impl Deadlock {
    /// What the quiet words of these ranks say; `None` when nobody waits.
    pub(super) fn of(ranks: &[u32], words: &[Quiet], table: &RemoteAddressTable) -> Option<Self> {
        let first_of = |rank: u32| {
            let at = ranks.iter().position(|known| *known == rank)?;
            let wait = words.get(at)?.waits.first()?;
            Some(StuckWait::decode(rank, wait, table))
        };
        let mut at = ranks.iter().copied().find(|rank| first_of(*rank).is_some())?;
        // So many steps lead into the cycle, where there is one.
        for _ in ranks {
            match first_of(at) {
                Some(wait) if first_of(wait.from).is_some() => at = wait.from,
                _ => break,
            }
        }
        let mut chain: Vec<StuckWait> = Vec::new();
        while let Some(wait) = first_of(at).filter(|wait| chain.iter().all(|known| known.rank != wait.rank)) {
            at = wait.from;
            chain.push(wait);
        }
        let is_cycle = chain.iter().any(|wait| wait.rank == at);
        Some(Self { chain, is_cycle })
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no chip can go on: ")?;
        for (at, wait) in self.chain.iter().enumerate() {
            write!(f, "{}{wait}", if at > 0 { "; " } else { "" })?;
        }
        match (self.is_cycle, self.chain.last()) {
            (true, Some(_)) => f.write_str("; each waits for the next, the last for the first"),
            (false, Some(last)) => write!(f, "; rank {} has ended without that signal", last.from),
            (_, None) => Ok(()),
        }
    }
}
