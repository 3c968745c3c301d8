//! A datagram of any bytes is a message or none, and the text of a message is escaped.

use super::departure::Departure;
use super::wire::{MESSAGE_BYTES, Message, TEXT_BYTES};

pub(crate) fn message(bytes: &[u8]) {
    let Some(message) = Message::decode(bytes) else { return };
    assert!(bytes.len() <= MESSAGE_BYTES && message.encode().len() <= MESSAGE_BYTES);
    let Some(text) = message.text() else {
        return assert_eq!(message.encode(), bytes);
    };
    assert!(!text.chars().any(|c| c != '\n' && c.is_control()));
    // A byte becomes at most `\u{7f}`.
    assert!(text.len() <= 6 * TEXT_BYTES);
    if text.len() <= TEXT_BYTES {
        // Escaped text passes unchanged, up to empty lines at its end.
        assert!(Message::decode(&message.encode()).is_some_and(|again| same(&again, &message)));
    }
    if let Message::Lost { departed, pid, reason } = message {
        for nranks in [1, 2, 64] {
            if let Some(gone) = Departure::decode(departed, pid, reason.clone(), nranks) {
                let Message::Lost { departed, pid, reason } = gone.message() else { panic!("{gone:?}") };
                assert_eq!(Departure::decode(departed, pid, reason, nranks).as_ref(), Some(&gone));
                let (Departure::Died { rank, .. } | Departure::Left { rank, .. }) = &gone;
                assert!(*rank < nranks);
                assert!(!gone.into_error().to_string().is_empty());
            }
        }
    }
}

/// Whether two messages differ at most in empty lines at the end of their texts.
fn same(a: &Message, b: &Message) -> bool {
    let end = |message: &Message| message.text().map(|text| text.trim_end_matches('\n').to_owned());
    let without_text = |message: &Message| {
        let bytes = message.encode();
        bytes[..bytes.len() - message.text().map_or(0, str::len)].to_vec()
    };
    without_text(a) == without_text(b) && end(a) == end(b)
}
