//! Which core a thread is at the moment, for kernels that ask: `pto_sim_register_hooks`.
//!
//! # Safety
//! Kernels get memory by its address. It is allocated once for a cluster and a key, and freed with the cluster.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

/// What the kernels of one cluster keep from block to block: memory by key.
#[derive(Debug, Default)]
pub(crate) struct ClusterStates {
    states: Mutex<HashMap<(u64, usize), State>>,
}

/// A piece of zeroed memory.
#[derive(Debug)]
struct State {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is used by kernels alone, which order their accesses themselves; here only its address is kept.
unsafe impl Send for State {}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `ClusterStates::state`, and freed nowhere else.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

impl ClusterStates {
    /// The memory of a key and a size: zeroed when it is first asked for, the same from then on. Null when there is
    /// none left.
    fn state(&self, key: u64, bytes: usize) -> *mut c_void {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = states.get(&(key, bytes)) {
            return state.at.as_ptr().cast();
        }
        let Ok(layout) = Layout::from_size_align(bytes.max(1), 64) else { return null_mut() };
        // SAFETY: the size is not 0.
        let Some(at) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { return null_mut() };
        states.insert((key, bytes), State { at, layout });
        at.as_ptr().cast()
    }
}

thread_local! {
    /// The cluster and the vector core that this thread runs a block on.
    static LANE: Cell<(*const ClusterStates, u32)> = const { Cell::new((std::ptr::null(), 0)) };
}

/// The next block on this thread runs on vector core `sub_block` of the cluster that has these states.
///
/// The states must outlive the block.
#[inline]
pub(crate) fn enter(states: &Arc<ClusterStates>, sub_block: u32) {
    LANE.set((Arc::as_ptr(states), sub_block));
}

/// `uint32_t ()` for kernels: which vector core of its cluster runs this.
#[cfg(feature = "cxx")]
pub(super) extern "C" fn sub_block() -> u32 {
    LANE.get().1
}

/// `void *(uint64_t key, size_t bytes)` for kernels: memory of this cluster. Null on a thread that is not a core.
#[cfg(feature = "cxx")]
pub(super) extern "C" fn cluster_state(key: u64, bytes: usize) -> *mut c_void {
    let (states, _) = LANE.get();
    // SAFETY: null, or the states of the cluster whose block runs on this thread now: a kernel is the caller, and
    // `enter` was called before it started with states that outlive the block.
    unsafe { states.as_ref() }.map_or(null_mut(), |states| states.state(key, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_one_for_each_cluster_and_key_and_starts_zeroed() {
        let clusters = [Arc::new(ClusterStates::default()), Arc::new(ClusterStates::default())];
        let first = clusters[0].state(7, 256);
        // SAFETY: 256 bytes, just allocated, and of nobody else.
        let bytes = unsafe { std::slice::from_raw_parts_mut(first.cast::<u8>(), 256) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes[0] = 1;
        assert_eq!(clusters[0].state(7, 256), first);
        assert_ne!(clusters[0].state(8, 256), first);
        assert_ne!(clusters[1].state(7, 256), first);
        assert!(clusters[0].state(9, usize::MAX).is_null());
        enter(&clusters[1], 1);
        assert_eq!(LANE.get(), (Arc::as_ptr(&clusters[1]), 1));
    }
}
