//! A datagram of any bytes is a message or nothing, and what a message says is harmless.

use super::departure::Departure;
use super::wire::{MESSAGE_BYTES, Message, TEXT_BYTES};

pub(crate) fn message(bytes: &[u8]) {
    let Some(message) = Message::decode(bytes) else { return };
    assert!(bytes.len() <= MESSAGE_BYTES && message.encode().len() <= MESSAGE_BYTES);
    let text = match &message {
        Message::Refused { text } | Message::Table { text, .. } | Message::Lost { reason: text, .. } => text,
        Message::Join { .. } | Message::Ask | Message::Seated { .. } | Message::Welcome { .. } => {
            return assert_eq!(message.encode(), bytes);
        }
    };
    assert!(!text.chars().any(|c| c != '\n' && c.is_control()));
    // A byte becomes at most `\u{7f}`.
    assert!(text.len() <= 6 * TEXT_BYTES);
    if text.len() <= TEXT_BYTES {
        // Harmless text goes on as it is, up to empty lines at its end.
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

fn same(a: &Message, b: &Message) -> bool {
    let end = |text: &str| text.trim_end_matches('\n').to_owned();
    match (a, b) {
        (Message::Refused { text: a }, Message::Refused { text: b }) => end(a) == end(b),
        (Message::Table { missing: m, text: a }, Message::Table { missing: n, text: b }) => {
            m == n && end(a) == end(b)
        }
        (
            Message::Lost { departed: d, pid: p, reason: a },
            Message::Lost { departed: e, pid: q, reason: b },
        ) => d == e && p == q && end(a) == end(b),
        _ => false,
    }
}
