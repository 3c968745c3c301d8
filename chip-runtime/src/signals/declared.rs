//! What prebuilt graphs signal, told before they start.
//!
//! Each chip of a session posts once which words its graph signals, or that nobody knows: graphs that are built while they
//! run, and those that failed. A prebuilt graph that waits for a rank reads what that rank has posted before anything of it
//! starts, and is refused where the word is not among it. A rank that has gone on to a later session, because nothing of
//! this one kept it, has done what it had to do here: what that was nobody knows any more.
//!
//! A word is posted as a number that all chips make of its domain, rank and offset. Two words with the same number would
//! hide a mistake, which the proof of the deadlock then finds.

use super::{Domain, Poller, SignalError, Signals};
use crate::task::TaskId;
use deadline::{Deadline, monotonic_ns};
use fault_points::fault_point;
use mailbox_atomics::{Listener, MessageSlot, POLL_INTERVAL, ParkFlag, SignalWords, WordU32};
use shared_memory::{Region, Shared};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Words that fit. Of a graph that signals more, nobody knows which.
const MOST: usize = 509;
/// In place of how many there are: nobody knows which.
const ANY: u64 = u32::MAX as u64;
/// Beside how many there are: the graph is over, and has signalled what it ever will.
const OVER: u64 = 1 << 63;
/// Between two looks at a chip that posts without a call: the first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// The session and how many words, then the words.
type Slot = MessageSlot<2, MOST>;

/// What a chip has for it in memory that all share: its slot, and how often it was called to look at those of others.
pub(super) const BYTES: usize = CALLS_AT + 128;
const CALLS_AT: usize = size_of::<Slot>();
const PARKED_AT: usize = CALLS_AT + 4;

/// The chip that a graph is on, as the exchange sees it.
pub(crate) trait Peers {
    /// Fails when this rank is gone or the run was cancelled.
    fn check_rank(&self, rank: u32) -> Result<(), SignalError>;

    /// A wait that spins while that pays here.
    fn patiently(&self, until: Deadline) -> mailbox_atomics::Wait<'_>;

    /// The name of a window.
    fn window_name(&self, domain: Domain) -> String;
}

/// Where the chips of a group post what their graphs signal: in memory that all of them share.
pub(crate) struct Declarations {
    words: Arc<Region>,
    at: usize,
    rank: u32,
    nranks: u32,
}

/// A wait of a prebuilt graph for a word that another graph signals.
#[derive(Debug)]
struct Expected {
    task: TaskId,
    domain: Domain,
    offset: u64,
    /// A rank of the communicator.
    from: u32,
    word: u64,
}

/// What a prebuilt graph signals and waits for.
#[derive(Debug)]
pub(crate) struct Exchange {
    session: u64,
    /// The chips of the session, and this one: ranks of the communicator.
    members: Vec<u32>,
    rank: u32,
    own: BTreeSet<u64>,
    expected: Vec<Expected>,
}

impl Poller {
    /// Begins to exchange what a prebuilt graph signals and waits for.
    pub(crate) fn exchange(&self) -> Exchange {
        Exchange::new(self.session, &self.members, self.signals.rank)
    }

    /// Tells the chips of the session which words this graph signals.
    pub(crate) fn declare(&mut self, exchange: &Exchange) {
        self.declared = true;
        self.signals.declarations.declare(exchange);
    }

    /// Tells them that nobody knows, unless they know.
    pub(crate) fn declare_any(&mut self) {
        if !self.declared {
            self.declared = true;
            self.signals.declarations.declare_any(self.session, &self.members);
        }
    }
}

impl Declarations {
    /// For rank `rank` of those whose words, as [`Signals::over`] has them, lie at `words_at`: behind the words that notify.
    pub(crate) fn new(
        words: Arc<Region>,
        words_at: usize,
        rank: u32,
        nranks: u32,
    ) -> Result<Self, SignalError> {
        let checked = words.word_slice::<SignalWords>(words_at, nranks as usize).map(drop);
        let at = words_at + nranks as usize * size_of::<SignalWords>();
        let checked = checked.and_then(|()| words.word_slice::<WordU32>(at, nranks as usize * BYTES / 4));
        checked.map_err(|error| SignalError::Memory(error.to_string()))?;
        Ok(Self { words, at, rank, nranks })
    }

    /// Tells the chips of the session which words a graph signals.
    pub(crate) fn declare(&self, exchange: &Exchange) {
        let words: Vec<u64> = exchange.own.iter().copied().collect();
        self.post(exchange.session, &exchange.members, (words.len() <= MOST).then_some(&words));
    }

    /// Tells them that nobody knows.
    pub(crate) fn declare_any(&self, session: u64, members: &[u32]) {
        self.post(session, members, None);
    }

    /// Tells them that the graph is over, beside what it said: a wait for it that is not met now never is.
    #[cfg(feature = "ascend")]
    pub(crate) fn declare_over(&self, session: u64, members: &[u32]) {
        let said =
            self.slot(self.rank).ok().and_then(|slot| slot.read(0, |header| known_words(header, session)));
        let (count, words) = said.map_or((ANY, Vec::new()), |said| (said.header[1], said.payload));
        self.post_header([session, count | OVER], members, &words);
    }

    /// Whether the graph that a rank had in a session is over.
    #[cfg(feature = "ascend")]
    pub(crate) fn is_over(&self, rank: u32, session: u64) -> bool {
        let is_over = |header: &[u64; 2]| {
            (header[0] > session || (header[0] == session && header[1] & OVER != 0)).then_some(0)
        };
        self.slot(rank).is_ok_and(|slot| slot.read(0, is_over).is_some())
    }

    fn post(&self, session: u64, members: &[u32], words: Option<&[u64]>) {
        let count = words.map_or(ANY, |words| words.len() as u64);
        let others = self.post_header([session, count], members, words.unwrap_or_default());
        // Who expects nothing of the kind is not called: a chip that does looks once in a while.
        if words.is_some() {
            for (calls, parked) in others.iter().filter_map(|rank| self.calls(*rank).ok()) {
                calls.add_and_notify(1, [Listener::new(parked)]);
            }
        }
    }

    /// Posts, and returns for whom: a graph without others posts nothing.
    fn post_header(&self, header: [u64; 2], members: &[u32], words: &[u64]) -> Vec<u32> {
        let others = members.iter().filter(|rank| **rank != self.rank);
        let others: Vec<u32> = others.copied().filter(|rank| *rank < self.nranks).collect();
        if let (Ok(slot), false) = (self.slot(self.rank), others.is_empty()) {
            // The time numbers what is posted: it only grows, also when another process takes this one's place.
            slot.post(monotonic_ns(), header, words);
        }
        others
    }

    /// The words that the graph of `rank` signals; `None` when nobody knows, or that graph is over.
    fn of_rank(
        &self,
        rank: u32,
        session: u64,
        peers: &dyn Peers,
        deadline: Deadline,
    ) -> Result<Option<BTreeSet<u64>>, SignalError> {
        let slot = self.slot(rank)?;
        let (calls, parked) = self.calls(self.rank)?;
        let len =
            |header: &[u64; 2]| (header[0] >= session).then(|| known_words(header, session).unwrap_or(0));
        let (mut pause, mut next_check_ns) = (PAUSES.0, 0);
        loop {
            let seen = calls.load();
            if let Some(posted) = slot.read(0, len) {
                let is_known = known_words(&posted.header, session).is_some();
                return Ok(is_known.then(|| posted.payload.into_iter().collect()));
            }
            fault_point!("graph.exchange.waits");
            let now_ns = monotonic_ns();
            if now_ns >= next_check_ns {
                next_check_ns = now_ns + POLL_INTERVAL.as_nanos() as u64;
                peers.check_rank(rank)?;
            }
            if deadline.has_passed() {
                let waits = format!("rank {rank} has not said which words its graph signals");
                return Err(SignalError::TimedOut { limit: deadline.limit(), waits });
            }
            let until = Deadline::since(now_ns, pause.min(deadline.left()));
            let wait = peers.patiently(until);
            let is_there = || slot.read(0, |header| (header[0] >= session).then_some(0)).is_some();
            // How it ends does not matter: the loop looks at everything.
            let _ = wait.on(calls, Some(&mut ParkFlag::new(parked)), |calls| {
                (calls != seen || is_there()).then_some(())
            });
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    fn slot(&self, rank: u32) -> Result<&Slot, SignalError> {
        self.part(rank, 0)
    }

    /// How often a chip was called to look, and whether it is parked.
    fn calls(&self, rank: u32) -> Result<(&WordU32, &WordU32), SignalError> {
        Ok((self.part(rank, CALLS_AT)?, self.part(rank, PARKED_AT)?))
    }

    fn part<T: Shared>(&self, rank: u32, at: usize) -> Result<&T, SignalError> {
        let at = self.at + rank as usize * BYTES + at;
        let known = (rank < self.nranks).then(|| self.words.words(at).ok()).flatten();
        known.ok_or_else(|| SignalError::of_group(rank, self.nranks))
    }
}

impl fmt::Debug for Declarations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declarations").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl Exchange {
    /// That of the graph that `rank` runs in a session.
    pub(crate) fn new(session: u64, members: &[u32], rank: u32) -> Self {
        Self { session, members: members.to_vec(), rank, own: BTreeSet::new(), expected: Vec::new() }
    }

    /// The graph signals this word of `to`, a rank of the communicator.
    pub(crate) fn signals(&mut self, window: &str, to: u32, offset: u64) {
        self.own.insert(number(window, to, offset));
    }

    /// Its `task` waits for a word of this chip that the graph of `from`, a rank of the communicator, signals.
    pub(crate) fn waits(&mut self, task: TaskId, (domain, window): (Domain, &str), from: u32, offset: u64) {
        let word = number(window, self.rank, offset);
        self.expected.push(Expected { task, domain, offset, from, word });
    }

    /// Reads what the others have declared, as far as this graph waits for them. A wait that nobody meets is an error, with
    /// the task.
    pub(crate) fn check(
        &self,
        declarations: &Declarations,
        peers: &dyn Peers,
        deadline: Deadline,
    ) -> Result<(), (SignalError, TaskId)> {
        let ranks: BTreeSet<u32> = self.expected.iter().map(|expected| expected.from).collect();
        for rank in ranks {
            let all_of = || self.expected.iter().filter(move |expected| expected.from == rank);
            let first = all_of().next().map_or(TaskId::new(0, 0), |expected| expected.task);
            let has_graph = self.members.contains(&rank);
            let declared = if rank == self.rank {
                Some(self.own.clone())
            } else if has_graph {
                let declared = declarations.of_rank(rank, self.session, peers, deadline);
                declared.map_err(|error| (error, first))?
            } else {
                Some(BTreeSet::new())
            };
            let Some(declared) = declared else { continue };
            if let Some(missing) = all_of().find(|expected| !declared.contains(&expected.word)) {
                let (window, offset) = (peers.window_name(missing.domain), missing.offset);
                let error = SignalError::NobodySignals { from: rank, window, offset, has_graph };
                return Err((error, missing.task));
            }
        }
        Ok(())
    }
}

impl Peers for Signals {
    fn check_rank(&self, rank: u32) -> Result<(), SignalError> {
        self.check_ranks(&[rank])
    }

    fn patiently(&self, until: Deadline) -> mailbox_atomics::Wait<'_> {
        Signals::patiently(self, until)
    }

    fn window_name(&self, domain: Domain) -> String {
        self.table().name(domain).to_owned()
    }
}

/// How many words a chip has posted for a session; `None` where nobody knows.
fn known_words(header: &[u64; 2], session: u64) -> Option<usize> {
    let count = header[1] & !OVER;
    (header[0] == session && count <= MOST as u64).then_some(count as usize)
}

/// The same for a word on every chip (FNV-1a).
fn number(domain: &str, rank: u32, offset: u64) -> u64 {
    let bytes = domain.bytes().chain(rank.to_le_bytes()).chain(offset.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
