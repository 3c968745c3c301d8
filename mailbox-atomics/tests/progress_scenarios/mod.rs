//! The protocol below the collectives as small scenarios for loom: two or three ranks, parks instead of spins, at most four steps.
//!
//! Budget: every scenario ends within a minute in a release build. Those of two ranks that exchange several pieces, and those of three
//! ranks, explore all schedules with at most [`PREEMPTIONS`] forced switches.

mod stamps;

pub use stamps::*;

use deadline::Deadline;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use mailbox_atomics::{
    Credit, Halves, Observed, PROGRESS_LINES, PairLines, PairReceiver, PairSender, PairTaken, ParkFlag,
    Progress, ProgressWords, RecordRing, StampLine, Use, Wait, WordU32,
};
use std::time::Duration;

/// Two suffice for every mutant.
const PREEMPTIONS: usize = 2;
const HASH: u32 = 0xfeed;

pub fn check(scenario: fn()) {
    loom::model(scenario);
}

pub fn check_bounded(scenario: fn()) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(scenario);
}

fn long() -> Wait<'static> {
    Wait::until(Deadline::after(Duration::from_secs(60 * 60)).unwrap())
}

/// A staged piece: loom reports any access that is not ordered after the last one.
struct Piece(UnsafeCell<u64>);

// That the protocol makes this true is what the scenarios show.
unsafe impl Sync for Piece {}
unsafe impl Send for Piece {}

impl Piece {
    fn set(&self, value: u64) {
        self.0.with_mut(|cell| unsafe { *cell = value });
    }
    fn get(&self) -> u64 {
        self.0.with(|cell| unsafe { *cell })
    }
}

/// What each rank shares.
#[derive(Default)]
struct Rank {
    words: ProgressWords,
    stamp: StampLine,
    records: RecordRing,
    halves: [Piece; 2],
}

impl Default for Piece {
    fn default() -> Self {
        Self(UnsafeCell::new(0))
    }
}

/// One rank at work, as `collectives` does it.
struct Side<'a> {
    progress: Progress<'a>,
    halves: Halves,
    ranks: &'a [Rank],
    me: usize,
}

impl<'a> Side<'a> {
    fn new(ranks: &'a [Rank], me: usize) -> Self {
        let progress = Progress::new(ranks.iter().map(|rank| &rank.words), me, 0)
            .with_stamps(ranks.iter().map(|rank| &rank.stamp));
        Self { progress, halves: Halves::default(), ranks, me }
    }

    /// Waits until nobody reads what `used` says.
    fn free(&mut self, used: Use) {
        while let Some(rank) = self.progress.first_unfinished(used) {
            let (word, tag) = self.progress.credit_word(rank, used);
            let mut flag = self.progress.park_flag(0, tag);
            let progress = &mut self.progress;
            long()
                .on(word, Some(&mut flag), |_| match progress.credit(rank, used) {
                    Credit::Missing => None,
                    Credit::OtherCall => panic!("all make the same calls"),
                    Credit::Given => Some(()),
                })
                .unwrap();
        }
    }

    /// Stages `value` as piece `step` and publishes it to everybody.
    fn stage(&mut self, step: u64, value: u64) {
        let half = Halves::of(step);
        self.free(self.halves.last_use(half));
        self.ranks[self.me].halves[half].set(value);
        let used = Use { step, readers: self.progress.others(), acknowledged: false, hash: HASH };
        self.halves.set(half, used);
        self.publish(step, &[], used);
    }

    fn publish(&mut self, step: u64, payload: &[u64], used: Use) {
        self.free(self.progress.line_use(step));
        self.progress.publish(step, HASH, 0, payload, used);
        self.progress.notify();
    }

    /// Waits for `step` of `rank`, which must be of the same call.
    fn wait_for(&mut self, rank: usize, step: u64) {
        match self.wait_for_any(rank, step) {
            Observed::Here { hash: HASH, .. } => {}
            other => panic!("step {step} of rank {rank}: {other:?}"),
        }
    }

    fn wait_for_any(&mut self, rank: usize, step: u64) -> Observed {
        let (word, tag) = self.progress.step_word(rank, step);
        let mut flag = self.progress.park_flag(0, tag);
        let progress = &mut self.progress;
        long()
            .on(word, Some(&mut flag), |_| match progress.observe(rank, step) {
                Observed::NotYet => None,
                other => Some(other),
            })
            .unwrap()
    }

    /// Reads the piece `step` of `rank`.
    fn fetch(&mut self, rank: usize, step: u64) -> u64 {
        self.wait_for(rank, step);
        self.ranks[rank].halves[Halves::of(step)].get()
    }

    fn finish(&mut self, step: u64) {
        self.progress.finish(step);
        self.progress.notify();
    }
}

fn ranks(count: usize) -> Arc<Vec<Rank>> {
    Arc::new((0..count).map(|_| Rank::default()).collect())
}

/// Runs `body` as every rank.
fn play(count: usize, body: fn(&mut Side<'_>)) {
    let shared = ranks(count);
    let others: Vec<_> = (1..count)
        .map(|me| {
            let shared = shared.clone();
            thread::spawn(move || body(&mut Side::new(&shared, me)))
        })
        .collect();
    body(&mut Side::new(&shared, 0));
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// MA-11: whoever observes a step observes its payload, and what was written before it.
pub fn a_step_carries_its_payload() {
    play(2, |side| {
        if side.me == 0 {
            side.ranks[0].halves[0].set(7);
            side.publish(1, &[8], Use::default());
        } else {
            let seen = side.wait_for_any(0, 1);
            let mut payload = [0];
            side.progress.payload(0, 1, &mut payload);
            assert_eq!((side.ranks[0].halves[0].get(), payload), (7, [8]));
            assert_eq!(seen, Observed::Here { hash: HASH, note: 0 });
        }
    });
}

/// MA-11, MA-12: an exchange of pieces, back to back. Finishing one piece proves that everybody has left the one before it.
pub fn pieces_are_not_overwritten_while_they_are_read() {
    play(2, |side| {
        for step in 1..=3 {
            side.stage(step, 10 * step + side.me as u64);
            let other = 1 - side.me;
            assert_eq!(side.fetch(other, step), 10 * step + other as u64, "the piece of another step");
            side.finish(step);
        }
    });
}

/// MA-12: rank 0 starts two calls before it reads the first. Its second step does not say that it has read the first one.
pub fn a_started_call_keeps_its_half() {
    play(2, |side| {
        let other = 1 - side.me;
        if side.me == 0 {
            side.stage(1, 1);
            side.stage(2, 2);
            for step in 1..=2 {
                assert_eq!(side.fetch(other, step), 10 * step, "the piece of another step");
                side.finish(step);
            }
        } else {
            for step in 1..=2 {
                side.stage(step, 10 * step);
                assert_eq!(side.fetch(other, step), step, "the piece of another step");
                side.finish(step);
            }
            side.stage(3, 30);
        }
    });
}

/// MA-12: a root that runs ahead, in lines that it uses again.
pub fn lines_are_not_overwritten_while_they_are_read() {
    play(2, |side| {
        for step in [1, 1 + PROGRESS_LINES as u64] {
            if side.me == 0 {
                let used = Use { step, readers: 0b10, acknowledged: true, hash: HASH };
                side.publish(step, &[step], used);
                side.progress.finish(step);
            } else {
                side.wait_for(0, step);
                let mut payload = [0];
                side.progress.payload(0, step, &mut payload);
                assert_eq!(payload, [step], "the payload of another step");
                side.progress.finish(step);
                side.publish(step, &[], Use { step, ..Use::default() });
            }
        }
    });
}

/// MA-12 for a writer with two readers.
pub fn the_slowest_of_two_readers_holds_a_line() {
    play(3, |side| {
        for step in [1, 1 + PROGRESS_LINES as u64] {
            if side.me == 0 {
                side.publish(step, &[step], Use { step, readers: 0b110, acknowledged: false, hash: HASH });
            } else {
                side.wait_for(0, step);
                let mut payload = [0];
                side.progress.payload(0, step, &mut payload);
                assert_eq!(payload, [step], "the payload of another step");
                side.finish(step);
            }
        }
    });
}

/// MA-13: the record of a call is there as long as somebody may still make that call.
pub fn a_record_outlives_the_next_calls() {
    play(2, |side| {
        if side.me == 0 {
            for call in 1..=2 {
                side.ranks[0].records.write(call, [call; 7]);
                side.publish(call, &[], Use { step: call, readers: 0b10, acknowledged: false, hash: HASH });
            }
        } else {
            side.wait_for(0, 1);
            assert_eq!(side.ranks[0].records.read(1), Some([1; 7]), "the record of call 1");
            side.finish(1);
        }
    });
}

/// MA-2 for a waiter for credit: rank 0 parks until rank 1 has read.
pub fn reading_wakes_whoever_waits_for_it() {
    play(2, |side| {
        if side.me == 0 {
            let used = Use { step: 1, readers: 0b10, acknowledged: false, hash: HASH };
            side.publish(1, &[], used);
            side.free(used);
        } else {
            side.wait_for(0, 1);
            side.finish(1);
        }
    });
}

/// What was published before its rank gave up is delivered, and whoever sees that it gave up sees all of it.
pub fn giving_up_takes_nothing_back() {
    play(2, |side| {
        if side.me == 0 {
            side.publish(1, &[7], Use::default());
            side.progress.give_up(core::num::NonZeroU32::MIN);
        } else {
            while side.progress.gave_up(0).raised().is_none() {
                thread::yield_now();
            }
            assert_eq!(side.progress.observe(0, 1), Observed::Here { hash: HASH, note: 0 });
            assert_eq!(side.progress.observe(0, 2), Observed::NotYet);
        }
    });
}

/// MA-14: messages between two ranks arrive once, in order, with their bytes.
pub fn a_pair_ring_carries_messages_in_order() {
    struct Pair {
        lines: PairLines,
        taken: PairTaken,
        parked: [WordU32; 2],
        slot: Piece,
    }
    let pair = Arc::new(Pair {
        lines: PairLines::default(),
        taken: PairTaken::default(),
        parked: Default::default(),
        slot: Piece::default(),
    });
    let there = pair.clone();
    let receiver = thread::spawn(move || {
        let mut ring = PairReceiver::new(&there.lines, &there.taken, 1, 0);
        for number in 1..=2 {
            let (word, tag) = ring.word();
            let mut flag = ParkFlag::tagged(&there.parked[1], tag);
            let (_, words) = long().on(word, Some(&mut flag), |_| ring.filled_slot()).unwrap();
            assert_eq!((words[0], there.slot.get()), (number, 10 * number), "another message");
            ring.finish();
            ring.notify([&there.parked[0]].into_iter());
        }
    });
    let mut ring = PairSender::new(&pair.lines, &pair.taken, 0, 1);
    for number in 1..=2 {
        let (word, tag) = ring.word();
        let mut flag = ParkFlag::tagged(&pair.parked[0], tag);
        long().on(word, Some(&mut flag), |_| ring.free_slot()).unwrap();
        pair.slot.set(10 * number);
        ring.publish([number; 7]);
        ring.notify([&pair.parked[1]].into_iter());
    }
    receiver.join().unwrap();
}
