//! Signals between chips: a doorbell each, and a proof that nothing moves any more.
//!
//! A signal adds to a word of the peer, then [notifies](SignalWords::notify) the peer at its doorbell, which counts. Each chip
//! publishes whether it is *quiet*, that is whether only a signal can make it go on, up to which count of its doorbell it has looked
//! at its words, and what it waits for. It notifies the chips that it signals before it says that it is quiet. So when all chips are
//! quiet, and each has looked since its doorbell last counted, no signal is under way and none will come: [`prove`] finds that out
//! from outside.
//!
//! What a chip publishes is relaxed atomics, published by the release store of its state, and copied like a message: a copy
//! counts only if the state did not change meanwhile.

use crate::listener::{Listener, ParkFlag};
use crate::sync::{AtomicU64, Ordering, Site, at, fence_at, intact};
use crate::wait::{Wait, WaitError};
use crate::word::{WordU32, WordU64};
use core::array;

/// Waits that fit on a words; of a chip that has more, the first are published. The model needs fewer.
pub const PUBLISHED_WAITS: usize = if cfg!(loom) { 1 } else { 64 };
const WAIT_WORDS: usize = if cfg!(loom) { 2 } else { 4 };
/// The lowest bit of a state.
const QUIET: u64 = 1;

/// A wait as its chip publishes it. What the words mean is up to the chips.
pub type PublishedWait = [u64; WAIT_WORDS];

/// What one chip publishes. Zero-filled is a chip that has not begun.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct SignalWords {
    doorbell: Doorbell,
    standing: Standing,
    waits: Waits,
}

/// Everybody who signals the chip adds to `count`; the chip alone writes `parked`.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
struct Doorbell {
    count: WordU32,
    parked: WordU32,
}

/// Written by the chip alone.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
struct Standing {
    /// How often it changed, and whether the chip is quiet.
    state: AtomicU64,
    session: AtomicU64,
    seen: AtomicU64,
    count: AtomicU64,
    /// The last session that this chip has proved to be stuck.
    stuck: WordU64,
    /// Where its thread that sleeps was last seen; see [`keep_apart`](crate::keep_apart).
    seen_on: WordU64,
}

#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug)]
struct Waits([[AtomicU64; WAIT_WORDS]; PUBLISHED_WAITS]);

impl Default for Waits {
    fn default() -> Self {
        Self(array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))))
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(
        core::mem::offset_of!(SignalWords, doorbell) == 0 && core::mem::offset_of!(Doorbell, parked) == 4
    );
    assert!(core::mem::offset_of!(SignalWords, standing) == 128);
    assert!(core::mem::offset_of!(SignalWords, waits) == 256);
    assert!(size_of::<SignalWords>() == 256 + PUBLISHED_WAITS * WAIT_WORDS * 8);
};

/// A quiet chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quiet {
    state: u64,
    seen: u32,
    /// What it waits for, or the first of it; empty when it has finished.
    pub waits: Vec<PublishedWait>,
}

impl SignalWords {
    /// Wakes the chip, or sees that it looks at its words once more before it parks. To be called after each signal to it.
    #[inline]
    pub fn notify(&self) {
        if intact(Site::SignalNotifies) {
            self.doorbell.count.add_and_notify(1, [Listener::new(&self.doorbell.parked)]);
        }
    }

    /// How often the chip was notified.
    #[inline]
    pub fn doorbell(&self) -> u32 {
        self.doorbell.count.load()
    }

    /// Waits until the doorbell counts something else than `seen`, or `ready` says so. To be called by the owner's process, one
    /// thread at a time.
    pub fn sleep(
        &self,
        seen: u32,
        wait: &Wait<'_>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), WaitError> {
        let mut parked = ParkFlag::new(&self.doorbell.parked);
        wait.on(&self.doorbell.count, Some(&mut parked), |count| (count != seen || ready()).then_some(()))
    }

    /// Where the thread that sleeps was last seen.
    pub fn seen_on(&self) -> &WordU64 {
        &self.standing.seen_on
    }

    /// Whether this chip has proved that `session` is stuck.
    pub fn says_stuck(&self, session: u64) -> bool {
        self.standing.stuck.load() == session
    }

    /// What the chip waits for if it is quiet in `session`, nothing if it has finished; `None` while it may do something. For the
    /// text of an error.
    pub fn waits(&self, session: u64) -> Option<Vec<PublishedWait>> {
        let quiet = self.look(session)?;
        self.is_still(&quiet).then_some(quiet.waits)
    }

    /// Whether the chip has looked at its words since it was last notified, or has finished: false for one that is not quiet in
    /// `session`. For the text of an error.
    pub fn has_looked(&self, session: u64) -> bool {
        let looked = |quiet: &Quiet| quiet.waits.is_empty() || self.doorbell() == quiet.seen;
        self.look(session).is_some_and(|quiet| looked(&quiet) && self.is_still(&quiet))
    }

    /// What a quiet chip of `session` published; `None` while it may still do something.
    fn look(&self, session: u64) -> Option<Quiet> {
        let standing = &self.standing;
        // Acquire: pairs with the release in `Stander::rest`. What the chip signalled before it was quiet is visible now.
        let state = standing.state.load(at(Site::StandingObserve, Ordering::Acquire));
        // Relaxed, all four: ordered by the load above and the fence below.
        let theirs = standing.session.load(Ordering::Relaxed);
        let seen = standing.seen.load(Ordering::Relaxed) as u32;
        let count = (standing.count.load(Ordering::Relaxed) as usize).min(PUBLISHED_WAITS);
        let copied =
            |wait: &[AtomicU64; WAIT_WORDS]| array::from_fn(|word| wait[word].load(Ordering::Relaxed));
        let waits = self.waits.0[..count].iter().map(copied).collect();
        (state & QUIET != 0 && theirs == session).then_some(Quiet { state, seen, waits })
    }

    /// Whether the chip is as it was when it was looked at.
    fn is_still(&self, quiet: &Quiet) -> bool {
        // Acquire: keeps the copy before this load. Pairs with the fence in `Stander::stir`.
        fence_at(Site::StandingCopyFence, Ordering::Acquire);
        // Relaxed: the fence above orders it.
        !intact(Site::StandingRechecked) || self.standing.state.load(Ordering::Relaxed) == quiet.state
    }
}

/// The chip that writes these words.
#[derive(Debug)]
pub struct Stander<'a> {
    words: &'a SignalWords,
    state: u64,
    session: u64,
}

impl<'a> Stander<'a> {
    /// The owner of `words` in `session`, in the state that they are in; to begin, it [stirs](Self::stir).
    pub fn new(words: &'a SignalWords, session: u64) -> Self {
        // Relaxed: nobody else writes it, and a process that was in its place has ended.
        Self { words, state: words.standing.state.load(Ordering::Relaxed), session }
    }

    /// The chip is about to do something. To be called before it does.
    #[inline]
    pub fn stir(&mut self) {
        if self.state & QUIET == 0 {
            return;
        }
        self.state = (self.state | QUIET) + 1;
        // Relaxed: the fence orders it before what is published next.
        self.words.standing.state.store(self.state, Ordering::Relaxed);
        // Release: who copies a word that is written after it sees the new state at its second look. Pairs with the fence in
        // `SignalWords::is_still`.
        fence_at(Site::StandingReuseFence, Ordering::Release);
    }

    /// Looks at the words once more, and says that the chip is quiet unless `look` finds that it is not. `look` adds what the
    /// chip waits for, all of it, or returns false when there is something to do or a wait that others than these chips may end. Returns
    /// up to which count of the doorbell it has looked. That the chip is quiet follows from all of its waits; those that do not fit on
    /// its words are left out there.
    pub fn rest(&mut self, look: impl FnOnce(&mut Vec<PublishedWait>) -> bool) -> u32 {
        // Before the words: a signal that comes later makes the difference that `prove` finds.
        let mut seen = self.words.doorbell();
        let mut waits = Vec::new();
        let is_quiet = look(&mut waits);
        waits.truncate(PUBLISHED_WAITS);
        if !intact(Site::DoorbellBeforeWords) {
            seen = self.words.doorbell();
        }
        self.stir();
        if is_quiet {
            self.publish(seen, &waits);
        }
        seen
    }

    /// The chip has finished its part of the session.
    pub fn end(&mut self) {
        self.stir();
        let seen = self.words.doorbell();
        self.publish(seen, &[]);
    }

    /// Tells the others that the session is stuck.
    pub fn say_stuck(&self) {
        self.words.standing.stuck.store(self.session);
    }

    fn publish(&mut self, seen: u32, waits: &[PublishedWait]) {
        let standing = &self.words.standing;
        // Relaxed, all of them: published by the store below.
        standing.session.store(self.session, Ordering::Relaxed);
        standing.seen.store(u64::from(seen), Ordering::Relaxed);
        standing.count.store(waits.len() as u64, Ordering::Relaxed);
        for (place, wait) in self.words.waits.0.iter().zip(waits) {
            for (word, value) in place.iter().zip(wait) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.state |= QUIET;
        // Release: pairs with the acquire in `SignalWords::look`.
        standing.state.store(self.state, at(Site::StandingPublish, Ordering::Release));
    }
}

/// What all chips of `session` wait for when none of them will ever move again; `None` while one may.
///
/// A chip that has not begun, or is in another session, may.
pub fn prove<'a>(chips: impl Iterator<Item = &'a SignalWords> + Clone, session: u64) -> Option<Vec<Quiet>> {
    let quiet = chips.clone().map(|words| words.look(session)).collect::<Option<Vec<_>>>()?;
    // After the last of the looks: every signal that was sent before its chip was quiet has counted by now.
    // A chip that has finished does not look.
    let up_to_date =
        |(words, quiet): (&SignalWords, &Quiet)| quiet.waits.is_empty() || words.doorbell() == quiet.seen;
    let looked = chips.clone().zip(&quiet).all(up_to_date);
    let looked = looked || !intact(Site::DoorbellCompared);
    let still = chips.zip(&quiet).all(|(words, quiet)| words.is_still(quiet));
    (looked && still).then_some(quiet)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deadline::Deadline;
    use std::time::Duration;

    fn chips() -> [SignalWords; 2] {
        array::from_fn(|_| SignalWords::default())
    }

    fn wait_for(from: u64) -> PublishedWait {
        [7, from, 0, 1]
    }

    fn waiting(stander: &mut Stander<'_>, from: u64) {
        stander.rest(|waits| {
            waits.push(wait_for(from));
            true
        });
    }

    /// MA-19
    #[test]
    fn two_chips_that_wait_for_each_other_are_proved_stuck() {
        let chips = chips();
        let [mut one, mut two] = [0, 1].map(|at| Stander::new(&chips[at], 5));
        one.stir();
        waiting(&mut one, 1);
        assert_eq!(prove(chips.iter(), 5), None, "the other has not begun");
        two.stir();
        assert_eq!(prove(chips.iter(), 5), None, "the other is busy");
        waiting(&mut two, 0);
        assert_eq!(prove(chips.iter(), 4), None, "another session");
        let stuck = prove(chips.iter(), 5).unwrap();
        assert_eq!(stuck.iter().map(|quiet| quiet.waits[0]).collect::<Vec<_>>(), [wait_for(1), wait_for(0)]);
        chips[1].notify();
        assert_eq!(prove(chips.iter(), 5), None, "a signal that its owner has not seen");
        assert_eq!([5, 4].map(|session| chips[1].has_looked(session)), [false, false]);
        assert_eq!([5, 4].map(|session| chips[0].has_looked(session)), [true, false]);
        assert_eq!((chips[1].waits(5), chips[1].waits(4)), (Some(vec![wait_for(0)]), None));
        waiting(&mut two, 0);
        assert!(prove(chips.iter(), 5).is_some());
        two.stir();
        assert_eq!(prove(chips.iter(), 5), None);
        two.end();
        chips[1].notify();
        assert!(prove(chips.iter(), 5).is_some_and(|stuck| stuck[1].waits.is_empty()), "it has finished");
        assert!(!chips[0].says_stuck(5));
        one.say_stuck();
        assert!(chips[0].says_stuck(5) && !chips[0].says_stuck(6));
    }

    /// MA-19
    #[test]
    fn a_chip_that_does_not_rest_is_busy_and_waits_that_do_not_fit_count() {
        let chips = chips();
        let [mut one, mut two] = [0, 1].map(|at| Stander::new(&chips[at], 1));
        one.end();
        two.rest(|_| false);
        assert_eq!(prove(chips.iter(), 1), None);
        let more_than_fit = |waits: &mut Vec<PublishedWait>| {
            waits.extend((0..).map(wait_for).take(PUBLISHED_WAITS + 1));
        };
        two.rest(|waits| {
            more_than_fit(waits);
            false
        });
        assert_eq!(prove(chips.iter(), 1), None, "the last of them is met");
        two.rest(|waits| {
            more_than_fit(waits);
            true
        });
        let stuck = prove(chips.iter(), 1).unwrap();
        assert_eq!(stuck[1].waits, (0..PUBLISHED_WAITS as u64).map(wait_for).collect::<Vec<_>>());
        two.end();
        assert!(prove(chips.iter(), 1).is_some());
        Stander::new(&chips[1], 2).stir();
        assert_eq!(prove(chips.iter(), 1), None, "it has begun another session");
    }

    /// MA-18
    #[test]
    fn a_sleep_ends_with_a_ring_with_work_and_with_its_time() {
        let [words, _] = chips();
        let long = Deadline::after(Duration::from_secs(20)).unwrap();
        words.notify();
        assert_eq!(words.sleep(0, &Wait::until(long), || false), Ok(()));
        assert_eq!(words.sleep(1, &Wait::until(long), || true), Ok(()));
        let short = Deadline::after(Duration::from_millis(2)).unwrap();
        assert!(words.sleep(1, &Wait::until(short), || false).is_err());
        std::thread::scope(|scope| {
            scope.spawn(|| words.notify());
            assert_eq!(words.sleep(1, &Wait::until(long), || false), Ok(()));
        });
    }
}
