//! Host memory that the parent shares with its children.

use shared_memory::Region;
use std::sync::Arc;

/// The heap that holds `len` bytes at `addr`, and their offset in it.
pub(super) fn in_heap(heaps: &[Arc<Region>], addr: u64, len: usize) -> Option<(&Region, usize)> {
    heaps.iter().find_map(|heap| {
        let at = addr.checked_sub(heap.base().as_ptr() as u64)? as usize;
        (at.checked_add(len)? <= heap.len()).then_some((heap.as_ref(), at))
    })
}
