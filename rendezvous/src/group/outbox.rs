//! This rank's own message slots.

use super::message::{Tag, header, payload};
use crate::memory::Memory;
use crate::memory::layout::{MESSAGE_SLOTS, Slot};
use mailbox_atomics::MessageState;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What this rank's slots are used for; local to the process.
#[derive(Debug)]
pub(super) struct Outbox {
    memory: Arc<Memory>,
    me: u32,
    own: Mutex<Own>,
    freed: Condvar,
}

#[derive(Debug)]
struct Own {
    /// Of the last message.
    generation: u64,
    uses: [Use; MESSAGE_SLOTS],
    doorbell: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Free,
    /// The message of an exchange under way.
    Busy,
    /// The message of a refused exchange. It stays for members that come late, as long as no other slot is
    /// free.
    Refused {
        tag: Tag,
        generation: u64,
    },
}

impl Outbox {
    pub(super) fn new(memory: Arc<Memory>, me: u32) -> Self {
        let own = Own { generation: 0, uses: [Use::Free; MESSAGE_SLOTS], doorbell: 0 };
        Self { memory, me, own: Mutex::new(own), freed: Condvar::new() }
    }

    /// Wakes the peers that wait for a message of this rank, or for its end.
    pub(super) fn notify(&self) {
        let mut own = self.lock();
        own.doorbell += 1;
        self.memory.doorbell(self.me).store_and_wake(own.doorbell);
    }

    /// Posts a message. A message about the same tag that was refused before goes: this is the next attempt.
    /// With all slots busy it waits for one; `None` when none becomes free within `left`.
    pub(super) fn post(&self, left: Duration, tag: Tag, members: u64, bytes: &[u8]) -> Option<Posted<'_>> {
        let all_busy = |own: &mut Own| own.uses.iter().all(|slot| *slot == Use::Busy);
        let waited = self.freed.wait_timeout_while(self.lock(), left, all_busy);
        let (mut own, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        for (slot, used) in self.memory.slots(self.me).iter().zip(&mut own.uses) {
            if let Use::Refused { tag: refused, generation } = *used
                && refused == tag
            {
                slot.withdraw(generation);
                *used = Use::Free;
            }
        }
        let free = own.uses.iter().position(|slot| *slot == Use::Free);
        let number = free.or_else(|| own.uses.iter().position(|slot| *slot != Use::Busy))?;
        own.uses[number] = Use::Busy;
        own.generation += 1;
        let posted = Posted { outbox: self, number, generation: own.generation };
        self.memory.use_slot(self.me, number);
        drop(own);
        posted.slot().post(posted.generation, header(tag, members, bytes.len()), &payload(bytes));
        self.notify();
        Some(posted)
    }

    fn lock(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A posted message of this rank; withdrawn when dropped.
pub(super) struct Posted<'a> {
    outbox: &'a Outbox,
    number: usize,
    generation: u64,
}

impl Posted<'_> {
    /// Tells the peers that this rank has the messages of all members.
    pub(super) fn mark_seen(&self) {
        self.mark(MessageState::Seen);
    }

    /// Tells the peers that this rank takes no part, and leaves the message for members that come late.
    pub(super) fn refuse(self, tag: Tag) {
        self.mark(MessageState::Refused);
        self.settle(Use::Refused { tag, generation: self.generation });
        std::mem::forget(self);
    }

    fn mark(&self, state: MessageState) {
        self.slot().mark(self.generation, state);
        self.outbox.notify();
    }

    fn settle(&self, used: Use) {
        self.outbox.lock().uses[self.number] = used;
        self.outbox.freed.notify_one();
    }

    fn slot(&self) -> &Slot {
        &self.outbox.memory.slots(self.outbox.me)[self.number]
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        // Peers need no notification: none waits for a message to go.
        self.slot().withdraw(self.generation);
        self.settle(Use::Free);
    }
}
