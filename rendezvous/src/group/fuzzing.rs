//! What a rank reads from a peer's memory is bounded and escaped, whatever the peer has written.

use super::{Group, Tag};
use crate::memory::Memory;
use crate::memory::layout::{BROADCAST_BYTES, Layout, MESSAGE_BYTES, REASON_BYTES};
use comm_context::comm::{Membership, Phase, Timeout};
use mailbox_atomics::AllowedCores;
use std::sync::Arc;

thread_local! {
    /// Rank 0 of a group of two whose other rank never joins.
    static GROUP: Group = {
        let layout = Layout::new(2, 1).unwrap_or_else(|| panic!("two small extents"));
        let memory = Memory::create(layout).unwrap_or_else(|error| panic!("{error}"));
        let me = Membership::new(0, 2).unwrap_or_else(|error| panic!("{error}"));
        Group::new(me, Arc::new(memory))
    };
}

pub(crate) fn rank_block(bytes: &[u8]) {
    GROUP.with(|group| {
        let header = group.memory.overwrite(bytes);
        read(group, Tag { kind: header[0] as u32, id: header[1] });
    });
}

fn read(group: &Group, first: Tag) {
    let memory = &group.memory;
    let _ = (memory.pid(1), memory.leader(), memory.has_signed_in(1), memory.reported_death());
    assert!(memory.cores() <= 64 * AllowedCores::WORDS);
    let reason = memory.reason(1);
    assert!(reason.len() <= REASON_BYTES && !reason.chars().any(char::is_control));
    let table = memory.table();
    assert_eq!(table.lines().count(), 2);
    assert!(!table.chars().any(|c| c != '\n' && c.is_control()));
    for tag in [first, Tag { kind: 1, id: 1 }] {
        if let Some(message) = group.inbox.find(1, tag) {
            assert!(message.bytes.len() <= MESSAGE_BYTES);
            assert!(memory.slots(1).get(message.slot).is_some());
        }
    }
    let step = group.step(Phase::Barrier, Timeout::DEFAULT).unwrap_or_else(|error| panic!("{error}"));
    let broadcast = group.receive_broadcast(&step, 1).unwrap_or_else(|error| panic!("{error}"));
    assert!(broadcast.len() <= BROADCAST_BYTES);
}
