//! What parties that share a resource are about to take of it.

use crate::sync::{Site, store_load_fence};
use crate::word::WordU64;

/// One party's view of the amounts that all parties are about to take: a word for each, zeroed at first.
///
/// A party announces its amount, and then checks what is left when the others have theirs. Of two that
/// announce at the same time, at least one sees the other's amount.
#[derive(Clone, Copy, Debug)]
pub struct Demands<'a> {
    words: &'a [WordU64],
    me: usize,
}

impl<'a> Demands<'a> {
    /// The view of party number `me`, which is one of those that have a word.
    pub fn new(words: &'a [WordU64], me: usize) -> Self {
        Self { words, me }
    }

    /// Announces that this party is about to take `amount`; zero when it has taken it, or does not want it
    /// any more.
    pub fn announce(&self, amount: u64) {
        if let Some(word) = self.words.get(self.me) {
            word.store(amount);
        }
        // Pairs with itself in another party: either we see its amount in `of_others`, or it sees ours.
        store_load_fence(Site::DemandFence);
    }

    /// The other parties that have announced something, and how much.
    pub fn of_others(&self) -> impl Iterator<Item = (usize, u64)> {
        let others = self.words.iter().enumerate().filter(|(party, _)| *party != self.me);
        others.map(|(party, word)| (party, word.load())).filter(|(_, amount)| *amount > 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_party_sees_what_the_others_have_announced_and_not_its_own() {
        let words: [WordU64; 3] = std::array::from_fn(|_| WordU64::new(0));
        let [one, two] = [0, 2].map(|me| Demands::new(&words, me));
        one.announce(5);
        two.announce(7);
        assert!(one.of_others().eq([(2, 7)]) && two.of_others().eq([(0, 5)]));
        one.announce(0);
        assert_eq!(two.of_others().count(), 0);
        // No word of its own: nothing is announced.
        Demands::new(&words, 3).announce(9);
        assert!(one.of_others().eq([(2, 7)]));
    }
}
