//! How a group is made.

use comm_context::comm::Timeout;

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
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
