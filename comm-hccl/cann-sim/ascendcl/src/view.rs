//! Device memory as this library itself reaches it: mapped at an address of the host that no program gets to know.
//!
//! # Safety
//! Copies inside mappings that the view owns, with `shared_memory` only, since other processes write there too.
#![allow(unsafe_code)]

use cann_sim::SharedMemory;
use shared_memory::{copy_from_shared, copy_to_shared};
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::AcqRel};

/// Bytes that one copy of a fill writes.
const FILL: usize = 64 << 10;

/// Memory and where the host has it.
pub(crate) struct View {
    memory: SharedMemory,
    at: usize,
}

impl View {
    pub(crate) fn new(memory: SharedMemory) -> io::Result<Self> {
        Ok(Self { at: memory.map()?, memory })
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    pub(crate) fn size(&self) -> usize {
        self.memory.size()
    }

    fn place(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.size()),
            "the callers checked the range"
        );
        (self.at + offset) as *mut u8
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        // SAFETY: `place` checked that the bytes lie in the mapping, which lives as long as `self`.
        unsafe { copy_from_shared(self.place(offset, into.len()), into) };
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { copy_to_shared(bytes, self.place(offset, bytes.len())) };
    }

    /// Adds to an aligned word, in one step for all processes.
    pub(crate) fn add(&self, offset: usize, by: u32) {
        let word = self.place(offset, size_of::<u32>()).cast::<AtomicU32>();
        assert!(word.is_aligned(), "the callers checked that");
        // SAFETY: as above, and aligned; a sum is made of atomics only, also of those of kernels.
        unsafe { &*word }.fetch_add(by, AcqRel);
    }

    pub(crate) fn fill(&self, offset: usize, byte: u8, len: usize) {
        let bytes = vec![byte; FILL.min(len)];
        for at in (0..len).step_by(FILL) {
            self.write(offset + at, &bytes[..FILL.min(len - at)]);
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, and not used any more.
        unsafe { libc::munmap(self.at as *mut c_void, self.memory.size()) };
    }
}
