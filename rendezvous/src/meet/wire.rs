//! The messages of a meeting. One datagram each, fixed size, little endian; bytes from a peer are decoded totally.

use worker_errors::{clip, escape};

/// What every message starts with: "chipmeet".
const MAGIC: u64 = u64::from_le_bytes(*b"chipmeet");
pub(crate) const TEXT_BYTES: usize = 4096;
/// The longest message: 48 bytes of numbers and a text.
pub(crate) const MESSAGE_BYTES: usize = 48 + TEXT_BYTES;

const JOIN: u32 = 1;
const ASK: u32 = 2;
const SEATED: u32 = 3;
const WELCOME: u32 = 4;
const REFUSED: u32 = 5;
const LOST: u32 = 6;
const TABLE: u32 = 7;

/// What is said at a meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A rank comes. All must bring the same layout hash, size and extent.
    Join { hash: u64, rank: u32, nranks: u32, extent: u64 },
    /// Somebody wants to know who is here.
    Ask,
    /// The host heard a `Join`: it is that rank.
    Seated { host: u32 },
    /// All are here; the group's memory comes with this message.
    Welcome { nonce: u64 },
    /// No, and why. From a seated rank: that it goes, and why.
    Refused { text: String },
    /// A seated rank is gone, so the meeting is off; see [`super::Departure`].
    Lost { departed: u32, pid: u32, reason: String },
    /// Who is here, as text, and a bit for each rank that is not. The answer to `Ask`; to a seated rank, that the host's time is over.
    Table { missing: u64, text: String },
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, a, b, c, d, text) = match self {
            Self::Join { hash, rank, nranks, extent } => (JOIN, *rank, *nranks, *hash, *extent, ""),
            Self::Ask => (ASK, 0, 0, 0, 0, ""),
            Self::Seated { host } => (SEATED, *host, 0, 0, 0, ""),
            Self::Welcome { nonce } => (WELCOME, 0, 0, *nonce, 0, ""),
            Self::Refused { text } => (REFUSED, 0, 0, 0, 0, text.as_str()),
            Self::Lost { departed, pid, reason } => (LOST, *departed, *pid, 0, 0, reason.as_str()),
            Self::Table { missing, text } => (TABLE, 0, 0, *missing, 0, text.as_str()),
        };
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES);
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend([a, b].map(u32::to_le_bytes).concat());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend([c, d].map(u64::to_le_bytes).concat());
        bytes.extend([0; 8]);
        bytes.extend(clip(text, TEXT_BYTES).as_bytes());
        bytes
    }

    /// `None` for anything that [`encode`](Self::encode) does not make, up to the text, which is made harmless.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, text) = bytes.split_at_checked(48)?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(numbers.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(numbers.get(at..at + 8)?.try_into().ok()?));
        if u64_at(0)? != MAGIC || u32_at(20)? != 0 || u64_at(40)? != 0 || text.len() > TEXT_BYTES {
            return None;
        }
        let (a, b, c, d) = (u32_at(12)?, u32_at(16)?, u64_at(24)?, u64_at(32)?);
        match (u32_at(8)?, (a, b, c, d), text) {
            (JOIN, (rank, nranks, hash, extent), []) => Some(Self::Join { hash, rank, nranks, extent }),
            (ASK, (0, 0, 0, 0), []) => Some(Self::Ask),
            (SEATED, (host, 0, 0, 0), []) => Some(Self::Seated { host }),
            (WELCOME, (0, 0, nonce, 0), []) => Some(Self::Welcome { nonce }),
            (REFUSED, (0, 0, 0, 0), text) => Some(Self::Refused { text: harmless(text) }),
            (LOST, (departed, pid, 0, 0), text) => Some(Self::Lost { departed, pid, reason: harmless(text) }),
            (TABLE, (0, 0, missing, 0), text) => Some(Self::Table { missing, text: harmless(text) }),
            _ => None,
        }
    }
}

/// Lines of a peer's text without anything that a terminal would obey.
fn harmless(text: &[u8]) -> String {
    let lines = String::from_utf8_lossy(text);
    lines.lines().map(|line| escape(line, TEXT_BYTES)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Message; 7] {
        [
            Message::Join { hash: 0x0123_4567_89ab_cdef, rank: 3, nranks: 5, extent: 1 << 35 },
            Message::Ask,
            Message::Seated { host: 2 },
            Message::Welcome { nonce: u64::MAX },
            Message::Refused { text: "rank 1 is here twice\n  second line".to_owned() },
            Message::Lost { departed: 0x0202_0009, pid: 77, reason: "why".to_owned() },
            Message::Table { missing: 6, text: "rank 0".to_owned() },
        ]
    }

    #[test]
    fn every_message_survives_the_wire() {
        for message in all() {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn f17_each_flipped_byte_is_refused_or_changes_what_is_said() {
        for message in all() {
            let bytes = message.encode();
            for at in 0..bytes.len() {
                let mut wrong = bytes.clone();
                wrong[at] ^= 0xff;
                assert_ne!(Message::decode(&wrong), Some(message.clone()), "byte {at} of {message:?}");
            }
            for len in 0..bytes.len().min(48) {
                assert_eq!(Message::decode(&bytes[..len]), None);
            }
        }
    }

    #[test]
    fn text_from_a_peer_is_bounded_and_harmless() {
        let refused = Message::Refused { text: "\u{1b}[31m".repeat(2000) };
        let Some(Message::Refused { text }) = Message::decode(&refused.encode()) else { panic!() };
        assert!(text.len() <= 2 * TEXT_BYTES && !text.contains('\u{1b}'));
        assert_eq!(Message::decode(&vec![0xff; 48 + TEXT_BYTES + 1]), None);
    }
}
