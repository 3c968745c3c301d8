//! A word that is raised once.

use crate::sync::{Site, intact};
use crate::word::WordU32;
use core::num::NonZeroU32;

/// A word that goes from 0 to a reason once and stays there: shutdown, abort, accept.
///
/// It is separate from every state word, so that no late reply of the other side can erase the
/// request.
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
        if self.word.load() == 0 || !intact(Site::FirstReasonStays) {
            self.word.store(reason.get());
        }
    }

    /// The reason, once raised.
    #[inline]
    pub fn raised(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.word.load())
    }

    /// What a reply would do if shutdown and state shared a word. Only a mutant calls it.
    pub(crate) fn erase_as_a_shared_word_would(&self) {
        self.word.store(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn f32_the_first_reason_stays() {
        // MA-5
        let word = StickyWord::new();
        assert_eq!(word.raised(), None);
        word.raise(NonZeroU32::new(7).unwrap());
        word.raise(NonZeroU32::new(9).unwrap());
        assert_eq!(word.raised().map(NonZeroU32::get), Some(7));
    }
}
