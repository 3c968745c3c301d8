//! How a group is made.

use crate::table::Table;
use comm_context::comm::Timeout;
use std::time::Duration;

/// What a group is made with. The same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(crate) pool: usize,
    pub(crate) within: Timeout,
    pub(crate) thread: Option<ProgressThread>,
    pub(crate) table: Option<Table>,
}

/// Asks for a thread that works on started calls while the caller computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgressThread;

impl Options {
    /// Bytes of a pool where nobody says otherwise.
    pub const POOL: usize = 4 << 20;

    /// A pool of [`POOL`](Self::POOL) bytes, waits of at most [`Timeout::DEFAULT`], no thread, and the table of the
    /// [environment](Table::VARIABLE) or the [default](Table::default).
    pub const fn new() -> Self {
        Self { pool: Self::POOL, within: Timeout::DEFAULT, thread: None, table: None }
    }

    /// Bytes of every rank's window for tensors ([`Collectives::alloc`](crate::Collectives::alloc)). They are reserved when the group is
    /// made.
    pub const fn pool(mut self, bytes: usize) -> Self {
        self.pool = bytes;
        self
    }

    /// How long one call may wait for its peers.
    pub const fn timeout(mut self, within: Timeout) -> Self {
        self.within = within;
        self
    }

    /// A thread of this rank works on started calls while the caller computes. Without it a started call of more than one piece goes on
    /// only while the rank is inside some call of this crate. It may differ between ranks.
    pub const fn progress_thread(mut self) -> Self {
        self.thread = Some(ProgressThread);
        self
    }

    /// What the group chooses its algorithms by. The same on every rank.
    pub const fn table(mut self, table: Table) -> Self {
        self.table = Some(table);
        self
    }

    /// The options as numbers, for another process.
    pub fn to_words(self) -> Vec<u64> {
        let within = self.within.get();
        let ns = within.as_secs().saturating_mul(1_000_000_000).saturating_add(within.subsec_nanos() as u64);
        let table = self.table.map(Table::to_words);
        let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32;
        let table = table.iter().flat_map(|words| words.chunks(2)).map(pair);
        [self.pool as u64, ns, u64::from(self.thread.is_some())].into_iter().chain(table).collect()
    }

    /// What [`to_words`](Self::to_words) made; `None` for anything else.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let (&[pool, within, thread], table) = words.split_first_chunk()?;
        let thread = match thread {
            0 => None,
            1 => Some(ProgressThread),
            _ => return None,
        };
        let within = Timeout::new(Duration::from_nanos(within)).ok()?;
        let table = match table {
            [] => None,
            table => {
                let words: Vec<u32> =
                    table.iter().flat_map(|pair| [*pair as u32, (pair >> 32) as u32]).collect();
                let (words, rest) = words.split_first_chunk()?;
                Some(
                    Table::from_words(*words)
                        .filter(|_| rest.len() < 2 && rest.iter().all(|word| *word == 0))?,
                )
            }
        };
        Some(Self { pool: usize::try_from(pool).ok()?, within, thread, table })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_as_numbers() {
        let within = Timeout::new(Duration::from_millis(1500)).unwrap();
        let table = Table::default().with("piece", 8192).unwrap();
        let all = Options::new().pool(12).timeout(within).progress_thread().table(table);
        for options in [Options::new(), all] {
            let back = Options::from_words(&options.to_words()).unwrap();
            assert_eq!(format!("{back:?}"), format!("{options:?}"));
        }
        assert!(Options::from_words(&[0, 0, 0]).is_none(), "a wait of no time");
        assert!(Options::from_words(&[0, 1_000_000_000, 2]).is_none());
        assert!(Options::from_words(&[0, 1_000_000_000]).is_none());
        let words = all.to_words();
        assert!(Options::from_words(&words[..words.len() - 1]).is_none(), "half a table");
        assert!(Options::from_words(&[&words[..], &[0]].concat()).is_none(), "more than a table");
        let mut wild = words.clone();
        wild[3] = 0;
        assert!(Options::from_words(&wild).is_none(), "an entry out of range");
    }
}
