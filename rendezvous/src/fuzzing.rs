//! What the fuzz targets `rendezvous_messages` and `hosts_messages` assert. It is part of the crate because what it calls is
//! private, and is compiled for fuzzing only.

use crate::memory::death_word;
use crate::memory::layout::Layout;
use crate::{Launched, LauncherError};
use std::num::NonZeroU32;

/// A datagram of a rendezvous.
pub fn message(bytes: &[u8]) {
    crate::join::fuzzing::message(bytes);
}

/// A peer that has written `bytes` over its rank block, its messages, its reason and the broadcast.
pub fn rank_block(bytes: &[u8]) {
    crate::group::hostile_peer::rank_block(bytes);
}

/// The word that reports a death, and the sizes from a ticket or a header.
pub fn numbers(bytes: &[u8]) {
    let word = |at: usize| {
        bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(std::array::from_fn(|byte| word[byte])))
    };
    let nranks = word(0) as u32 % 64 + 1;
    if let Some(death) = NonZeroU32::new(word(8) as u32).and_then(|word| death_word::decode(word, nranks)) {
        assert!(death.peer < nranks);
        assert_eq!(death_word::decode(death_word::encode(death.peer, death.how), nranks), Some(death));
    }
    if let Some(layout) = Layout::new(nranks, word(16) as usize) {
        assert!(layout.extent_len() >= word(16) as usize);
        assert!(layout.reserved().end <= layout.extent(0).start);
        assert!(layout.parts().count == 0 || layout.parts().count == nranks as usize);
    }
}

/// Rank and size from an environment of `NAME=VALUE` lines.
pub fn launcher(text: &str) -> Result<Launched, LauncherError> {
    let set: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    crate::launcher::from(|name| {
        set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

/// The result that another rank sends in an exchange of results.
pub fn result(bytes: &[u8]) {
    crate::group::hostile_peer::result(bytes);
}

/// A message from another host: its decoder, what it does to this host's copies, and what rank 0 makes of a stranger.
pub fn host_message(bytes: &[u8]) {
    crate::hosts::fuzzing::message(bytes);
}

/// The address of rank 0, as a user writes it.
pub fn host_address(text: &str) {
    crate::hosts::fuzzing::address(text);
}

/// The address of rank 0 from an environment of `NAME=VALUE` lines.
pub fn launcher_address(text: &str) -> Result<crate::HostAddress, crate::HostsError> {
    let set: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    crate::launcher::address_from(|name| {
        set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}
