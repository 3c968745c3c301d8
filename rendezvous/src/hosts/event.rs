//! What a rank did to its own part of the group's memory, so that every other host can do the same to its copy.

use super::error::Lost;
use crate::memory::Memory;
use crate::memory::layout::{BROADCAST_BYTES, HEADER_WORDS, MESSAGE_BYTES, MESSAGE_SLOTS, REASON_BYTES};
use comm_context::comm::Phase;
use deadline::coarse_monotonic_ns;
use mailbox_atomics::MessageState;
use std::num::NonZeroI32;
use worker_errors::cursor::{Reader, Writer};

const PHASE: u8 = 1;
const ARRIVED: u8 = 2;
const POSTED: u8 = 3;
const MARKED: u8 = 4;
const WITHDRAWN: u8 = 5;
const BROADCAST: u8 = 6;
const LEFT: u8 = 7;
const IMPORTS: u8 = 8;
const LOST: u8 = 9;

const SEEN: u8 = 1;
const REFUSED: u8 = 2;

/// A change of the part of the group's memory that one rank writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It entered a phase.
    Phase(Phase),
    /// It arrived at the barrier, this often.
    Arrived(u64),
    /// It posted a message.
    Posted { slot: u32, generation: u64, header: [u64; HEADER_WORDS], payload: Vec<u64> },
    /// It has seen the messages of all members, or refuses.
    Marked { slot: u32, generation: u64, seen: bool },
    /// It withdrew a message.
    Withdrawn { slot: u32, generation: u64 },
    /// It broadcast these bytes.
    Broadcast(Vec<u8>),
    /// It left the group.
    Left(String),
    /// What it says about the windows of others that it has open.
    Imports(u32),
    /// Its connection to rank 0 is lost. Only rank 0 says so.
    Lost(Lost),
}

impl Event {
    pub(super) fn encode(&self, to: &mut Writer) {
        match self {
            Self::Phase(phase) => to.u8(PHASE).u32(phase.code()),
            Self::Arrived(phase) => to.u8(ARRIVED).u64(*phase),
            Self::Posted { slot, generation, header, payload } => {
                to.u8(POSTED).u32(*slot).u64(*generation);
                for word in header.iter().chain(payload) {
                    to.u64(*word);
                }
                to
            }
            Self::Marked { slot, generation, seen } => {
                to.u8(MARKED).u32(*slot).u64(*generation).u8(if *seen { SEEN } else { REFUSED })
            }
            Self::Withdrawn { slot, generation } => to.u8(WITHDRAWN).u32(*slot).u64(*generation),
            Self::Broadcast(bytes) => to.u8(BROADCAST).raw(bytes),
            Self::Left(reason) => to.u8(LEFT).raw(worker_errors::clip(reason, REASON_BYTES).as_bytes()),
            Self::Imports(value) => to.u8(IMPORTS).u32(*value),
            Self::Lost(how) => to.u8(LOST).u8(*how as u8),
        };
    }

    pub(super) fn decode(mut from: Reader<'_>) -> Option<Self> {
        let slot = |slot: u32| ((slot as usize) < MESSAGE_SLOTS).then_some(slot);
        match from.u8()? {
            PHASE => {
                let phase = Phase::from_code(from.u32()?)?;
                from.end(Self::Phase(phase))
            }
            ARRIVED => {
                let phase = from.u64()?;
                from.end(Self::Arrived(phase))
            }
            POSTED => {
                let (slot, generation) = (slot(from.u32()?)?, from.u64()?);
                let mut header = [0; HEADER_WORDS];
                for word in &mut header {
                    *word = from.u64()?;
                }
                let words = from.rest();
                if !words.len().is_multiple_of(8) || words.len() > MESSAGE_BYTES {
                    return None;
                }
                let payload = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                Some(Self::Posted { slot, generation, header, payload })
            }
            MARKED => {
                let (slot, generation, state) = (slot(from.u32()?)?, from.u64()?, from.u8()?);
                let seen = [(SEEN, true), (REFUSED, false)].into_iter().find(|(code, _)| *code == state)?.1;
                from.end(Self::Marked { slot, generation, seen })
            }
            WITHDRAWN => {
                let (slot, generation) = (slot(from.u32()?)?, from.u64()?);
                from.end(Self::Withdrawn { slot, generation })
            }
            BROADCAST => Some(from.rest())
                .filter(|bytes| bytes.len() <= BROADCAST_BYTES)
                .map(|b| Self::Broadcast(b.to_vec())),
            LEFT => {
                let bytes = Some(from.rest()).filter(|bytes| bytes.len() <= REASON_BYTES)?;
                str::from_utf8(bytes).ok().map(|reason| Self::Left(reason.to_owned()))
            }
            IMPORTS => {
                let value = from.u32()?;
                from.end(Self::Imports(value))
            }
            LOST => {
                let how = *Lost::ALL.get(usize::from(from.u8()?))?;
                from.end(Self::Lost(how))
            }
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn examples() -> Vec<Self> {
        vec![
            Self::Phase(Phase::Barrier),
            Self::Arrived(u64::MAX),
            Self::Posted {
                slot: 127,
                generation: 9,
                header: [1, 2, 3, 4],
                payload: vec![7; MESSAGE_BYTES / 8],
            },
            Self::Marked { slot: 1, generation: 2, seen: true },
            Self::Marked { slot: 1, generation: 2, seen: false },
            Self::Withdrawn { slot: 3, generation: 4 },
            Self::Broadcast(vec![5; BROADCAST_BYTES]),
            Self::Left("its own reasons".to_owned()),
            Self::Imports(1),
            Self::Lost(Lost::Closed),
        ]
    }
}

/// This host's copy of the memory of ranks elsewhere. The thread that relays messages is its only writer.
#[derive(Debug)]
pub(super) struct Copies {
    doorbells: Vec<u64>,
}

impl Copies {
    pub(super) fn new(nranks: u32) -> Self {
        Self { doorbells: vec![0; nranks as usize] }
    }

    /// How many ranks.
    pub(super) fn len(&self) -> u32 {
        self.doorbells.len() as u32
    }

    /// Does to the copy of `rank`'s memory what the rank did to its own, and wakes who waits for it. What the peer
    /// sent is bounded by its decoder; an event that no rank of this version makes changes nothing.
    pub(super) fn apply(&mut self, memory: &Memory, rank: u32, event: &Event) {
        let slot = |slot: u32| &memory.slots(rank)[slot as usize % MESSAGE_SLOTS];
        match event {
            Event::Phase(phase) => return memory.publish_phase(rank, *phase, coarse_monotonic_ns()),
            Event::Arrived(phase) => return memory.places()[rank as usize].announce(*phase),
            Event::Imports(value) => return memory.publish_imports(rank, *value),
            Event::Posted { slot: number, generation, header, payload } => {
                memory.use_slot(rank, *number as usize % MESSAGE_SLOTS);
                slot(*number).post(*generation, *header, payload);
            }
            Event::Marked { slot: number, generation, seen } => {
                let state = if *seen { MessageState::Seen } else { MessageState::Refused };
                slot(*number).mark(*generation, state);
            }
            Event::Withdrawn { slot: number, generation } => slot(*number).withdraw(*generation),
            Event::Broadcast(bytes) => {
                // A second broadcast of a group is refused, here as everywhere.
                let _ = memory.broadcast_state().publish(NonZeroI32::MIN, || memory.write_broadcast(bytes));
            }
            Event::Left(reason) if !memory.has_left(rank) => memory.publish_departure(rank, reason),
            Event::Left(_) | Event::Lost(_) => {}
        }
        self.notify(memory, rank);
    }

    /// Wakes who waits for `rank`.
    pub(super) fn notify(&mut self, memory: &Memory, rank: u32) {
        if let Some(doorbell) = self.doorbells.get_mut(rank as usize) {
            *doorbell += 1;
            memory.doorbell(rank).store_and_wake(*doorbell);
        }
    }
}
