//! Any bytes are a message or none, what a message says is bounded and can be shown, and a connection that receives
//! them ends or stays within its bounds.

use super::event::{Copies, Event};
use super::token::Token;
use super::wire::{BODY_BYTES, Message, TEXT_BYTES};
use super::{HostAddress, proof, roll::Roll, wire};
use crate::memory::Memory;
use crate::memory::layout::Layout;
use comm_context::comm::Membership;

thread_local!(static MEMORY: Memory = memory());

fn memory() -> Memory {
    let layout = Layout::new(64, 0).unwrap_or_else(|| panic!("64 empty extents"));
    Memory::create(layout).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn message(bytes: &[u8]) {
    let Some(message) = Message::decode(bytes) else { return };
    assert!(message.encode().len() <= BODY_BYTES);
    match message.text() {
        None => assert_eq!(message.encode(), bytes),
        Some(text) => {
            assert!(!text.chars().any(|c| c != '\n' && c.is_control()));
            // A byte becomes at most `\u{7f}`.
            assert!(text.len() <= 6 * TEXT_BYTES);
        }
    }
    match message {
        Message::Event { rank, event } => apply(rank, &event),
        Message::Join { challenge, join, proof } => {
            let token = Token::of_test("a token that nobody has");
            let me = Membership::new(0, 2).unwrap_or_else(|error| panic!("{error}"));
            let own = wire::Member { pid: 1, host: join.host.clone() };
            let mut roll = Roll::new(me, 0, &token, own);
            let hello: proof::Challenge = [0; 32];
            let admission = roll.admit(&hello, &challenge, join, &proof, "a fuzzer");
            assert!(matches!(admission, super::roll::Admission::Stranger));
            assert!(!roll.is_complete() && roll.table(std::time::Duration::ZERO).contains("refused"));
        }
        _ => {}
    }
}

/// A rank that knows the token can fill its own part of the memory and nothing else.
fn apply(rank: u32, event: &Event) {
    MEMORY.with(|memory| {
        Copies::new(64).apply(memory, rank, event);
        let reason = memory.reason(rank);
        assert!(!reason.chars().any(char::is_control));
        assert_eq!(memory.table().lines().count(), 64);
        assert!((0..64).filter(|other| *other != rank).all(|other| memory.used_slots(other).len() <= 128));
    });
}

/// An address is refused, or means the same when it is read again.
pub(crate) fn address(text: &str) {
    if let Ok(address) = HostAddress::parse(text) {
        let shown = address.to_string();
        assert!(!shown.chars().any(|c| c.is_control() || c.is_whitespace()));
        assert_eq!(HostAddress::parse(&shown).as_ref(), Ok(&address));
    }
}
