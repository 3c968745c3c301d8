//! What the fuzz target `backend_messages` asserts. It is part of the crate because what it calls is private, and is compiled for
//! fuzzing only.

/// A message of an allocation.
pub fn message(bytes: &[u8]) {
    crate::comm::fuzzing::message(bytes);
}
