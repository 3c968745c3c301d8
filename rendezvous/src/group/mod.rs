//! A group of ranks that share memory, as one of them sees it.

mod broadcast;
mod exchange;
mod failure;
#[cfg(any(fuzzing, test))]
pub(crate) mod hostile_peer;
mod inbox;
pub(crate) mod message;
mod outbox;
mod placement;
mod reserve;
mod results;
mod step;
mod watch;
mod word_wait;

pub(crate) use failure::how_died;
pub use message::Tag;
pub use results::RESULT_BYTES;
pub use step::{Step, deadline};

use crate::hosts::{Event, Hosts};
use crate::memory::Memory;
use crate::memory::layout::Layout;
use comm_context::comm::{CommError, Membership, Phase, Timeout};
use deadline::{Deadline, Watch, monotonic_ns};
use fault_points::fault_point;
use inbox::Inbox;
use mailbox_atomics::{Arrival, Barrier, SpinBudget, Wait, WaitError, WordU32};
use outbox::Outbox;
use placement::Placement;
use shared_memory::Region;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use watch::{Needed, ProcessWatches};

/// One rank of a group: barrier, exchange of small messages, published phases, and errors that name the rank
/// that is missing, dead or gone.
#[derive(Debug)]
pub struct Group {
    memory: Arc<Memory>,
    me: Membership,
    /// The process that joined. A forked copy of it is not a member.
    owner: u32,
    inbox: Inbox,
    outbox: Outbox,
    /// The hosts of the other ranks, when there are several.
    hosts: Option<Hosts>,
    spin: SpinBudget,
    placement: Placement,
    process_watches: ProcessWatches,
    broken: OnceLock<Arc<CommError>>,
    /// Threads of this rank arrive at the barrier one after the other.
    barrier_turn: Mutex<()>,
    /// The reason is written once, by whichever thread leaves first.
    leave_turn: Mutex<()>,
    /// Bytes that threads of this rank are about to reserve.
    reserving: Mutex<u64>,
}

/// The two words of a group that kernels read, or where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelWords<T> {
    /// Not zero while kernels shall return.
    pub abort: T,
    /// Changes when they may wait again.
    pub generation: T,
}

impl Group {
    /// Signs in as `me` in `memory` and waits until every rank has.
    pub(crate) fn enter(me: Membership, memory: Arc<Memory>, deadline: Deadline) -> Result<Self, CommError> {
        Self::new(me, memory, None).sign_in(deadline)
    }

    /// The same for ranks on several hosts, each of which has a `memory` of its own.
    pub(crate) fn enter_hosts(
        me: Membership,
        memory: Arc<Memory>,
        hosts: Hosts,
        deadline: Deadline,
    ) -> Result<Self, CommError> {
        Self::new(me, memory, Some(hosts)).sign_in(deadline)
    }

    fn sign_in(mut self, deadline: Deadline) -> Result<Self, CommError> {
        let step = self.begin(Phase::Init, deadline);
        self.memory.sign_in(self.me.rank());
        fault_point!("rendezvous.signed_in");
        let entered = self.barrier(&step);
        drop(step);
        if let Err(error) = entered {
            self.leave(&format!("it could not join, because {error}"));
            return Err(error);
        }
        self.spin = SpinBudget::for_parties_on(self.me.nranks() as usize, self.memory.cores());
        self.placement.publish();
        Ok(self)
    }

    /// Rank `me`, not signed in yet.
    fn new(me: Membership, memory: Arc<Memory>, hosts: Option<Hosts>) -> Self {
        let nranks = me.nranks();
        Self {
            inbox: Inbox::new(memory.clone()),
            outbox: Outbox::new(memory.clone(), me.rank(), hosts.as_ref().map(Hosts::uplink)),
            hosts,
            // Until all have joined, the process that starts the ranks needs a core as well.
            spin: SpinBudget::for_parties(nranks as usize + 1),
            placement: Placement::new(memory.clone(), me),
            process_watches: ProcessWatches::new(nranks),
            broken: OnceLock::new(),
            barrier_turn: Mutex::new(()),
            leave_turn: Mutex::new(()),
            reserving: Mutex::new(0),
            owner: std::process::id(),
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
        self.memory.region()
    }

    /// The range of [`region`](Self::region) that belongs to `rank`.
    pub fn extent(&self, rank: u32) -> Range<usize> {
        self.memory.layout().extent(rank)
    }

    /// Bytes of the region that `rank`'s backend may use as it likes. They have memory, and are in one page.
    pub fn backend_bytes(&self, rank: u32) -> Range<usize> {
        self.memory.layout().backend(rank)
    }

    /// Where the words that kernels read are in the region.
    pub fn kernel_words_at(&self) -> KernelWords<usize> {
        KernelWords { abort: Layout::abort_word(), generation: Layout::generation_word() }
    }

    /// What the words that kernels read say, for ranks whose kernels cannot read them themselves.
    pub fn kernel_words(&self) -> KernelWords<u32> {
        KernelWords {
            abort: self.memory.abort_word().load(),
            generation: self.memory.generation_word().load(),
        }
    }

    /// One line for each rank: process, phase, since when, and its host if there are several.
    pub fn table(&self) -> String {
        let table = self.memory.table();
        let Some(hosts) = &self.hosts else { return table };
        (0..).zip(table.lines()).map(|(rank, line)| format!("{line} on {}\n", hosts.name(rank))).collect()
    }

    /// The first two of these ranks that are not on one host, with the names of their hosts; `None` when all are.
    pub fn first_apart<'a>(&'a self, ranks: &[u32]) -> Option<[(u32, &'a str); 2]> {
        let (hosts, first) = (self.hosts.as_ref()?, *ranks.first()?);
        let other = ranks.iter().copied().find(|rank| !hosts.are_together(first, *rank))?;
        Some([first, other].map(|rank| (rank, hosts.name(rank))))
    }

    /// Publishes what a backend says about the windows of others that this rank has open. Others read it also after
    /// this rank has left.
    pub fn publish_imports(&self, value: u32) {
        if self.check_process().is_ok() {
            self.memory.publish_imports(self.me.rank(), value);
            self.tell(|| Event::Imports(value));
        }
    }

    /// The word in which `rank` publishes with [`publish_imports`](Self::publish_imports), to wait on; 0 at first.
    pub fn imports(&self, rank: u32) -> &WordU32 {
        self.memory.imports(rank)
    }

    /// Tells ranks on other hosts what this one did to its part of the memory.
    fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(hosts) = &self.hosts {
            hosts.tell(event());
        }
    }

    /// Waits until every rank has arrived, for so long at most, in `phase`.
    ///
    /// Where all arrive within some microseconds, this reads no clock and publishes no phase: the time starts when it
    /// has checked without success.
    pub fn barrier_within(&self, phase: Phase, within: Timeout) -> Result<(), CommError> {
        self.check()?;
        let _turn = self.barrier_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let barrier = Barrier::new(self.memory.places(), self.me.rank() as usize);
        let arrival = self.arrive(&barrier);
        if arrival.is_complete() {
            return Ok(());
        }
        let step = self.begin(phase, Deadline::since(monotonic_ns(), within.get()));
        self.wait_at(&barrier, arrival, &step)
    }

    /// Waits until every rank has arrived.
    pub fn barrier(&self, step: &Step<'_>) -> Result<(), CommError> {
        let _turn = self.barrier_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let barrier = Barrier::new(self.memory.places(), self.me.rank() as usize);
        let arrival = self.arrive(&barrier);
        self.wait_at(&barrier, arrival, step)
    }

    /// Ranks on other hosts learn of it first: this rank checks for them at once.
    fn arrive(&self, barrier: &Barrier<'_>) -> Arrival {
        self.tell(|| Event::Arrived(self.memory.places()[self.me.rank() as usize].phase() + 1));
        barrier.arrive(Some(&self.spin))
    }

    fn wait_at(&self, barrier: &Barrier<'_>, arrival: Arrival, step: &Step<'_>) -> Result<(), CommError> {
        let needed = Needed::new(self, || barrier.missing());
        match barrier.wait_for_others(arrival, &self.wait(step, &needed)) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.give_up(error.cause, step.phase(), error.missing)),
        }
    }

    /// Fails when another rank is gone or the run was aborted: for callers that wait on something outside the
    /// group that needs every rank, such as a vendor's library. Does not break the group; see
    /// [`record_failure`](Self::record_failure).
    pub fn check_peers(&self, step: &Step<'_>) -> Result<(), CommError> {
        let me = self.me.rank();
        let needed = Needed::new(self, || (0..self.me.nranks()).filter(|rank| *rank != me).collect());
        let halted = self.memory.halt_word().raised().map(|reason| WaitError::Aborted { reason });
        match needed.first_death().map(WaitError::PeerDied).or(halted) {
            Some(cause) => Err(self.describe(cause, step.phase(), Vec::new())),
            None => Ok(()),
        }
    }

    /// A wait of `step` for the ranks in `needed`.
    fn wait<'a>(&'a self, step: &Step<'_>, needed: &'a dyn Watch) -> Wait<'a> {
        let wait = Wait::until(step.deadline()).watching(needed).abort_on(self.memory.halt_word());
        wait.cancel_on(self.memory.abort_word()).spinning(&self.spin).placed_by(&self.placement)
    }
}
