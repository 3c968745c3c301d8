//! Stamps, as plans use them: every rank counts what it has done, and the others wait for a count.

use super::*;
use mailbox_atomics::Stamped;

impl Side<'_> {
    /// Stages `value` as piece `step`, and stores stamp `step`.
    fn stage_and_stamp(&mut self, step: u64, value: u64) {
        let half = Halves::of(step);
        self.free(self.halves.last_use(half));
        self.ranks[self.me].halves[half].set(value);
        self.halves.set(half, Use { step, readers: self.progress.others(), acknowledged: false, hash: HASH });
        self.stamp(step, HASH);
    }

    fn stamp(&mut self, stamp: u64, hash: u32) {
        self.progress.publish_stamp(stamp, hash, 0);
        self.progress.notify();
    }

    fn wait_for_stamp(&mut self, rank: usize, stamp: u64) -> Stamped {
        let (word, tag) = self.progress.stamp_word(rank);
        let mut flag = self.progress.park_flag(0, tag);
        let progress = &self.progress;
        let found = |_| Some(progress.stamp(rank)).filter(|found| found.stamp >= stamp);
        long().on(word, Some(&mut flag), found).unwrap()
    }

    /// Reads piece `step` of `rank`, whose stamp says that it came there.
    fn take(&mut self, rank: usize, step: u64) -> u64 {
        self.wait_for_stamp(rank, step);
        self.progress.came_to(rank, step);
        self.ranks[rank].halves[Halves::of(step)].get()
    }
}

/// MA-2, MA-21: whoever waits for a stamp is woken by it, and sees what was done before it.
pub fn a_stamp_carries_what_was_done_before_it() {
    play(2, |side| {
        if side.me == 0 {
            side.ranks[0].halves[0].set(7);
            side.stamp(1, HASH);
        } else {
            let found = side.wait_for_stamp(0, 1);
            assert_eq!(side.ranks[0].halves[0].get(), 7);
            assert_eq!(found, Stamped { stamp: 1, hash: HASH, note: 0 });
        }
    });
}

/// MA-21: whose stamp is seen, its call is known, unless its rank has gone on to a later one.
pub fn a_stamp_has_the_label_of_its_call_or_of_a_later_one() {
    play(2, |side| {
        if side.me == 0 {
            (1..=2).for_each(|call| side.stamp(call, call as u32));
        } else {
            let found = side.wait_for_stamp(0, 1);
            assert!(u64::from(found.hash) >= found.stamp, "the label of an earlier call: {found:?}");
        }
    });
}

/// MA-12 for pieces that are exchanged by a plan, back to back: the stamp of a piece proves that its rank has left the one before it.
pub fn pieces_of_a_plan_are_not_overwritten_while_they_are_read() {
    play(2, |side| {
        let other = 1 - side.me;
        for step in 1..=3 {
            side.stage_and_stamp(step, 10 * step + side.me as u64);
            assert_eq!(side.take(other, step), 10 * step + other as u64, "the piece of another step");
            side.finish(step);
        }
    });
}

/// MA-12 for a plan in which rank 1 only reads, after one in which both stamp. What rank 1 stamped does not say that it has read that
/// piece.
pub fn a_stamp_gives_no_credit_for_its_own_piece() {
    play(2, |side| {
        if side.me == 0 {
            side.stage_and_stamp(1, 1);
            assert_eq!(side.take(1, 1), 10, "the piece of another step");
            side.finish(1);
            for step in 2..=3 {
                side.stage_and_stamp(step, step);
                side.finish(step);
            }
        } else {
            side.stage_and_stamp(1, 10);
            assert_eq!(side.take(0, 1), 1, "the piece of another step");
            side.finish(1);
        }
    });
}
