//! What a group keeps between calls, how it waits, and how it fails.

use crate::call::Call;
use crate::crowded::Mover;
use crate::error::{CallOf, CollError};
use crate::fault::Fault;
use crate::kernels::{Copier, Kernels};
use crate::layout::{generation_of, in_generation};
use crate::memory::Memory;
use crate::pairs::Pairs;
use crate::plan::Setting;
use crate::registry;
use crate::request::{CallText, Request, mix, record};
use crate::schedule::Runner;
use crate::started::Queue;
use comm_context::comm::{CommError, HostWindows, Timeout, WordWait};
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use deadline::monotonic_ns;
use fault_points::fault_point;
use mailbox_atomics::{
    Credit, Halves, Observed, Progress, RECORD_WORDS, RECORDS, RecordRing, StickyWord, Use, WordU64,
    prefetch_to_read,
};
use std::sync::Arc;
use std::time::Duration;

/// How often a wait looks after started calls of other groups when nothing else wakes it.
const POLL_OTHERS: Duration = Duration::from_micros(200);

/// A caller that polls sees who is alive once in this time.
const CHECK_EVERY_NS: u64 = 20_000_000;

/// One rank's side of a group.
pub(crate) struct Engine<'c> {
    pub(crate) progress: Progress<'c>,
    pub(crate) halves: Halves,
    pub(crate) memory: Memory,
    pub(crate) setting: Setting,
    pub(crate) me: usize,
    pub(crate) kernels: &'static Kernels,
    pub(crate) copier: Copier,
    /// The communicator's ranks of the members.
    pub(crate) members: Box<[u32]>,
    host: &'c dyn HostWindows,
    records: Box<[&'c RecordRing]>,
    within: Timeout,
    polls: u32,
    /// For each rank, what it said with its last step: see [`crowded`](crate::crowded).
    pub(crate) seen_on: Box<[u16]>,
    pub(crate) mover: Mover,
    /// Steps, pieces and calls of all calls that were begun and whose extent is known.
    pub(crate) step: u64,
    pub(crate) piece: u64,
    call: u64,
    /// A hash over all calls so far: where two ranks differ once, they differ from then on.
    chain: u32,
    pub(crate) queue: Queue,
    /// Everything that started calls wait for, as of the last look at them.
    pub(crate) blocked: Vec<Blocked<'c>>,
    pub(crate) pairs: Pairs<'c>,
    pub(crate) runner: Runner,
    broken: Option<Arc<CollError>>,
    /// Whether a progress thread works on started calls. Then a wait in another group need not.
    pub(crate) has_helper: bool,
    /// Raised with `broken`, for tensors, which know nothing else of the group.
    failed: Arc<AtomicBool>,
}

/// What a call waits for: a word of a peer's that must reach a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked<'c> {
    pub(crate) word: &'c WordU64,
    pub(crate) tag: NonZeroU32,
    pub(crate) at_least: u64,
    pub(crate) rank: usize,
    pub(crate) why: Why,
}

/// What the word belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// A step of the call with this number, which the peer must make too.
    Step(u64),
    /// That the peer has read what the call with this number is about to write over. It may be calls behind.
    Credit(u64),
    /// Room for the next piece of a message to the peer.
    Room,
    /// The next piece of a message from the peer.
    Message,
}

impl Why {
    /// The number of the call, if the peer must make the same to go on.
    fn shared_call(self) -> Option<u64> {
        match self {
            Self::Step(number) => Some(number),
            Self::Credit(_) | Self::Room | Self::Message => None,
        }
    }
}

impl Blocked<'_> {
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.word.load() >= self.at_least
    }
}

/// A wait through the communicator. It borrows nothing of the engine, so that the progress thread can be in it while the engine is in use.
pub(crate) struct LongWait<'c> {
    host: &'c dyn HostWindows,
    awaited: Awaited<'c>,
    parked_on: &'c AtomicU32,
    /// What else is under way waits for. Who writes those words does not wake this wait, which looks at them itself.
    also: Vec<Awaited<'c>>,
    needed: Vec<u32>,
    since_ns: u64,
    within: Timeout,
    poll: Option<Duration>,
}

/// What a call waits for, and where its peer says that it will not come.
struct Awaited<'c> {
    blocked: Blocked<'c>,
    /// Whether the peer has given up.
    gave_up: &'c StickyWord,
    /// The call that both ranks must make, and the records of this one and the other.
    records: Option<(u64, &'c RecordRing, &'c RecordRing)>,
}

impl<'c> Awaited<'c> {
    /// Why it will not come, if that is known.
    fn is_lost(&self) -> Option<Ended<'c>> {
        if self.records.is_some_and(|(call, mine, theirs)| differ(mine.read(call), theirs.read(call))) {
            return Some(Ended::Differs(self.blocked));
        }
        // What the peer published before it gave up counts.
        let gave_up = self.gave_up.raised().is_some() && !self.blocked.is_over();
        gave_up.then_some(Ended::GaveUp(self.blocked))
    }
}

/// How a long wait ended.
pub(crate) enum Ended<'c> {
    /// The word has the value.
    Over,
    /// The peer makes another call, and may never publish the step that is waited for.
    Differs(Blocked<'c>),
    /// The peer has given up.
    GaveUp(Blocked<'c>),
    /// The caller asked for it, or something else can go on.
    Interrupted,
}

impl<'c> LongWait<'c> {
    /// Waits. `interrupt` is called whenever the word is looked at.
    pub(crate) fn run(&self, interrupt: &mut dyn FnMut() -> bool) -> Result<Ended<'c>, CommError> {
        let blocked = self.awaited.blocked;
        let wait = WordWait {
            word: blocked.word.as_atomic(),
            parked_on: self.parked_on,
            tag: blocked.tag,
            needed: &self.needed,
            since_ns: self.since_ns,
            within: self.within,
            poll: self.poll,
        };
        let mut ended = Ended::Over;
        self.host.wait_on(&wait, &mut |value| {
            if value >= blocked.at_least {
                ended = Ended::Over;
                return true;
            }
            if self.also.iter().any(|other| other.blocked.is_over()) {
                ended = Ended::Interrupted;
                return true;
            }
            // A group that has lost one thing is broken: the rest need not come any more.
            if let Some(lost) = core::iter::once(&self.awaited).chain(&self.also).find_map(Awaited::is_lost) {
                ended = lost;
                return true;
            }
            if interrupt() {
                ended = Ended::Interrupted;
                return true;
            }
            false
        })?;
        Ok(ended)
    }
}

/// Whether two records of the same call are both there and differ.
fn differ(mine: Option<[u64; RECORD_WORDS]>, theirs: Option<[u64; RECORD_WORDS]>) -> bool {
    matches!((mine, theirs), (Some(mine), Some(theirs)) if mine[0] != theirs[0])
}

/// When a call began to wait; one deadline for all its waits. The clock is not read before the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    since_ns: Option<u64>,
    checked_ns: u64,
}

impl Clock {
    pub(crate) fn since(&mut self) -> u64 {
        *self.since_ns.get_or_insert_with(monotonic_ns)
    }

    /// Whether a caller that polls should see who is alive: once in a while, and not the first time.
    pub(crate) fn is_time_to_check(&mut self) -> bool {
        let now = monotonic_ns();
        let last = self.checked_ns.max(*self.since_ns.get_or_insert(now));
        let late = now.saturating_sub(last) > CHECK_EVERY_NS;
        if late {
            self.checked_ns = now;
        }
        late
    }
}

impl<'c> Engine<'c> {
    pub(crate) fn new(
        memory: Memory,
        me: usize,
        members: Box<[u32]>,
        host: &'c dyn HostWindows,
        within: Timeout,
        setting: Setting,
        failed: Arc<AtomicBool>,
    ) -> Self {
        let (nranks, table) = (setting.nranks, setting.table);
        let base = memory.base_word(0).load();
        Self {
            progress: Progress::new((0..nranks).map(|rank| memory.progress(rank)), me, base)
                .with_stamps((0..nranks).map(|rank| memory.stamp(rank))),
            halves: Halves::default(),
            setting,
            me,
            kernels: Kernels::get(),
            copier: Copier::new(Kernels::get(), &table),
            members,
            host,
            records: (0..nranks).map(|rank| memory.records(rank)).collect(),
            within,
            polls: if setting.core_per_rank { table.polls } else { 1 },
            seen_on: vec![0; nranks].into(),
            mover: Mover::default(),
            step: base,
            piece: 0,
            call: base,
            chain: memory.layout.hash() as u32,
            queue: Queue::default(),
            blocked: Vec::new(),
            pairs: Pairs::new(&memory, me),
            runner: Runner::new(nranks),
            broken: None,
            has_helper: false,
            failed,
            memory,
        }
    }

    #[inline]
    pub(crate) fn nranks(&self) -> usize {
        self.setting.nranks
    }

    /// Fails with the first cause when the group is broken.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), CollError> {
        match &self.broken {
            None => Ok(()),
            Some(first) => Err(CollError::broken(first)),
        }
    }

    /// What a call that was under way when the group broke fails with: the cause itself.
    pub(crate) fn cause(&self) -> Result<(), CollError> {
        self.broken.as_deref().map_or(Ok(()), |cause| Err(cause.clone()))
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Numbers a call and writes it down, before any step of it. All ranks number alike.
    #[inline]
    pub(crate) fn begin(&mut self, request: &Request) -> (u64, u32) {
        let signature = request.signature(self.nranks());
        let chain = mix(mix(u64::from(self.chain), signature.0), signature.1) as u32;
        self.begin_on(chain, record(signature, chain, self.step))
    }

    /// The same with a record that was made. All ranks have the same chain afterwards where they make the same call.
    #[inline]
    pub(crate) fn begin_on(&mut self, chain: u32, record: [u64; RECORD_WORDS]) -> (u64, u32) {
        self.call += 1;
        self.chain = chain;
        fault_point!("coll.begin");
        self.records[self.me].write(self.call, record);
        fault_point!("coll.recorded");
        (self.call, chain)
    }

    /// The hash over all calls so far.
    #[inline]
    pub(crate) fn chain(&self) -> u32 {
        self.chain
    }

    /// Whether `rank` has call `number` on record with the same hash over all calls as this rank.
    #[cold]
    pub(crate) fn makes_the_same(&self, rank: usize, number: u64) -> bool {
        let (mine, theirs) = (self.records[self.me].read(number), self.records[rank].read(number));
        matches!((mine, theirs), (Some(mine), Some(theirs)) if mine[0] == theirs[0])
    }

    /// Runs a call to its end. Only where no started call is under way.
    #[inline]
    pub(crate) fn run(&mut self, call: &mut Call) -> Result<(), CollError> {
        let mut clock = Clock::default();
        loop {
            match call.advance(self) {
                Ok(None) => break,
                Ok(Some(blocked)) => {
                    if let Err(error) = self.wait(&blocked, &mut clock) {
                        return Err(self.give_up(error));
                    }
                }
                Err(error) => return Err(self.give_up(error)),
            }
        }
        self.prepare_next(call.staged_bytes());
        self.progress.notify();
        fault_point!("coll.done");
        Ok(())
    }

    /// Takes back what the next call probably writes, if it is like this one and stages so many bytes, from the caches of the others:
    /// while the caller computes.
    #[inline]
    pub(crate) fn prepare_next(&self, bytes: usize) {
        if !self.setting.core_per_rank {
            return;
        }
        self.progress.prepare_after(self.step);
        if bytes <= self.setting.table.prefetch as usize {
            mailbox_atomics::prefetch_to_write(self.memory.half(self.me, Halves::of(self.piece)), bytes);
        }
    }

    /// Waits for a word: polls it for a while, then waits through the communicator.
    #[inline]
    pub(crate) fn wait(&mut self, blocked: &Blocked<'c>, clock: &mut Clock) -> Result<(), CollError> {
        for _ in 0..self.polls {
            if blocked.is_over() {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        if !self.setting.core_per_rank && self.take_turns(blocked) {
            return Ok(());
        }
        self.wait_long(blocked, clock)
    }

    /// Polls for a word that announces `bytes` at `theirs`, and asks for their lines with every look. A rank that has not written them yet
    /// takes them back while it takes back the line of the word.
    #[inline]
    pub(crate) fn poll_asking(&self, blocked: &Blocked<'c>, theirs: *const u8, bytes: usize) {
        for _ in 0..self.polls {
            if blocked.is_over() {
                return;
            }
            prefetch_to_read(theirs, bytes);
            core::hint::spin_loop();
        }
    }

    /// Waits through the communicator.
    #[cold]
    fn wait_long(&mut self, blocked: &Blocked<'c>, clock: &mut Clock) -> Result<(), CollError> {
        self.progress.notify();
        fault_point!("coll.waiting");
        let this = self.address();
        let mut wait = self.long_wait(blocked, clock, 0);
        if registry::has_others(this) {
            wait.poll = Some(POLL_OTHERS);
        }
        let waited = wait.run(&mut || {
            registry::progress_others(this);
            false
        });
        self.outcome(blocked, waited)
    }

    /// What a wait through the communicator came to.
    pub(crate) fn outcome(
        &self,
        blocked: &Blocked<'_>,
        waited: Result<Ended<'_>, CommError>,
    ) -> Result<(), CollError> {
        match waited {
            Ok(Ended::Differs(on)) => Err(self.mismatch(on.rank, on.why.shared_call().unwrap_or(self.call))),
            Ok(Ended::GaveUp(on)) => Err(self.peer_gave_up(&on)),
            Ok(Ended::Over | Ended::Interrupted) => Ok(()),
            Err(cause) => Err(CollError::Wait { call: self.describe_wait(blocked), cause }),
        }
    }

    fn long_wait(&self, blocked: &Blocked<'c>, clock: &mut Clock, lane: usize) -> LongWait<'c> {
        let is_covered = |other: &Blocked<'c>| {
            core::ptr::eq(other.word, blocked.word) && other.at_least >= blocked.at_least
        };
        let others = self.blocked.iter().filter(|other| !self.queue.is_empty() && !is_covered(other));
        let also: Vec<_> = others.map(|other| self.awaited(other)).collect();
        let also_needed = also.iter().map(|other| &other.blocked);
        let needed = core::iter::once(blocked).chain(also_needed).map(|one| self.members[one.rank]).collect();
        LongWait {
            host: self.host,
            awaited: self.awaited(blocked),
            parked_on: self.progress.park_words(self.me)[lane].as_atomic(),
            needed,
            since_ns: clock.since(),
            within: self.within,
            poll: (!also.is_empty()).then_some(POLL_OTHERS),
            also,
        }
    }

    fn awaited(&self, blocked: &Blocked<'c>) -> Awaited<'c> {
        let records = |number| (number, self.records[self.me], self.records[blocked.rank]);
        Awaited {
            blocked: *blocked,
            gave_up: self.progress.gave_up(blocked.rank),
            records: blocked.why.shared_call().map(records),
        }
    }

    /// What the progress thread waits for, outside the engine.
    pub(crate) fn long_wait_of_helper(&mut self, blocked: &Blocked<'c>) -> LongWait<'c> {
        let mut clock = self.queue.clock;
        let wait = self.long_wait(blocked, &mut clock, 1);
        self.queue.clock = clock;
        wait
    }

    /// What a wait for `blocked`, and for everything else that is under way, would end with now: for callers that poll.
    pub(crate) fn check_waits(&self, blocked: &Blocked<'c>, clock: &mut Clock) -> Result<(), CollError> {
        let wait = self.long_wait(blocked, clock, 0);
        let ended = match core::iter::once(&wait.awaited).chain(&wait.also).find_map(Awaited::is_lost) {
            Some(lost) => Ok(lost),
            None => self.host.check_ranks(&wait.needed, wait.since_ns, self.within).map(|()| Ended::Over),
        };
        self.outcome(blocked, ended)
    }

    /// Looks for `step` of `rank` in call `number`, which must be the same call there.
    #[inline]
    pub(crate) fn observe(
        &mut self,
        rank: usize,
        step: u64,
        number: u64,
        chain: u32,
    ) -> Result<Option<Blocked<'c>>, CollError> {
        match self.progress.observe(rank, step) {
            Observed::Here { hash, note } if hash == chain => {
                self.seen_on[rank] = note;
                Ok(None)
            }
            Observed::NotYet => {
                let (word, tag) = self.progress.step_word(rank, step);
                Ok(Some(Blocked { word, tag, at_least: step, rank, why: Why::Step(number) }))
            }
            Observed::Here { .. } | Observed::Ahead => Err(self.mismatch(rank, number)),
        }
    }

    /// Whether everybody has finished with what this rank wants to write again.
    #[inline]
    pub(crate) fn free(&mut self, used: Use, number: u64) -> Result<Option<Blocked<'c>>, CollError> {
        if self.progress.is_free(used) {
            return Ok(None);
        }
        self.ask_readers(used, number)
    }

    /// Waits until everybody has.
    #[inline]
    pub(crate) fn wait_free(&mut self, used: Use, number: u64, clock: &mut Clock) -> Result<(), CollError> {
        while let Some(blocked) = self.free(used, number)? {
            self.wait(&blocked, clock)?;
        }
        Ok(())
    }

    fn ask_readers(&mut self, used: Use, number: u64) -> Result<Option<Blocked<'c>>, CollError> {
        while let Some(rank) = self.progress.first_unfinished(used) {
            match self.progress.credit(rank, used) {
                Credit::Given => {}
                Credit::OtherCall => return Err(self.mismatch(rank, number)),
                Credit::Missing => {
                    let (word, tag) = self.progress.credit_word(rank, used);
                    let why = Why::Credit(number);
                    return Ok(Some(Blocked { word, tag, at_least: used.step, rank, why }));
                }
            }
        }
        Ok(None)
    }

    /// The call with that number, in words.
    pub(crate) fn describe(&self, number: u64) -> CallText {
        let words = self.records[self.me].read(number);
        let text = words.map_or("a call".to_owned(), |words| CallText::of(&words).to_string());
        CallText::plain(format!("{text}, call {} of rank {}", in_generation(number), self.me))
    }

    /// The call or the message that waits, in words.
    fn describe_wait(&self, blocked: &Blocked<'_>) -> CallText {
        match blocked.why {
            Why::Step(number) | Why::Credit(number) => self.describe(number),
            Why::Room => self.describe_message(blocked.rank, true),
            Why::Message => self.describe_message(blocked.rank, false),
        }
    }

    /// Rank `rank` made another call than this one, in call `number` at the latest.
    #[cold]
    pub(crate) fn mismatch(&self, rank: usize, number: u64) -> CollError {
        let of = |rank: usize, number| {
            let words = self.records[rank].read(number);
            let call = words.map_or(CallText::plain("nothing yet".to_owned()), |words| CallText::of(&words));
            (CallOf { rank, number: in_generation(number), call }, words)
        };
        let first = number.saturating_sub(RECORDS as u64 / 2).max(1);
        // The first call in which they differ; it may be some calls ago when one of them ran ahead.
        let at = (first..=number).find(|at| {
            let ((_, mine), (_, theirs)) = (of(self.me, *at), of(rank, *at));
            differ(mine, theirs)
        });
        let at = at.unwrap_or(number);
        let (one, other) = (of(self.me.min(rank), at).0, of(self.me.max(rank), at).0);
        CollError::Mismatch { one, other }
    }

    /// Rank `rank` has given up: its own error, where it left one that concerns all, or what the communicator knows.
    #[cold]
    fn peer_gave_up(&self, blocked: &Blocked<'_>) -> CollError {
        let rank = blocked.rank;
        if let Some(error) = Fault::read(&self.memory, rank) {
            return error;
        }
        let call = self.describe_wait(blocked);
        match self.host.check_ranks(&[self.members[rank]], monotonic_ns(), self.within) {
            Err(cause) => CollError::Wait { call, cause },
            Ok(()) => CollError::PeerGaveUp { rank, call },
        }
    }

    /// Breaks the group: keeps `error` as the first cause, tells the others, and returns it.
    #[cold]
    pub(crate) fn give_up(&mut self, error: CollError) -> CollError {
        if error.is_harmless() || self.is_broken() {
            return error;
        }
        fault_point!("coll.giving_up");
        self.broken = Some(Arc::new(error.clone()));
        self.failed.store(true, Ordering::Release);
        Fault::write(&self.memory, self.me, &error);
        // As kernels say it, which may be ranks of the group.
        self.progress.give_up(NonZeroU32::MIN.saturating_add(generation_of(self.memory.base_word(0).load())));
        self.pairs.wake_all();
        fault_point!("coll.gave_up");
        error
    }

    /// The thread unwinds through the group, which may be in the middle of a call.
    pub(crate) fn give_up_in_panic(&mut self) {
        let call = CallText::plain("a panic".to_owned());
        self.give_up(CollError::PeerGaveUp { rank: self.me, call });
    }

    /// By what the process tells groups apart.
    pub(crate) fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
}
