//! Words in shared memory: acquire to read, release to write, one writer each.

use crate::listener::Listener;
use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering, Site, at, intact, store_load_fence};

/// A word that a waiter can park on.
///
/// Implemented by the word types of this crate only; [`Wait`](crate::Wait) does the parking.
pub trait ParkWord: private::Futex {
    /// What the word holds.
    type Value: Copy + PartialEq;

    /// Reads the word. Acquire: sees everything that the writer did before the store that it reads.
    fn load(&self) -> Self::Value;
}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $atomic:ident, $value:ty) => {
        $(#[$doc])*
        #[cfg_attr(not(loom), repr(transparent))]
        #[derive(Debug, Default)]
        pub struct $name {
            value: $atomic,
            #[cfg(loom)]
            futex: crate::loom_futex::FutexModel,
        }

        impl $name {
            /// A word that holds `value`.
            pub fn new(value: $value) -> Self {
                Self {
                    value: $atomic::new(value),
                    #[cfg(loom)]
                    futex: Default::default(),
                }
            }

            /// Reads the word. Acquire: pairs with the release in [`store`](Self::store).
            #[inline]
            pub fn load(&self) -> $value {
                self.value.load(at(Site::ObserveLoad, Ordering::Acquire))
            }

            /// Writes the word. Release: publishes everything written before; pairs with the acquire
            /// in [`load`](Self::load). Wakes nobody.
            #[inline]
            pub fn store(&self, value: $value) {
                self.value.store(value, at(Site::PublishStore, Ordering::Release));
            }

            /// Writes the word, then wakes those of `listeners` that parked on it.
            ///
            /// With no listener parked this is a store, a fence and one load for each listener: no
            /// system call.
            ///
            /// # Panics
            /// In debug builds, when the new value differs from the old one and has the same low 32 bits: a
            /// waiter could miss it.
            #[inline]
            pub fn store_and_notify<'a>(
                &self,
                value: $value,
                listeners: impl IntoIterator<Item = Listener<'a>>,
            ) {
                self.store_for_waiters(value);
                self.notify(listeners);
            }

            /// Adds to the word, for words that several parties count in; returns what it was. Release:
            /// as [`store`](Self::store), and later adds keep what it published. Wakes nobody.
            #[inline]
            pub fn add(&self, by: $value) -> $value {
                self.value.fetch_add(by, at(Site::PublishStore, Ordering::Release))
            }

            /// Adds to the word, then wakes those of `listeners` that parked on it.
            #[inline]
            pub fn add_and_notify<'a>(
                &self,
                by: $value,
                listeners: impl IntoIterator<Item = Listener<'a>>,
            ) -> $value {
                if cfg!(loom) {
                    // The model knows no total order of accesses, only of fences.
                    let was = self.add(by);
                    self.notify(listeners);
                    return was;
                }
                // SeqCst, both: together they are the fence of `notify`, for one locked instruction less. The flag is
                // read after the add in the one order in which the fence of `ParkFlag::announce` stands too.
                let was = self.value.fetch_add(by, Ordering::SeqCst);
                let mut parked = false;
                for listener in listeners {
                    parked |= listener.is_parked_in_order();
                }
                if parked {
                    self.wake_all();
                }
                was
            }

            /// Wakes those of `listeners` that parked on this word before its last store: the second
            /// half of [`store_and_notify`](Self::store_and_notify), for a writer that has something
            /// to do in between.
            #[inline]
            pub fn notify<'a>(&self, listeners: impl IntoIterator<Item = Listener<'a>>) {
                // Pairs with the fence in `ParkFlag::announce`: either we see the flag, or the waiter
                // sees the value.
                store_load_fence(Site::NotifyFence);
                let mut parked = false;
                for listener in listeners {
                    parked |= listener.is_parked();
                }
                if parked {
                    self.wake_all();
                }
            }

            /// Writes the word and wakes every waiter parked on it, announced or not; always a system
            /// call.
            ///
            /// # Panics
            /// As [`store_and_notify`](Self::store_and_notify).
            pub fn store_and_wake(&self, value: $value) {
                self.store_for_waiters(value);
                if intact(Site::StoreWakes) {
                    self.wake_all();
                }
            }

            /// Writes the word, which waiters may be about to park on.
            ///
            /// The kernel compares 32 bits when a waiter parks (MA-8). A new value that differs
            /// from the old one in the high half only would be taken for the old one, and the
            /// waiter would sleep to its deadline. The old value is the writer's own: a word has
            /// one writer. Loading it before the store would make a round trip of two spinning
            /// processes half as long again, so that release builds do not check.
            #[inline]
            pub(crate) fn store_for_waiters(&self, value: $value) {
                // Not in a user's build: the old value is in shared memory, where a hostile peer may have changed it.
                if cfg!(any(test, loom)) && intact(Site::LowHalfChanges) {
                    // Relaxed: this thread or process wrote it last.
                    let old = self.value.load(Ordering::Relaxed);
                    assert!(
                        old == value || old as u32 != value as u32,
                        "a waiter could miss the step from {old:#x} to {value:#x}: the low 32 bits are equal"
                    );
                }
                self.store(value);
            }

            /// Wakes every waiter parked on this word, so that it checks its abort word. One that is
            /// about to park misses it and finds out at its next poll, or at the next call.
            pub fn wake_all(&self) {
                private::Futex::wake(self);
            }
        }

        impl ParkWord for $name {
            type Value = $value;

            #[inline]
            fn load(&self) -> $value {
                $name::load(self)
            }
        }

        impl private::Futex for $name {
            type Held = $value;

            #[cfg(not(loom))]
            fn sleep(&self, checked: $value, until_ns: u64) {
                crate::sys::futex::wait(self.futex_word(), checked as u32, until_ns);
            }

            #[cfg(not(loom))]
            fn wake(&self) {
                crate::sys::futex::wake_all(self.futex_word());
            }

            #[cfg(loom)]
            fn sleep(&self, checked: $value, until_ns: u64) {
                let unchanged = || self.value.load(Ordering::Acquire) as u32 == checked as u32;
                self.futex.sleep_while(unchanged, until_ns);
            }

            #[cfg(loom)]
            fn wake(&self) {
                self.futex.wake_all();
            }
        }
    };
}

impl WordU32 {
    /// Reads the word in the one order of all sequentially consistent accesses and fences.
    #[inline]
    pub(crate) fn load_in_order(&self) -> u32 {
        self.value.load(Ordering::SeqCst)
    }
}

word! {
    /// A signed 32-bit state word.
    WordI32, AtomicI32, i32
}
word! {
    /// An unsigned 32-bit state word.
    WordU32, AtomicU32, u32
}
word! {
    /// An unsigned 64-bit word: epochs and sequence numbers, which must never wrap round to an old
    /// value.
    ///
    /// A waiter parks on its low half. A store that notifies or wakes must change that half, which a
    /// counter that steps by less than 2^32 always does; models and unit tests panic where it does not.
    WordU64, AtomicU64, u64
}

#[cfg(not(loom))]
mod futex_words {
    //! # Safety
    //! Views of an atomic word, or of its low half, as the 32-bit atomic that the kernel parks on.
    #![allow(unsafe_code)]

    use super::{WordI32, WordU32, WordU64};
    use core::sync::atomic::AtomicU32;

    impl WordU32 {
        pub(super) fn futex_word(&self) -> &AtomicU32 {
            &self.value
        }
    }

    impl WordI32 {
        pub(super) fn futex_word(&self) -> &AtomicU32 {
            // SAFETY: AtomicI32 and AtomicU32 have the same size, alignment and set of valid bytes;
            // the pointer is valid for reads and writes while `self` is borrowed.
            unsafe { AtomicU32::from_ptr(self.value.as_ptr().cast()) }
        }
    }

    #[cfg(target_endian = "little")]
    impl WordU64 {
        /// The low half. `store_for_waiters` makes sure that it changes with the word; a waiter that
        /// is deceived by it has slept through 2^32 steps between its check and its park.
        pub(super) fn futex_word(&self) -> &AtomicU32 {
            // SAFETY: the low half of a little-endian u64 is at its address, which is aligned to 8
            // and valid for reads and writes while `self` is borrowed. The result is passed to the
            // kernel as an address and never accessed as a 32-bit atomic in this program.
            unsafe { AtomicU32::from_ptr(self.value.as_ptr().cast()) }
        }
    }
}

mod private {
    /// Parking; sealed, so that only [`Wait`](crate::Wait) parks.
    pub trait Futex {
        type Held;
        fn sleep(&self, checked: Self::Held, until_ns: u64);
        fn wake(&self);
    }
}
pub(crate) use private::Futex;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sticky::StickyWord;

    #[test]
    fn words_have_the_size_of_what_they_hold() {
        assert_eq!((size_of::<WordI32>(), align_of::<WordI32>()), (4, 4));
        assert_eq!((size_of::<WordU32>(), align_of::<WordU32>()), (4, 4));
        assert_eq!((size_of::<WordU64>(), align_of::<WordU64>()), (8, 8));
        assert_eq!((size_of::<StickyWord>(), align_of::<StickyWord>()), (4, 4));
    }

    #[test]
    fn a_store_without_a_parked_listener_only_stores() {
        let (word, flag) = (WordU64::new(0), WordU32::new(0));
        word.store_and_notify(5, [Listener::new(&flag)]);
        assert_eq!(word.load(), 5);
    }

    /// MA-8
    #[test]
    fn f59_a_step_that_a_parked_waiter_would_miss_is_refused() {
        let steps: [fn(&WordU64); 2] =
            [|word| word.store_and_wake(1 << 32), |word| word.store_and_notify(1 << 32, [])];
        for step in steps {
            let word = WordU64::new(0);
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step(&word)));
            assert!(refused.is_err());
            assert_eq!(word.load(), 0);
        }
        let word = WordU64::new(u64::from(u32::MAX));
        word.store_and_wake(1 << 32);
        word.store_and_wake(1 << 32);
        // Nobody parks on a word that is only stored.
        word.store(2 << 32);
    }
}
