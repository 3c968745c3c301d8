//! One mailbox in a shared region.

use crate::layout::*;
use crate::reader::Reader;
use crate::stamp::{self, Nonce, StampError};
use crate::writer::Writer;
use mailbox_atomics::{OneShot, WordI32, WordU32, WordU64};
use shared_memory::{Region, RegionError};

/// A mailbox in a region: where its words are. It is neither side.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox<'a> {
    region: &'a Region,
    offset: usize,
    pub(crate) state: &'a WordI32,
    hash: &'a WordU64,
    nonce: &'a WordU64,
    pub(crate) phase: &'a WordU32,
}

/// `Mailbox::at` has checked that all of the mailbox is inside.
const INSIDE: &str = "a mailbox is inside its region";

impl<'a> Mailbox<'a> {
    /// The mailbox at `offset`, which must be a multiple of [`MAILBOX_ALIGN`] and followed by
    /// [`MAILBOX_SIZE`] bytes.
    pub fn at(region: &'a Region, offset: usize) -> Result<Self, RegionError> {
        // All of it at once: afterwards the additions below cannot overflow.
        region.word_slice::<WordU64>(offset, MAILBOX_SIZE / size_of::<WordU64>())?;
        Ok(Self {
            region,
            offset,
            state: region.words(offset + STATE_AT)?,
            hash: region.words(offset + HASH_AT)?,
            nonce: region.words(offset + NONCE_AT)?,
            phase: region.words(offset + PHASE_AT)?,
        })
    }

    /// Marks a fresh mailbox as one of this layout and run. The parent does this before it starts the chip
    /// process.
    pub fn stamp(&self, nonce: Nonce) {
        self.nonce.store(nonce.get());
        self.hash.store(LAYOUT_HASH);
    }

    /// The side that publishes; refused if the mailbox was stamped for another layout or run. There must
    /// be only one.
    pub fn writer(self, nonce: Nonce) -> Result<Writer<'a>, StampError> {
        stamp::check(self.hash.load(), self.nonce.load(), nonce)?;
        Ok(Writer::new(self))
    }

    /// The side that waits.
    pub fn reader(self, nonce: Nonce) -> Reader<'a> {
        Reader::new(self, nonce)
    }

    pub(crate) fn shot(&self) -> OneShot<'a> {
        OneShot::new(self.state)
    }

    /// Copies payload bytes in; `at` is relative to the mailbox.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.region.write(self.offset + at, bytes).expect(INSIDE);
    }

    /// Copies everything out. The words that a running writer may still change are loaded as words.
    pub(crate) fn copy(&self) -> [u8; MAILBOX_SIZE] {
        let mut bytes = [0; MAILBOX_SIZE];
        // First: the acquire in this load orders the copy after the writer's payload.
        bytes[STATE_AT..ERROR_CODE_AT].copy_from_slice(&self.state.load().to_le_bytes());
        for part in [ERROR_CODE_AT..HASH_AT, BUFFERS_AT..MAILBOX_SIZE] {
            self.region.read(self.offset + part.start, &mut bytes[part]).expect(INSIDE);
        }
        bytes[HASH_AT..NONCE_AT].copy_from_slice(&self.hash.load().to_le_bytes());
        bytes[NONCE_AT..PHASE_AT].copy_from_slice(&self.nonce.load().to_le_bytes());
        bytes[PHASE_AT..PHASE_AT + 4].copy_from_slice(&self.phase.load().to_le_bytes());
        bytes
    }
}
