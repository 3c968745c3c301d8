//! What a rank that gives up leaves in its window for the others. Relaxed atomics: published by the steps that say it gave up. Kernels
//! have the same (`comm_collectives_fault.h`).

use crate::error::{CallOf, CollError};
use crate::layout::FAULT_WORDS;
use crate::memory::Memory;
use crate::request::CallText;
use core::sync::atomic::Ordering;

const MISMATCH: u64 = 1;
const TRANSFER: u64 = 2;
/// Where the text starts: after kind, the two ranks and the call.
const TEXT_AT: usize = 4;
/// Bytes of each of the two texts.
const TEXT_BYTES: usize = (FAULT_WORDS - TEXT_AT) / 2 * 8;

pub(crate) struct Fault;

impl Fault {
    /// Writes down an error that concerns all ranks; others are for the rank itself.
    pub(crate) fn write(memory: &Memory, me: usize, error: &CollError) {
        let (head, texts) = match error {
            CollError::Mismatch { one, other } => {
                ([MISMATCH, one.rank as u64, other.rank as u64, one.number], [&one.call, &other.call])
            }
            CollError::Transfer { from, to, sent, expected } => {
                ([TRANSFER, *from as u64, *to as u64, 0], [sent, expected])
            }
            _ => return,
        };
        let store = |at: usize, word: u64| memory.fault_word(me, at).store(word, Ordering::Relaxed);
        head.into_iter().enumerate().for_each(|(at, word)| store(at, word));
        for (side, text) in texts.into_iter().enumerate() {
            let mut bytes = text.to_string().into_bytes();
            bytes.resize(TEXT_BYTES, 0);
            for (at, word) in bytes.chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                store(TEXT_AT + side * TEXT_BYTES / 8 + at, word);
            }
        }
    }

    /// What `rank` left. The words are a peer's: ranks are bounded, text is made harmless.
    pub(crate) fn read(memory: &Memory, rank: usize) -> Option<CollError> {
        let load = |at: usize| memory.fault_word(rank, at).load(Ordering::Relaxed);
        let text = |side: usize| {
            let from = TEXT_AT + side * TEXT_BYTES / 8;
            let bytes: Vec<u8> =
                (from..from + TEXT_BYTES / 8).flat_map(|at| load(at).to_le_bytes()).collect();
            let text = String::from_utf8_lossy(&bytes);
            let plain = text.chars().take_while(|c| *c != '\0').filter(|c| !c.is_control());
            CallText::plain(plain.collect())
        };
        let bounded = |at: usize| (load(at) as usize).min(memory.layout.nranks - 1);
        let (one, other, number) = (bounded(1), bounded(2), load(3));
        match load(0) {
            MISMATCH => Some(CollError::Mismatch {
                one: CallOf { rank: one, number, call: text(0) },
                other: CallOf { rank: other, number, call: text(1) },
            }),
            TRANSFER => Some(CollError::Transfer { from: one, to: other, sent: text(0), expected: text(1) }),
            _ => None,
        }
    }
}
