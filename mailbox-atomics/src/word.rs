//! Words in shared memory: acquire to read, release to write, one writer each.

use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering, Site, at, store_load_fence};
use core::num::NonZeroU32;

/// A word that a waiter can park on.
///
/// Implemented by the word types of this crate only; the park itself is the business of [`Wait`](crate::Wait).
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
            bed: crate::loom_futex::Bed,
        }

        impl $name {
            /// A word that holds `value`.
            pub fn new(value: $value) -> Self {
                Self {
                    value: $atomic::new(value),
                    #[cfg(loom)]
                    bed: Default::default(),
                }
            }

            /// Reads the word. Acquire: pairs with the release in [`store`](Self::store).
            #[inline]
            pub fn load(&self) -> $value {
                self.value.load(at(Site::ObserveLoad, Ordering::Acquire))
            }

            /// Writes the word. Release: publishes everything written before; pairs with the acquire in
            /// [`load`](Self::load). Wakes nobody.
            #[inline]
            pub fn store(&self, value: $value) {
                self.value.store(value, at(Site::PublishStore, Ordering::Release));
            }

            /// Writes the word, then wakes those of `listeners` that parked on it.
            ///
            /// With no listener parked this is a store, a fence and one load for each listener: no system call.
            #[inline]
            pub fn store_and_notify<'a>(&self, value: $value, listeners: impl IntoIterator<Item = Listener<'a>>) {
                self.store(value);
                self.notify(listeners);
            }

            /// Wakes those of `listeners` that parked on this word before its last [`store`](Self::store): the second half of
            /// [`store_and_notify`](Self::store_and_notify), for a writer that has something to do in between.
            #[inline]
            pub fn notify<'a>(&self, listeners: impl IntoIterator<Item = Listener<'a>>) {
                // Pairs with the fence in `Listener::announce`: either we see the flag, or the listener sees the value.
                store_load_fence(Site::NotifyFence);
                let mut parked = false;
                for listener in listeners {
                    parked |= listener.is_parked();
                }
                if parked {
                    self.wake_all();
                }
            }

            /// Writes the word and wakes whoever is parked on it, announced or not; always a system call.
            pub fn store_and_wake(&self, value: $value) {
                self.store(value);
                self.wake_all();
            }

            /// Wakes whoever is parked on this word, without changing it: a hint to look again at something else.
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
            fn sleep(&self, judged: $value, until_ns: u64) {
                crate::sys::futex::wait(self.futex_word(), judged as u32, until_ns);
            }

            #[cfg(not(loom))]
            fn wake(&self) {
                crate::sys::futex::wake_all(self.futex_word());
            }

            #[cfg(loom)]
            fn sleep(&self, judged: $value, _until_ns: u64) {
                self.bed.sleep_while(|| self.value.load(Ordering::Acquire) == judged);
            }

            #[cfg(loom)]
            fn wake(&self) {
                self.bed.wake_all();
            }
        }
    };
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
    /// An unsigned 64-bit word: epochs and sequence numbers, which must never come round to an old value.
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
            // SAFETY: AtomicI32 and AtomicU32 have the same size, alignment and set of valid bytes, and the borrow is `self`'s.
            unsafe { AtomicU32::from_ptr(self.value.as_ptr().cast()) }
        }
    }

    #[cfg(target_endian = "little")]
    impl WordU64 {
        /// The low half: it changes with every step of an epoch, and to be fooled by it a waiter would have to sleep
        /// through 2^32 steps between its look and its park. The address is used by the kernel only.
        pub(super) fn futex_word(&self) -> &AtomicU32 {
            // SAFETY: the low half of a little-endian u64 stands at its address, which is aligned to 8; the result is handed
            // to the kernel as an address and never read or written through as a 32-bit atomic in this program.
            unsafe { AtomicU32::from_ptr(self.value.as_ptr().cast()) }
        }
    }
}

mod private {
    /// Parking; sealed, so that only [`Wait`](crate::Wait) parks.
    pub trait Futex {
        type Held;
        fn sleep(&self, judged: Self::Held, until_ns: u64);
        fn wake(&self);
    }
}
pub(crate) use private::Futex;

/// Where one waiter says that it is about to park, and on what, so that the writer of the word knows that it must wake it.
///
/// The flag has one writer, the waiter; `tag` tells apart the words that it may park on. Tag 0 means awake.
#[derive(Clone, Copy, Debug)]
pub struct Listener<'a> {
    flag: &'a WordU32,
    tag: NonZeroU32,
}

impl<'a> Listener<'a> {
    /// The waiter that owns `flag`, parking on the only word it ever parks on.
    pub fn new(flag: &'a WordU32) -> Self {
        Self { flag, tag: NonZeroU32::MIN }
    }

    /// The waiter that owns `flag`, parking on the word that it knows as `tag`.
    pub fn tagged(flag: &'a WordU32, tag: NonZeroU32) -> Self {
        Self { flag, tag }
    }

    /// Says that the waiter parks unless its next look finds the word ready.
    pub(crate) fn announce(&self) {
        self.flag.store(self.tag.get());
        // Pairs with the fence in `ring`.
        store_load_fence(Site::ParkFence);
    }

    pub(crate) fn withdraw(&self) {
        self.flag.store(0);
    }

    #[inline]
    fn is_parked(&self) -> bool {
        self.flag.load() == self.tag.get()
    }
}

/// A word that goes from 0 to a reason once and stays there: shutdown, abort, accept.
///
/// It is apart from every state word, so that no late reply of the other side can erase the request.
#[cfg_attr(not(loom), repr(transparent))]
#[derive(Debug, Default)]
pub struct StickyWord {
    word: WordU32,
}

impl StickyWord {
    /// A word that has not been raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the word; the first reason stays. To be called by the word's one writer.
    pub fn raise(&self, reason: NonZeroU32) {
        if self.word.load() == 0 {
            self.word.store(reason.get());
        }
    }

    /// The reason, once raised.
    #[inline]
    pub fn raised(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.word.load())
    }

    /// What a reply does when shutdown and state are one word; only a mutant calls it.
    pub(crate) fn erase_as_a_shared_word_would(&self) {
        self.word.store(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_size_of_what_they_hold() {
        assert_eq!((size_of::<WordI32>(), align_of::<WordI32>()), (4, 4));
        assert_eq!((size_of::<WordU32>(), align_of::<WordU32>()), (4, 4));
        assert_eq!((size_of::<WordU64>(), align_of::<WordU64>()), (8, 8));
        assert_eq!((size_of::<StickyWord>(), align_of::<StickyWord>()), (4, 4));
    }

    #[test]
    fn f32_the_first_reason_sticks() {
        let word = StickyWord::new();
        assert_eq!(word.raised(), None);
        word.raise(NonZeroU32::new(7).unwrap());
        word.raise(NonZeroU32::new(9).unwrap());
        assert_eq!(word.raised().map(NonZeroU32::get), Some(7));
    }

    #[test]
    fn a_ring_without_a_parked_listener_only_stores() {
        let (word, flag) = (WordU64::new(0), WordU32::new(0));
        word.store_and_notify(5, [Listener::new(&flag)]);
        assert_eq!(word.load(), 5);
    }
}
