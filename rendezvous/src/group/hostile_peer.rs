//! What a rank reads from a peer's memory is bounded and escaped, whatever the peer writes: for the fuzz target
//! and a test.

use super::{Group, Tag};
use crate::memory::Memory;
use crate::memory::layout::{BROADCAST_BYTES, Layout, MESSAGE_BYTES, REASON_BYTES};
use comm_context::comm::{Membership, Phase, Timeout};
use mailbox_atomics::AllowedCores;
use std::sync::Arc;

/// Rank 0 of a group of two whose other rank never joins.
fn group() -> Group {
    let layout = Layout::new(2, 1).unwrap_or_else(|| panic!("two small extents"));
    let memory = Memory::create(layout).unwrap_or_else(|error| panic!("{error}"));
    let me = Membership::new(0, 2).unwrap_or_else(|error| panic!("{error}"));
    Group::new(me, Arc::new(memory), None)
}

#[cfg(fuzzing)]
thread_local!(static GROUP: Group = group());

/// Reads everything that a peer has written, which is `bytes`.
#[cfg(fuzzing)]
pub(crate) fn rank_block(bytes: &[u8]) {
    GROUP.with(|group| {
        let tag = group.memory.overwrite(bytes);
        read(group, tag);
    });
}

/// Reads the result that a peer has sent.
#[cfg(fuzzing)]
pub(crate) fn result(bytes: &[u8]) {
    super::results::judge(bytes);
}

fn read(group: &Group, [kind, id]: [u64; 2]) {
    let memory = &group.memory;
    let _ = (memory.pid(1), memory.leader(), memory.has_signed_in(1), memory.reported_death());
    assert!(memory.cores() <= 64 * AllowedCores::WORDS);
    let reason = memory.reason(1);
    assert!(reason.len() <= REASON_BYTES && !reason.chars().any(char::is_control));
    let table = memory.table();
    assert_eq!(table.lines().count(), 2);
    assert!(!table.chars().any(|c| c != '\n' && c.is_control()));
    for tag in [Tag { kind: kind as u32, id }, Tag { kind: 1, id: 1 }] {
        if let Some(message) = group.inbox.find(1, tag, 0) {
            assert!(message.bytes.len() <= MESSAGE_BYTES);
            assert!(memory.slots(1).get(message.slot).is_some());
        }
    }
    let step = group.step(Phase::Barrier, Timeout::DEFAULT).unwrap_or_else(|error| panic!("{error}"));
    let broadcast = group.receive_broadcast(&step, 1).unwrap_or_else(|error| panic!("{error}"));
    assert!(broadcast.len() <= BROADCAST_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random bytes of a peer whose first slots hold messages about kind 1 and id 1 with random lengths.
    fn bytes(random: &mut u64) -> Vec<u8> {
        let mut word = || {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *random >> 16
        };
        let mut words: Vec<u64> = (0..300).map(|_| word()).collect();
        // The rank block, the length of the broadcast, then slots of 28 words.
        let first = crate::memory::layout::RANK_BLOCK_WORDS + 1;
        for slot in [first, first + 28] {
            words[slot + 1] = 1 | word() << 32;
            words[slot + 2] = 1;
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn f29_f49_bytes_that_change_while_they_are_read_stay_within_bounds() {
        // RV-10
        let group = &group();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut messages = 0;
                while messages < 300 {
                    read(group, [1, 1]);
                    messages += u32::from(group.inbox.find(1, Tag { kind: 1, id: 1 }, 0).is_some());
                }
            });
            let mut random = 1;
            while !reader.is_finished() {
                group.memory.overwrite(&bytes(&mut random));
            }
        });
    }
}
