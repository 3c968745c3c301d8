//! What prebuilt graphs signal, told before they start.
//!
//! Each chip of a session posts once which words its graph signals, or that nobody knows: graphs that are built while they
//! run, and those that failed. A prebuilt graph that waits for a rank reads what that rank has posted before anything of it
//! starts, and is refused where the word is not among it. A rank that has gone on to a later session, because nothing of
//! this one kept it, has done what it had to do here: what that was nobody knows any more.
//!
//! A word is posted as a number that all chips make of its domain, rank and offset. Two words with the same number would
//! hide a mistake, which the proof of the deadlock then finds.

use super::{Domain, Poller, SignalError, Signaller, Signals, Wait};
use crate::task::TaskId;
use deadline::{Deadline, monotonic_ns};
use fault_points::fault_point;
use mailbox_atomics::{Listener, MessageSlot, POLL_INTERVAL, ParkFlag, WordU32};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Words that fit. Of a graph that signals more, nobody knows which.
const MOST: usize = 509;
/// In place of how many there are.
const ANY: u64 = u64::MAX;
/// Between two looks at a chip that posts without a call: the first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// The session and how many words, then the words.
pub(super) type Slot = MessageSlot<2, MOST>;

/// What a chip has for it in memory that all share: its slot, and how often it was called to look at those of others.
pub(super) const BYTES: usize = CALLS_AT + 128;
pub(super) const CALLS_AT: usize = size_of::<Slot>();
pub(super) const PARKED_AT: usize = CALLS_AT + 4;

/// A wait of a prebuilt graph for a word that another graph signals.
#[derive(Debug)]
pub(crate) struct Expected {
    task: TaskId,
    wait: Wait,
    /// A rank of the communicator.
    from: u32,
    word: u64,
}

/// What a prebuilt graph signals and waits for.
#[derive(Debug)]
pub(crate) struct Exchange {
    signals: Arc<Signals>,
    session: u64,
    members: Vec<u32>,
    own: BTreeSet<u64>,
    expected: Vec<Expected>,
}

impl Poller {
    /// Begins to exchange what a prebuilt graph signals and waits for.
    pub(crate) fn exchange(&self) -> Exchange {
        let (session, members) = (self.session, self.members.clone());
        let (own, expected) = (BTreeSet::new(), Vec::new());
        Exchange { signals: self.signals.clone(), session, members, own, expected }
    }

    /// Tells the chips of the session which words this graph signals.
    pub(crate) fn declare(&mut self, exchange: &Exchange) {
        let words: Vec<u64> = exchange.own.iter().copied().collect();
        self.post((words.len() <= MOST).then_some(&words));
    }

    /// Tells them that nobody knows, unless they know.
    pub(crate) fn declare_any(&mut self) {
        if !self.declared {
            self.post(None);
        }
    }

    fn post(&mut self, words: Option<&[u64]>) {
        self.declared = true;
        let others = self.members.iter().filter(|rank| **rank != self.signals.rank);
        let others: Vec<u32> = others.copied().filter(|rank| *rank < self.signals.nranks).collect();
        let Ok(slot) = self.signals.slot(self.signals.rank) else { return };
        if others.is_empty() {
            return;
        }
        let count = words.map_or(ANY, |words| words.len() as u64);
        // The time numbers what is posted: it only grows, also when another process takes this one's place.
        slot.post(monotonic_ns(), [self.session, count], words.unwrap_or_default());
        // Who expects nothing of the kind is not called: a chip that does looks once in a while.
        if words.is_some() {
            for (calls, parked) in others.iter().filter_map(|rank| self.signals.calls(*rank).ok()) {
                calls.add_and_notify(1, [Listener::new(parked)]);
            }
        }
    }
}

impl Exchange {
    /// The graph signals this word of `to`, a rank of the communicator.
    pub(crate) fn signals(&mut self, domain: Domain, to: u32, offset: u64) {
        self.own.insert(number(self.signals.table().name(domain), to, offset));
    }

    /// Its `task` waits for this.
    pub(crate) fn waits(&mut self, task: TaskId, wait: &Wait) -> Result<(), SignalError> {
        let Signaller::Rank(rank) = wait.from else { return Ok(()) };
        let table = self.signals.table();
        let word = number(table.name(wait.domain), self.signals.rank, wait.offset);
        let from = table.member(wait.domain, rank)?;
        self.expected.push(Expected { task, wait: *wait, from, word });
        Ok(())
    }

    /// Reads what the others have declared, as far as this graph waits for them. A wait that nobody meets is an error, with
    /// the task.
    pub(crate) fn check(&self, deadline: Deadline) -> Result<(), (SignalError, Option<TaskId>)> {
        let ranks: BTreeSet<u32> = self.expected.iter().map(|expected| expected.from).collect();
        for rank in ranks {
            let all_of = || self.expected.iter().filter(move |expected| expected.from == rank);
            let declared = if rank == self.signals.rank {
                Some(self.own.clone())
            } else if self.members.contains(&rank) {
                self.declared_by(rank, deadline).map_err(|error| {
                    let task = all_of().next().map(|expected| expected.task);
                    (error, task)
                })?
            } else {
                Some(BTreeSet::new())
            };
            let Some(declared) = declared else { continue };
            if let Some(missing) = all_of().find(|expected| !declared.contains(&expected.word)) {
                let window = self.signals.table().name(missing.wait.domain).to_owned();
                let (offset, has_graph) = (missing.wait.offset, self.members.contains(&rank));
                let error = SignalError::NobodySignals { from: rank, window, offset, has_graph };
                return Err((error, Some(missing.task)));
            }
        }
        Ok(())
    }

    /// The words that the graph of `rank` signals; `None` when nobody knows, or that graph is over.
    fn declared_by(&self, rank: u32, deadline: Deadline) -> Result<Option<BTreeSet<u64>>, SignalError> {
        let slot = self.signals.slot(rank)?;
        let (calls, parked) = self.signals.calls(self.signals.rank)?;
        let is_known = |header: &[u64; 2]| header[0] == self.session && header[1] != ANY;
        let len = |header: &[u64; 2]| {
            (header[0] >= self.session).then_some(if is_known(header) { header[1] as usize } else { 0 })
        };
        let (mut pause, mut next_check_ns) = (PAUSES.0, 0);
        loop {
            let seen = calls.load();
            if let Some(posted) = slot.read(0, len) {
                return Ok(is_known(&posted.header).then(|| posted.payload.into_iter().collect()));
            }
            fault_point!("graph.exchange.waits");
            let now_ns = monotonic_ns();
            if now_ns >= next_check_ns {
                next_check_ns = now_ns + POLL_INTERVAL.as_nanos() as u64;
                self.signals.check_ranks(&[rank])?;
            }
            if deadline.has_passed() {
                let waits = format!("rank {rank} has not said which words its graph signals");
                return Err(SignalError::TimedOut { limit: deadline.limit(), waits });
            }
            let until = Deadline::since(now_ns, pause.min(deadline.left()));
            let wait = self.signals.patiently(until);
            let is_there = || slot.read(0, |header| (header[0] >= self.session).then_some(0)).is_some();
            // How it ends does not matter: the loop looks at everything.
            let _ = wait.on(calls, Some(&mut ParkFlag::new(parked)), |calls| {
                (calls != seen || is_there()).then_some(())
            });
            pause = (2 * pause).min(PAUSES.1);
        }
    }
}

impl Signals {
    fn slot(&self, rank: u32) -> Result<&Slot, SignalError> {
        self.shared(rank, 0)
    }

    /// How often a chip was called to look, and whether it is parked.
    fn calls(&self, rank: u32) -> Result<(&WordU32, &WordU32), SignalError> {
        Ok((self.shared(rank, CALLS_AT)?, self.shared(rank, PARKED_AT)?))
    }
}

/// The same for a word on every chip (FNV-1a).
fn number(domain: &str, rank: u32, offset: u64) -> u64 {
    let bytes = domain.bytes().chain(rank.to_le_bytes()).chain(offset.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
