//! The memory that a Worker shares with its child processes: status words, and for each child a ring of task
//! slots, its last failure and its last answer.
//!
//! Each word has one writer. A word that another process wrote is read once, and the copy is checked.

mod failures;
mod words;

pub(crate) use failures::{ANSWER_BYTES, FailedAt};
pub(crate) use words::Activity;

use super::frame::SLOT_BYTES;
use mailbox_atomics::{Listener, ParkFlag, WordU32, WordU64};
use shared_memory::{PAGE, Region, RegionError};
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use words::{ChildWords, ParentWords, RunWords, TimeWords};

/// Slots in a ring: tasks that may be waiting at one child before a submit has to wait.
pub(crate) const RING: u64 = 32;

const RUN_AT: usize = 512;
const FLAGS_AT: usize = 1024;
const CHILDREN_AT: usize = PAGE;
const TIMES_AT: usize = 1024;
const FAILURE_AT: usize = PAGE;
const ANSWER_AT: usize = 2 * PAGE;
const RING_AT: usize = 3 * PAGE;
const CHILD_BYTES: usize = RING_AT + RING as usize * SLOT_BYTES;
/// The most children: the flags of one page have room for them and for the parent's own flag.
pub(crate) const MAX_CHILDREN: usize = (CHILDREN_AT - FLAGS_AT) / 4 - 1;

const _: () = {
    assert!(size_of::<ChildWords>() <= TIMES_AT);
    assert!(TIMES_AT + RING as usize * size_of::<TimeWords>() <= FAILURE_AT);
    assert!(FAILURE_AT + ANSWER_BYTES <= ANSWER_AT && ANSWER_AT + ANSWER_BYTES <= RING_AT);
    assert!(size_of::<ParentWords>() <= RUN_AT && RUN_AT + size_of::<RunWords>() <= FLAGS_AT);
};

/// The name of the memory in errors and in `/proc`.
const LABEL: &str = "chipcomm-worker";

/// How a task ended, for the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its process ended in it.
    Unfinished = 0,
    Done = 1,
    Failed = 2,
    /// Another failure kept it from running, or it was cancelled.
    Skipped = 3,
}

/// When a task ran, on the monotonic clock, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) struct ControlBlock {
    region: Region,
    children: usize,
}

impl ControlBlock {
    pub(crate) fn create(children: usize) -> Result<Self, RegionError> {
        let region = Region::create(LABEL, CHILDREN_AT + children * CHILD_BYTES)?;
        Ok(Self { region, children })
    }

    /// The control block of `children` children that the parent passed on.
    pub(crate) fn attach(fd: OwnedFd, children: usize) -> Result<Self, RegionError> {
        let len = children.saturating_mul(CHILD_BYTES).saturating_add(CHILDREN_AT);
        Ok(Self { region: Region::attach(fd, LABEL, len)?, children })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// How many children there are.
    pub(crate) fn children(&self) -> usize {
        self.children
    }

    pub(crate) fn parent(&self) -> &ParentWords {
        inside(self.region.words(0))
    }

    pub(crate) fn child(&self, child: usize) -> &ChildWords {
        inside(self.region.words(CHILDREN_AT + child * CHILD_BYTES))
    }

    fn run(&self) -> &RunWords {
        inside(self.region.words(RUN_AT))
    }

    /// Publishes the deadline of the run that begins, on the monotonic clock.
    pub(crate) fn set_run_deadline(&self, until_ns: u64) {
        self.run().until_ns.store(until_ns);
    }

    pub(crate) fn run_deadline(&self) -> u64 {
        self.run().until_ns.load()
    }

    fn time_words(&self, child: usize, seq: u64) -> &TimeWords {
        let at = TIMES_AT + (seq % RING) as usize * size_of::<TimeWords>();
        inside(self.region.words(CHILDREN_AT + child * CHILD_BYTES + at))
    }

    /// The child's side: task `seq` begins, or is about to be skipped.
    pub(crate) fn record_start(&self, child: usize, seq: u64, start_ns: u64) {
        let words = self.time_words(child, seq);
        words.outcome.store(0);
        words.start_ns.store(start_ns);
        words.seq.store(seq);
    }

    /// The child's side: task `seq` is over.
    pub(crate) fn record_end(&self, child: usize, seq: u64, end_ns: u64, outcome: Outcome) {
        let words = self.time_words(child, seq);
        words.end_ns.store(end_ns);
        words.outcome.store(outcome as u64);
    }

    /// When task `seq` ran and how it ended; `None` when it has not begun.
    pub(crate) fn times(&self, child: usize, seq: u64) -> Option<Times> {
        let words = self.time_words(child, seq);
        (words.seq.load() == seq).then(|| {
            let outcome = match words.outcome.load() {
                1 => Outcome::Done,
                2 => Outcome::Failed,
                3 => Outcome::Skipped,
                _ => Outcome::Unfinished,
            };
            Times { start_ns: words.start_ns.load(), end_ns: words.end_ns.load(), outcome }
        })
    }

    /// The sequence word of the slot for task `seq`.
    pub(crate) fn slot_word(&self, child: usize, seq: u64) -> &WordU64 {
        inside(self.region.words(self.slot_at(child, seq)))
    }

    fn slot_at(&self, child: usize, seq: u64) -> usize {
        CHILDREN_AT + child * CHILD_BYTES + RING_AT + (seq % RING) as usize * SLOT_BYTES
    }

    pub(crate) fn write_slot(&self, child: usize, seq: u64, at: usize, bytes: &[u8]) {
        inside(self.region.write(self.slot_at(child, seq) + at, bytes));
    }

    pub(crate) fn read_slot(&self, child: usize, seq: u64, at: usize, into: &mut [u8]) {
        inside(self.region.read(self.slot_at(child, seq) + at, into));
    }

    /// The flag with which `waiter` (a child, or the parent as number `children`) says that it is parked on
    /// the progress of `child`.
    pub(crate) fn park_flag(&self, waiter: usize, child: usize) -> ParkFlag<'_> {
        ParkFlag::tagged(&self.flags()[waiter], tag(child))
    }

    /// Publishes that `child` has finished task `seq`, and wakes the waiters parked on it.
    pub(crate) fn finish(&self, child: usize, words: &ChildWords, seq: u64) {
        let listeners = self.flags().iter().map(move |flag| Listener::tagged(flag, tag(child)));
        words.progress.done.store_and_notify(seq, listeners);
    }

    /// Wakes all processes that are parked on the progress of a child, so that they check their abort word.
    /// One that is about to park misses it and finds out at its next poll.
    pub(crate) fn wake_waiters(&self) {
        (0..self.children).for_each(|child| self.child(child).done_word().wake_all());
    }

    /// Whether the parent is parked, or about to, on the progress of a child.
    pub(crate) fn parent_is_parked(&self) -> bool {
        self.flags()[self.children].load() != 0
    }

    /// Finishes for a child that has ended what it was sent, up to `sent`, as skipped in `run`. The parent is
    /// the writer of its words until another process serves them.
    pub(crate) fn abandon(&self, child: usize, sent: u64, run: u64) {
        let words = self.child(child);
        self.record_failure(child, run, u32::MAX, None);
        words.set_idle();
        self.flags()[child].store(0);
        self.finish(child, words, sent);
    }

    fn flags(&self) -> &[WordU32] {
        inside(self.region.word_slice(FLAGS_AT, self.children + 1))
    }
}

/// Whether the slot of task `seq` may be written again: the task that it held is done. `done` is the child's
/// claim and may be anything.
pub(crate) fn slot_is_free(seq: u64, done: u64) -> bool {
    seq.saturating_sub(RING) <= done
}

fn tag(child: usize) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(child as u32)
}

/// Offsets come from this file's constants and the number of children that the region was made for.
#[inline]
fn inside<T>(found: Result<T, RegionError>) -> T {
    found.unwrap_or_else(|error| outside(&error))
}

#[cold]
#[inline(never)]
fn outside(error: &RegionError) -> ! {
    panic!("the Worker's control block: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f36_a_control_block_for_another_number_of_children_is_not_attached() {
        let block = ControlBlock::create(2).unwrap();
        let fd = || block.fd().try_clone_to_owned().unwrap();
        assert!(matches!(ControlBlock::attach(fd(), 3), Err(RegionError::WrongSize { .. })));
        let same = ControlBlock::attach(fd(), 2).unwrap();
        same.finish(1, same.child(1), 7);
        assert_eq!(block.child(1).done(), 7);
    }

    #[test]
    fn f29_a_slot_is_free_or_not_whatever_the_child_claims() {
        assert!(slot_is_free(1, 0) && slot_is_free(RING, 0) && slot_is_free(RING + 1, 1));
        assert!(!slot_is_free(RING + 1, 0) && slot_is_free(1, u64::MAX));
    }
}
