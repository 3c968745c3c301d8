//! Tells the process that made a group from a forked copy of it.
//!
//! # Safety
//! One page of private memory, mapped and unmapped here, of which the first word is read through an atomic.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use shared_memory::PAGE;

/// A word that is 1 in the process that made it, and 0 in every process that was forked from it: the kernel wipes its page there.
#[derive(Debug)]
pub(crate) struct ForkGuard {
    page: Option<NonNull<u8>>,
    pid: u32,
}

// SAFETY: the page belongs to the value, and is only read.
unsafe impl Send for ForkGuard {}

impl ForkGuard {
    pub(crate) fn new() -> Self {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: asks for new memory at an address that the kernel chooses.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), PAGE, access, kind, -1, 0) };
        let page = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED);
        let guard = Self { page, pid: std::process::id() };
        if let Some(page) = page {
            // SAFETY: a page of ours.
            let wiped = unsafe { libc::madvise(page.as_ptr().cast(), PAGE, libc::MADV_WIPEONFORK) } == 0;
            if wiped {
                // Relaxed: this process only.
                guard.word().store(1, Ordering::Relaxed);
            }
        }
        guard
    }

    /// Whether this is the process that made it. On a kernel that does not wipe pages, by the number of the process.
    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        // Relaxed: as above.
        (self.page.is_some() && self.word().load(Ordering::Relaxed) == 1) || self.is_same_pid()
    }

    #[cold]
    fn is_same_pid(&self) -> bool {
        self.pid == std::process::id()
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        match self.page {
            // SAFETY: mapped as long as `self`, aligned to a page.
            Some(page) => unsafe { AtomicU64::from_ptr(page.as_ptr().cast()) },
            None => unreachable!("only asked for where there is a page"),
        }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: this mapping is ours, in a forked copy too, and nothing borrows from it any more.
            unsafe { libc::munmap(page.as_ptr().cast(), PAGE) };
        }
    }
}
