//! Signals between chips: a bell each, and a proof that nothing moves any more.
//!
//! A signal adds to a word of the peer, then [rings](SignalBoard::ring) the peer's bell. Each chip says on its board whether it
//! is *quiet*, that is whether only a signal can make it go on, up to which ring it has looked at its words, and what it waits
//! for. It rings whom it signals before it says that it is quiet. So when all boards are quiet and no bell rang after its owner
//! last looked, no signal is under way and none will come: [`prove`] finds that out from outside.
//!
//! What stands on a board is relaxed atomics, published by the release store of its state, and copied like a message: a copy
//! counts only if the state did not change meanwhile.

use crate::listener::{Listener, ParkFlag};
use crate::sync::{AtomicU64, Ordering, Site, at, fence_at, intact};
use crate::wait::{Wait, WaitError};
use crate::word::{WordU32, WordU64};
use core::array;

/// Waits that fit on a board. The model needs fewer.
pub const BOARD_WAITS: usize = if cfg!(loom) { 1 } else { 64 };
const WAIT_WORDS: usize = if cfg!(loom) { 2 } else { 4 };
/// The lowest bit of a state.
const QUIET: u64 = 1;

/// A wait as its chip publishes it. What the words mean is up to the chips.
pub type BoardWait = [u64; WAIT_WORDS];

/// What one chip publishes. Zero-filled is a chip that has not begun.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct SignalBoard {
    bell: Bell,
    standing: Standing,
    waits: Waits,
}

/// Everybody who signals the chip adds to `rings`; the chip alone writes `parked`.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
struct Bell {
    rings: WordU32,
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
}

#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug)]
struct Waits([[AtomicU64; WAIT_WORDS]; BOARD_WAITS]);

impl Default for Waits {
    fn default() -> Self {
        Self(array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))))
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(core::mem::offset_of!(SignalBoard, bell) == 0 && core::mem::offset_of!(Bell, parked) == 4);
    assert!(core::mem::offset_of!(SignalBoard, standing) == 128);
    assert!(core::mem::offset_of!(SignalBoard, waits) == 256);
    assert!(size_of::<SignalBoard>() == 256 + BOARD_WAITS * WAIT_WORDS * 8);
};

/// A quiet chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quiet {
    state: u64,
    seen: u32,
    /// What it waits for; empty when it has finished.
    pub waits: Vec<BoardWait>,
}

impl SignalBoard {
    /// Wakes the chip, or sees that it looks at its words once more before it parks. To be called after each signal to it.
    #[inline]
    pub fn ring(&self) {
        if intact(Site::SignalsRing) {
            self.bell.rings.add_and_notify(1, [Listener::new(&self.bell.parked)]);
        }
    }

    /// How often the bell rang.
    #[inline]
    pub fn rings(&self) -> u32 {
        self.bell.rings.load()
    }

    /// Waits until the bell has rung since it had rung `seen` times, or `ready` says so. To be called by the owner's process, one
    /// thread at a time.
    pub fn nap(&self, seen: u32, wait: &Wait<'_>, mut ready: impl FnMut() -> bool) -> Result<(), WaitError> {
        let mut parked = ParkFlag::new(&self.bell.parked);
        wait.on(&self.bell.rings, Some(&mut parked), |rings| (rings != seen || ready()).then_some(()))
    }

    /// The session that this chip has proved to be stuck, and whether it is `session`.
    pub fn says_stuck(&self, session: u64) -> bool {
        self.standing.stuck.load() == session
    }

    /// What a quiet chip of `session` published; `None` while it may still do something.
    fn look(&self, session: u64) -> Option<Quiet> {
        let standing = &self.standing;
        // Acquire: pairs with the release in `Stander::rest`. What the chip signalled before it was quiet is visible now.
        let state = standing.state.load(at(Site::BoardObserve, Ordering::Acquire));
        // Relaxed, all four: ordered by the load above and the fence below.
        let theirs = standing.session.load(Ordering::Relaxed);
        let seen = standing.seen.load(Ordering::Relaxed) as u32;
        let count = (standing.count.load(Ordering::Relaxed) as usize).min(BOARD_WAITS);
        let copied =
            |wait: &[AtomicU64; WAIT_WORDS]| array::from_fn(|word| wait[word].load(Ordering::Relaxed));
        let waits = self.waits.0[..count].iter().map(copied).collect();
        (state & QUIET != 0 && theirs == session).then_some(Quiet { state, seen, waits })
    }

    /// Whether the board is as it was when it was looked at.
    fn is_still(&self, quiet: &Quiet) -> bool {
        // Acquire: keeps the copy before this load. Pairs with the fence in `Stander::stir`.
        fence_at(Site::BoardCopyFence, Ordering::Acquire);
        // Relaxed: the fence above orders it.
        !intact(Site::BoardRechecked) || self.standing.state.load(Ordering::Relaxed) == quiet.state
    }
}

/// The chip that writes a board.
#[derive(Debug)]
pub struct Stander<'a> {
    board: &'a SignalBoard,
    state: u64,
    session: u64,
}

impl<'a> Stander<'a> {
    /// The owner of `board` in `session`. It goes on where the board is; to begin, it [stirs](Self::stir).
    pub fn new(board: &'a SignalBoard, session: u64) -> Self {
        // Relaxed: nobody else writes it, and a process that was in its place has ended.
        Self { board, state: board.standing.state.load(Ordering::Relaxed), session }
    }

    /// The chip is about to do something. To be called before it does.
    #[inline]
    pub fn stir(&mut self) {
        if self.state & QUIET == 0 {
            return;
        }
        self.state = (self.state | QUIET) + 1;
        // Relaxed: the fence orders it before what is written to the board next.
        self.board.standing.state.store(self.state, Ordering::Relaxed);
        // Release: who copies a word that is written after it sees the new state at its second look. Pairs with the fence in
        // `SignalBoard::is_still`.
        fence_at(Site::BoardReuseFence, Ordering::Release);
    }

    /// Looks at the words once more, and says that the chip is quiet unless `look` finds that it is not. `look` adds what the
    /// chip waits for, or returns false when there is something to do or a wait that is not to be published. Returns up to which ring it has
    /// looked.
    pub fn rest(&mut self, look: impl FnOnce(&mut Vec<BoardWait>) -> bool) -> u32 {
        // Before the words: a signal that rings later makes the difference that `prove` finds.
        let mut seen = self.board.rings();
        let mut waits = Vec::new();
        let is_quiet = look(&mut waits) && waits.len() <= BOARD_WAITS;
        if !intact(Site::RingsBeforeWords) {
            seen = self.board.rings();
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
        let seen = self.board.rings();
        self.publish(seen, &[]);
    }

    /// Tells the others that the session is stuck.
    pub fn say_stuck(&self) {
        self.board.standing.stuck.store(self.session);
    }

    fn publish(&mut self, seen: u32, waits: &[BoardWait]) {
        let standing = &self.board.standing;
        // Relaxed, all of them: published by the store below.
        standing.session.store(self.session, Ordering::Relaxed);
        standing.seen.store(u64::from(seen), Ordering::Relaxed);
        standing.count.store(waits.len() as u64, Ordering::Relaxed);
        for (place, wait) in self.board.waits.0.iter().zip(waits) {
            for (word, value) in place.iter().zip(wait) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.state |= QUIET;
        // Release: pairs with the acquire in `SignalBoard::look`.
        standing.state.store(self.state, at(Site::BoardPublish, Ordering::Release));
    }
}

/// What all chips of `session` wait for when none of them will ever move again; `None` while one may.
///
/// A chip that has not begun, or is in another session, may.
pub fn prove<'a>(boards: impl Iterator<Item = &'a SignalBoard> + Clone, session: u64) -> Option<Vec<Quiet>> {
    let quiet = boards.clone().map(|board| board.look(session)).collect::<Option<Vec<_>>>()?;
    // After the last of the looks: every ring that came before a chip was quiet is seen now.
    let heard = boards.clone().zip(&quiet).all(|(board, quiet)| board.rings() == quiet.seen);
    let heard = heard || !intact(Site::RingsCompared);
    let still = boards.zip(&quiet).all(|(board, quiet)| board.is_still(quiet));
    (heard && still).then_some(quiet)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deadline::Deadline;
    use std::time::Duration;

    fn boards() -> [SignalBoard; 2] {
        array::from_fn(|_| SignalBoard::default())
    }

    fn wait_for(from: u64) -> BoardWait {
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
        let boards = boards();
        let [mut one, mut two] = [0, 1].map(|at| Stander::new(&boards[at], 5));
        one.stir();
        waiting(&mut one, 1);
        assert_eq!(prove(boards.iter(), 5), None, "the other has not begun");
        two.stir();
        assert_eq!(prove(boards.iter(), 5), None, "the other is busy");
        waiting(&mut two, 0);
        assert_eq!(prove(boards.iter(), 4), None, "another session");
        let stuck = prove(boards.iter(), 5).unwrap();
        assert_eq!(stuck.iter().map(|quiet| quiet.waits[0]).collect::<Vec<_>>(), [wait_for(1), wait_for(0)]);
        boards[1].ring();
        assert_eq!(prove(boards.iter(), 5), None, "a signal that its owner has not seen");
        waiting(&mut two, 0);
        assert!(prove(boards.iter(), 5).is_some());
        two.stir();
        assert_eq!(prove(boards.iter(), 5), None);
        two.end();
        assert!(prove(boards.iter(), 5).is_some_and(|stuck| stuck[1].waits.is_empty()));
        assert!(!boards[0].says_stuck(5));
        one.say_stuck();
        assert!(boards[0].says_stuck(5) && !boards[0].says_stuck(6));
    }

    /// MA-19
    #[test]
    fn a_wait_that_is_not_published_leaves_its_chip_busy() {
        let boards = boards();
        let [mut one, mut two] = [0, 1].map(|at| Stander::new(&boards[at], 1));
        one.end();
        two.rest(|_| false);
        assert_eq!(prove(boards.iter(), 1), None);
        two.rest(|waits| {
            waits.extend([wait_for(0); BOARD_WAITS + 1]);
            true
        });
        assert_eq!(prove(boards.iter(), 1), None, "more waits than fit");
        two.end();
        assert!(prove(boards.iter(), 1).is_some());
        Stander::new(&boards[1], 2).stir();
        assert_eq!(prove(boards.iter(), 1), None, "it has begun another session");
    }

    /// MA-18
    #[test]
    fn a_nap_ends_with_a_ring_with_work_and_with_its_time() {
        let [board, _] = boards();
        let long = Deadline::after(Duration::from_secs(20)).unwrap();
        board.ring();
        assert_eq!(board.nap(0, &Wait::until(long), || false), Ok(()));
        assert_eq!(board.nap(1, &Wait::until(long), || true), Ok(()));
        let short = Deadline::after(Duration::from_millis(2)).unwrap();
        assert!(board.nap(1, &Wait::until(short), || false).is_err());
        std::thread::scope(|scope| {
            scope.spawn(|| board.ring());
            assert_eq!(board.nap(1, &Wait::until(long), || false), Ok(()));
        });
    }
}
