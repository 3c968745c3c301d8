//! A launch that is handed to one thread, and how it ended, handed back: a line or two that move between two processors,
//! while the state of the graph stays with the one that holds its mutex.
//!
//! # Safety
//! The turn says who may use the rest: who holds the mutex of the state, and after a launch was given the thread of the
//! mailbox, until it has ended the launch.
#![allow(unsafe_code)]

use super::launch::Outcome;
use super::ready::Launch;
use crate::record::Span;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

const EMPTY: u32 = 0;
const GIVEN: u32 = 1;
/// The same, and when it runs is recorded.
const GIVEN_RECORDED: u32 = 2;
/// The kernel has returned without an error, and there is nothing else to say.
const RETURNED: u32 = 3;
/// It has returned, and what it left is beside.
const ENDED: u32 = 4;

/// How a launch ended, and when it ran if that is recorded.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) span: Option<Span>,
}

#[derive(Debug)]
pub(super) struct Mailbox {
    turn: AtomicU32,
    launch: UnsafeCell<MaybeUninit<Launch>>,
    ended: UnsafeCell<Option<Ended>>,
}

// SAFETY: one thread at a time uses the cells, in the order that `turn` says; launches are pointers to what the engine keeps
// until they have ended.
unsafe impl Send for Mailbox {}
// SAFETY: as above.
unsafe impl Sync for Mailbox {}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            turn: AtomicU32::new(EMPTY),
            launch: UnsafeCell::new(MaybeUninit::uninit()),
            ended: UnsafeCell::new(None),
        }
    }
}

impl Mailbox {
    /// Gives a launch to the thread of this mailbox.
    ///
    /// # Safety
    /// The caller holds the mutex of the state, and what was given last has been taken back.
    pub(super) unsafe fn give(&self, launch: Launch, recorded: bool) {
        // SAFETY: the turn is the caller's.
        unsafe { (*self.launch.get()).write(launch) };
        // Release: publishes the launch; pairs with the Acquire in `given`.
        self.turn.store(if recorded { GIVEN_RECORDED } else { GIVEN }, Ordering::Release);
    }

    /// The launch that was handed over, and whether it is recorded.
    ///
    /// # Safety
    /// Only the thread of the mailbox calls this.
    pub(super) unsafe fn given(&self) -> Option<(Launch, bool)> {
        // Acquire: pairs with the Release in `give`.
        let turn = self.turn.load(Ordering::Acquire);
        if turn != GIVEN && turn != GIVEN_RECORDED {
            return None;
        }
        // SAFETY: it was written before the turn, and stays until this thread has ended it.
        Some((unsafe { (*self.launch.get()).assume_init() }, turn == GIVEN_RECORDED))
    }

    /// Says how it ended.
    ///
    /// # Safety
    /// Only the thread of the mailbox calls this, once for each launch that it was given.
    pub(super) unsafe fn end(&self, ended: Ended) {
        let plain = ended.outcome.is_plain() && ended.span.is_none();
        if !plain {
            // SAFETY: the turn is this thread's.
            unsafe { *self.ended.get() = Some(ended) };
        }
        // Release: publishes what the kernel wrote, and the end; pairs with the Acquire in `take_ended`.
        self.turn.store(if plain { RETURNED } else { ENDED }, Ordering::Release);
    }

    /// Whether the launch has ended and nobody took note: a hint.
    pub(super) fn has_ended(&self) -> bool {
        // Relaxed: who acts on it calls `take_ended`.
        self.turn.load(Ordering::Relaxed) >= RETURNED
    }

    /// How it ended, once.
    ///
    /// # Safety
    /// The caller holds the mutex of the state.
    pub(super) unsafe fn take_ended(&self) -> Option<Ended> {
        // Acquire: pairs with the Release in `end`.
        let ended = match self.turn.load(Ordering::Acquire) {
            RETURNED => Some(Ended { outcome: Outcome::plain(), span: None }),
            // SAFETY: the turn is that of who holds the mutex.
            ENDED => unsafe { (*self.ended.get()).take() },
            _ => return None,
        };
        // Relaxed: the next to use the cells is ordered after this by the mutex.
        self.turn.store(EMPTY, Ordering::Relaxed);
        ended
    }
}
