//! Who is parked on a word: the waiter's flag and the writer's view of it.

use crate::sync::{Site, intact, store_load_fence};
use crate::word::WordU32;
use core::num::NonZeroU32;

/// The only word that a waiter ever parks on.
const ONLY: NonZeroU32 = NonZeroU32::MIN;

/// A waiter's flag: it announces that the waiter is about to park, so that the writer of the word
/// knows that it must wake it.
///
/// The flag is a word in shared memory with one writer, the waiter. A [`Wait`](crate::Wait) borrows
/// it exclusively (MA-9): if two threads waited with one flag, the first to return would withdraw the
/// announcement of the other, whose wake-up would be lost. Make one `ParkFlag` for each flag.
///
/// ```compile_fail,E0499
/// # use deadline::Deadline;
/// # use mailbox_atomics::{ParkFlag, Wait, WordU32, WordU64};
/// # let soon = || Wait::until(Deadline::after(std::time::Duration::from_secs(1)).unwrap());
/// let (word, flag) = (WordU64::new(0), WordU32::new(0));
/// let mut parked = ParkFlag::new(&flag);
/// std::thread::scope(|scope| {
///     scope.spawn(|| soon().on(&word, Some(&mut parked), |value| (value > 0).then_some(())));
///     scope.spawn(|| soon().on(&word, Some(&mut parked), |value| (value > 1).then_some(())));
/// });
/// ```
#[derive(Debug)]
pub struct ParkFlag<'a> {
    flag: &'a WordU32,
    tag: NonZeroU32,
}

impl<'a> ParkFlag<'a> {
    /// The waiter that owns `flag` and parks on one word only.
    pub fn new(flag: &'a WordU32) -> Self {
        Self::tagged(flag, ONLY)
    }

    /// The waiter that owns `flag`, about to park on the word that both sides know as `tag`.
    pub fn tagged(flag: &'a WordU32, tag: NonZeroU32) -> Self {
        Self { flag, tag }
    }

    /// Announces that the waiter parks unless its next check finds the word ready.
    pub(crate) fn announce(&mut self) {
        if intact(Site::AnnouncePark) {
            self.flag.store(self.tag.get());
        }
        // Pairs with the fence in `WordU64::notify`.
        store_load_fence(Site::ParkFence);
    }

    pub(crate) fn withdraw(&mut self) {
        self.flag.store(0);
    }
}

/// The writer's view of a waiter's flag.
///
/// `tag` identifies the word among those that the waiter may park on; 0 in the flag means awake.
#[derive(Clone, Copy, Debug)]
pub struct Listener<'a> {
    flag: &'a WordU32,
    tag: NonZeroU32,
}

impl<'a> Listener<'a> {
    /// The waiter behind `flag`, which parks on one word only.
    pub fn new(flag: &'a WordU32) -> Self {
        Self::tagged(flag, ONLY)
    }

    /// The waiter behind `flag`, if it is parked on the word that both sides know as `tag`.
    pub fn tagged(flag: &'a WordU32, tag: NonZeroU32) -> Self {
        Self { flag, tag }
    }

    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        self.flag.load() == self.tag.get()
    }
    /// The same, after a sequentially consistent write of the word and without a fence in between.
    #[inline]
    pub(crate) fn is_parked_in_order(&self) -> bool {
        self.flag.load_in_order() == self.tag.get()
    }
}
