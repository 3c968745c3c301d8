//! The messages of a rendezvous: one datagram each, numbers first, then the text without a length. Any bytes
//! from a peer decode to a message or to none.

use worker_errors::cursor::{Reader, Writer};
use worker_errors::{clip, escape};

/// What every message starts with.
const MAGIC: u64 = u64::from_le_bytes(*b"chipjoin");
pub(super) const TEXT_BYTES: usize = 4096;
/// The longest message: magic, kind, two more numbers and a text.
pub(super) const MESSAGE_BYTES: usize = 8 + 4 + 8 + TEXT_BYTES;

const JOIN: u32 = 1;
const QUERY: u32 = 2;
const ACCEPTED: u32 = 3;
const MEMORY: u32 = 4;
const REFUSED: u32 = 5;
const LOST: u32 = 6;
const TABLE: u32 = 7;
const LEAVE: u32 = 8;
const ATTACHED: u32 = 9;

/// A message between leader and joiner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To the leader: this rank joins. All but the rank must be the same on all ranks, and `extent` is the most that
    /// this rank can map for each of them.
    Join { hash: u64, rank: u32, nranks: u32, extent: u64, pid_namespace: u64 },
    /// To the leader: which ranks have joined?
    Query,
    /// The leader, which is that rank, has accepted a `Join`.
    Accepted { leader: u32 },
    /// All ranks have joined. The descriptors of the group's memory come with this message.
    Memory { nonce: u64, extent: u64 },
    /// The leader does not accept this rank, ranks disagree, or the leader fails itself.
    Refused { reason: String },
    /// An accepted rank is gone and the rendezvous is aborted; see [`super::Departure`].
    Lost { departed: u32, pid: u32, reason: String },
    /// The ranks that have joined, as text, and a bit for each that has not. Answers a `Query`; to an
    /// accepted rank: the leader's deadline has passed.
    Table { missing: u64, text: String },
    /// To the leader: an accepted rank does not wait any longer, or cannot attach the group's memory.
    Leave { reason: String },
    /// To the leader: this rank has attached the group's memory.
    Attached,
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u64(MAGIC);
        match self {
            Self::Join { hash, rank, nranks, extent, pid_namespace } => {
                to.u32(JOIN).u64(*hash).u32(*rank).u32(*nranks).u64(*extent).u64(*pid_namespace)
            }
            Self::Query => to.u32(QUERY),
            Self::Accepted { leader } => to.u32(ACCEPTED).u32(*leader),
            Self::Memory { nonce, extent } => to.u32(MEMORY).u64(*nonce).u64(*extent),
            Self::Refused { .. } => to.u32(REFUSED),
            Self::Lost { departed, pid, .. } => to.u32(LOST).u32(*departed).u32(*pid),
            Self::Table { missing, .. } => to.u32(TABLE).u64(*missing),
            Self::Leave { .. } => to.u32(LEAVE),
            Self::Attached => to.u32(ATTACHED),
        };
        to.raw(clip(self.text().unwrap_or(""), TEXT_BYTES).as_bytes());
        to.into_bytes()
    }

    /// The text of those messages that have one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Refused { reason: text }
            | Self::Lost { reason: text, .. }
            | Self::Table { text, .. }
            | Self::Leave { reason: text } => Some(text),
            Self::Join { .. }
            | Self::Query
            | Self::Accepted { .. }
            | Self::Memory { .. }
            | Self::Attached => None,
        }
    }

    /// `None` for anything that [`encode`](Self::encode) does not make. A text may be any, and is escaped.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        if from.u64()? != MAGIC {
            return None;
        }
        match from.u32()? {
            JOIN => {
                let (hash, rank, nranks, extent) = (from.u64()?, from.u32()?, from.u32()?, from.u64()?);
                let pid_namespace = from.u64()?;
                from.end(Self::Join { hash, rank, nranks, extent, pid_namespace })
            }
            QUERY => from.end(Self::Query),
            ATTACHED => from.end(Self::Attached),
            ACCEPTED => {
                let leader = from.u32()?;
                from.end(Self::Accepted { leader })
            }
            MEMORY => {
                let (nonce, extent) = (from.u64()?, from.u64()?);
                from.end(Self::Memory { nonce, extent })
            }
            REFUSED => Some(Self::Refused { reason: text(from)? }),
            LOST => Some(Self::Lost { departed: from.u32()?, pid: from.u32()?, reason: text(from)? }),
            TABLE => Some(Self::Table { missing: from.u64()?, text: text(from)? }),
            LEAVE => Some(Self::Leave { reason: text(from)? }),
            _ => None,
        }
    }
}

/// The rest of a message as lines without control characters; `None` when it is too long.
fn text(from: Reader<'_>) -> Option<String> {
    let bytes = Some(from.rest()).filter(|bytes| bytes.len() <= TEXT_BYTES)?;
    let lines = String::from_utf8_lossy(bytes);
    Some(lines.lines().map(|line| escape(line, TEXT_BYTES)).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Message; 9] {
        [
            Message::Join {
                hash: 0x0123_4567_89ab_cdef,
                rank: 3,
                nranks: 5,
                extent: 1 << 35,
                pid_namespace: 9,
            },
            Message::Query,
            Message::Accepted { leader: 2 },
            Message::Memory { nonce: u64::MAX, extent: 1 << 40 },
            Message::Refused { reason: "rank 1 has joined already\n  second line".to_owned() },
            Message::Lost { departed: 0x0202_0009, pid: 77, reason: "why".to_owned() },
            Message::Table { missing: 6, text: "rank 0".to_owned() },
            Message::Leave { reason: "its own reasons".to_owned() },
            Message::Attached,
        ]
    }

    #[test]
    fn every_message_survives_the_wire() {
        for message in all() {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn f17_each_flipped_byte_is_refused_or_changes_the_message() {
        for message in all() {
            let bytes = message.encode();
            for at in 0..bytes.len() {
                let mut wrong = bytes.clone();
                wrong[at] ^= 0xff;
                assert_ne!(Message::decode(&wrong), Some(message.clone()), "byte {at} of {message:?}");
            }
            for len in 0..bytes.len() {
                assert_ne!(
                    Message::decode(&bytes[..len]),
                    Some(message.clone()),
                    "{len} bytes of {message:?}"
                );
            }
        }
    }

    #[test]
    fn text_from_a_peer_is_bounded_and_escaped() {
        let refused = Message::Refused { reason: "\u{1b}[31m".repeat(2000) };
        let Some(Message::Refused { reason }) = Message::decode(&refused.encode()) else { panic!() };
        assert!(reason.len() <= 2 * TEXT_BYTES && !reason.contains('\u{1b}'));
        assert!(refused.encode().len() <= MESSAGE_BYTES);
        let mut long = Message::Refused { reason: String::new() }.encode();
        long.resize(long.len() + TEXT_BYTES + 1, b'x');
        assert_eq!(Message::decode(&long), None);
    }
}
