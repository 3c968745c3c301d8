//! The messages between ranks on several hosts. Any bytes from a peer decode to a message or to none.
//!
//! On the wire a message is its length in four bytes, its body, and, once both sides have proved that they know the
//! token, its tag. The body is a number for its kind, the numbers of that kind, then the text without a length.

use super::error::Lost;
use super::event::Event;
use super::proof::{Challenge, Proof};
use worker_errors::cursor::{Reader, Writer};
use worker_errors::{clip, escape};

/// What the first message of each side starts with. The last character is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"chiphos1");
/// The longest text.
pub(super) const TEXT_BYTES: usize = 4096;
/// The longest body: the list of 64 members.
pub(super) const BODY_BYTES: usize = 8192;
/// The longest body of a process that has not proved that it knows the token: a `Join`.
pub(super) const STRANGER_BYTES: usize = 256;
/// The longest name of a host.
pub(super) const NAME_BYTES: usize = 64;
/// The most ranks of a group.
pub(super) const MOST_RANKS: u32 = 64;

const HELLO: u8 = 1;
const JOIN: u8 = 2;
const ACCEPTED: u8 = 3;
const REFUSED: u8 = 4;
const LOST: u8 = 5;
const TABLE: u8 = 6;
const LEAVE: u8 = 7;
const START: u8 = 8;
const EVENT: u8 = 9;

/// The rank of a process that only asks who has joined.
pub(super) const OBSERVER: u32 = u32::MAX;

/// What a joiner says about itself. All but rank, process and host must be the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) hash: u64,
    pub(super) rank: u32,
    pub(super) nranks: u32,
    pub(super) extent: u64,
    pub(super) pid: u32,
    pub(super) host: Host,
}

/// A host: ranks with the same number can share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) id: [u8; 16],
    pub(super) name: String,
}

/// A rank of the group that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) pid: u32,
    pub(super) host: Host,
}

/// A message between rank 0 and another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The first of rank 0.
    Hello { challenge: Challenge },
    /// The first of another rank.
    Join { challenge: Challenge, join: Join, proof: Proof },
    /// Rank 0 has accepted a `Join` and proves that it knows the token too. Everything from here on is tagged.
    Accepted { proof: Proof },
    /// Rank 0 does not accept this rank, ranks disagree, or rank 0 fails itself.
    Refused { reason: String },
    /// An accepted rank is gone before the group was complete.
    Lost { rank: u32, pid: u32, how: Lost },
    /// Rank 0's deadline has passed: a bit for each rank that has not joined, and the ranks as text.
    Table { missing: u64, text: String },
    /// To rank 0: this rank does not wait any longer.
    Leave { reason: String },
    /// All ranks have joined; these are they.
    Start { members: Vec<Member> },
    /// What `rank` did.
    Event { rank: u32, event: Event },
}

impl Join {
    /// What a proof covers.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.encode(&mut to);
        to.into_bytes()
    }

    fn encode(&self, to: &mut Writer) {
        to.u64(self.hash).u32(self.rank).u32(self.nranks).u64(self.extent).u32(self.pid);
        self.host.encode(to);
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let (hash, rank, nranks, extent, pid) =
            (from.u64()?, from.u32()?, from.u32()?, from.u64()?, from.u32()?);
        Some(Self { hash, rank, nranks, extent, pid, host: Host::decode(from)? })
    }
}

impl Host {
    fn encode(&self, to: &mut Writer) {
        let name = clip(&self.name, NAME_BYTES);
        to.raw(&self.id).u8(name.len() as u8).raw(name.as_bytes());
    }

    /// A name of other characters than those of host names is refused, so that it can be shown as it is.
    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let (id, len) = (from.array()?, from.u8()?);
        let name = str::from_utf8(from.raw(len.into())?).ok().filter(|name| is_name(name))?;
        Some(Self { id, name: name.to_owned() })
    }
}

pub(super) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Hello { challenge } => to.u8(HELLO).u64(MAGIC).raw(challenge),
            Self::Join { challenge, join, proof } => {
                to.u8(JOIN).u64(MAGIC).raw(challenge).raw(proof);
                join.encode(&mut to);
                &mut to
            }
            Self::Accepted { proof } => to.u8(ACCEPTED).raw(proof),
            Self::Refused { .. } => to.u8(REFUSED),
            Self::Lost { rank, pid, how } => to.u8(LOST).u32(*rank).u32(*pid).u8(*how as u8),
            Self::Table { missing, .. } => to.u8(TABLE).u64(*missing),
            Self::Leave { .. } => to.u8(LEAVE),
            Self::Start { members } => {
                to.u8(START).u8(members.len() as u8);
                for member in members {
                    to.u32(member.pid);
                    member.host.encode(&mut to);
                }
                &mut to
            }
            Self::Event { rank, event } => {
                to.u8(EVENT).u32(*rank);
                event.encode(&mut to);
                &mut to
            }
        };
        to.raw(clip(self.text().unwrap_or(""), TEXT_BYTES).as_bytes());
        to.into_bytes()
    }

    /// The text of those messages that have one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Refused { reason: text } | Self::Table { text, .. } | Self::Leave { reason: text } => {
                Some(text)
            }
            _ => None,
        }
    }

    /// `None` for anything that [`encode`](Self::encode) does not make. A text may be any, and is escaped.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let rank = |rank: u32| (rank < MOST_RANKS).then_some(rank);
        match from.u8()? {
            HELLO => {
                let challenge = magic(&mut from).and_then(|()| from.array())?;
                from.end(Self::Hello { challenge })
            }
            JOIN => {
                magic(&mut from)?;
                let (challenge, proof) = (from.array()?, from.array()?);
                let join = Join::decode(&mut from)?;
                from.end(Self::Join { challenge, join, proof })
            }
            ACCEPTED => {
                let proof = from.array()?;
                from.end(Self::Accepted { proof })
            }
            REFUSED => Some(Self::Refused { reason: text(from)? }),
            LOST => {
                let (rank, pid, how) = (rank(from.u32()?)?, from.u32()?, from.u8()?);
                let how = *Lost::ALL.get(usize::from(how))?;
                from.end(Self::Lost { rank, pid, how })
            }
            TABLE => Some(Self::Table { missing: from.u64()?, text: text(from)? }),
            LEAVE => Some(Self::Leave { reason: text(from)? }),
            START => {
                let count = from.u8().filter(|count| u32::from(*count) <= MOST_RANKS)?;
                let member = |_| Some(Member { pid: from.u32()?, host: Host::decode(&mut from)? });
                let members = (0..count).map(member).collect::<Option<_>>()?;
                from.end(Self::Start { members })
            }
            EVENT => {
                let rank = rank(from.u32()?)?;
                Some(Self::Event { rank, event: Event::decode(from)? })
            }
            _ => None,
        }
    }
}

fn magic(from: &mut Reader<'_>) -> Option<()> {
    (from.u64()? == MAGIC).then_some(())
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

    pub(super) fn all() -> Vec<Message> {
        let host = |n: u8| Host { id: [n; 16], name: "x".repeat(NAME_BYTES) };
        let join = Join { hash: 7, rank: 3, nranks: 5, extent: 1 << 35, pid: 77, host: host(1) };
        let mut all = vec![
            Message::Hello { challenge: [9; 32] },
            Message::Join { challenge: [8; 32], join, proof: [7; 32] },
            Message::Accepted { proof: [6; 32] },
            Message::Refused { reason: "rank 1 has joined already\n  second line".to_owned() },
            Message::Lost { rank: 2, pid: 77, how: Lost::Silent },
            Message::Table { missing: 6, text: "rank 0".to_owned() },
            Message::Leave { reason: "its own reasons".to_owned() },
            Message::Start { members: (0..64).map(|n| Member { pid: 1, host: host(n) }).collect() },
        ];
        all.extend(Event::examples().into_iter().map(|event| Message::Event { rank: 63, event }));
        all
    }

    #[test]
    fn every_message_survives_the_wire_and_fits_its_bound() {
        for message in all() {
            let bytes = message.encode();
            assert!(bytes.len() <= BODY_BYTES, "{} bytes of {message:?}", bytes.len());
            assert_eq!(Message::decode(&bytes), Some(message.clone()));
            if matches!(message, Message::Join { .. }) {
                assert!(bytes.len() <= STRANGER_BYTES, "{}", bytes.len());
            }
        }
    }

    #[test]
    fn f80_each_flipped_byte_is_refused_or_changes_the_message() {
        for message in all() {
            let bytes = message.encode();
            for at in 0..bytes.len() {
                let mut wrong = bytes.clone();
                wrong[at] ^= 0xff;
                assert_ne!(Message::decode(&wrong), Some(message.clone()), "byte {at} of {message:?}");
            }
            for len in 0..bytes.len() {
                assert_ne!(Message::decode(&bytes[..len]), Some(message.clone()), "{len} of {message:?}");
            }
        }
    }

    #[test]
    fn f80_names_and_texts_of_a_peer_are_bounded_and_escaped() {
        let host = |name: &str| Host { id: [0; 16], name: name.to_owned() };
        for name in ["", "a b", "\u{1b}[31m", "é"] {
            let start = Message::Start { members: vec![Member { pid: 1, host: host(name) }] };
            assert_eq!(Message::decode(&start.encode()), None, "{name:?}");
        }
        let refused = Message::Refused { reason: "\u{1b}[31m".repeat(2000) };
        let Some(Message::Refused { reason }) = Message::decode(&refused.encode()) else { panic!() };
        assert!(!reason.contains('\u{1b}'));
        let mut long = Message::Refused { reason: String::new() }.encode();
        long.resize(long.len() + TEXT_BYTES + 1, b'x');
        assert_eq!(Message::decode(&long), None);
    }
}
