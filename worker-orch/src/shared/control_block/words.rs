//! The words of the control block, by writer.
//!
//! # Safety
//! Declares the structs of atomic words that are viewed in shared memory.
#![allow(unsafe_code)]

use super::super::frame::Prerequisite;
use super::super::run_number::covers;
use deadline::coarse_monotonic_ns;
use mailbox_atomics::{DoneNumber, SlotNumber, StickyWord, WordU32, WordU64};
use shared_memory::Shared;
use std::mem::offset_of;
use std::num::NonZeroU32;

/// Written by the parent.
#[repr(C, align(128))]
pub(crate) struct ParentWords {
    abort: StickyWord,
    shutdown: StickyWord,
    cancelled_run: WordU64,
    /// What children do besides with each task.
    asks: WordU32,
    /// Written once, before there are children.
    cores: WordU32,
    /// Written by the parent's death thread alone.
    death: StickyWord,
}

impl ParentWords {
    /// How many cores the parent and its children may use.
    pub(super) fn set_cores(&self, cores: usize) {
        self.cores.store(u32::try_from(cores).unwrap_or(u32::MAX));
    }

    /// How many cores the parent and its children may use. To find out takes a child longer than to come up.
    pub(crate) fn cores(&self) -> usize {
        self.cores.load() as usize
    }

    /// Every child stops: one of them died or does not answer.
    pub(crate) fn raise_abort(&self) {
        self.abort.raise(NonZeroU32::MIN);
    }

    pub(crate) fn abort_word(&self) -> &StickyWord {
        &self.abort
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.abort.raised().is_some()
    }

    /// A child has died: the parent's waits end. To be called by its death thread only.
    pub(crate) fn raise_death(&self, child: NonZeroU32) {
        self.death.raise(child);
    }

    pub(crate) fn death_word(&self) -> &StickyWord {
        &self.death
    }

    /// Children exit when they have nothing left to do.
    pub(crate) fn shutdown_word(&self) -> &StickyWord {
        &self.shutdown
    }

    /// Tasks of this run, and of those behind it in flight, return early and count as failed.
    pub(crate) fn cancel_run(&self, run: u64) {
        self.cancelled_run.store(run);
    }

    /// The first run of its flight that was cancelled.
    pub(crate) fn cancelled_run(&self) -> u64 {
        self.cancelled_run.load()
    }

    /// Whether `run` was cancelled, or one before it in flight.
    pub(crate) fn is_cancelled(&self, run: u64) -> bool {
        covers(self.cancelled_run.load(), run)
    }

    /// Children record when their tasks ran.
    pub(crate) fn set_measured(&self) {
        self.asks.store(self.asks.load() | MEASURED);
    }

    /// From here on children look whether their task is cancelled.
    pub(super) fn set_tasks_cancelled(&self) {
        self.asks.store(self.asks.load() | TASKS_CANCELLED);
    }

    /// What children do besides with each task.
    #[inline]
    pub(crate) fn asks(&self) -> Asks {
        Asks(self.asks.load())
    }
}

const MEASURED: u32 = 1;
const TASKS_CANCELLED: u32 = 2;

/// What a Worker asks of its children besides tasks; nothing, as a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asks(u32);

impl Asks {
    /// To record when tasks run.
    pub(crate) fn measured(self) -> bool {
        self.0 & MEASURED != 0
    }

    /// To look whether a task is cancelled.
    pub(crate) fn tasks_cancelled(self) -> bool {
        self.0 & TASKS_CANCELLED != 0
    }
}

/// Written by the parent for one child.
#[repr(C, align(64))]
pub(super) struct CancelWords {
    /// The first task of its flight that is cancelled.
    pub(super) task: WordU64,
    /// The run of that task.
    pub(super) run: WordU64,
}

/// Written by the parent for those who look at a running Worker from outside, such as `comm-inspect`: where the words are that they show. Another
/// layout has another version.
#[repr(C, align(128))]
pub(super) struct LegendWords {
    pub(super) magic: WordU64,
    pub(super) version: WordU32,
    pub(super) parent_pid: WordU32,
    pub(super) children: WordU32,
    /// Where the first child's part is, and how far it is from one to the next.
    pub(super) children_at: WordU32,
    pub(super) child_bytes: WordU32,
    /// In a child's part: its process and name, the number of its last finished frame, what it does, and its slots.
    pub(super) about_at: WordU32,
    pub(super) done_at: WordU32,
    pub(super) activity_at: WordU32,
    pub(super) slots_at: WordU32,
    pub(super) slot_bytes: WordU32,
    pub(super) slots: WordU32,
}

/// `CHIPWORK`.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"CHIPWORK");
pub(super) const VERSION: u32 = 1;

/// Written by the parent about one child. Its name follows, in bytes and with a zero behind it.
#[repr(C)]
pub(super) struct AboutWords {
    pub(super) pid: WordU32,
}

/// Bytes of a child's name.
pub(super) const NAME_BYTES: usize = 28;

/// Where a child says in its words how far it is, and what it does: the task, since when, and for what it waits.
pub(super) const DONE_AT: usize = offset_of!(ChildWords, progress) + offset_of!(ProgressWords, done);
pub(super) const ACTIVITY_AT: usize = offset_of!(ChildWords, activity) + offset_of!(ActivityWords, seq);

/// Written by the parent with each run, on a cache line of its own: children read the other words with each
/// task.
#[repr(C, align(128))]
pub(super) struct RunWords {
    /// The deadline of the current run on the monotonic clock.
    pub(super) until_ns: WordU64,
}

/// Written by one child. Three cache lines, because others read each of them at a different time: the parent
/// spins on the first while the child writes the third, and reads the second with every task that it sends.
#[repr(C)]
pub(crate) struct ChildWords {
    pub(super) progress: ProgressWords,
    pub(super) parking: ParkingWords,
    activity: ActivityWords,
}

/// How far the child is, and what its last failure and answer were.
#[repr(C, align(128))]
pub(super) struct ProgressWords {
    /// The sequence number of the last task that is finished.
    pub(super) done: DoneNumber,
    /// When a task of this child last failed or was skipped, on the monotonic clock; `u64::MAX` when it was skipped because of another failure.
    pub(super) failed_at: WordU64,
    /// The program that failed then.
    pub(super) failed_program: WordU32,
    /// Bytes of the failure and of the last answer.
    pub(super) failure_len: WordU32,
    pub(super) answer_len: WordU32,
    /// The task that failed or was skipped then.
    pub(super) failed_seq: WordU64,
}

/// What the parent reads with every task that it sends. The child seldom writes it, so that both keep a copy of the line.
#[repr(C, align(128))]
pub(super) struct ParkingWords {
    /// Whether the child is parked on its next slot.
    parked: WordU32,
    /// The last run in which a task of this child failed or was skipped.
    pub(super) failed_run: WordU64,
}

/// What the child is doing, for the table in a time-out.
#[repr(C, align(128))]
struct ActivityWords {
    /// The task that it is working on; 0 when idle.
    seq: WordU64,
    /// Since when, in monotonic nanoseconds.
    since_ns: WordU64,
    /// The task of another child that it waits for, packed; 0 when none.
    need: WordU64,
    /// In a Worker that is measured: how long it has been in tasks and commands, and how long they waited for others before.
    busy_ns: WordU64,
    waiting_ns: WordU64,
}

/// What a child says that it is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Idle,
    /// In the task with this sequence number, since this time on the monotonic clock.
    Task {
        seq: u64,
        since_ns: u64,
        /// The task of another child that it waits for before it begins.
        need: Option<Prerequisite>,
    },
}

impl ChildWords {
    /// The sequence number of the last finished task. It is the child's claim and may be anything.
    pub(crate) fn done(&self) -> u64 {
        self.progress.done.load()
    }

    /// The same as a number to wait for.
    pub(crate) fn done_number(&self) -> &DoneNumber {
        &self.progress.done
    }

    /// The last run in which a task of this child failed or was skipped; 0 before the first.
    pub(crate) fn failed_run(&self) -> u64 {
        self.parking.failed_run.load()
    }

    /// The flag with which the child says that it is parked on its next slot.
    pub(crate) fn slot_flag(&self) -> &WordU32 {
        &self.parking.parked
    }

    pub(crate) fn set_busy(&self, seq: u64) {
        self.activity.since_ns.store(coarse_monotonic_ns());
        self.activity.seq.store(seq);
    }

    /// The task waits for one of another child: `None` when it does not any more.
    pub(crate) fn set_need(&self, need: Option<Prerequisite>) {
        if need.is_none() {
            // Now it begins.
            self.activity.since_ns.store(coarse_monotonic_ns());
        }
        self.activity.need.store(need.map_or(0, Prerequisite::pack));
    }

    /// The child's side: it has been busy and waiting for so long more.
    pub(crate) fn add_times(&self, busy_ns: u64, waiting_ns: u64) {
        let words = &self.activity;
        words.busy_ns.store(words.busy_ns.load().saturating_add(busy_ns));
        words.waiting_ns.store(words.waiting_ns.load().saturating_add(waiting_ns));
    }

    /// How long the child has been busy and waiting, in nanoseconds. Its claim.
    pub(crate) fn times(&self) -> (u64, u64) {
        (self.activity.busy_ns.load(), self.activity.waiting_ns.load())
    }

    /// The child's side: the number of the task that it is in.
    pub(crate) fn task_number(&self) -> u64 {
        self.activity.seq.load()
    }

    pub(crate) fn set_idle(&self) {
        self.activity.seq.store(0);
    }

    pub(crate) fn activity(&self) -> Activity {
        match self.activity.seq.load() {
            0 => Activity::Idle,
            seq => {
                // Sequence numbers count from 1: no task is packed as 0.
                let need = Some(self.activity.need.load()).filter(|need| *need != 0);
                let need = need.map(Prerequisite::unpack);
                Activity::Task { seq, since_ns: self.activity.since_ns.load(), need }
            }
        }
    }
}

/// The start of a slot: all that a task without arguments has. Written by the parent.
#[repr(C)]
pub(crate) struct SlotWords {
    pub(crate) number: SlotNumber,
    head: [WordU64; 3],
}

impl SlotWords {
    /// Writes the frame's head, in front of the number that says that it is there.
    #[inline]
    pub(crate) fn write_head(&self, head: [u64; 3]) {
        self.head.iter().zip(head).for_each(|(word, value)| word.store(value));
    }

    /// A copy of the head of the frame that the number says.
    #[inline]
    pub(crate) fn read_head(&self) -> [u64; 3] {
        std::array::from_fn(|index| self.head[index].load())
    }
}

/// When a task ran, on the monotonic clock.
#[repr(C)]
pub(super) struct TimeWords {
    /// Which task it was.
    pub(super) seq: WordU64,
    /// How it ended; 0 while it runs.
    pub(super) outcome: WordU64,
    pub(super) start_ns: WordU64,
    pub(super) end_ns: WordU64,
}

// SAFETY: `repr(C)` structs of words.
unsafe impl Shared for ParentWords {}
// SAFETY: as above.
unsafe impl Shared for RunWords {}
// SAFETY: as above.
unsafe impl Shared for ChildWords {}
// SAFETY: as above.
unsafe impl Shared for SlotWords {}
// SAFETY: as above.
unsafe impl Shared for TimeWords {}
// SAFETY: as above.
unsafe impl Shared for CancelWords {}
// SAFETY: as above.
unsafe impl Shared for LegendWords {}
// SAFETY: as above.
unsafe impl Shared for AboutWords {}
