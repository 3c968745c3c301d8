//! How a group is made.

use comm_context::comm::Timeout;
use std::time::Duration;

/// What a group is made with. The same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(crate) pool: usize,
    pub(crate) within: Timeout,
    pub(crate) thread: Option<ProgressThread>,
}

/// Asks for a thread that works on started calls while the caller computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgressThread;

impl Options {
    /// Bytes of a pool where nobody says otherwise.
    pub const POOL: usize = 4 << 20;

    /// A pool of [`POOL`](Self::POOL) bytes, waits of at most [`Timeout::DEFAULT`], and no thread.
    pub const fn new() -> Self {
        Self { pool: Self::POOL, within: Timeout::DEFAULT, thread: None }
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

    /// The options as numbers, for another process.
    pub const fn to_words(self) -> [u64; 3] {
        let within = self.within.get();
        let ns = within.as_secs().saturating_mul(1_000_000_000).saturating_add(within.subsec_nanos() as u64);
        [self.pool as u64, ns, self.thread.is_some() as u64]
    }

    /// What [`to_words`](Self::to_words) made; `None` for anything else.
    pub fn from_words(words: [u64; 3]) -> Option<Self> {
        let [pool, within, thread] = words;
        let thread = match thread {
            0 => None,
            1 => Some(ProgressThread),
            _ => return None,
        };
        let within = Timeout::new(Duration::from_nanos(within)).ok()?;
        Some(Self { pool: usize::try_from(pool).ok()?, within, thread })
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
        for options in [Options::new(), Options::new().pool(12).timeout(within).progress_thread()] {
            let back = Options::from_words(options.to_words()).unwrap();
            assert_eq!(format!("{back:?}"), format!("{options:?}"));
        }
        assert!(Options::from_words([0, 0, 0]).is_none(), "a wait of no time");
        assert!(Options::from_words([0, 1_000_000_000, 2]).is_none());
    }
}
