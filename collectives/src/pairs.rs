//! Messages between two ranks: a ring for each ordered pair, with tags.
//!
//! A message goes in pieces through the slots of the sender's ring, or in the line of the first slot when it is small. Messages of a pair
//! arrive in order. One that comes before anybody receives its tag is kept until somebody does.
//!
//! # Safety
//! Copies between slots, which lie in windows, and buffers of the caller, who promised their lengths.
#![allow(unsafe_code)]

use crate::element::DType;
use crate::engine::{Blocked, Engine, Why};
use crate::error::CollError;
use crate::memory::Memory;
use crate::request::CallText;
use crate::started::Ticket;
use core::ptr;
use fault_points::fault_point;
use mailbox_atomics::{PAIR_PAYLOAD_WORDS, PAIR_SLOTS, PairReceiver, PairSender};
use std::collections::VecDeque;

/// Bytes that travel in the line of a slot, after the two words that describe the message.
const INLINE: usize = (PAIR_PAYLOAD_WORDS - 2) * 8;

/// The rings of a rank.
pub(crate) struct Pairs<'c> {
    me: usize,
    senders: Box<[PairSender<'c>]>,
    receivers: Box<[PairReceiver<'c>]>,
    incoming: Box<[Incoming]>,
    slot_bytes: usize,
}

/// What comes from one rank.
#[derive(Default)]
struct Incoming {
    /// The message of which some pieces have come.
    current: Option<Current>,
    /// Messages that nobody has asked for yet.
    kept: VecDeque<Message>,
}

struct Current {
    head: Head,
    got: usize,
    to: Target,
}

enum Target {
    /// Straight to the buffer of the receive with this ticket.
    Posted(Ticket, *mut u8),
    Kept(Vec<u8>),
}

struct Message {
    head: Head,
    bytes: Vec<u8>,
}

/// What a message says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    tag: u32,
    dtype: u8,
    bytes: usize,
}

impl Head {
    fn encode(self) -> [u64; 2] {
        [u64::from(self.tag) | u64::from(self.dtype) << 32, self.bytes as u64]
    }

    fn decode(words: &[u64]) -> Self {
        Self { tag: words[0] as u32, dtype: (words[0] >> 32) as u8, bytes: words[1] as usize }
    }

    fn text(self) -> CallText {
        let (name, size) =
            DType::from_code(self.dtype).map_or(("?", 1), |dtype| (dtype.name(), dtype.size()));
        CallText::plain(format!("{name} × {} with tag {}", self.bytes / size, self.tag))
    }
}

/// What the head of a message says, whatever its words are.
#[cfg(fuzzing)]
pub(crate) fn text_of(words: &[u64]) -> String {
    Head::decode(words).text().to_string()
}

/// A message under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    pub(crate) peer: usize,
    pub(crate) tag: u32,
    pub(crate) dtype: DType,
    pub(crate) bytes: usize,
    /// How many of them were sent.
    pub(crate) sent: usize,
    pub(crate) done: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Send(*const u8),
    Receive(*mut u8),
}

impl Transfer {
    fn head(&self) -> Head {
        Head { tag: self.tag, dtype: self.dtype as u8, bytes: self.bytes }
    }
}

impl<'c> Pairs<'c> {
    pub(crate) fn new(memory: &Memory, me: usize) -> Self {
        let nranks = memory.layout.nranks;
        let sender = |to| PairSender::new(memory.pair_lines(me, to), memory.pair_taken(me, to), me, to);
        let receiver =
            |from| PairReceiver::new(memory.pair_lines(from, me), memory.pair_taken(from, me), me, from);
        Self {
            me,
            senders: (0..nranks).map(sender).collect(),
            receivers: (0..nranks).map(receiver).collect(),
            incoming: (0..nranks).map(|_| Incoming::default()).collect(),
            slot_bytes: memory.layout.slot,
        }
    }

    /// Wakes all peers that wait for messages from or to this rank, which has given up.
    pub(crate) fn wake_all(&self) {
        let others = (0..self.senders.len()).filter(|rank| *rank != self.me);
        others.for_each(|rank| {
            self.senders[rank].wake();
            self.receivers[rank].wake();
        });
    }
}

impl<'c> Engine<'c> {
    /// Works on the messages under way, without waiting, and takes those out that are over.
    pub(crate) fn work_on_transfers(
        &mut self,
        transfers: &mut Vec<(Ticket, Transfer)>,
        blocked: &mut Vec<Blocked<'c>>,
    ) -> Result<bool, CollError> {
        let mut moved = false;
        let (mut sends, mut receives) = (0_u64, 0_u64);
        for at in 0..transfers.len() {
            let transfer = &transfers[at].1;
            let (bit, peer) = (1_u64 << transfer.peer, transfer.peer);
            // Messages of a pair go in order: the first one under way holds back the others.
            match transfer.direction {
                Direction::Send(from) if sends & bit == 0 => {
                    let before = transfer.sent;
                    let waits = self.send_pieces(&mut transfers[at].1, from);
                    let transfer = &transfers[at].1;
                    moved |= transfer.sent != before || transfer.done;
                    if !transfer.done {
                        sends |= bit;
                        blocked.extend(waits);
                    }
                }
                Direction::Receive(_) if receives & bit == 0 => {
                    receives |= bit;
                    moved |= self.receive_pieces(peer, transfers)?;
                    let waiting = |(_, one): &(Ticket, Transfer)| {
                        one.peer == peer && !one.done && matches!(one.direction, Direction::Receive(_))
                    };
                    if transfers.iter().any(waiting) {
                        let (word, tag) = self.pairs.receivers[peer].word();
                        let at_least = self.pairs.receivers[peer].next_number();
                        blocked.push(Blocked { word, tag, at_least, rank: peer, why: Why::Message });
                    }
                }
                _ => {}
            }
        }
        transfers.retain(|(_, transfer)| !transfer.done);
        Ok(moved)
    }

    /// Sends pieces as long as there are free slots. Returns what it waits for.
    fn send_pieces(&mut self, transfer: &mut Transfer, from: *const u8) -> Option<Blocked<'c>> {
        let to = transfer.peer;
        let head = transfer.head();
        while !transfer.done {
            let Some(slot) = self.pairs.senders[to].free_slot() else {
                let (word, tag) = self.pairs.senders[to].word();
                let at_least = self.pairs.senders[to].next_number() - PAIR_SLOTS as u64;
                return Some(Blocked { word, tag, at_least, rank: to, why: Why::Room });
            };
            let mut words = [0; PAIR_PAYLOAD_WORDS];
            words[..2].copy_from_slice(&head.encode());
            let piece = if head.bytes <= INLINE {
                head.bytes
            } else {
                self.pairs.slot_bytes.min(head.bytes - transfer.sent)
            };
            // SAFETY: the caller's buffer has `bytes` bytes, of which `sent` are done; a small message fits in the line, any other piece
            // in its slot, which the receiver has left.
            unsafe {
                let from = from.add(transfer.sent);
                if head.bytes <= INLINE {
                    ptr::copy_nonoverlapping(from, words[2..].as_mut_ptr().cast(), piece);
                } else {
                    ptr::copy_nonoverlapping(from, self.memory.slot(self.me, to, slot), piece);
                }
            }
            fault_point!("coll.sending");
            self.pairs.senders[to].publish(words);
            self.pairs.senders[to].notify(self.progress.park_words(to).iter());
            fault_point!("coll.sent");
            transfer.sent += piece;
            transfer.done = transfer.sent == head.bytes;
        }
        None
    }

    /// Takes what has come from `peer`: to the first receive that was posted for its tag, or to be kept.
    fn receive_pieces(
        &mut self,
        peer: usize,
        transfers: &mut [(Ticket, Transfer)],
    ) -> Result<bool, CollError> {
        let mut moved = self.deliver_kept(peer, transfers)?;
        let wants =
            |one: &Transfer| one.peer == peer && !one.done && matches!(one.direction, Direction::Receive(_));
        while transfers.iter().any(|(_, transfer)| wants(transfer)) {
            let Some((slot, words)) = self.pairs.receivers[peer].filled_slot() else { break };
            let mut current = match self.pairs.incoming[peer].current.take() {
                Some(current) => current,
                None => {
                    let head = Head::decode(&words);
                    let posted = transfers.iter().find(|(_, one)| wants(one) && one.tag == head.tag);
                    let to = match posted {
                        Some((ticket, one)) => {
                            self.compare(peer, head, one.head())?;
                            let Direction::Receive(to) = one.direction else { unreachable!("it receives") };
                            Target::Posted(*ticket, to)
                        }
                        None => Target::Kept(Vec::new()),
                    };
                    Current { head, got: 0, to }
                }
            };
            self.take_piece(peer, slot, &words, &mut current);
            self.pairs.receivers[peer].finish();
            self.pairs.receivers[peer].notify(self.progress.park_words(peer).iter());
            fault_point!("coll.received");
            moved = true;
            if current.got < current.head.bytes {
                self.pairs.incoming[peer].current = Some(current);
                continue;
            }
            match current.to {
                Target::Posted(ticket, _) => {
                    for (_, transfer) in transfers.iter_mut().filter(|(one, _)| *one == ticket) {
                        transfer.done = true;
                    }
                }
                Target::Kept(bytes) => {
                    self.pairs.incoming[peer].kept.push_back(Message { head: current.head, bytes })
                }
            }
        }
        Ok(moved)
    }

    fn take_piece(&self, peer: usize, slot: usize, words: &[u64; PAIR_PAYLOAD_WORDS], current: &mut Current) {
        let inline = current.head.bytes <= INLINE;
        let left = current.head.bytes - current.got;
        let piece = if inline { left } else { left.min(self.pairs.slot_bytes) };
        let from = if inline {
            words[2..].as_ptr().cast()
        } else {
            self.memory.slot(peer, self.me, slot).cast_const()
        };
        let boolean = current.head.dtype == DType::Bool as u8;
        match &mut current.to {
            // SAFETY: the piece lies in the line's copy or in the slot, which the sender does not write before it is finished; the
            // buffer has as many bytes as the head says (compared when the message began).
            Target::Posted(_, to) => unsafe {
                let to = to.add(current.got);
                ptr::copy_nonoverlapping(from, to, piece);
                if boolean {
                    (0..piece).for_each(|at| *to.add(at) = u8::from(*to.add(at) != 0));
                }
            },
            Target::Kept(bytes) => {
                bytes.reserve(piece);
                let old = bytes.len();
                // SAFETY: as above, into room that was just reserved.
                unsafe {
                    ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(old), piece);
                    bytes.set_len(old + piece);
                }
                if boolean {
                    bytes[old..].iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
                }
            }
        }
        current.got += piece;
    }

    /// Delivers kept messages to the receives that ask for them now.
    fn deliver_kept(&mut self, peer: usize, transfers: &mut [(Ticket, Transfer)]) -> Result<bool, CollError> {
        let mut moved = false;
        if self.pairs.incoming[peer].kept.is_empty() {
            return Ok(false);
        }
        for (_, transfer) in transfers.iter_mut().filter(|(_, one)| one.peer == peer && !one.done) {
            let Direction::Receive(to) = transfer.direction else { continue };
            let kept = &mut self.pairs.incoming[peer].kept;
            let Some(at) = kept.iter().position(|message| message.head.tag == transfer.tag) else { continue };
            let Some(message) = kept.remove(at) else { continue };
            self.compare(peer, message.head, transfer.head())?;
            // SAFETY: as many bytes as the receive has room for, as was just compared.
            unsafe { ptr::copy_nonoverlapping(message.bytes.as_ptr(), to, message.bytes.len()) };
            transfer.done = true;
            moved = true;
        }
        Ok(moved)
    }

    /// The message to or from `peer` that waits first, in words, with what came from there and nobody has asked for.
    pub(crate) fn describe_message(&self, peer: usize, is_sent: bool) -> CallText {
        let waits = |one: &&Transfer| {
            one.peer == peer && !one.done && matches!(one.direction, Direction::Send(_)) == is_sent
        };
        let first = self.queue.transfers.iter().map(|(_, transfer)| transfer).find(waits);
        let what = first.map_or("a message".to_owned(), |first| first.head().text().to_string());
        if is_sent {
            return CallText::plain(format!("send of {what} to rank {peer}, on rank {}", self.me));
        }
        let kept: Vec<String> =
            self.pairs.incoming[peer].kept.iter().map(|message| message.head.text().to_string()).collect();
        let came = match kept.as_slice() {
            [] => String::new(),
            [first] => format!(" (what came has another tag: {first})"),
            [first, .., last] => {
                format!(" (what came has other tags: {} messages from {first} to {last})", kept.len())
            }
        };
        CallText::plain(format!("recv of {what} from rank {peer}, on rank {}{came}", self.me))
    }

    fn compare(&self, from: usize, sent: Head, expected: Head) -> Result<(), CollError> {
        if sent == expected {
            return Ok(());
        }
        Err(CollError::Transfer { from, to: self.me, sent: sent.text(), expected: expected.text() })
    }
}
