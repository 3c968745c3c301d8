//! Exchange of small notes between some of the ranks.
//!
//! Each rank has some note slots on its card that only it writes. To exchange, every member posts a note, collects the others' notes,
//! marks its own as *seen* and waits until every other member has marked its own so or has moved on; then nobody needs its note any
//! more and the slot is free again. A note is recognised by kind, id and members; the slot's generation, which only grows, keeps a
//! member from taking the same note twice.

use crate::group::{Group, Step};
use crate::layout::{NOTE_BYTES, NOTES};
use crate::memory::Memory;
use crate::watch::Needed;
use comm_context::comm::CommError;
use mailbox_atomics::fault_point;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};

const POSTED: u64 = 1;
const SEEN: u64 = 2;
const STATE_MASK: u64 = 3;

/// What an exchange is about. Concurrent exchanges differ in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topic {
    /// The operation.
    pub kind: u32,
    /// Which of them.
    pub id: u64,
}

/// This rank's slots, and which notes of others it has taken; local to the process.
#[derive(Debug)]
pub(crate) struct Notebook {
    own: Mutex<Own>,
    freed: Condvar,
    taken: Mutex<Vec<[u64; NOTES]>>,
}

#[derive(Debug)]
struct Own {
    generation: u64,
    busy: [bool; NOTES],
    bell: u64,
}

/// Where a note was found.
#[derive(Clone, Copy)]
struct Found {
    slot: usize,
    generation: u64,
}

impl Notebook {
    pub(crate) fn new(nranks: u32) -> Self {
        Self {
            own: Mutex::new(Own { generation: 0, busy: [false; NOTES], bell: 0 }),
            freed: Condvar::new(),
            taken: Mutex::new(vec![[0; NOTES]; nranks as usize]),
        }
    }

    /// Tells every peer that looks at this rank's card to look again.
    pub(crate) fn ring(&self, memory: &Memory, me: u32) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.bell += 1;
        memory.card(me).bell.store_and_wake(own.bell);
    }
}

/// A posted note of ours; taken down when dropped.
struct Posted<'a> {
    group: &'a Group,
    found: Found,
}

impl Group {
    /// Gives `note` to every member and returns the members' notes, in the order of `members`, which must be the same on each of them and
    /// include this rank. Returns on no member before every member has called.
    ///
    /// # Panics
    /// When the note has more than [`NOTE_BYTES`].
    pub fn exchange(
        &self,
        step: &Step<'_>,
        topic: Topic,
        members: &[u32],
        note: &[u8],
    ) -> Result<Vec<Vec<u8>>, CommError> {
        assert!(note.len() <= NOTE_BYTES, "a note has at most {NOTE_BYTES} bytes");
        fault_point!("exchange.posting");
        let posted = self.post(topic, members, note);
        fault_point!("exchange.posted");
        let me = self.me.rank();
        let mut collected: Vec<Option<(Found, Vec<u8>)>> = vec![None; members.len()];
        // From the last down, as the barrier does.
        for (at, &peer) in members.iter().enumerate().rev().filter(|(_, peer)| **peer != me) {
            collected[at] = Some(self.collect(step, topic, members, peer)?);
        }
        fault_point!("exchange.collected");
        posted.mark(SEEN);
        fault_point!("exchange.seen");
        for (&peer, taken) in members.iter().zip(&collected).rev() {
            if let Some((found, _)) = taken {
                self.await_seen(step, peer, *found)?;
            }
        }
        drop(posted);
        fault_point!("exchange.done");
        Ok(collected
            .into_iter()
            .map(|taken| taken.map_or_else(|| note.to_vec(), |(_, bytes)| bytes))
            .collect())
    }

    fn post(&self, topic: Topic, members: &[u32], note: &[u8]) -> Posted<'_> {
        let own = self.notebook.own.lock().unwrap_or_else(PoisonError::into_inner);
        // More threads at once than slots: wait for one of our own to finish, which its deadline bounds.
        let mut own = self
            .notebook
            .freed
            .wait_while(own, |own| own.busy.iter().all(|busy| *busy))
            .unwrap_or_else(PoisonError::into_inner);
        let slot = own.busy.iter().position(|busy| !busy).unwrap_or(0);
        own.busy[slot] = true;
        own.generation += 1;
        let found = Found { slot, generation: own.generation };
        drop(own);
        let me = self.me.rank();
        let words = self.memory.note(me, slot);
        words.kind.store(topic.kind);
        words.id.store(topic.id);
        words.members.store(members_hash(members));
        words.len.store(note.len() as u32);
        self.memory.inside(self.region().write(self.memory.layout.note_payload(me, slot), note));
        let posted = Posted { group: self, found };
        posted.mark(POSTED);
        posted
    }

    fn collect(
        &self,
        step: &Step<'_>,
        topic: Topic,
        members: &[u32],
        peer: u32,
    ) -> Result<(Found, Vec<u8>), CommError> {
        let needed = Needed::new(self, || vec![peer]);
        let bell = &self.memory.card(peer).bell;
        let (found, theirs, note) = self
            .wait(step, &needed)
            .on(bell, None, |_| self.find(peer, topic))
            .map_err(|error| self.explain(error, step.phase, vec![peer]))?;
        if theirs != members_hash(members) {
            return Err(CommError::Mismatch {
                what: "the members of the operation",
                rank: peer,
                mine: format!("{members:?}"),
                theirs: "another list".to_owned(),
            });
        }
        let mut taken = self.notebook.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken[peer as usize][found.slot] = found.generation;
        Ok((found, note))
    }

    /// The note of `peer` about `topic` that we have not taken yet.
    fn find(&self, peer: u32, topic: Topic) -> Option<(Found, u64, Vec<u8>)> {
        (0..NOTES).find_map(|slot| {
            let words = self.memory.note(peer, slot);
            let stamp = words.stamp.load();
            let found = Found { slot, generation: stamp / (STATE_MASK + 1) };
            if stamp & STATE_MASK == 0 || words.kind.load() != topic.kind || words.id.load() != topic.id {
                return None;
            }
            let taken = self.notebook.taken.lock().unwrap_or_else(PoisonError::into_inner);
            if taken[peer as usize][slot] == found.generation {
                return None;
            }
            let theirs = words.members.load();
            let mut note = vec![0; (words.len.load() as usize).min(NOTE_BYTES)];
            self.memory.inside(self.region().read(self.memory.layout.note_payload(peer, slot), &mut note));
            // Keeps the copy before the second look at the stamp: an unchanged generation means an unchanged note.
            fence(Ordering::Acquire);
            (words.stamp.load() / (STATE_MASK + 1) == found.generation).then_some((found, theirs, note))
        })
    }

    fn await_seen(&self, step: &Step<'_>, peer: u32, found: Found) -> Result<(), CommError> {
        let needed = Needed::new(self, || vec![peer]);
        let words = self.memory.note(peer, found.slot);
        self.wait(step, &needed)
            .on(&self.memory.card(peer).bell, None, |_| {
                let stamp = words.stamp.load();
                let moved_on = stamp / (STATE_MASK + 1) != found.generation;
                (moved_on || stamp & STATE_MASK != POSTED).then_some(())
            })
            .map_err(|error| self.explain(error, step.phase, vec![peer]))
    }
}

impl Posted<'_> {
    fn mark(&self, state: u64) {
        let memory = &self.group.memory;
        let me = self.group.me.rank();
        memory.note(me, self.found.slot).stamp.store(self.found.generation * (STATE_MASK + 1) + state);
        self.group.notebook.ring(memory, me);
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        // Nobody waits for a note to go.
        let memory = &self.group.memory;
        let stamp = self.found.generation * (STATE_MASK + 1);
        memory.note(self.group.me.rank(), self.found.slot).stamp.store(stamp);
        let notebook = &self.group.notebook;
        notebook.own.lock().unwrap_or_else(PoisonError::into_inner).busy[self.found.slot] = false;
        notebook.freed.notify_one();
    }
}

/// Tells lists of members apart.
fn members_hash(members: &[u32]) -> u64 {
    members
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, rank| (hash ^ u64::from(*rank)).wrapping_mul(0x0100_0000_01b3))
}
