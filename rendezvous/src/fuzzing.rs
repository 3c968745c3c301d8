//! What the fuzz target `rendezvous_messages` asserts. It stands here because what it decodes with is private, and is compiled for
//! fuzzing only.

use crate::group::Group;
use crate::layout::{BROADCAST_BYTES, Layout, MESSAGE_BYTES, NOTES, NoteWords, REASON_BYTES, RankBlock};
use crate::memory::Memory;
use crate::notes::Tag;
use crate::verdict;
use crate::{Launched, LauncherError};
use comm_context::comm::{Membership, Phase, Timeout};
use mailbox_atomics::{AllowedCores, WordI32};
use std::num::NonZeroU32;
use std::sync::Arc;

/// A datagram of a meeting.
pub fn message(bytes: &[u8]) {
    crate::meet::fuzzing::message(bytes);
}

/// The word that tells a death, and the sizes that a ticket or a header brings.
pub fn numbers(bytes: &[u8]) {
    let word = |at: usize| {
        bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(std::array::from_fn(|byte| word[byte])))
    };
    let nranks = word(0) as u32 % 64 + 1;
    if let Some(death) = NonZeroU32::new(word(8) as u32).and_then(|told| verdict::decode(told, nranks)) {
        assert!(death.peer < nranks);
        assert_eq!(verdict::decode(verdict::encode(death.peer, death.how), nranks), Some(death));
    }
    if let Some(layout) = Layout::new(nranks, word(16) as usize) {
        assert!(layout.extent >= word(16) as usize);
        assert!(layout.reserved().end <= layout.extent(0).start);
        assert_eq!(layout.extent(nranks - 1).end, layout.total());
    }
}

/// What an environment of `NAME=VALUE` lines says of rank and size.
pub fn launcher(text: &str) -> Result<Launched, LauncherError> {
    let set: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    crate::launcher::from(|name| {
        set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

thread_local! {
    /// Rank 0 of a group of two whose other rank never comes.
    static GROUP: Group = {
        let layout = Layout::new(2, 1).unwrap_or_else(|| panic!("two small extents"));
        let memory = Memory::create(layout, 7).unwrap_or_else(|error| panic!("{error}"));
        let me = Membership::new(0, 2).unwrap_or_else(|error| panic!("{error}"));
        Group::at_the_door(me, Arc::new(memory))
    };
}

/// A peer that has written `bytes` all over its card, its notes, its reason and the letter.
pub fn rank_block(bytes: &[u8]) {
    GROUP.with(|group| {
        scribble(&group.memory, bytes);
        read(group);
    });
}

fn scribble(memory: &Memory, mut bytes: &[u8]) {
    let layout = memory.layout;
    let mut put = |at: usize, len: usize| {
        let part;
        (part, bytes) = bytes.split_at(len.min(bytes.len()));
        let mut whole = vec![0; len];
        whole[..part.len()].copy_from_slice(part);
        memory.inside(memory.region.write(at, &whole));
    };
    let (state, len_at, letter_at) = Layout::letter();
    put(layout.rank_block(1), size_of::<RankBlock>());
    put(len_at, 8);
    for slot in [0, 1, NOTES - 1] {
        put(layout.note(1, slot), size_of::<NoteWords>());
        put(layout.note_payload(1, slot), MESSAGE_BYTES);
    }
    put(letter_at, 64);
    put(layout.reason(1), REASON_BYTES);
    memory.inside(memory.region.words::<WordI32>(state)).store(1);
}

fn read(group: &Group) {
    let memory = &group.memory;
    let _ = (memory.pid(1), memory.host(), memory.has_signed_in(1), group.reported_death());
    assert!(memory.cores() <= 64 * AllowedCores::WORDS);
    let reason = memory.reason(1);
    assert!(reason.len() <= REASON_BYTES && !reason.chars().any(char::is_control));
    let table = memory.table();
    assert_eq!(table.lines().count(), 2);
    assert!(!table.chars().any(|c| c != '\n' && c.is_control()));
    let words = memory.note(1, 0);
    for tag in [Tag { kind: words.kind.load(), id: words.id.load() }, Tag { kind: 1, id: 1 }] {
        assert!(group.found(1, tag).is_none_or(|note| note.len() <= MESSAGE_BYTES));
    }
    let step = group.step(Phase::Barrier, Timeout::DEFAULT).unwrap_or_else(|error| panic!("{error}"));
    let letter = group.receive_broadcast(&step, 1).unwrap_or_else(|error| panic!("{error}"));
    assert!(letter.len() <= BROADCAST_BYTES);
}
