//! How a thread without work waits: it spins while that pays, and then sleeps until it is called.
//!
//! Relaxed accesses are to numbers that bound a cost, and order nothing.

use super::mailbox::{Given, Mailbox};
use super::places::{MOST_SPINNING, Places};
use deadline::{Deadline, LONGEST_WAIT, monotonic_ns};
use mailbox_atomics::{Listener, ParkFlag, Wait, WordU32};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The shortest and the longest time that an idle thread spins.
const SPIN_NS: (u32, u32) = (2_000, 100_000);
/// How long a thread leaves the end of what it was given to others: some submits.
const PATIENCE_NS: u64 = 2_000;
/// Checks between two reads of the clock.
const CHECKS: u32 = 64;

/// Where a thread waits to be called. The call and the turn of the mailbox share a line: they are written together, by who gives a
/// launch.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Parking {
    /// Grows when the thread is to come.
    pub(super) call: WordU32,
    /// What it is called for, if that is one launch.
    pub(super) mailbox: Mailbox,
    parked: Parked,
}

// What is written for a launch is one line.
const _: () = assert!(size_of::<WordU32>() + size_of::<u32>() + size_of::<Given>() <= 64);

/// Changes rarely, and whoever calls looks at it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Parked(WordU32);

impl Parking {
    /// Lets the thread come. One writer at a time: who took the thread from the list of idle ones.
    pub(super) fn call(&self) {
        self.call.store(self.call.load().wrapping_add(1));
    }

    /// Whether it has ended what it was given: a hint.
    pub(super) fn has_ended(&self) -> bool {
        self.mailbox.has_ended()
    }

    /// Wakes it if it sleeps, after a call.
    pub(super) fn wake(&self) {
        self.call.notify([Listener::new(&self.parked.0)]);
    }

    /// Whether it sleeps: a hint.
    pub(super) fn is_parked(&self) -> bool {
        // Acquire, in `load`, although nothing is read after it: a guess that costs a system call where it is wrong.
        self.parked.0.load() != 0
    }

    /// Sleeps until the thread is called; false when that was not before the time.
    pub(super) fn park_until(&self, seen: u32, until: Deadline) -> bool {
        let mut flag = ParkFlag::new(&self.parked.0);
        Wait::until(until).on(&self.call, Some(&mut flag), |call| (call != seen).then_some(())).is_ok()
    }

    /// Sleeps until the thread is called.
    pub(super) fn park(&self, seen: u32) {
        while !self.park_until(seen, far()) {}
    }

    /// Whether it is called before it should look after the end of its launch itself.
    pub(super) fn is_called_soon(&self, seen: u32) -> bool {
        let mut end = None;
        loop {
            for _ in 0..CHECKS / 4 {
                if self.call.load() != seen {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = monotonic_ns();
            if now >= *end.get_or_insert(now + PATIENCE_NS) {
                return false;
            }
        }
    }
}

/// How long idle threads spin, adapted to whether it was worth it.
#[derive(Debug)]
pub(super) struct Spinning {
    places: Arc<Places>,
    now: AtomicU32,
    ns: AtomicU32,
}

impl Spinning {
    pub(super) fn new(places: Arc<Places>) -> Self {
        Self { places, now: AtomicU32::new(0), ns: AtomicU32::new(SPIN_NS.1) }
    }

    /// Whether one more thread may spin: a hint.
    pub(super) fn has_room(&self, processors: usize) -> bool {
        (self.now.load(Ordering::Relaxed) as usize) < most_spinning(processors)
    }

    /// Whether the thread may spin beside those that work, on so many processors: its place among those that do; `None`
    /// where enough threads spin.
    pub(super) fn begin(&self, processors: usize) -> Option<u32> {
        let order = self.now.fetch_add(1, Ordering::Relaxed);
        if order as usize >= most_spinning(processors) {
            self.now.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(order)
    }

    /// Whether `ready` held before the time was up. A thread that is not the builder makes room for it.
    pub(super) fn spin(&self, order: u32, is_builder: bool, ready: impl Fn() -> bool) -> bool {
        let ns = self.ns.load(Ordering::Relaxed);
        let mut end = None;
        let came = 'spinning: loop {
            for _ in 0..CHECKS {
                if ready() {
                    break 'spinning true;
                }
                std::hint::spin_loop();
            }
            let now = monotonic_ns();
            if now >= *end.get_or_insert(now + u64::from(ns)) {
                break false;
            }
            // The thread that is waited for may be on this processor.
            std::thread::yield_now();
            if !is_builder {
                self.places.look_after_spinning(order, now);
            }
        };
        self.now.fetch_sub(1, Ordering::Relaxed);
        let next = if came { ns.saturating_mul(2) } else { ns / 2 }.clamp(SPIN_NS.0, SPIN_NS.1);
        if next != ns {
            self.ns.store(next, Ordering::Relaxed);
        }
        came
    }
}

fn most_spinning(processors: usize) -> usize {
    // One processor is the builder's, or that of the kernel that is waited for.
    processors.saturating_sub(1).min(MOST_SPINNING)
}

pub(super) fn far() -> Deadline {
    Deadline::since(monotonic_ns(), LONGEST_WAIT)
}
