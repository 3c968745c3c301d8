//! What the fuzz target `graph_descriptions` asserts. It is part of the crate because what it calls is private, and is compiled
//! for fuzzing only.

/// The calls of an orchestration in C++: its argument lists, descriptors, ids and waits.
#[cfg(feature = "cxx")]
pub fn orchestration(bytes: &[u8]) {
    crate::orchestration::fuzzing::calls(bytes);
}

/// What a peer declares to signal, and what it says that it waits for.
pub fn hostile_peer(bytes: &[u8]) {
    crate::signals::fuzzing::hostile_peer(bytes);
}
