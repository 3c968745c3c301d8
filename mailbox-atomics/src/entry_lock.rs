//! A lock between the threads of a process that is tried and never waited for, without a locked instruction for the thread that
//! opened it first.
//!
//! A lock is opened under a key, entered by that key, and closed. Its *owner* is the thread that opened it first. When the owner opens
//! it, it is biased: the owner enters by a store (`inside`) and a second look at the word. A thread that finds it biased to another one
//! takes the bias away: it says so in the word, makes every thread of the process pass a memory barrier (`membarrier`), and then looks
//! whether the owner is inside. The barrier is what the owner saves: it falls either before the owner's store, and the owner's second
//! look finds the bias gone, or after it, and the other thread finds the owner inside. From then on everybody enters by an exchange.

use crate::sync::{
    AtomicU32, AtomicU64, Ordering, Site, at, has_heavy_fence, heavy_fence, intact, light_fence,
};
#[cfg(not(loom))]
use core::cell::Cell;
use core::marker::PhantomData;

/// A thread of this process: a number that no other thread has or will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadNumber(u64);

impl ThreadNumber {
    /// Of the calling thread.
    #[cfg(not(loom))]
    #[inline]
    pub fn current() -> Self {
        std::thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
        NUMBER.with(|number| match number.get() {
            0 => Self::first(number),
            number => Self(number),
        })
    }

    #[cfg(not(loom))]
    #[cold]
    fn first(of_this_thread: &Cell<u64>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only a number.
        of_this_thread.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        Self(of_this_thread.get())
    }

    /// Of a thread of a model.
    #[cfg(loom)]
    pub fn model(number: u64) -> Self {
        Self(number)
    }
}

/// States of a lock, beside its key.
const FREE: u64 = 0;
const BIASED: u64 = 1;
/// A thread is taking the bias away.
const REVOKING: u64 = 2;
const BUSY: u64 = 3;

/// Somebody is about to open it: no key is 0.
const RESERVED: u64 = BUSY;
const CLOSED: u64 = 0;

/// The lock. Closed at first.
#[derive(Debug)]
pub struct EntryLock {
    /// Key and state.
    word: AtomicU64,
    /// The thread that opened it first; 0 before that. Written once.
    owner: AtomicU64,
    /// Whether the owner is inside by its bias. Only the owner writes it.
    inside: AtomicU32,
}

/// Why a thread may not enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotEntered {
    /// The lock is closed, or open under another key.
    Closed,
    /// A thread is inside, or is entering for the first time while this one is.
    InUse,
}

/// A thread is inside, until this is dropped.
#[derive(Debug)]
pub struct Inside<'a> {
    lock: &'a EntryLock,
    /// What the word was before.
    before: u64,
    /// The thread that entered leaves.
    _stays: PhantomData<*const ()>,
}

impl EntryLock {
    /// Keys are smaller than this, and not 0.
    pub const KEYS: u64 = 1 << 62;

    /// A closed lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicU64::new(CLOSED), owner: AtomicU64::new(0), inside: AtomicU32::new(0) }
    }

    /// A closed lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: AtomicU64::new(CLOSED), owner: AtomicU64::new(0), inside: AtomicU32::new(0) }
    }

    /// Whether `me` would be its owner; a hint for who looks for a lock to open.
    pub fn suits(&self, me: ThreadNumber) -> bool {
        // Relaxed: only a hint.
        let owner = self.owner.load(Ordering::Relaxed);
        owner == 0 || owner == me.0
    }

    /// Takes a closed lock, to open it or [give it back](Self::give_back).
    pub fn reserve(&self) -> bool {
        // Acquire: pairs with the release of who closed it. Relaxed: passed over.
        self.word.compare_exchange(CLOSED, RESERVED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives a reserved lock back.
    pub fn give_back(&self) {
        // Release: pairs with the acquire in `reserve`.
        self.word.store(CLOSED, Ordering::Release);
    }

    /// Opens a lock that `me` has reserved, under a key that was never used before.
    pub fn open(&self, key: u64, me: ThreadNumber) {
        debug_assert!(0 < key && key < Self::KEYS);
        // Relaxed: written by who has reserved the lock, before the store of the word.
        if self.owner.load(Ordering::Relaxed) == 0 && has_heavy_fence() {
            self.owner.store(me.0, Ordering::Relaxed);
        }
        let state = if self.owner.load(Ordering::Relaxed) == me.0 { BIASED } else { FREE };
        // Release: pairs with the acquire in `enter`.
        self.word.store(key << 2 | state, Ordering::Release);
    }

    /// Enters as the thread `me`, if the lock is open under `key` and nobody is inside.
    #[inline]
    pub fn enter(&self, key: u64, me: ThreadNumber) -> Result<Inside<'_>, NotEntered> {
        // No word is the same for a key that is too large.
        let biased = if key < Self::KEYS { key << 2 | BIASED } else { BIASED };
        // Relaxed: the owner is the only one that finds its own number, and reads what it wrote itself.
        if self.word.load(Ordering::Relaxed) == biased && self.owner.load(Ordering::Relaxed) == me.0 {
            if self.inside.load(Ordering::Relaxed) != 0 {
                // In a handler of a signal that came inside.
                return Err(NotEntered::InUse);
            }
            // Relaxed: the fence orders it.
            self.inside.store(1, Ordering::Relaxed);
            light_fence(Site::OwnerFence);
            // Relaxed: as long as it is biased, no other thread was inside.
            if !intact(Site::OwnerLooksAgain) || self.word.load(Ordering::Relaxed) == biased {
                return Ok(self.inside(biased));
            }
            self.inside.store(0, Ordering::Relaxed);
        }
        self.enter_by_exchange(key)
    }

    #[inline]
    fn inside(&self, before: u64) -> Inside<'_> {
        Inside { lock: self, before, _stays: PhantomData }
    }

    #[inline(never)]
    fn enter_by_exchange(&self, key: u64) -> Result<Inside<'_>, NotEntered> {
        if !(1..Self::KEYS).contains(&key) {
            return Err(NotEntered::Closed);
        }
        let free = key << 2 | FREE;
        // Acquire: pairs with the release of who opened it or left it last. Relaxed: refused, whatever it is.
        match self.word.compare_exchange(free, key << 2 | BUSY, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(self.inside(free)),
            Err(word) if word == key << 2 | BIASED => self.take_bias(key),
            Err(word) => Err(refused(word, key)),
        }
    }

    /// Ends the bias, unless its owner is inside.
    #[cold]
    fn take_bias(&self, key: u64) -> Result<Inside<'_>, NotEntered> {
        let [free, biased, revoking, busy] = [FREE, BIASED, REVOKING, BUSY].map(|state| key << 2 | state);
        // Acquire: pairs with the release of who opened it. Relaxed: refused.
        let begun = self.word.compare_exchange(biased, revoking, Ordering::Acquire, Ordering::Relaxed);
        begun.map_err(|word| refused(word, key))?;
        let all_know = heavy_fence(Site::RevokerFence);
        // Acquire: pairs with the release of the owner when it left.
        let owner_inside =
            intact(Site::RevokerLooks) && self.inside.load(at(Site::RevokerObserves, Ordering::Acquire)) != 0;
        let entered = all_know && !owner_inside;
        // Relaxed: what the owner left was acquired above. Fails when the owner has closed it.
        let next = if entered { busy } else { biased };
        match self.word.compare_exchange(revoking, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) if entered => Ok(self.inside(free)),
            Ok(_) => Err(NotEntered::InUse),
            Err(word) => Err(refused(word, key)),
        }
    }
}

impl Inside<'_> {
    /// Leaves and closes the lock. Its key is never valid again.
    pub fn close(self) {
        if self.before & BUSY == BIASED && !intact(Site::ClosedBeforeLeft) {
            self.lock.inside.store(0, Ordering::Release);
        }
        // Release: pairs with the acquire in `reserve`. Exchanged, because another thread may be taking the bias away just now; its
        // next exchange finds that the lock is closed.
        self.lock.word.swap(CLOSED, Ordering::Release);
        if self.before & BUSY == BIASED {
            // Release: who finds the owner outside finds the lock closed.
            self.lock.inside.store(0, Ordering::Release);
        }
        core::mem::forget(self);
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.before & BUSY == BIASED {
            // Release: pairs with the acquire in `take_bias`.
            self.lock.inside.store(0, at(Site::OwnerLeaves, Ordering::Release));
        } else {
            // Release: pairs with the acquire in `enter_by_exchange`.
            self.lock.word.store(self.before, Ordering::Release);
        }
    }
}

/// Why, by what the word was.
fn refused(word: u64, key: u64) -> NotEntered {
    if word >> 2 == key { NotEntered::InUse } else { NotEntered::Closed }
}

#[cfg(not(loom))]
impl Default for EntryLock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    fn opened(key: u64) -> EntryLock {
        let lock = EntryLock::new();
        assert!(lock.reserve() && !lock.reserve());
        lock.open(key, ThreadNumber::current());
        lock
    }

    fn enter(lock: &EntryLock, key: u64) -> Result<Inside<'_>, NotEntered> {
        lock.enter(key, ThreadNumber::current())
    }

    #[test]
    fn threads_enter_one_after_the_other_and_by_the_key_only() {
        let lock = opened(7);
        drop(enter(&lock, 7).unwrap());
        for other in [0, 8, EntryLock::KEYS, u64::MAX] {
            assert_eq!(enter(&lock, other).unwrap_err(), NotEntered::Closed);
        }
        std::thread::scope(|scope| scope.spawn(|| drop(enter(&lock, 7).unwrap())).join().unwrap());
        enter(&lock, 7).unwrap().close();
        assert_eq!(enter(&lock, 7).unwrap_err(), NotEntered::Closed);
        assert!(lock.reserve());
        lock.give_back();
        assert!(lock.reserve());
        lock.open(9, ThreadNumber::current());
        assert_eq!(enter(&lock, 7).unwrap_err(), NotEntered::Closed);
        assert!(enter(&lock, 9).is_ok());
    }

    #[test]
    fn a_second_thread_is_refused_and_so_is_the_same_one_again() {
        for shared in [false, true] {
            let lock = opened(7);
            let elsewhere =
                || std::thread::scope(|scope| scope.spawn(|| enter(&lock, 7).map(drop)).join().unwrap());
            if shared {
                elsewhere().unwrap();
            }
            let inside = enter(&lock, 7).unwrap();
            assert_eq!(elsewhere(), Err(NotEntered::InUse));
            assert_eq!(enter(&lock, 7).unwrap_err(), NotEntered::InUse);
            drop(inside);
            elsewhere().unwrap();
        }
    }

    /// The owner enters as fast as it can while others come, again and again with a new bias.
    #[test]
    fn one_thread_at_a_time_is_inside() {
        let rounds = if cfg!(miri) { 3 } else { 3000 };
        let (lock, taken) = (EntryLock::new(), AtomicBool::new(false));
        let visit = |key| {
            let Ok(inside) = enter(&lock, key) else { return false };
            assert!(!taken.swap(true, Ordering::Relaxed), "two threads are inside");
            std::hint::spin_loop();
            assert!(taken.swap(false, Ordering::Relaxed), "two threads are inside");
            drop(inside);
            true
        };
        let (open, over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let other = || {
                let mut entered = 0;
                while !over.load(Ordering::Relaxed) {
                    entered += u64::from(visit(open.load(Ordering::Relaxed)));
                    (0..entered % 64).for_each(|_| std::hint::spin_loop());
                }
            };
            let others = [scope.spawn(other), scope.spawn(other)];
            for key in 1..=rounds {
                assert!(lock.reserve());
                lock.open(key, ThreadNumber::current());
                open.store(key, Ordering::Relaxed);
                for _ in 0..key % 97 {
                    visit(key);
                }
                loop {
                    if let Ok(inside) = enter(&lock, key) {
                        break inside.close();
                    }
                    std::thread::yield_now();
                }
            }
            over.store(true, Ordering::Relaxed);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }
}
