//! The memory that a Worker shares with its child processes: status words, and for each child a ring of task
//! slots, its last failure and its last answer.
//!
//! Each word has one writer. A word that another process wrote is read once, and the copy is checked.

mod failures;
mod words;

pub(crate) use failures::{ANSWER_BYTES, FailedAt};
pub(crate) use words::{Activity, ParentWords};

use super::frame::{BODY_AT, ReceivedFrame, SLOT_BYTES};
use super::run_number::covers;
use chip_runtime::signals::Signals;
use mailbox_atomics::{DispatchSender, Listener, ParkFlag, SlotNumber, WordU32, usable_cores};
use shared_memory::{Region, RegionError};
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use words::{
    ACTIVITY_AT, AboutWords, CancelWords, ChildWords, DONE_AT, LegendWords, MAGIC, NAME_BYTES, RunWords,
    SlotWords, TimeWords, VERSION,
};

/// Slots in a ring: tasks that may be waiting at one child before a submit has to wait.
pub(crate) const RING: u64 = 32;

/// Parts begin at multiples of it, whatever pages the system has.
const PAGE: usize = 4096;
const LEGEND_AT: usize = 256;
const RUN_AT: usize = 512;
const FLAGS_AT: usize = 1024;
const CHILDREN_AT: usize = PAGE;
const TIMES_AT: usize = 1024;
const CANCEL_AT: usize = 2048;
const ABOUT_AT: usize = 2176;
const FAILURE_AT: usize = PAGE;
const ANSWER_AT: usize = 2 * PAGE;
/// The first bytes of all slots stand together, and the rest of each elsewhere: most frames end in their first
/// bytes, so that a ring is a page for the parent, which writes to many of them.
const HEADS_AT: usize = 3 * PAGE;
/// The bytes of a frame that are in the head of its slot.
pub(crate) const HEAD_BYTES: usize = PAGE / RING as usize;
const CHILD_BYTES: usize = HEADS_AT + PAGE;
/// The tails of all rings are behind everything else. They have memory when a frame is longer than a head.
const TAIL_BYTES: usize = SLOT_BYTES - HEAD_BYTES;
const TAILS_BYTES: usize = (RING as usize * TAIL_BYTES).next_multiple_of(PAGE);
/// The most children: the flags of one page have room for them and for the parent's own flag.
pub(crate) const MAX_CHILDREN: usize = (CHILDREN_AT - FLAGS_AT) / 4 - 1;

const _: () = {
    assert!(size_of::<SlotWords>() == BODY_AT && BODY_AT <= HEAD_BYTES);
    assert!(size_of::<ChildWords>() <= TIMES_AT);
    assert!(TIMES_AT + RING as usize * size_of::<TimeWords>() <= CANCEL_AT);
    assert!(CANCEL_AT + size_of::<CancelWords>() <= ABOUT_AT);
    assert!(ABOUT_AT + size_of::<AboutWords>() + NAME_BYTES <= FAILURE_AT);
    assert!(FAILURE_AT + ANSWER_BYTES <= ANSWER_AT && ANSWER_AT + ANSWER_BYTES <= HEADS_AT);
    assert!(HEAD_BYTES.is_multiple_of(128));
    assert!(size_of::<ParentWords>() <= LEGEND_AT && LEGEND_AT + size_of::<LegendWords>() <= RUN_AT);
    assert!(RUN_AT + size_of::<RunWords>() <= FLAGS_AT);
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
    region: Arc<Region>,
    children: usize,
}

impl ControlBlock {
    pub(crate) fn create(children: usize) -> Result<Self, RegionError> {
        let region = Arc::new(Region::create_sparse(LABEL, len(children))?);
        region.reserve(0..tails_at(children, 0))?;
        let block = Self { region, children };
        block.parent().set_cores(usable_cores());
        block.write_legend();
        Ok(block)
    }

    /// Where the words are that those see who look from outside.
    fn write_legend(&self) {
        let legend: &LegendWords = inside(self.region.words(LEGEND_AT));
        legend.version.store(VERSION);
        legend.parent_pid.store(std::process::id());
        for (word, value) in [
            (&legend.children, self.children),
            (&legend.children_at, CHILDREN_AT),
            (&legend.child_bytes, CHILD_BYTES),
            (&legend.about_at, ABOUT_AT),
            (&legend.done_at, DONE_AT),
            (&legend.activity_at, ACTIVITY_AT),
            (&legend.slots_at, HEADS_AT),
            (&legend.slot_bytes, HEAD_BYTES),
            (&legend.slots, RING as usize),
        ] {
            // Offsets in a page or a few, and at most a page of flags of children.
            word.store(value as u32);
        }
        legend.magic.store(MAGIC);
    }

    /// The parent's side: which process `child` is, and its name, for those who look from outside.
    pub(crate) fn set_about(&self, child: usize, pid: i32, name: &str) {
        let at = CHILDREN_AT + child * CHILD_BYTES + ABOUT_AT;
        let mut bytes = [0; NAME_BYTES];
        // A zero stays at the end.
        bytes[..NAME_BYTES - 1].iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        inside(self.region.write(at + size_of::<AboutWords>(), &bytes));
        let about: &AboutWords = inside(self.region.words(at));
        about.pid.store(pid as u32);
    }

    /// The control block of `children` children that the parent passed on.
    pub(crate) fn attach(fd: OwnedFd, children: usize) -> Result<Self, RegionError> {
        let children = children.min(MAX_CHILDREN);
        Ok(Self { region: Arc::new(Region::attach(fd, LABEL, len(children))?), children })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// Where the words are with which chips signal each other from their graphs, by rank.
    pub(crate) fn signal_words(&self) -> (Arc<Region>, usize) {
        (self.region.clone(), signals_at(self.children))
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

    fn cancel_words(&self, child: usize) -> &CancelWords {
        inside(self.region.words(CHILDREN_AT + child * CHILD_BYTES + CANCEL_AT))
    }

    /// The parent's side: task `seq` of `child`, of `run`, counts as failed, and does not begin if it has not. Of several the earliest stays,
    /// since a child skips what follows a failure.
    pub(crate) fn cancel_task(&self, child: usize, run: u64, seq: u64) {
        let words = self.cancel_words(child);
        let pending = words.task.load();
        if pending <= self.child(child).done() || seq < pending {
            words.run.store(run);
            words.task.store(seq);
        }
        self.parent().set_tasks_cancelled();
    }

    /// The child's side: whether its task `seq` is cancelled.
    #[inline]
    pub(crate) fn is_task_cancelled(&self, child: usize, seq: u64) -> bool {
        self.parent().asks().tasks_cancelled() && self.cancel_words(child).task.load() == seq
    }

    /// The parent's side: the run of a task that was cancelled and that its child is in all the same. Nothing orders the store with which a task
    /// begins before the child's look at the cancelled task, nor the parent's store of that before its look at what the child does: both may
    /// miss the other, so the parent looks again while it waits.
    pub(crate) fn begun_though_cancelled(&self) -> Option<u64> {
        if !self.parent().asks().tasks_cancelled() {
            return None;
        }
        let of_child = |child: usize| {
            let (task, run) = (self.cancel_words(child).task.load(), self.cancel_words(child).run.load());
            let begun =
                matches!(self.child(child).activity(), Activity::Task { seq, need: None, .. } if seq == task);
            Some(run).filter(|run| begun && !self.parent().is_cancelled(*run))
        };
        (0..self.children).filter_map(of_child).min()
    }

    /// The start of the slot for task `seq`.
    #[inline]
    pub(crate) fn slot(&self, child: usize, seq: u64) -> &SlotWords {
        inside(self.region.words(head_at(child, seq)))
    }

    /// The number at the start of the slot for task `seq`.
    pub(crate) fn slot_number(&self, child: usize, seq: u64) -> &SlotNumber {
        &self.slot(child, seq).number
    }

    /// The parent's side: puts memory behind the tails of the slots of `child`.
    pub(crate) fn reserve_tails(&self, child: usize) -> Result<(), RegionError> {
        let start = tails_at(self.children, child);
        self.region.reserve(start..start + TAILS_BYTES)
    }

    /// Writes bytes of the slot for task `seq`, from `at` on. What goes to the tail has [memory](Self::reserve_tails).
    #[inline]
    pub(crate) fn write_slot(&self, child: usize, seq: u64, at: usize, bytes: &[u8]) {
        if at + bytes.len() <= HEAD_BYTES {
            inside(self.region.write(head_at(child, seq) + at, bytes));
        } else {
            self.write_across(child, seq, at, bytes);
        }
    }

    #[inline(never)]
    fn write_across(&self, child: usize, seq: u64, at: usize, bytes: &[u8]) {
        let (head, tail) = bytes.split_at(HEAD_BYTES.saturating_sub(at).min(bytes.len()));
        if !head.is_empty() {
            inside(self.region.write(head_at(child, seq) + at, head));
        }
        if !tail.is_empty() {
            let at = (at + head.len()) - HEAD_BYTES;
            inside(self.region.write(self.tail_at(child, seq) + at, tail));
        }
    }

    /// Copies the frame of task `seq` out, by way of `slot`, and decodes the copy. No byte is read twice, so none can change after it was checked.
    #[inline]
    pub(crate) fn read_frame(&self, child: usize, seq: u64, slot: &mut [u8], frame: &mut ReceivedFrame) {
        if let Some(body) = frame.decode_head(self.slot(child, seq).read_head()) {
            let bytes = &mut slot[BODY_AT..body.end().unwrap_or(BODY_AT)];
            self.read_slot(child, seq, BODY_AT, bytes);
            frame.decode_body(body, bytes);
        }
    }

    /// Reads bytes of the slot for task `seq`, from `at` on.
    fn read_slot(&self, child: usize, seq: u64, at: usize, into: &mut [u8]) {
        if at + into.len() <= HEAD_BYTES {
            inside(self.region.read(head_at(child, seq) + at, into));
        } else {
            self.read_across(child, seq, at, into);
        }
    }

    #[inline(never)]
    fn read_across(&self, child: usize, seq: u64, at: usize, into: &mut [u8]) {
        let (head, tail) = into.split_at_mut(HEAD_BYTES.saturating_sub(at).min(into.len()));
        if !head.is_empty() {
            inside(self.region.read(head_at(child, seq) + at, head));
        }
        if !tail.is_empty() {
            let at = (at + head.len()) - HEAD_BYTES;
            inside(self.region.read(self.tail_at(child, seq) + at, tail));
        }
    }

    /// The flag with which `waiter` (a child, or the parent as number `children`) says that it is parked on
    /// the progress of `child`.
    pub(crate) fn park_flag(&self, waiter: usize, child: usize) -> ParkFlag<'_> {
        ParkFlag::tagged(&self.flags()[waiter], tag(child))
    }

    /// Those who may be parked on the progress of `child`.
    pub(crate) fn listeners(&self, child: usize) -> impl Iterator<Item = Listener<'_>> {
        self.flags().iter().map(move |flag| Listener::tagged(flag, tag(child)))
    }

    /// Wakes all processes that are parked on the progress of a child, so that they check their abort word.
    /// One that is about to park misses it and finds out at its next poll.
    pub(crate) fn wake_waiters(&self) {
        (0..self.children).for_each(|child| self.child(child).done_number().wake_all());
    }

    /// Wakes the parent if it is parked on the progress of any child, so that it finds what a child has just recorded.
    pub(crate) fn nudge_parent(&self) {
        let flag = &self.flags()[self.children];
        for child in 0..self.children {
            self.child(child).done_number().nudge(Listener::tagged(flag, tag(child)));
        }
    }

    /// Whether the parent is parked, or about to, on the progress of a child.
    pub(crate) fn parent_is_parked(&self) -> bool {
        self.flags()[self.children].load() != 0
    }

    /// Finishes for a child that has ended what it was sent: as failed, if it recorded why before it was ended, or else as
    /// skipped in `run`. The parent is the writer of its words until another process serves them.
    pub(crate) fn abandon(&self, child: usize, ring: &mut DispatchSender, run: u64) {
        let words = self.child(child);
        if !covers(words.failed_run(), run) {
            self.record_failure(child, run, words.done().saturating_add(1), u32::MAX, None);
        }
        words.set_idle();
        self.flags()[child].store(0);
        ring.finish_for_ended(words.done_number(), self.listeners(child));
    }

    fn tail_at(&self, child: usize, seq: u64) -> usize {
        tails_at(self.children, child) + (seq % RING) as usize * TAIL_BYTES
    }

    fn flags(&self) -> &[WordU32] {
        inside(self.region.word_slice(FLAGS_AT, self.children + 1))
    }
}

const fn signals_at(children: usize) -> usize {
    CHILDREN_AT + children * CHILD_BYTES
}

const fn signals_bytes(children: usize) -> usize {
    Signals::words_bytes(children).next_multiple_of(PAGE)
}

fn head_at(child: usize, seq: u64) -> usize {
    CHILDREN_AT + child * CHILD_BYTES + HEADS_AT + (seq % RING) as usize * HEAD_BYTES
}

/// All bytes of a control block.
const fn len(children: usize) -> usize {
    tails_at(children, children)
}

/// Where the tails of `child`'s slots are, in a control block of so many children.
const fn tails_at(children: usize, child: usize) -> usize {
    signals_at(children) + signals_bytes(children) + child * TAILS_BYTES
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
    use super::super::frame::Prerequisite;
    use super::super::run_number::first_of;
    use super::*;

    #[test]
    fn f36_a_control_block_for_another_number_of_children_is_not_attached() {
        let block = ControlBlock::create(2).unwrap();
        let fd = || block.fd().try_clone_to_owned().unwrap();
        assert!(matches!(ControlBlock::attach(fd(), 3), Err(RegionError::WrongSize { .. })));
        let same = ControlBlock::attach(fd(), 2).unwrap();
        same.child(1).set_busy(7);
        assert!(matches!(block.child(1).activity(), Activity::Task { seq: 7, .. }));
    }

    #[test]
    fn a_cancelled_task_that_began_unseen_is_found_until_its_run_is_cancelled() {
        let block = ControlBlock::create(2).unwrap();
        let run = first_of(3);
        block.child(1).set_busy(7);
        assert_eq!((block.is_task_cancelled(1, 7), block.begun_though_cancelled()), (false, None));
        block.cancel_task(1, run, 7);
        assert!(block.is_task_cancelled(1, 7) && !block.is_task_cancelled(0, 7));
        assert_eq!(block.begun_though_cancelled(), Some(run));
        // Before it begins it finds out by itself.
        let need = Prerequisite { child: 0, seq: 1 };
        block.child(1).set_need(Some(need));
        assert_eq!(block.begun_though_cancelled(), None);
        block.child(1).set_need(None);
        block.child(1).set_busy(8);
        assert_eq!(block.begun_though_cancelled(), None, "that one is another task");
        block.child(1).set_busy(7);
        block.parent().cancel_run(run);
        assert_eq!(block.begun_though_cancelled(), None);
    }

    #[test]
    fn slots_are_apart_and_hold_what_is_written_across_their_head() {
        let block = ControlBlock::create(2).unwrap();
        (0..2).for_each(|child| block.reserve_tails(child).unwrap());
        let slots = || (0..2).flat_map(|child| (0..RING).map(move |seq| (child, seq)));
        let byte = |child: usize, seq: u64, at: usize| (child * 131 + seq as usize * 7 + at / 8) as u8;
        for (child, seq) in slots() {
            let bytes: Vec<u8> = (8..SLOT_BYTES).map(|at| byte(child, seq, at)).collect();
            // In pieces of all kinds: in the head, across its end, behind it.
            for (at, end) in [(8, 64), (64, 192), (192, SLOT_BYTES)] {
                block.write_slot(child, seq, at, &bytes[at - 8..end - 8]);
            }
        }
        let mut read = vec![0; SLOT_BYTES];
        for (child, seq) in slots() {
            let (first, rest) = read.split_at_mut(64);
            block.read_slot(child, seq, 0, first);
            block.read_slot(child, seq, 64, rest);
            assert_eq!(&read[..8], [0; 8], "the number is not part of the frame");
            assert!((8..SLOT_BYTES).all(|at| read[at] == byte(child, seq, at)), "{child} {seq}");
        }
    }
}
