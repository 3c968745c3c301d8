//! The peers' messages, and which of them this rank has taken.

use super::message::{Received, Tag, payload_words};
use crate::memory::Memory;
use crate::memory::layout::MESSAGE_SLOTS;
use mailbox_atomics::WordU64;
use std::sync::Arc;

/// For each slot of each peer the generation of the last message that this rank took from it. Local to the
/// process; threads whose exchanges differ in their tags take from different slots.
#[derive(Debug)]
pub(super) struct Inbox {
    memory: Arc<Memory>,
    taken: Vec<[WordU64; MESSAGE_SLOTS]>,
}

impl Inbox {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        let none = |_| std::array::from_fn(|_| WordU64::default());
        Self { taken: (0..memory.layout().nranks()).map(none).collect(), memory }
    }

    /// The oldest message of `peer` about `tag` that was not taken yet.
    pub(super) fn find(&self, peer: u32, tag: Tag) -> Option<Received> {
        let slots = self.memory.used_slots(peer).iter().zip(&self.taken[peer as usize]).enumerate();
        slots
            .filter_map(|(number, (slot, taken))| {
                let message = slot.read(taken.load(), |header| payload_words(header, tag))?;
                Some(Received::new(number, &message))
            })
            .min_by_key(|message| message.generation)
    }

    /// Keeps [`find`](Self::find) from returning `message` again.
    pub(super) fn take(&self, peer: u32, message: &Received) {
        self.taken[peer as usize][message.slot].store(message.generation);
    }
}
