//! What the fuzz target `collective_calls` asserts. It is part of the crate because what it calls is private, and is compiled for
//! fuzzing only.

use crate::Options;
use crate::request::CallText;
use mailbox_atomics::RECORD_WORDS;

/// The words that bytes are; the last one is filled up with zeros.
fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks(8).map(word).collect()
}

/// The record of a call, in the memory of another process: whatever it holds, a short text that can be printed.
pub fn call(bytes: &[u8]) {
    let mut record = words(bytes);
    record.resize(RECORD_WORDS, 0);
    let text = CallText::of(&record).to_string();
    assert!(text.len() < 200 && !text.chars().any(char::is_control), "{text:?}");
}

/// The head of a message between two ranks.
pub fn message(bytes: &[u8]) {
    let mut head = words(bytes);
    head.resize(2, 0);
    let text = crate::pairs::text_of(&head);
    assert!(text.len() < 200 && !text.chars().any(char::is_control), "{text:?}");
}

/// Options from a process that starts ranks: refused, or the same after a second trip.
pub fn options(bytes: &[u8]) {
    let words = words(bytes);
    if let Some(options) = Options::from_words(&words) {
        let again = options.to_words();
        assert_eq!(Options::from_words(&again).map(Options::to_words), Some(again));
    }
}
