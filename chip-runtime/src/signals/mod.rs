//! WAIT and SIGNAL between chips: what a task waits for, and what it tells when it completes.

/// A window that the ranks of a communicator share: 0 is that of the base communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(pub u32);

/// A word of this chip's window that must reach a value before a task may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The window.
    pub domain: Domain,
    /// Where the word is in it, in bytes.
    pub offset: u64,
    /// The value, compared by signed difference.
    pub at_least: u32,
    /// Who signals it.
    pub from: Signaller,
}

/// Who signals a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaller {
    /// A graph on this rank of the domain.
    Rank(u32),
    /// A kernel, the host or another run.
    Unknown,
}

/// A word of a peer's window that a task changes when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The window.
    pub domain: Domain,
    /// Whose window.
    pub rank: u32,
    /// Where the word is in it, in bytes.
    pub offset: u64,
    /// How.
    pub op: SignalOp,
}

/// How a signal changes its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOp {
    /// Adds.
    Add(u32),
    /// Stores.
    Set(u32),
}
