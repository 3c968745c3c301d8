//! Plain atomics as words of this crate, for callers whose memory is described by crates below this one.
//!
//! # Safety
//! Casts of references between types that are `repr(transparent)` over each other.
#![allow(unsafe_code)]

use crate::word::{WordU32, WordU64};
use core::sync::atomic::{AtomicU32, AtomicU64};

impl WordU64 {
    /// The word that stands in `atomic`.
    pub fn of(atomic: &AtomicU64) -> &Self {
        // SAFETY: `WordU64` is `repr(transparent)` over `AtomicU64`; the lifetime is the borrow's.
        unsafe { &*core::ptr::from_ref(atomic).cast() }
    }

    /// The atomic that this word stands in.
    pub fn as_atomic(&self) -> &AtomicU64 {
        // SAFETY: as in `of`.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }
}

impl WordU64 {
    /// Wakes every waiter parked on this word without changing it, so that each checks what else it waits for.
    pub fn wake_waiters(&self) {
        self.wake_all();
    }
}

impl WordU32 {
    /// The word that stands in `atomic`.
    pub fn of(atomic: &AtomicU32) -> &Self {
        // SAFETY: `WordU32` is `repr(transparent)` over `AtomicU32`; the lifetime is the borrow's.
        unsafe { &*core::ptr::from_ref(atomic).cast() }
    }

    /// The atomic that this word stands in.
    pub fn as_atomic(&self) -> &AtomicU32 {
        // SAFETY: as in `of`.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }
}
