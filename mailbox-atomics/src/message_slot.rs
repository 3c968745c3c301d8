//! A slot for small messages from one writer to many readers, used again and again.
//!
//! The slot is a sequence lock. Its stamp says which message it holds (a generation that only grows) and in
//! which state. The writer invalidates the stamp before it replaces the words and publishes the new stamp
//! after them. A reader copies the words between two loads of the stamp and keeps the copy only if both show
//! the same generation.
//!
//! Header and payload are copied word by word with relaxed loads and stores, since readers may copy while the
//! writer writes. Two fences order these copies with the stamp; each names its partner.

use crate::sync::{AtomicU64, Ordering, Site, at, fence_at, intact};
use core::array;

const NO_MESSAGE: u64 = 0;
const POSTED: u64 = 1;
const SEEN: u64 = 2;
const REFUSED: u64 = 3;
const STATES: u64 = 4;

/// The state of a message that its writer has not withdrawn. Readers may take it in any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// Posted. The writer still needs the messages of others.
    Posted,
    /// The writer has taken the messages of all others.
    Seen,
    /// The writer does not take part: it disagrees with another message about the same operation.
    Refused,
}

/// A copy of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<const HEADER: usize> {
    /// Which message of its writer.
    pub generation: u64,
    /// Its state when the copy began.
    pub state: MessageState,
    /// The words that say what it is about.
    pub header: [u64; HEADER],
    /// The rest of it.
    pub payload: Vec<u64>,
}

/// One message with `HEADER` words of header and up to `PAYLOAD` words of payload, in shared memory.
/// Zero-filled is an empty slot.
///
/// One writer, any number of readers. A writer numbers its messages: each [`post`](Self::post) to a slot has
/// a higher generation than the last. What the words mean is up to the caller, who checks the copy and not
/// the slot.
///
/// ```
/// # use mailbox_atomics::MessageSlot;
/// # use shared_memory::Region;
/// # let region = Region::create("example", 4096)?;
/// let slot = region.words::<MessageSlot<1, 8>>(0)?;
/// slot.post(1, [42], &[7, 8, 9]); // the writer
///
/// // A reader that has taken no message of this slot yet. The header says which of them it wants.
/// let message = slot.read(0, |header| (header[0] == 42).then_some(3)).expect("it was posted");
/// assert_eq!((message.generation, message.payload), (1, vec![7, 8, 9]));
/// assert!(slot.read(message.generation, |_| Some(3)).is_none()); // none twice
/// # Ok::<_, shared_memory::RegionError>(())
/// ```
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug)]
pub struct MessageSlot<const HEADER: usize, const PAYLOAD: usize> {
    /// `generation * STATES + state`.
    stamp: AtomicU64,
    header: [AtomicU64; HEADER],
    payload: [AtomicU64; PAYLOAD],
}

impl<const HEADER: usize, const PAYLOAD: usize> MessageSlot<HEADER, PAYLOAD> {
    /// Replaces what the slot holds by the message `generation`. For the writer.
    ///
    /// # Panics
    /// When `payload` has more than `PAYLOAD` words.
    pub fn post(&self, generation: u64, header: [u64; HEADER], payload: &[u64]) {
        assert!(payload.len() <= PAYLOAD, "a message has at most {PAYLOAD} words, not {}", payload.len());
        if intact(Site::MessageInvalidated) {
            self.store_stamp(NO_MESSAGE);
        }
        // Release: keeps the invalid stamp before the new words. Pairs with the fence in `read`: a reader
        // that copied one of the new words finds the stamp changed.
        fence_at(Site::MessageReuseFence, Ordering::Release);
        for (word, value) in self.header.iter().zip(header) {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in self.payload.iter().zip(payload) {
            word.store(*value, Ordering::Relaxed);
        }
        self.store_stamp(stamp(generation, POSTED));
    }

    /// Changes the state of the posted message `generation`; its words stay. For the writer.
    pub fn mark(&self, generation: u64, state: MessageState) {
        let state = match state {
            MessageState::Posted => POSTED,
            MessageState::Seen => SEEN,
            MessageState::Refused if intact(Site::MessageRefusalStays) => REFUSED,
            MessageState::Refused => NO_MESSAGE,
        };
        self.store_stamp(stamp(generation, state));
    }

    /// Withdraws the message `generation`: nobody takes it from now on. For the writer.
    pub fn withdraw(&self, generation: u64) {
        self.store_stamp(stamp(generation, NO_MESSAGE));
    }

    /// Copies the message, if there is one whose generation is not `taken`, the last that this reader took
    /// from the slot. `payload_len` sees the header and says how many words of payload to copy, or `None`
    /// when the message is not wanted. More than `PAYLOAD` words are never copied.
    ///
    /// Returns a whole message or none. None also when the writer replaced the message during the copy.
    pub fn read(
        &self,
        taken: u64,
        payload_len: impl FnOnce(&[u64; HEADER]) -> Option<usize>,
    ) -> Option<Message<HEADER>> {
        let stamp = self.load_stamp();
        let (generation, state) = (stamp / STATES, state_of(stamp)?);
        if generation == taken && intact(Site::MessageTakenOnce) {
            return None;
        }
        let header = array::from_fn(|word| self.header[word].load(Ordering::Relaxed));
        let len = payload_len(&header)?.min(PAYLOAD);
        let payload = self.payload[..len].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        // Acquire: keeps the copy before the second load of the stamp. Pairs with the fence in `post`.
        fence_at(Site::MessageCopyFence, Ordering::Acquire);
        let unchanged = self.stamp.load(Ordering::Relaxed) / STATES == generation;
        (unchanged || !intact(Site::MessageRechecked)).then_some(Message {
            generation,
            state,
            header,
            payload,
        })
    }

    /// Whether the message `generation` is still [`Posted`](MessageState::Posted): not marked, withdrawn or
    /// replaced.
    pub fn is_posted(&self, generation: u64) -> bool {
        let found = self.load_stamp();
        let moved_on = found != stamp(generation, POSTED);
        !(if intact(Site::MessageMovedOn) { moved_on } else { found == stamp(generation, SEEN) })
    }

    /// Release: publishes the words of the message. Pairs with the acquire in `load_stamp`.
    fn store_stamp(&self, stamp: u64) {
        self.stamp.store(stamp, at(Site::MessagePublish, Ordering::Release));
    }

    /// Acquire: sees the words of the message or newer ones. Pairs with the release in `store_stamp`.
    fn load_stamp(&self) -> u64 {
        self.stamp.load(at(Site::MessageObserve, Ordering::Acquire))
    }
}

impl<const HEADER: usize, const PAYLOAD: usize> Default for MessageSlot<HEADER, PAYLOAD> {
    fn default() -> Self {
        let words = || AtomicU64::new(0);
        Self { stamp: words(), header: array::from_fn(|_| words()), payload: array::from_fn(|_| words()) }
    }
}

fn stamp(generation: u64, state: u64) -> u64 {
    generation.wrapping_mul(STATES) | state
}

fn state_of(stamp: u64) -> Option<MessageState> {
    match stamp % STATES {
        POSTED => Some(MessageState::Posted),
        SEEN => Some(MessageState::Seen),
        REFUSED => Some(MessageState::Refused),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    type Slot = MessageSlot<1, 6>;

    fn all(slot: &Slot, taken: u64) -> Option<Message<1>> {
        slot.read(taken, |_| Some(usize::MAX))
    }

    #[test]
    fn a_slot_has_no_padding_before_its_words() {
        assert_eq!(size_of::<MessageSlot<3, 24>>(), 256);
        assert_eq!(std::mem::offset_of!(MessageSlot<3, 24>, header), 8);
        assert_eq!(std::mem::offset_of!(MessageSlot<3, 24>, payload), 32);
    }

    #[test]
    fn a_message_is_read_until_it_is_taken_or_withdrawn() {
        let slot = Slot::default();
        assert_eq!(all(&slot, 0), None);
        slot.post(1, [7], &[1, 2]);
        let message = slot.read(0, |header| (*header == [7]).then_some(2)).unwrap();
        let expected =
            Message { generation: 1, state: MessageState::Posted, header: [7], payload: vec![1, 2] };
        assert_eq!(message, expected);
        assert_eq!(slot.read(0, |header| (*header == [8]).then_some(2)), None);
        assert!(slot.is_posted(1) && !slot.is_posted(2));
        for state in [MessageState::Seen, MessageState::Refused] {
            slot.mark(1, state);
            assert_eq!(all(&slot, 0).unwrap().state, state);
            assert_eq!(all(&slot, 1), None, "taken already");
            assert!(!slot.is_posted(1));
        }
        slot.withdraw(1);
        assert_eq!(all(&slot, 0), None);
        slot.post(2, [8], &[]);
        assert_eq!(slot.read(1, |_| Some(0)).unwrap().payload, []);
    }

    #[test]
    fn f29_a_length_beyond_the_slot_copies_no_more_than_the_slot() {
        let slot = Slot::default();
        slot.post(1, [0], &[3; 6]);
        assert_eq!(all(&slot, 0).unwrap().payload, [3; 6]);
    }

    #[test]
    #[should_panic(expected = "at most 6 words, not 7")]
    fn a_message_that_does_not_fit_is_refused() {
        Slot::default().post(1, [0], &[0; 7]);
    }

    #[test]
    fn f49_a_copy_is_never_mixed_of_two_messages() {
        let rounds = if cfg!(miri) { 50 } else { 200_000 };
        let (slot, done) = (Slot::default(), AtomicBool::new(false));
        let read = || {
            let mut copies = 0_u64;
            while !done.load(Ordering::Acquire) || copies == 0 {
                if let Some(message) = all(&slot, 0) {
                    assert_eq!(message.header, [message.generation]);
                    assert_eq!(message.payload, [message.generation; 6]);
                    copies += 1;
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(read);
            scope.spawn(read);
            for generation in 1..=rounds {
                slot.post(generation, [generation], &[generation; 6]);
            }
            done.store(true, Ordering::Release);
        });
    }
}
