//! Exchange of small notes between some of the ranks.
//!
//! Each rank has some note slots on its card that only it writes. To exchange, every member posts a note, collects the others' notes,
//! marks its own as *seen* and waits until every other member has marked its own so or has moved on; then nobody needs its note any
//! more and the slot is free again. A note is recognised by kind, id and members; the slot's generation, which only grows, keeps a
//! member from taking the same note twice. A member that finds another list of members than its own marks its note as *refused* and
//! leaves it, so that the other side finds the disagreement too, however late it comes.

use crate::group::{Group, Step};
use crate::layout::{MESSAGE_BYTES, NOTES};
use crate::memory::Memory;
use crate::watch::Needed;
use comm_context::comm::CommError;
use fault_points::fault_point;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};

const POSTED: u64 = 1;
const SEEN: u64 = 2;
const REFUSED: u64 = 3;
const STATE_MASK: u64 = 3;

/// What an exchange is about. Concurrent exchanges differ in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
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
    slots: [Slot; NOTES],
    bell: u64,
}

/// What one of this rank's slots holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    Free,
    /// The note of an exchange under way.
    Busy,
    /// The note of an exchange that was refused, for members that come late; room for others when there is no other.
    Refused(Tag),
}

/// Where a note was found.
#[derive(Clone, Copy, Debug)]
struct Found {
    slot: usize,
    generation: u64,
}

/// A note of a peer, copied.
#[derive(Debug)]
struct Note {
    found: Found,
    members: u64,
    refused: bool,
    bytes: Vec<u8>,
}

impl Notebook {
    pub(crate) fn new(nranks: u32) -> Self {
        Self {
            own: Mutex::new(Own { generation: 0, slots: [Slot::Free; NOTES], bell: 0 }),
            freed: Condvar::new(),
            taken: Mutex::new(vec![[0; NOTES]; nranks as usize]),
        }
    }

    /// Tells every peer that looks at this rank's card to look again.
    pub(crate) fn notify(&self, memory: &Memory, me: u32) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.bell += 1;
        memory.rank_block(me).bell.store_and_wake(own.bell);
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
    /// When the note has more than [`MESSAGE_BYTES`].
    pub fn exchange(
        &self,
        step: &Step<'_>,
        tag: Tag,
        members: &[u32],
        note: &[u8],
    ) -> Result<Vec<Vec<u8>>, CommError> {
        assert!(note.len() <= MESSAGE_BYTES, "a note has at most {MESSAGE_BYTES} bytes");
        fault_point!("exchange.posting");
        let posted = self.post(step, tag, members, note)?;
        fault_point!("exchange.posted");
        let me = self.me.rank();
        let mut collected: Vec<Option<Note>> = members.iter().map(|_| None).collect();
        // From the last down, as the barrier does.
        for (at, &peer) in members.iter().enumerate().rev().filter(|(_, peer)| **peer != me) {
            let theirs = self.collect(step, tag, peer)?;
            if theirs.members != members_hash(members) || theirs.refused {
                posted.refuse(tag);
                return Err(disagreement(step, members, peer, &theirs));
            }
            collected[at] = Some(theirs);
        }
        fault_point!("exchange.collected");
        posted.mark(SEEN);
        fault_point!("exchange.seen");
        for (&peer, taken) in members.iter().zip(&collected).rev() {
            if let Some(theirs) = taken {
                self.await_seen(step, peer, theirs.found)?;
            }
        }
        drop(posted);
        fault_point!("exchange.done");
        Ok(collected
            .into_iter()
            .map(|taken| taken.map_or_else(|| note.to_vec(), |theirs| theirs.bytes))
            .collect())
    }

    fn post(&self, step: &Step<'_>, tag: Tag, members: &[u32], note: &[u8]) -> Result<Posted<'_>, CommError> {
        let found = self.take_slot(step, tag)?;
        let me = self.me.rank();
        let words = self.memory.note(me, found.slot);
        words.kind.store(tag.kind);
        words.id.store(tag.id);
        words.members.store(members_hash(members));
        words.len.store(note.len() as u32);
        self.memory.inside(self.region().write(self.memory.layout.note_payload(me, found.slot), note));
        let posted = Posted { group: self, found };
        posted.mark(POSTED);
        Ok(posted)
    }

    /// A slot for a new note. What was refused before about the same tag goes: this is the next try.
    fn take_slot(&self, step: &Step<'_>, tag: Tag) -> Result<Found, CommError> {
        let me = self.me.rank();
        let own = self.notebook.own.lock().unwrap_or_else(PoisonError::into_inner);
        // More threads at once than slots: wait for one of our own to finish.
        let all_busy = |own: &mut Own| own.slots.iter().all(|slot| *slot == Slot::Busy);
        let waited = self.notebook.freed.wait_timeout_while(own, step.deadline().left(), all_busy);
        let (mut own, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let (waited, limit) = (step.deadline().elapsed(), step.deadline().limit());
            let error = CommError::TimedOut {
                phase: step.phase,
                waited,
                limit,
                missing: vec![me],
                table: self.table(),
            };
            return Err(self.record_failure(error));
        }
        for slot in 0..NOTES {
            if own.slots[slot] == Slot::Refused(tag) {
                self.memory.note(me, slot).stamp.store(0);
                own.slots[slot] = Slot::Free;
            }
        }
        let free = own.slots.iter().position(|slot| *slot == Slot::Free);
        let slot = free.or_else(|| own.slots.iter().position(|slot| *slot != Slot::Busy)).unwrap_or(0);
        // Nobody may read the old note's words while the new ones are written.
        self.memory.note(me, slot).stamp.store(0);
        // Release: keeps the new words and bytes behind that store; pairs with the acquire fence in `note_in`.
        fence(Ordering::Release);
        own.slots[slot] = Slot::Busy;
        own.generation += 1;
        let slots = &self.memory.rank_block(me).slots;
        slots.store(slots.load().max(slot as u32 + 1));
        Ok(Found { slot, generation: own.generation })
    }

    fn collect(&self, step: &Step<'_>, tag: Tag, peer: u32) -> Result<Note, CommError> {
        let needed = Needed::new(self, || vec![peer]);
        let note = self
            .wait(step, &needed)
            .on(&self.memory.rank_block(peer).bell, None, |_| self.find(peer, tag))
            .map_err(|error| self.explain(error, step.phase, vec![peer]))?;
        let mut taken = self.notebook.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken[peer as usize][note.found.slot] = note.found.generation;
        Ok(note)
    }

    /// The oldest note of `peer` about `tag` that we have not taken yet.
    fn find(&self, peer: u32, tag: Tag) -> Option<Note> {
        let slots = (self.memory.rank_block(peer).slots.load() as usize).min(NOTES);
        let notes = (0..slots).filter_map(|slot| self.note_in(peer, slot, tag));
        notes.min_by_key(|note| note.found.generation)
    }

    fn note_in(&self, peer: u32, slot: usize, tag: Tag) -> Option<Note> {
        let words = self.memory.note(peer, slot);
        let stamp = words.stamp.load();
        let found = Found { slot, generation: stamp / (STATE_MASK + 1) };
        if stamp & STATE_MASK == 0 || words.kind.load() != tag.kind || words.id.load() != tag.id {
            return None;
        }
        let taken = self.notebook.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken[peer as usize][slot] == found.generation {
            return None;
        }
        let members = words.members.load();
        let mut bytes = vec![0; (words.len.load() as usize).min(MESSAGE_BYTES)];
        self.memory.inside(self.region().read(self.memory.layout.note_payload(peer, slot), &mut bytes));
        // Keeps the copy before the second look at the stamp: an unchanged generation means an unchanged note.
        fence(Ordering::Acquire);
        let refused = stamp & STATE_MASK == REFUSED;
        let unchanged = words.stamp.load() / (STATE_MASK + 1) == found.generation;
        unchanged.then_some(Note { found, members, refused, bytes })
    }

    fn await_seen(&self, step: &Step<'_>, peer: u32, found: Found) -> Result<(), CommError> {
        let needed = Needed::new(self, || vec![peer]);
        let words = self.memory.note(peer, found.slot);
        self.wait(step, &needed)
            .on(&self.memory.rank_block(peer).bell, None, |_| {
                let stamp = words.stamp.load();
                let moved_on = stamp / (STATE_MASK + 1) != found.generation;
                (moved_on || stamp & STATE_MASK != POSTED).then_some(())
            })
            .map_err(|error| self.explain(error, step.phase, vec![peer]))
    }
}

#[cfg(fuzzing)]
impl Group {
    pub(crate) fn found(&self, peer: u32, tag: Tag) -> Option<Vec<u8>> {
        self.find(peer, tag).map(|note| note.bytes)
    }
}

impl Posted<'_> {
    fn mark(&self, state: u64) {
        let memory = &self.group.memory;
        let me = self.group.me.rank();
        memory.note(me, self.found.slot).stamp.store(self.found.generation * (STATE_MASK + 1) + state);
        self.group.notebook.notify(memory, me);
    }

    /// Leaves the note for members that come late, as a sign that they will not find this rank.
    fn refuse(self, tag: Tag) {
        self.mark(REFUSED);
        self.settle(Slot::Refused(tag));
        std::mem::forget(self);
    }

    fn settle(&self, slot: Slot) {
        let notebook = &self.group.notebook;
        notebook.own.lock().unwrap_or_else(PoisonError::into_inner).slots[self.found.slot] = slot;
        notebook.freed.notify_one();
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        // Nobody waits for a note to go.
        let stamp = self.found.generation * (STATE_MASK + 1);
        self.group.memory.note(self.group.me.rank(), self.found.slot).stamp.store(stamp);
        self.settle(Slot::Free);
    }
}

fn disagreement(step: &Step<'_>, members: &[u32], peer: u32, theirs: &Note) -> CommError {
    if theirs.members == members_hash(members) {
        let message = "it found another member with another list of members".to_owned();
        return CommError::PeerFailed { rank: peer, phase: step.phase, message };
    }
    CommError::Mismatch {
        what: "the members of the operation",
        rank: peer,
        mine: format!("{members:?}"),
        theirs: "another list".to_owned(),
    }
}

/// Tells lists of members apart.
fn members_hash(members: &[u32]) -> u64 {
    members
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, rank| (hash ^ u64::from(*rank)).wrapping_mul(0x0100_0000_01b3))
}
