//! The memory of a ring's tensors: given out in order, taken back in the same order.
//!
//! # Safety
//! Writes initial values through raw pointers into the mapping that it owns.
#![allow(unsafe_code)]

use crate::error::{ErrorKind, RuntimeError};
use crate::limits::OUTPUT_ALIGN;
use memmap2::{MmapMut, MmapOptions};
use shared_memory::{RegionError, check_memory, why_refused};

/// Memory that is there is looked for in such steps.
const STEP: u64 = 1 << 20;

/// Positions only grow; the address of a position is its remainder by the size.
#[derive(Debug)]
pub(crate) struct Heap {
    /// Anonymous; pages get memory when they are touched, and all of them count as promised to this process. Mapped at the
    /// first use.
    map: Option<MmapMut>,
    /// So many bytes from the start were given out, or had memory when that was last checked.
    checked: u64,
    size: u64,
    head: u64,
    tail: u64,
}

impl Heap {
    pub(crate) fn new(size: u64) -> Self {
        // Multiples of the alignment, so that every position is aligned.
        Self { map: None, checked: 0, size: size / OUTPUT_ALIGN * OUTPUT_ALIGN, head: 0, tail: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Where the next block starts.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Where a block of `bytes`, a multiple of the alignment, would start: at the head, or at the next start of the
    /// mapping if it would run over its end. `None` if it does not fit now.
    fn place(&self, bytes: u64) -> Option<u64> {
        let at = self.head % self.size;
        let start = if at + bytes > self.size { self.head + (self.size - at) } else { self.head };
        (bytes <= self.size && start + bytes - self.tail <= self.size).then_some(start)
    }

    /// Whether `bytes` fit now.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes == 0 || self.place(bytes).is_some()
    }

    /// Takes `bytes`, for which there is room, and returns their address.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<u64, RuntimeError> {
        let Some(start) = self.place(bytes) else {
            return Err(ErrorKind::HeapFull { ring: 0, bytes: self.size, need: bytes, scope: None }.into());
        };
        let at = start % self.size;
        if at + bytes > self.checked {
            let upto = (at + bytes).next_multiple_of(STEP).min(self.size);
            check_memory("heap", (upto - self.checked) as usize).map_err(no_memory)?;
            self.checked = upto;
        }
        let map = match &mut self.map {
            Some(map) => map,
            none => {
                let len = self.size as usize;
                let map = MmapOptions::new().len(len).map_anon();
                none.insert(map.map_err(|_| no_memory(why_refused("heap", len)))?)
            }
        };
        self.head = start + bytes;
        Ok(map.as_mut_ptr() as u64 + at)
    }

    /// Gives back everything before `position`.
    pub(crate) fn give_back(&mut self, position: u64) {
        debug_assert!((self.tail..=self.head).contains(&position));
        self.tail = position;
        if self.tail == self.head {
            // Empty: from the start again, where the pages have memory already.
            (self.head, self.tail) = (0, 0);
        }
    }
}

fn no_memory(error: RegionError) -> ErrorKind {
    match error {
        RegionError::OutOfMemory { need, have, limit, .. } => ErrorKind::HeapMemory { need, have, limit },
        other => ErrorKind::System { what: "memory for the heap", why: other.to_string() },
    }
}

/// Fills `elements` elements of `size` bytes at `addr` with the low bytes of `value`.
///
/// # Safety
/// The memory is mapped for writing and nobody else accesses it.
pub(crate) unsafe fn fill(addr: u64, elements: u64, size: usize, value: u64) {
    let bytes = value.to_le_bytes();
    let count = elements as usize;
    let at = addr as *mut u8;
    if bytes[..size].iter().all(|byte| *byte == bytes[0]) {
        // SAFETY: the caller's promise.
        return unsafe { at.write_bytes(bytes[0], count * size) };
    }
    for index in 0..count {
        // SAFETY: the caller's promise; `bytes` has eight bytes, and no element has more.
        unsafe { at.add(index * size).copy_from_nonoverlapping(bytes.as_ptr(), size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_back_in_order_and_never_run_over_the_end() {
        let mut heap = Heap::new(4096 + 100);
        assert_eq!(heap.size(), 4096);
        let first = heap.take(2048).unwrap();
        let after_first = heap.head();
        assert_eq!(heap.take(1024).unwrap(), first + 2048);
        assert!(!heap.has_room(2048) && heap.has_room(1024) && !heap.has_room(8192));
        heap.give_back(after_first);
        // 1024 at the end are left out.
        assert!(heap.has_room(2048) && !heap.has_room(3072));
        assert_eq!(heap.take(2048).unwrap(), first);
        assert!(!heap.has_room(1024) && heap.has_room(0));
        heap.give_back(heap.head());
        assert_eq!(heap.take(4096).unwrap(), first);
    }

    #[test]
    fn values_of_every_size_fill_a_block() {
        let mut memory = [0u16; 8];
        // SAFETY: a local array.
        unsafe { fill(memory.as_mut_ptr() as u64, 7, 2, 0x1234) };
        assert_eq!(memory, [0x1234, 0x1234, 0x1234, 0x1234, 0x1234, 0x1234, 0x1234, 0]);
        // SAFETY: as above.
        unsafe { fill(memory.as_mut_ptr() as u64, 8, 2, 0) };
        assert_eq!(memory, [0; 8]);
    }
}
