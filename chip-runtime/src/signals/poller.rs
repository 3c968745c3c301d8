//! The waits of a chip that are armed, and who looks at them.
//!
//! # Safety
//! Words behind pointers: those of waits come from the table and stay as it says; those of completions by the promise of
//! [`Poller::arm_completion`].
#![allow(unsafe_code)]

use super::deadlock::{Deadlock, StuckWait};
use super::{Domain, SignalError, Signaller, Signals, Wait};
use crate::task::TaskId;
use comm_context::abi::CompletionEntry;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use deadline::{Deadline, monotonic_ns};
use fault_points::fault_point;
use mailbox_atomics::{POLL_INTERVAL, Stander, WordU32, prove};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at words whose writers notify nobody: the first pause, which doubles to the second, and the longest, to which it
/// then grows by a sixteenth each time. So a long wait takes about a sixteenth longer than it must, and chips in it cost next
/// to nothing.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const DOUBLED_TO: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = POLL_INTERVAL;
/// Waits that a text names.
const IN_A_TEXT: usize = 4;

/// How long a thread may sleep after a poll: see [`Signals::sleep`].
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    pub(super) seen: u32,
    pub(super) pause: Duration,
    /// The word of the first wait, if it is in the communicator's own window, and what it waits for: who looks at it in turn with
    /// the doorbell has both lines when a signal comes, and not one after the other.
    first: Option<(NonNull<AtomicU32>, u32)>,
}

// SAFETY: the word is an atomic, in memory of the process.
unsafe impl Send for Pause {}

impl Pause {
    /// The same, and not longer than this.
    pub(crate) fn at_most(self, longest: Duration) -> Self {
        Self { pause: self.pause.min(longest), ..self }
    }

    /// Whether the first wait is met.
    ///
    /// # Safety
    /// The signals live whose poller made it, and with them the communicator's window.
    pub(super) unsafe fn is_met(&self) -> bool {
        // SAFETY: the caller's promise.
        self.first.is_some_and(|(word, want)| unsafe { is_met(word, want) })
    }
}

/// # Safety
/// The word lives.
unsafe fn is_met(word: NonNull<AtomicU32>, want: u32) -> bool {
    // SAFETY: the caller's promise.
    let have = WordU32::of(unsafe { word.as_ref() }).load();
    have.wrapping_sub(want) as i32 >= 0
}

#[derive(Clone, Copy, Debug)]
struct Armed {
    task: TaskId,
    word: NonNull<AtomicU32>,
    want: u32,
    place: Option<(Domain, u64)>,
    /// A rank of the communicator.
    from: Option<u32>,
}

// SAFETY: the word is an atomic, in memory of the process.
unsafe impl Send for Armed {}

impl Armed {
    fn have(&self) -> u32 {
        // SAFETY: see the top of the file.
        WordU32::of(unsafe { self.word.as_ref() }).load()
    }

    fn is_met(&self) -> bool {
        // SAFETY: see the top of the file.
        unsafe { is_met(self.word, self.want) }
    }

    /// Where it stands, if it may be looked at as long as the signals live.
    fn in_own_window(&self) -> Option<(NonNull<AtomicU32>, u32)> {
        matches!(self.place, Some((Domain::BASE, _))).then_some((self.word, self.want))
    }
}

/// Watches the waits of one chip. It belongs to the state of the engine; one thread at a time polls, and sleeps in between.
///
/// A wait is armed, then met, or the run ends: with a peer's death, a cancel, the deadline, or a proved deadlock.
#[derive(Debug)]
pub struct Poller {
    pub(super) signals: Arc<Signals>,
    armed: Vec<Armed>,
    pub(super) session: u64,
    /// The chips of the session: ranks of the communicator.
    pub(super) members: Vec<u32>,
    /// The others know what the graph of this session signals.
    pub(super) declared: bool,
    deadline: Option<Deadline>,
    /// The count of the doorbell at the last poll that read it.
    seen: Option<u32>,
    /// The count of the doorbell up to which all words were found short; this chip says that it is quiet.
    rested: Option<u32>,
    pause: Duration,
    next_check_ns: u64,
    /// A peer has proved a deadlock, as of the last check.
    is_stuck: bool,
    /// A peer has ended without a signal that this chip waits for, as of the last check.
    is_left: bool,
}

impl Poller {
    /// A poller without waits.
    pub fn new(signals: Arc<Signals>) -> Self {
        Self {
            signals,
            armed: Vec::new(),
            session: 0,
            members: Vec::new(),
            declared: true,
            deadline: None,
            seen: None,
            rested: None,
            pause: SHORTEST_PAUSE,
            next_check_ns: 0,
            is_stuck: false,
            is_left: false,
        }
    }

    /// The signals that it looks at.
    pub fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// A run begins. `session` is a number that these chips, ranks of the communicator, have for this run, above all before, and not 0.
    /// Waits for [`Signaller::Rank`] are met by graphs of the same session.
    pub fn begin(&mut self, session: u64, members: &[u32], deadline: Deadline) {
        self.members = members.to_vec();
        (self.session, self.deadline) = (session, Some(deadline));
        (self.next_check_ns, self.is_stuck, self.is_left, self.declared) = (0, false, false, false);
        self.armed.clear();
        self.stir();
    }

    /// The run is over: nothing is armed any more.
    pub fn end(&mut self) {
        self.armed.clear();
        self.rested = None;
        self.declare_any();
        if let Ok(words) = self.signals.words(self.signals.rank) {
            Stander::new(words, self.session).end();
        }
    }

    /// Arms a wait of `task`. False when it is met already, and not armed.
    pub fn arm(&mut self, task: TaskId, wait: &Wait) -> Result<bool, SignalError> {
        let armed = {
            let table = self.signals.table();
            let from = match wait.from {
                Signaller::Rank(rank) => Some(table.member(wait.domain, rank)?),
                Signaller::Unknown => None,
            };
            let word = NonNull::from(table.own_word(wait.domain, wait.offset)?);
            Armed { task, word, want: wait.at_least, place: Some((wait.domain, wait.offset)), from }
        };
        Ok(self.arm_unless_met(armed))
    }

    /// Arms what a kernel asked the completion of its task to wait for. False when it is met already.
    ///
    /// # Safety
    /// The address of the entry is that of a 32-bit word that stays until the run is over.
    pub unsafe fn arm_completion(
        &mut self,
        task: TaskId,
        entry: &CompletionEntry,
    ) -> Result<bool, SignalError> {
        if entry.kind != 0 {
            return Err(SignalError::Completion {
                what: format!("type {}, where only 0 is known", entry.kind),
            });
        }
        if !entry.address.is_multiple_of(4) {
            return Err(SignalError::NotAligned { at: entry.address });
        }
        let null = || SignalError::Completion { what: "a word at address 0".into() };
        let word = NonNull::new(entry.address as *mut AtomicU32).ok_or_else(null)?;
        Ok(self.arm_unless_met(Armed { task, word, want: entry.expected, place: None, from: None }))
    }

    fn arm_unless_met(&mut self, armed: Armed) -> bool {
        let short = !armed.is_met();
        if short {
            self.armed.push(armed);
            self.rested = None;
            self.pause = SHORTEST_PAUSE;
        }
        short
    }

    /// How many waits are armed.
    pub fn armed(&self) -> usize {
        self.armed.len()
    }

    /// The first task that waits.
    pub(crate) fn first_waiting(&self) -> Option<TaskId> {
        self.armed.first().map(|armed| armed.task)
    }

    /// The task of this chip whose wait ends with this error: of several, one that waits for the rank that has ended.
    pub(crate) fn task_of(&self, error: &SignalError) -> Option<TaskId> {
        let in_chain = |deadlock: &Deadlock| {
            let own = deadlock.chain.iter().find(|wait| wait.rank == self.signals.rank);
            own.map(|wait| wait.task)
        };
        let found = match (error, error.ended_rank()) {
            // The chain may begin with a chip that has other tasks under these numbers.
            (SignalError::Deadlock(deadlock), _) => in_chain(deadlock),
            (_, Some(rank)) => {
                self.armed.iter().find(|armed| armed.from == Some(rank)).map(|armed| armed.task)
            }
            _ => None,
        };
        found.or_else(|| self.first_waiting())
    }

    /// What is armed, for the text of an error.
    pub fn table(&self) -> String {
        let mut text: Vec<String> =
            self.armed.iter().take(IN_A_TEXT).map(|armed| self.describe(armed)).collect();
        if self.armed.len() > IN_A_TEXT {
            text.push(format!("{} more waits", self.armed.len() - IN_A_TEXT));
        }
        text.extend(self.others());
        text.join("; ")
    }

    /// What the chips say that are waited for, and those that these wait for; then those of the session that may be the
    /// reason, since they do not stand still: a chip that runs something says nothing of what it waits for besides.
    fn others(&self) -> Vec<String> {
        let mut ranks: Vec<u32> = Vec::new();
        let add = |ranks: &mut Vec<u32>, rank: u32| {
            if rank != self.signals.rank && !ranks.contains(&rank) {
                ranks.push(rank);
            }
        };
        self.armed.iter().filter_map(|armed| armed.from).for_each(|rank| add(&mut ranks, rank));
        let mut text = Vec::new();
        let mut at = 0;
        while let Some(&rank) = ranks.get(at) {
            at += 1;
            match self.signals.words(rank).ok().and_then(|words| words.waits(self.session)) {
                None => text.push(format!("rank {rank} runs something, or has not begun")),
                Some(waits) if waits.is_empty() => text.push(format!("rank {rank} has ended")),
                Some(waits) => {
                    let wait = StuckWait::decode(rank, &waits[0], &self.signals.table());
                    add(&mut ranks, wait.from);
                    text.push(wait.to_string());
                }
            }
        }
        let stands = |rank: u32| self.signals.words(rank).is_ok_and(|words| words.has_looked(self.session));
        let others = self.members.iter().filter(|rank| **rank != self.signals.rank && !ranks.contains(rank));
        for rank in others.filter(|rank| !stands(**rank)) {
            text.push(format!("rank {rank} runs something, has not begun, or does not look at its signals"));
        }
        text
    }

    fn describe(&self, armed: &Armed) -> String {
        let from = armed.from.map_or_else(|| "somebody".to_owned(), |rank| format!("rank {rank}"));
        let place = match armed.place {
            Some((domain, offset)) => {
                format!("word {offset:#x} of window `{}`", self.signals.table().name(domain))
            }
            None => format!("the word at {:p} that its kernel named", armed.word),
        };
        format!("{} waits for {from} ({place} is {}, not {})", armed.task, armed.have(), armed.want)
    }

    /// Looks at all words. Adds to `met` the task of each wait that is met, once for each wait, and disarms it.
    ///
    /// `quiet` says that nothing runs and nothing is ready on this chip, and that its builder has ended or waits for a task: then
    /// only a signal can make the chip go on. Fails when no wait was met and the run cannot go on.
    pub fn poll(&mut self, quiet: bool, met: &mut Vec<TaskId>) -> Result<Pause, SignalError> {
        let before = met.len();
        // A word may be there before the doorbell, whose line its writer is about to write. An old count only makes the next sleep
        // short.
        let is_first_met = self.armed.first().is_some_and(Armed::is_met);
        let seen = match self.seen {
            Some(seen) if is_first_met => seen,
            _ => self.signals.words(self.signals.rank)?.doorbell(),
        };
        self.seen = Some(seen);
        if is_first_met || self.rested != Some(seen) {
            self.take_met(met);
        }
        if met.len() > before || !quiet {
            self.stir();
            self.pause = SHORTEST_PAUSE;
        } else if self.rested.is_none_or(|rested| rested != seen) {
            self.rest();
        }
        // What is met is about to start: no clock before that.
        if met.len() == before
            && self.is_time_to_check()
            && let Err(error) = self.check()
        {
            // What was delivered before the end of a peer counts.
            self.take_met(met);
            if met.len() == before {
                return Err(error);
            }
            self.stir();
        }
        let pause = if self.armed.iter().all(|armed| armed.from.is_some()) {
            POLL_INTERVAL
        } else {
            let longer = if self.pause < DOUBLED_TO { 2 * self.pause } else { self.pause + self.pause / 16 };
            let longer = longer.min(LONGEST_PAUSE);
            std::mem::replace(&mut self.pause, longer)
        };
        Ok(Pause { seen, pause, first: self.armed.first().and_then(Armed::in_own_window) })
    }

    fn is_time_to_check(&mut self) -> bool {
        let now_ns = monotonic_ns();
        let is_time = now_ns >= self.next_check_ns;
        if is_time {
            self.next_check_ns = now_ns + POLL_INTERVAL.as_nanos() as u64;
        }
        is_time
    }

    fn take_met(&mut self, met: &mut Vec<TaskId>) {
        self.armed.retain(|armed| {
            let is_met = armed.is_met();
            if is_met {
                met.push(armed.task);
            }
            !is_met
        });
    }

    /// This chip does something again.
    fn stir(&mut self) {
        self.rested = None;
        if let Ok(words) = self.signals.words(self.signals.rank) {
            Stander::new(words, self.session).stir();
        }
    }

    /// Publishes that only signals of the armed waits can make this chip go on.
    fn rest(&mut self) {
        let Ok(words) = self.signals.words(self.signals.rank) else { return };
        fault_point!("graph.poll.resting");
        let (armed, table) = (&self.armed, self.signals.table());
        let mut is_quiet = false;
        let seen = Stander::new(words, self.session).rest(|waits| {
            for wait in armed {
                let (have, want, task) = (wait.have(), wait.want, wait.task);
                let (Some(from), Some((domain, offset))) = (wait.from, wait.place) else { return false };
                if have.wrapping_sub(want) as i32 >= 0 {
                    return false;
                }
                waits.push(StuckWait::encode(task, (table.name(domain), offset), from, have, want));
            }
            is_quiet = !waits.is_empty();
            is_quiet
        });
        self.rested = is_quiet.then_some(seen);
        fault_point!("graph.poll.rested");
    }

    /// The next poll checks everything, as it would after a while.
    #[cfg(any(fuzzing, test))]
    pub(super) fn next_check(&mut self) {
        self.next_check_ns = 0;
    }

    /// What ends the run though no wait is met.
    fn check(&mut self) -> Result<(), SignalError> {
        if self.armed.is_empty() {
            return Ok(());
        }
        fault_point!("graph.poll.check");
        let everybody = || (0..self.signals.nranks).collect::<Vec<u32>>();
        let needed: Option<Vec<u32>> = self.armed.iter().map(|armed| armed.from).collect();
        self.signals.check_ranks(&needed.unwrap_or_else(everybody)).map_err(|error| match error {
            SignalError::Comm { cause, .. } => SignalError::Comm { cause, waits: self.table() },
            other => other,
        })?;
        if let Some(deadline) = self.deadline.filter(Deadline::has_passed) {
            return Err(SignalError::TimedOut { limit: deadline.limit(), waits: self.table() });
        }
        self.find_deadlock()
    }

    fn find_deadlock(&mut self) -> Result<(), SignalError> {
        if self.rested.is_none() {
            return Ok(());
        }
        let words = self.members.iter().filter_map(|rank| self.signals.words(*rank).ok());
        if let Some(by) = words.clone().position(|words| words.says_stuck(self.session)) {
            // That chip tells the whole story; its failure is to be the first.
            if std::mem::replace(&mut self.is_stuck, true) {
                return Err(SignalError::StuckElsewhere { by: self.members[by], waits: self.table() });
            }
            return Ok(());
        }
        let Some(quiet) = prove(words, self.session) else { return Ok(()) };
        // One chip tells: the first that waits.
        let first = quiet.iter().position(|quiet| !quiet.waits.is_empty());
        let is_first = first.is_some_and(|first| self.members[first] == self.signals.rank);
        let deadlock = Deadlock::of(&self.members, &quiet, &self.signals.table());
        let Some(deadlock) = deadlock.filter(|_| is_first) else { return Ok(()) };
        // One that ended may have failed, and is about to say so; that is to be the first.
        if !deadlock.is_cycle && !std::mem::replace(&mut self.is_left, true) {
            return Ok(());
        }
        let words = self.signals.words(self.signals.rank)?;
        fault_point!("graph.deadlock.proved");
        Stander::new(words, self.session).say_stuck();
        fault_point!("graph.deadlock.told");
        Err(SignalError::Deadlock(deadlock))
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.end();
    }
}
