//! WAIT and SIGNAL between chips: what a task waits for, and what it tells when it completes.
//!
//! A [`Wait`] counts as a prerequisite of its task; a [`Signal`] is sent when its task completes. Words are 32-bit counters in
//! windows and are compared by signed difference, so that nothing is reset between rounds. [`Signals`] is a chip's end: it knows
//! where the windows of its peers are ([`RemoteAddressTable`]) and notifies them. A [`Poller`] watches the waits that are armed.
//!
//! ```
//! use chip_runtime::signals::{Domain, Signal, SignalOp, Signals};
//!
//! // Two chips in one process, with windows of a page.
//! let chips = Signals::in_process(2, 4096)?;
//! let done = Signal { domain: Domain::BASE, rank: 1, offset: 64, op: SignalOp::Add(1) };
//! assert_eq!(chips[0].send(&done)?, 1);
//! assert_eq!(chips[1].value(Domain::BASE, 64)?, 1);
//! # Ok::<_, chip_runtime::signals::SignalError>(())
//! ```
//!
//! # Safety
//! Passes on the promise about domains that the caller of [`Signals::add_domain`] makes, and sends to words that the table
//! has given.
#![allow(unsafe_code)]

mod deadlock;
mod declared;
mod error;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzzing;
mod poller;
mod table;
#[cfg(test)]
mod tests;

pub use deadlock::{Deadlock, StuckWait};
#[cfg(feature = "ascend")]
pub(crate) use declared::Peers;
pub(crate) use declared::{Declarations, Exchange};
pub use error::SignalError;
pub use poller::{Pause, Poller};
pub use table::{NamedBuffer, RemoteAddressTable};

use comm_context::abi::DeviceAddr;
use comm_context::comm::{CommError, Communicator, Timeout};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use deadline::Deadline;
use fault_points::fault_point;
use mailbox_atomics::{Placement, SignalWords, SpinBudget, WordU32, keep_apart};
use shared_memory::{PAGE, Region};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A window that ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(pub u32);

impl Domain {
    /// The base window of the chips' communicator.
    pub const BASE: Self = Self(0);
}

/// A word of this chip's window that must reach a value before a task may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The window.
    pub domain: Domain,
    /// Where the word is in it, in bytes: a multiple of 4.
    pub offset: u64,
    /// The value, compared by signed difference.
    pub at_least: u32,
    /// Who signals it.
    pub from: Signaller,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, offset, at_least, from } = self;
        write!(f, "waits for word {offset:#x} ≥ {at_least}")?;
        if let Signaller::Rank(rank) = from {
            write!(f, " from rank {rank}")?;
        }
        if *domain == Domain::BASE { Ok(()) } else { write!(f, " of domain {}", domain.0) }
    }
}

/// Who signals a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaller {
    /// A graph on this rank of the domain, in the same session.
    Rank(u32),
    /// A kernel, the host or another session. Such a word is looked at with pauses, and its wait has only the deadline.
    Unknown,
}

/// A word of a peer's window that a task changes when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The window.
    pub domain: Domain,
    /// Whose window: a rank of the domain.
    pub rank: u32,
    /// Where the word is in it, in bytes: a multiple of 4.
    pub offset: u64,
    /// How.
    pub op: SignalOp,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, rank, offset, op } = self;
        match op {
            SignalOp::Add(by) => write!(f, "signals rank {rank}: word {offset:#x} + {by}")?,
            SignalOp::Set(value) => write!(f, "signals rank {rank}: word {offset:#x} = {value}")?,
        }
        if *domain == Domain::BASE { Ok(()) } else { write!(f, " of domain {}", domain.0) }
    }
}

/// How a signal changes its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOp {
    /// Adds. Any number of chips may add to a word.
    Add(u32),
    /// Stores. Only one chip may store to a word.
    Set(u32),
}

/// The word of a signal, found and checked, and the doorbell of its chip. Both stay while their domain does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved {
    word: NonNull<AtomicU32>,
    doorbell: NonNull<SignalWords>,
    /// A rank of the communicator.
    pub(crate) to: u32,
}

impl Resolved {
    /// # Safety
    /// The domain of the signal is there, and the [`Signals`] that found it.
    #[inline]
    pub(crate) unsafe fn send(&self, op: SignalOp) -> u32 {
        // SAFETY: the table gave a word of a window that stays while the domain does, and the words of the group stay while
        // the `Signals` does: the caller's promise. Others access both as atomics too.
        let (word, doorbell) = unsafe { (WordU32::of(self.word.as_ref()), self.doorbell.as_ref()) };
        let now = match op {
            SignalOp::Add(by) => word.add(by).wrapping_add(by),
            SignalOp::Set(value) => {
                word.store(value);
                value
            }
        };
        fault_point!("graph.signal.added");
        doorbell.notify();
        now
    }
}

/// The word of a signal that was found: see [`Signals::target`].
#[derive(Debug)]
pub struct Target<'s> {
    found: Resolved,
    _table: RwLockReadGuard<'s, RemoteAddressTable>,
}

impl Target<'_> {
    /// Sends the signal; see [`Signals::send`].
    #[inline]
    pub fn send(&self, op: SignalOp) -> u32 {
        // SAFETY: the guard keeps the table as it is, and borrows the `Signals`.
        unsafe { self.found.send(op) }
    }
}

/// One chip's end of the signals between the chips of a group.
pub struct Signals {
    words: Arc<Region>,
    words_at: usize,
    declarations: Declarations,
    rank: u32,
    nranks: u32,
    /// Who knows which peers live; none in one process.
    comm: Option<Arc<Box<dyn Communicator>>>,
    table: RwLock<RemoteAddressTable>,
    spin: SpinBudget,
    /// When the thread that sleeps was last moved to another core.
    moved: AtomicU64,
}

impl Signals {
    /// Bytes that the words of a group take.
    pub const fn words_bytes(nranks: usize) -> usize {
        nranks * (size_of::<SignalWords>() + declared::BYTES)
    }

    /// A chip without peers or window.
    pub fn alone() -> Result<Arc<Self>, SignalError> {
        Ok(Self::in_process(1, 0)?.swap_remove(0))
    }

    /// Chips that are all in this process, with windows of so many bytes.
    pub fn in_process(chips: u32, window: usize) -> Result<Vec<Arc<Self>>, SignalError> {
        let window = window.next_multiple_of(PAGE);
        let first = Self::words_bytes(chips as usize).next_multiple_of(PAGE);
        let region = Region::create("signals", first + chips as usize * window);
        let region = Arc::new(region.map_err(|error| SignalError::Memory(error.to_string()))?);
        (0..chips)
            .map(|rank| {
                let mut table = RemoteAddressTable::default();
                if window > 0 {
                    table.add_in_region(&region, first, window, chips, rank);
                }
                Self::new(region.clone(), 0, rank, chips, None, table)
            })
            .collect()
    }

    /// Rank `rank` of those whose words lie at `words_at` of a region that all of them share, zero-filled at first, in the order
    /// of the ranks of `comm`. The base window, if there is one, is [`Domain::BASE`].
    pub fn over(
        words: Arc<Region>,
        words_at: usize,
        comm: Arc<Box<dyn Communicator>>,
    ) -> Result<Arc<Self>, SignalError> {
        let (rank, nranks) = (comm.rank(), comm.nranks());
        let mut table = RemoteAddressTable::default();
        match comm.window() {
            Ok(window) => table.add_base(comm.as_ref().as_ref(), window)?,
            Err(CommError::NoWindow) => {}
            Err(error) => return Err(error.into()),
        }
        Self::new(words, words_at, rank, nranks, Some(comm), table)
    }

    fn new(
        words: Arc<Region>,
        words_at: usize,
        rank: u32,
        nranks: u32,
        comm: Option<Arc<Box<dyn Communicator>>>,
        table: RemoteAddressTable,
    ) -> Result<Arc<Self>, SignalError> {
        let declarations = Declarations::new(words.clone(), words_at, rank, nranks)?;
        let (table, spin) = (RwLock::new(table), SpinBudget::for_parties(nranks as usize));
        let moved = AtomicU64::new(0);
        Ok(Arc::new(Self { words, words_at, declarations, rank, nranks, comm, table, spin, moved }))
    }

    /// This chip's rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many chips there are.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }

    /// Where the windows of the peers are.
    pub fn table(&self) -> RwLockReadGuard<'_, RemoteAddressTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names a part of a window: see [`RemoteAddressTable::address`].
    pub fn name_buffer(&self, domain: Domain, buffer: NamedBuffer) -> Result<(), SignalError> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).name_buffer(domain, buffer)
    }

    /// Adds a domain that this chip is a member of. `members` are the ranks of the communicator, in the domain's order.
    ///
    /// # Safety
    /// The domain is not released before [`forget_domains`](Self::forget_domains), and not while a run goes on.
    pub unsafe fn add_domain(
        &self,
        name: &str,
        context: DeviceAddr,
        members: &[u32],
    ) -> Result<Domain, SignalError> {
        let comm = self.comm.as_ref().ok_or(SignalError::NoWindow { domain: Domain::BASE })?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.add(name, comm.as_ref().as_ref(), context, members)
    }

    /// Forgets all domains but the base window.
    pub fn forget_domains(&self) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).forget_domains();
    }

    /// Refuses a wait that cannot be: outside the window, not aligned, or for a rank that is not in the domain.
    pub fn check_wait(&self, wait: &Wait) -> Result<(), SignalError> {
        let table = self.table();
        if let Signaller::Rank(rank) = wait.from {
            table.member(wait.domain, rank)?;
        }
        table.own_word(wait.domain, wait.offset).map(drop)
    }

    /// Sends a signal: what was written before is visible to whoever sees it. Returns the word's new value. Never blocks.
    pub fn send(&self, signal: &Signal) -> Result<u32, SignalError> {
        Ok(self.target(signal)?.send(signal.op))
    }

    /// Finds the word of a signal once, for one that is sent often. While there is a target, no domain is added or
    /// forgotten: whoever tries waits.
    pub fn target(&self, signal: &Signal) -> Result<Target<'_>, SignalError> {
        let table = self.table();
        let found = self.find(&table, signal)?;
        Ok(Target { found, _table: table })
    }

    /// The word of a signal and the doorbell of its chip, for the engine: it has them while the run that they are for
    /// goes on, in which no domain is released.
    pub(crate) fn resolve(&self, signal: &Signal) -> Result<Resolved, SignalError> {
        self.find(&self.table(), signal)
    }

    fn find(&self, table: &RemoteAddressTable, signal: &Signal) -> Result<Resolved, SignalError> {
        let word = NonNull::from(table.word(signal.domain, signal.rank, signal.offset)?);
        let to = table.member(signal.domain, signal.rank)?;
        Ok(Resolved { word, doorbell: NonNull::from(self.words(to)?), to })
    }

    /// What a word of this chip's window holds.
    pub fn value(&self, domain: Domain, offset: u64) -> Result<u32, SignalError> {
        Ok(WordU32::of(self.table().own_word(domain, offset)?).load())
    }

    /// Wakes this chip's own thread that sleeps as poller.
    pub fn notify(&self) {
        if let Ok(words) = self.words(self.rank) {
            words.notify();
        }
    }

    /// Waits until this chip is notified, `ready` says so, or the pause is over. One thread at a time.
    pub fn sleep(&self, pause: &Pause, mut ready: impl FnMut() -> bool) {
        let Ok(words) = self.words(self.rank) else { return };
        let wait = self.patiently(Deadline::since(deadline::monotonic_ns(), pause.pause));
        // SAFETY: made by this one's poller, and the window lives as long as the communicator, which this one holds.
        let met = || unsafe { pause.is_met() };
        // How it ends does not matter: the next poll looks at everything.
        let _ = words.sleep(pause.seen, &wait, || ready() || met());
    }

    /// A wait that spins while processors are to spare.
    fn patiently(&self, until: Deadline) -> mailbox_atomics::Wait<'_> {
        mailbox_atomics::Wait::until(until).spinning(&self.spin).placed_by(self)
    }

    /// Where its graphs declare what they signal.
    pub(crate) fn declarations(&self) -> &Declarations {
        &self.declarations
    }

    pub(crate) fn words(&self, rank: u32) -> Result<&SignalWords, SignalError> {
        let at = self.words_at + rank as usize * size_of::<SignalWords>();
        let known = (rank < self.nranks).then(|| self.words.words(at).ok()).flatten();
        known.ok_or_else(|| SignalError::of_group(rank, self.nranks))
    }

    /// Fails when one of these ranks is gone or the run was cancelled.
    pub(crate) fn check_ranks(&self, ranks: &[u32]) -> Result<(), SignalError> {
        let Some(host) = self.comm.as_deref().and_then(|comm| comm.host_windows()) else { return Ok(()) };
        Ok(host.check_ranks(ranks, deadline::monotonic_ns(), Timeout::MAX)?)
    }
}

impl Placement for Signals {
    fn look_after(&self, now_ns: u64) {
        let seen_on = |rank| self.words(rank).ok().map(SignalWords::seen_on);
        keep_apart(self.rank, self.nranks, seen_on, &self.moved, now_ns);
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals")
            .field("rank", &self.rank)
            .field("nranks", &self.nranks)
            .finish_non_exhaustive()
    }
}
