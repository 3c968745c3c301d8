//! A group of ranks that share memory, as one of them sees it.

use crate::layout::{BROADCAST_BYTES, Layout};
use crate::memory::{Memory, region_error};
use crate::notes::Notebook;
use crate::verdict;
use crate::watch::{Needed, ProcessWatches};
use comm_context::comm::{ArgumentError, CommError, Death, Membership, Phase, Timeout};
use deadline::{Deadline, HowDied, Watch, coarse_monotonic_ns};
use fault_points::{fault_point, fault_rank};
use mailbox_atomics::{
    AllowedCores, Barrier, OneShot, SpinBudget, StickyWord, Wait, WaitError, WordI32, WordU64,
};
use shared_memory::Region;
use std::num::{NonZeroI32, NonZeroU32};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The memory of a group whose ranks are about to be started. Made by their parent; every rank joins it at the same address: after the fork, or
/// with a [`Ticket`](crate::Ticket).
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(crate) memory: Arc<Memory>,
}

impl Prepared {
    /// Memory for `nranks` ranks, each of which owns `extent` bytes of addresses with no memory behind them yet.
    pub fn new(nranks: u32, extent: usize) -> Result<Self, CommError> {
        Membership::new(0, nranks)?;
        Ok(Self { memory: Arc::new(Memory::create(layout(nranks, extent)?, crate::nonce())?) })
    }

    /// The memory itself, to keep its descriptor open in the ranks.
    pub fn region(&self) -> &Region {
        &self.memory.region
    }

    /// Joins as `rank`, in its own process, and waits for the others.
    pub fn join(&self, rank: u32, within: Timeout) -> Result<Group, CommError> {
        let me = Membership::new(rank, self.memory.layout.nranks)?;
        fault_rank!(rank);
        fault_point!("rendezvous.joining");
        Group::enter_memory(me, self.memory.clone(), deadline(within)?)
    }

    /// Tells every rank that `rank` died. The parent's word: the first one counts.
    pub fn report_death(&self, rank: u32, how: HowDied) {
        self.memory.header().verdict.raise(verdict::encode(rank, how));
    }

    /// Stops everybody for good: waits end, and kernels that look at their workspace's abort word return.
    pub fn halt(&self, reason: NonZeroU32) {
        self.memory.header().halt.raise(reason);
        self.cancel_kernels();
    }

    /// Has kernels that look at their abort word return, and ranks that wait for each other give up; who gave up cannot use the
    /// group again.
    pub fn cancel_kernels(&self) {
        self.memory.header().abort.store(1);
    }

    /// Lets kernels wait again. To be called when none runs.
    pub fn resume_kernels(&self) {
        self.memory.header().abort.store(0);
    }

    /// One line for each rank: process, phase, since when.
    pub fn table(&self) -> String {
        self.memory.table()
    }
}

/// One rank's place in a group: barrier, exchange of small notes, phases for all to see, and knowledge of who has gone.
#[derive(Debug)]
pub struct Group {
    pub(crate) memory: Arc<Memory>,
    pub(crate) me: Membership,
    pub(crate) notebook: Notebook,
    pub(crate) spin: SpinBudget,
    process_watches: ProcessWatches,
    broken: OnceLock<Arc<CommError>>,
    /// A rank comes to the barrier once at a time, whichever of its threads comes.
    at_barrier: Mutex<()>,
}

/// A call under way: its phase is published until it is dropped, and all its waits share one deadline.
#[derive(Debug)]
pub struct Step<'a> {
    group: &'a Group,
    pub(crate) phase: Phase,
    pub(crate) deadline: Deadline,
}

impl Group {
    pub(crate) fn enter_memory(
        me: Membership,
        memory: Arc<Memory>,
        deadline: Deadline,
    ) -> Result<Self, CommError> {
        let nranks = me.nranks();
        let mut group = Self::at_the_door(me, memory);
        let step = group.begin(Phase::Init, deadline);
        let cores = AllowedCores::of_this_process();
        group
            .memory
            .rank_block(me.rank())
            .cores
            .iter()
            .zip(cores.0)
            .for_each(|(word, bits)| word.store(bits));
        // The pid last: who sees it may look at the phase.
        group.memory.rank_block(me.rank()).pid.store_and_wake(std::process::id());
        fault_point!("rendezvous.signed_in");
        let met = group.barrier(&step);
        drop(step);
        if let Err(error) = met {
            group.leave(&format!("it could not join, because {error}"));
            return Err(error);
        }
        group.spin = SpinBudget::for_parties_on(nranks as usize, group.memory.cores());
        Ok(group)
    }

    /// As it is before anybody knows of this rank.
    pub(crate) fn at_the_door(me: Membership, memory: Arc<Memory>) -> Self {
        let nranks = me.nranks();
        Self {
            notebook: Notebook::new(nranks),
            // Until all are in, whoever starts the ranks needs a core as well.
            spin: SpinBudget::for_parties(nranks as usize + 1),
            process_watches: ProcessWatches::new(nranks),
            broken: OnceLock::new(),
            at_barrier: Mutex::new(()),
            memory,
            me,
        }
    }

    /// Which rank of how many.
    pub fn membership(&self) -> Membership {
        self.me
    }

    /// The shared memory.
    pub fn region(&self) -> &Region {
        &self.memory.region
    }

    /// Where the bytes that belong to `rank` stand in [`region`](Self::region).
    pub fn extent(&self, rank: u32) -> Range<usize> {
        self.memory.layout.extent(rank)
    }

    /// Where in the region the workspace with the abort word stands that kernels look at.
    pub fn workspace_offset(&self) -> usize {
        Layout::abort_word()
    }

    /// What the abort word holds, for ranks whose kernels cannot look at it themselves.
    pub fn kernel_abort(&self) -> u32 {
        self.memory.header().abort.load()
    }

    /// Starts a call: refused when the group is broken, published to all while it lasts.
    pub fn step(&self, phase: Phase, within: Timeout) -> Result<Step<'_>, CommError> {
        self.check()?;
        Ok(self.begin(phase, deadline(within)?))
    }

    pub(crate) fn begin(&self, phase: Phase, deadline: Deadline) -> Step<'_> {
        self.publish(phase, deadline.start_ns());
        Step { group: self, phase, deadline }
    }

    /// Fails with the first cause when the group is broken.
    pub fn check(&self) -> Result<(), CommError> {
        self.broken.get().map_or(Ok(()), |first| Err(CommError::broken(first)))
    }

    /// Keeps `error` as the first cause if it means that the group can no longer work together.
    pub fn record_failure(&self, error: CommError) -> CommError {
        use CommError::{Aborted, PeerDied, PeerLeft, Stuck, TimedOut};
        if matches!(
            error,
            TimedOut { .. } | PeerDied { .. } | PeerLeft { .. } | Aborted { .. } | Stuck { .. }
        ) {
            let _ = self.broken.set(Arc::new(error.clone()));
        }
        error
    }

    /// This rank cannot go on: keeps `error` as the first cause, leaves, and tells the others why. Gives the first cause.
    pub fn fail(&self, error: CommError) -> CommError {
        let _ = self.broken.set(Arc::new(error.clone()));
        self.leave(&error.to_string());
        error
    }

    /// Tells the cause when some other rank is gone or the run was aborted: for who waits on something outside the group, such
    /// as a vendor's library, that needs every rank. Keeps nothing; see [`record_failure`](Self::record_failure).
    pub fn check_peers(&self, step: &Step<'_>) -> Result<(), CommError> {
        let me = self.me.rank();
        let needed = Needed::new(self, || (0..self.me.nranks()).filter(|rank| *rank != me).collect());
        let aborted = self.halt_word().raised().map(|reason| WaitError::Aborted { reason });
        match needed.first_death().map(WaitError::PeerDied).or(aborted) {
            Some(cause) => Err(self.describe(cause, step.phase, Vec::new())),
            None => Ok(()),
        }
    }

    /// Waits until every rank has come.
    pub fn barrier(&self, step: &Step<'_>) -> Result<(), CommError> {
        let _turn = self.at_barrier.lock().unwrap_or_else(PoisonError::into_inner);
        let barrier = Barrier::new(self.memory.places(), self.me.rank() as usize);
        let needed = Needed::new(self, || barrier.missing());
        match barrier.wait(&self.wait(step, &needed)) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.explain(error.cause, step.phase, error.missing)),
        }
    }

    /// Hands `bytes` to every rank, once in the group's life: for what one rank must tell all and that no note can hold.
    ///
    /// # Panics
    /// When there are more than [`BROADCAST_BYTES`].
    pub fn broadcast(&self, bytes: &[u8]) -> Result<(), CommError> {
        assert!(bytes.len() <= BROADCAST_BYTES, "a letter has at most {BROADCAST_BYTES} bytes");
        let (_, len_at, bytes_at) = Layout::letter();
        let posted = self.letter().publish(NonZeroI32::MIN, || {
            self.memory.inside(self.region().write(bytes_at, bytes));
            self.memory.inside(self.region().words::<WordU64>(len_at)).store(bytes.len() as u64);
        });
        posted.map_err(|twice| CommError::Backend {
            what: "letter to the group".to_owned(),
            source: Arc::new(twice),
        })
    }

    /// The letter that rank `from` posts.
    pub fn receive_broadcast(&self, step: &Step<'_>, from: u32) -> Result<Vec<u8>, CommError> {
        let needed = Needed::new(self, || vec![from]);
        self.letter()
            .wait(&self.wait(step, &needed))
            .map_err(|error| self.explain(error, step.phase, vec![from]))?;
        let (_, len_at, bytes_at) = Layout::letter();
        let len = self.memory.inside(self.region().words::<WordU64>(len_at)).load();
        let mut bytes = vec![0; (len as usize).min(BROADCAST_BYTES)];
        self.memory.inside(self.region().read(bytes_at, &mut bytes));
        Ok(bytes)
    }

    fn letter(&self) -> OneShot<'_> {
        OneShot::new(self.memory.inside(self.region().words::<WordI32>(Layout::letter().0)))
    }

    /// One line for each rank: process, phase, since when.
    pub fn table(&self) -> String {
        self.memory.table()
    }

    /// Leaves, and tells whoever still waits for this rank why. What the rank owns of the memory is its own to give back before.
    pub fn leave(&self, reason: &str) {
        if !self.memory.has_left(self.me.rank()) {
            fault_point!("rendezvous.leaving");
            self.memory.write_reason(self.me.rank(), reason);
            self.publish(Phase::Gone, coarse_monotonic_ns());
            self.memory.rank_block(self.me.rank()).left.raise(NonZeroU32::MIN);
            self.notebook.notify(&self.memory, self.me.rank());
            fault_point!("rendezvous.left");
        }
    }

    /// Leaves because the communicator is destroyed, and gives what broke the group, if something did.
    pub fn leave_destroyed(&self) -> Result<(), CommError> {
        let broken = self.check();
        let reason = match &broken {
            Ok(()) => "it destroyed its communicator".to_owned(),
            Err(error) => format!("it destroyed its communicator, because {}", error.root_cause()),
        };
        self.leave(&reason);
        broken
    }

    pub(crate) fn process_watches(&self) -> &ProcessWatches {
        &self.process_watches
    }

    pub(crate) fn wait<'a>(&'a self, step: &Step<'_>, needed: &'a dyn Watch) -> Wait<'a> {
        let cancel = &self.memory.header().abort;
        let wait = Wait::until(step.deadline).watching(needed).abort_on(self.halt_word());
        wait.cancel_on(cancel).spinning(&self.spin)
    }

    pub(crate) fn halt_word(&self) -> &StickyWord {
        &self.memory.header().halt
    }

    /// Shows the phase to all. Its time is shown in seconds, so the coarse clock will do, which is read three times as fast.
    fn publish(&self, phase: Phase, since_ns: u64) {
        let card = self.memory.rank_block(self.me.rank());
        card.since_ns.store(since_ns);
        card.phase.store(phase.code());
    }

    /// Why a wait ended, in the words of a communicator: the first cause that can be found, not what followed from it.
    /// The rank cannot come to anything again, so it leaves: nobody shall wait for it.
    pub(crate) fn explain(&self, error: WaitError, phase: Phase, missing: Vec<u32>) -> CommError {
        let error = self.record_failure(self.describe(error, phase, missing));
        self.leave(&format!("it gave up, because {error}"));
        error
    }

    pub(crate) fn describe(&self, error: WaitError, phase: Phase, missing: Vec<u32>) -> CommError {
        match (self.reported_death(), error) {
            (Some(death), _) => self.died(death, phase),
            (None, WaitError::TimedOut { waited, limit }) => {
                CommError::TimedOut { phase, waited, limit, missing, table: self.table() }
            }
            (None, WaitError::Aborted { .. }) => {
                let halted = self.halt_word().raised().is_some();
                let reason =
                    if halted { "the parent process stopped the run" } else { "a task of the run failed" };
                CommError::Aborted { phase, reason: reason.to_owned() }
            }
            (None, WaitError::PeerDied(death)) if self.memory.has_left(death.peer) => {
                match self.process_watches.first_dead(&self.memory, self.me.rank()) {
                    Some(cause) => self.died(cause, phase),
                    None => CommError::PeerLeft {
                        rank: death.peer,
                        reason: self.memory.reason(death.peer),
                        phase,
                    },
                }
            }
            (None, WaitError::PeerDied(death)) => self.died(death, phase),
        }
    }

    /// What the parent of forked ranks told, if anything.
    pub(crate) fn reported_death(&self) -> Option<deadline::Death> {
        self.memory.header().verdict.raised().and_then(|word| verdict::decode(word, self.me.nranks()))
    }

    fn died(&self, death: deadline::Death, phase: Phase) -> CommError {
        let how = how_in_words(death.how);
        let pid = self.memory.pid(death.peer);
        CommError::PeerDied { rank: death.peer, pid, how, phase }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.leave("it dropped its communicator without destroying it");
    }
}

impl Step<'_> {
    /// The end of all waits of this call.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.group.memory.has_left(self.group.me.rank()) {
            self.group.publish(Phase::Idle, coarse_monotonic_ns());
        }
    }
}

/// How a process died, in the terms of a communicator.
pub(crate) fn how_in_words(how: HowDied) -> Death {
    match how {
        HowDied::Exited(status) => Death::Exited { status },
        HowDied::Signalled(signal) => Death::Signalled { signal },
        HowDied::Unknown => Death::Vanished,
    }
}

pub(crate) fn layout(nranks: u32, extent: usize) -> Result<Layout, CommError> {
    Layout::new(nranks, extent)
        .ok_or_else(|| region_error(shared_memory::RegionError::BadLength { len: extent }))
}

/// The end of a call that starts now.
pub fn deadline(within: Timeout) -> Result<Deadline, CommError> {
    Deadline::after(within.get()).map_err(|_| ArgumentError::Timeout { given: within.get() }.into())
}
