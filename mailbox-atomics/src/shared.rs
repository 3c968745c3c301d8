//! The words may stand in shared memory.
//!
//! # Safety
//! Promises of layout about the types of this crate, each argued where it stands.
#![allow(unsafe_code)]

use crate::barrier::Place;
use crate::mailbox::MailboxWords;
use crate::pair_ring::{PairLines, PairTaken};
use crate::progress::ProgressWords;
use crate::records::RecordRing;
use crate::word::{StickyWord, WordI32, WordU32, WordU64};
use shared_memory::Shared;

// SAFETY: `repr(transparent)` over an atomic integer.
unsafe impl Shared for WordI32 {}
// SAFETY: as above.
unsafe impl Shared for WordU32 {}
// SAFETY: as above.
unsafe impl Shared for WordU64 {}
// SAFETY: `repr(transparent)` over a `WordU32`.
unsafe impl Shared for StickyWord {}
// SAFETY: `repr(C)` structs of words.
unsafe impl Shared for MailboxWords {}
// SAFETY: a `repr(C)` struct of words.
unsafe impl Shared for Place {}
// SAFETY: `repr(C)` structs of atomic integers and words.
unsafe impl Shared for ProgressWords {}
// SAFETY: as above.
unsafe impl Shared for RecordRing {}
// SAFETY: as above.
unsafe impl Shared for PairLines {}
// SAFETY: as above.
unsafe impl Shared for PairTaken {}
