//! This rank's own message slots.

use super::message::{Tag, header, payload};
use crate::hosts::{Event, Uplink};
use crate::memory::Memory;
use crate::memory::layout::{MESSAGE_SLOTS, Slot};
use mailbox_atomics::MessageState;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What this rank's slots are used for; local to the process.
#[derive(Debug)]
pub(super) struct Outbox {
    memory: Arc<Memory>,
    me: u32,
    /// To ranks on other hosts.
    uplink: Option<Uplink>,
    own: Mutex<Own>,
    freed: Condvar,
}

#[derive(Debug)]
struct Own {
    /// Of the last message.
    generation: u64,
    uses: [Use; MESSAGE_SLOTS],
    doorbell: u64,
    /// How often an exchange about a tag was refused since the last that succeeded: the number of the next
    /// attempt.
    attempts: HashMap<Tag, u64>,
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
    pub(super) fn new(memory: Arc<Memory>, me: u32, uplink: Option<Uplink>) -> Self {
        let own =
            Own { generation: 0, uses: [Use::Free; MESSAGE_SLOTS], doorbell: 0, attempts: HashMap::new() };
        Self { memory, me, uplink, own: Mutex::new(own), freed: Condvar::new() }
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
        for ((number, slot), used) in (0..).zip(self.memory.slots(self.me)).zip(&mut own.uses) {
            if let Use::Refused { tag: refused, generation } = *used
                && refused == tag
            {
                slot.withdraw(generation);
                self.tell(|| Event::Withdrawn { slot: number, generation });
                *used = Use::Free;
            }
        }
        let free = own.uses.iter().position(|slot| *slot == Use::Free);
        let number = free.or_else(|| own.uses.iter().position(|slot| *slot != Use::Busy))?;
        own.uses[number] = Use::Busy;
        own.generation += 1;
        let attempt = own.attempts.get(&tag).copied().unwrap_or(0);
        let posted = Posted { outbox: self, number, generation: own.generation, tag, attempt };
        self.memory.use_slot(self.me, number);
        drop(own);
        let (header, payload) = (header(tag, members, attempt, bytes.len()), payload(bytes));
        posted.slot().post(posted.generation, header, &payload);
        let (slot, generation) = (number as u32, posted.generation);
        self.tell(|| Event::Posted { slot, generation, header, payload });
        self.notify();
        Some(posted)
    }

    /// Tells ranks on other hosts what this one did to its slots.
    fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(uplink) = &self.uplink {
            uplink.tell(event());
        }
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
    tag: Tag,
    attempt: u64,
}

impl Posted<'_> {
    pub(super) fn tag(&self) -> Tag {
        self.tag
    }

    /// Which attempt at an exchange about its tag this is.
    pub(super) fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Tells the peers that this rank has the messages of all members.
    pub(super) fn mark_seen(&self) {
        self.mark(MessageState::Seen);
    }

    /// Tells the peers that this rank takes no part, and leaves the message for members that come late.
    pub(super) fn refuse(self) {
        self.mark(MessageState::Refused);
        self.outbox.lock().attempts.insert(self.tag, self.attempt + 1);
        self.settle(Use::Refused { tag: self.tag, generation: self.generation });
        std::mem::forget(self);
    }

    /// The exchange has succeeded: withdraws the message, and numbers the attempts about its tag anew.
    pub(super) fn complete(self) {
        self.outbox.lock().attempts.remove(&self.tag);
    }

    fn mark(&self, state: MessageState) {
        self.slot().mark(self.generation, state);
        let (slot, generation, seen) = (self.number as u32, self.generation, state == MessageState::Seen);
        self.outbox.tell(|| Event::Marked { slot, generation, seen });
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
        let (slot, generation) = (self.number as u32, self.generation);
        self.outbox.tell(|| Event::Withdrawn { slot, generation });
        self.settle(Use::Free);
    }
}
