//! A message of an exchange, as the words of its slot.
//!
//! Header: the tag's kind with the length of the bytes in the upper half, the tag's id, a hash of the
//! members. Payload: the bytes, little endian, the last word padded with zeros.

use crate::memory::layout::{HEADER_WORDS, MESSAGE_BYTES};
use mailbox_atomics::{Message, MessageState};
use shared_memory::{FNV_OFFSET, fnv1a};

/// What an exchange is about. Concurrent exchanges of one rank differ in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The operation.
    pub kind: u32,
    /// Which of them.
    pub id: u64,
}

pub(super) type Header = [u64; HEADER_WORDS];

pub(super) fn header(tag: Tag, members: u64, len: usize) -> Header {
    [u64::from(tag.kind) | (len as u64) << 32, tag.id, members]
}

pub(super) fn payload(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

/// How many words of payload belong to a message about `tag`; `None` when `header` is about something else.
pub(super) fn payload_words(header: &Header, tag: Tag) -> Option<usize> {
    let matches = header[0] as u32 == tag.kind && header[1] == tag.id;
    matches.then(|| bytes_len(header).div_ceil(8))
}

/// A peer's number, bounded.
fn bytes_len(header: &Header) -> usize {
    ((header[0] >> 32) as usize).min(MESSAGE_BYTES)
}

/// A peer's message, copied.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) slot: usize,
    pub(super) generation: u64,
    /// [`members_hash`] of the peer's list.
    pub(super) members: u64,
    pub(super) refused: bool,
    pub(super) bytes: Vec<u8>,
}

impl Received {
    pub(super) fn new(slot: usize, message: &Message<HEADER_WORDS>) -> Self {
        let mut bytes: Vec<u8> = message.payload.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes_len(&message.header));
        Self {
            slot,
            generation: message.generation,
            members: message.header[2],
            refused: message.state == MessageState::Refused,
            bytes,
        }
    }
}

/// Tells lists of members apart.
pub(super) fn members_hash(members: &[u32]) -> u64 {
    members.iter().fold(FNV_OFFSET, |hash, rank| fnv1a(hash, &rank.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_survive_the_words() {
        let tag = Tag { kind: u32::MAX, id: 5 };
        for len in 0..=MESSAGE_BYTES {
            let bytes: Vec<u8> = (0..len as u8).map(|byte| byte.wrapping_mul(37) ^ 0xff).collect();
            let (header, payload) = (header(tag, 9, len), payload(&bytes));
            assert_eq!(payload_words(&header, tag), Some(payload.len()));
            let message = Message { generation: 3, state: MessageState::Refused, header, payload };
            let received = Received::new(7, &message);
            assert_eq!((received.slot, received.generation, received.members), (7, 3, 9));
            assert!(received.refused && received.bytes == bytes);
        }
        let other = header(Tag { kind: 1, id: 5 }, 9, 0);
        assert_eq!(payload_words(&other, tag), None);
        assert_eq!(payload_words(&other, Tag { kind: 1, id: 6 }), None);
    }

    #[test]
    fn f29_a_length_that_a_peer_made_up_is_bounded() {
        let tag = Tag { kind: 1, id: 5 };
        let header = [1 | u64::from(u32::MAX) << 32, 5, 0];
        assert_eq!(payload_words(&header, tag), Some(MESSAGE_BYTES / 8));
        let payload = vec![0; MESSAGE_BYTES / 8];
        let message = Message { generation: 1, state: MessageState::Posted, header, payload };
        assert_eq!(Received::new(0, &message).bytes.len(), MESSAGE_BYTES);
    }

    #[test]
    fn lists_of_members_differ_by_order_and_content() {
        let lists: [&[u32]; 5] = [&[], &[0], &[0, 1], &[1, 0], &[0, 1, 2]];
        for (at, list) in lists.iter().enumerate() {
            assert!(lists[..at].iter().all(|other| members_hash(other) != members_hash(list)));
        }
    }
}
