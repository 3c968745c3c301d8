//! What a rank writes down about its last calls, so that a peer can say how its own call differs.
//!
//! The words of a record are relaxed atomics, published by the release store of its call number. A peer compares the record of
//! the call that it makes itself. By then the owner may have gone on to later calls, so each has a place of its own.

use crate::sync::{AtomicU64, Ordering, Site, intact};
use crate::word::WordU64;

/// Calls that are on record: more than any rank can be ahead of another. The model needs fewer.
pub const RECORDS: usize = if cfg!(loom) { 4 } else { 32 };
/// Words of one record, besides the number of the call.
pub const RECORD_WORDS: usize = 7;

#[cfg_attr(not(loom), repr(C, align(64)))]
#[derive(Debug, Default)]
struct Record {
    /// The number of the call; 0 where there has been none.
    call: WordU64,
    words: [AtomicU64; RECORD_WORDS],
}

/// The last calls of one rank, which alone writes them. Zero-filled is a rank that has made none.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct RecordRing {
    records: [Record; RECORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Record>() == 64 && size_of::<RecordRing>() == 64 * RECORDS);

impl RecordRing {
    /// Records call number `call`, counted from 1.
    #[inline]
    pub fn write(&self, call: u64, words: [u64; RECORD_WORDS]) {
        let record = &self.records[place(call)];
        for (word, value) in record.words.iter().zip(words) {
            // Relaxed: published by the store of the number.
            word.store(value, Ordering::Relaxed);
        }
        record.call.store(call);
    }

    /// The record of call number `call`; `None` when it has not been made, or so long ago that others took its place.
    pub fn read(&self, call: u64) -> Option<[u64; RECORD_WORDS]> {
        let record = &self.records[place(call)];
        if record.call.load() != call {
            return None;
        }
        // Relaxed: ordered by the acquire load of the number.
        let words = core::array::from_fn(|at| record.words[at].load(Ordering::Relaxed));
        // A rank that is this far ahead would be out of step anyway; then the words may be of two calls.
        (record.call.load() == call).then_some(words)
    }
}

fn place(call: u64) -> usize {
    if intact(Site::RecordsInARing) { call as usize % RECORDS } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_on_record() {
        let ring = RecordRing::default();
        assert_eq!(ring.read(1), None);
        for call in 1..=40 {
            ring.write(call, [call; RECORD_WORDS]);
        }
        assert_eq!(ring.read(40), Some([40; RECORD_WORDS]));
        assert_eq!(ring.read(9), Some([9; RECORD_WORDS]));
        assert_eq!((ring.read(8), ring.read(41)), (None, None));
    }
}
