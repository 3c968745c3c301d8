//! The types that may be placed in shared memory.
//!
//! # Safety
//! Promises about the layout of the types of this crate, each with its argument.
#![allow(unsafe_code)]

use crate::barrier::Place;
use crate::dispatch_ring::{DoneNumber, SlotNumber};
use crate::message_slot::MessageSlot;
use crate::pair_ring::{PairLines, PairTaken};
use crate::progress::{ProgressWords, StampLine};
use crate::records::RecordRing;
use crate::signal_words::SignalWords;
use crate::sticky::StickyWord;
use crate::word::{WordI32, WordU32, WordU64};
use shared_memory::Shared;

// SAFETY: `repr(transparent)` over an atomic integer.
unsafe impl Shared for WordI32 {}
// SAFETY: as above.
unsafe impl Shared for WordU32 {}
// SAFETY: as above.
unsafe impl Shared for WordU64 {}
// SAFETY: `repr(transparent)` over a `WordU32`.
unsafe impl Shared for StickyWord {}
// SAFETY: `repr(transparent)` over a `WordU64`.
unsafe impl Shared for SlotNumber {}
// SAFETY: as above.
unsafe impl Shared for DoneNumber {}
// SAFETY: a `repr(C)` struct of words.
unsafe impl Shared for Place {}
// SAFETY: a `repr(C)` struct of atomic words; zero is an empty slot.
unsafe impl<const HEADER: usize, const PAYLOAD: usize> Shared for MessageSlot<HEADER, PAYLOAD> {}
// SAFETY: `repr(C)` structs of atomic integers and words.
unsafe impl Shared for ProgressWords {}
// SAFETY: as above.
unsafe impl Shared for StampLine {}
// SAFETY: as above.
unsafe impl Shared for RecordRing {}
// SAFETY: as above.
unsafe impl Shared for PairLines {}
// SAFETY: as above.
unsafe impl Shared for PairTaken {}
// SAFETY: as above.
unsafe impl Shared for SignalWords {}
