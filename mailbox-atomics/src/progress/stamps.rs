//! Stamps: a count for each rank of what it has done, for protocols in which ranks do different things.
//!
//! A step is something that all ranks count alike. A stamp is a rank's own count; whoever waits for one knows from a plan that all
//! share what it means. Beside it stands a label with the hash of the call. It is written right before the stamp, so that whoever
//! sees a stamp sees the label of its call, or of a later one, and one who polls does not take the line away between the two.

use super::{Progress, STAMP, tag};
use crate::prefetch::prefetch_to_write;
use crate::sync::{AtomicU64, Ordering, Site, intact};
use crate::word::WordU64;
use core::num::NonZeroU32;

/// A rank's stamp. Zero-filled is a rank that has done nothing.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct StampLine {
    stamp: WordU64,
    label: AtomicU64,
}

impl StampLine {
    pub(super) fn wake_all(&self) {
        self.stamp.wake_all();
    }
}

/// What a rank finds when it looks at a peer's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// The stamp.
    pub stamp: u64,
    /// The hash of the call that it belongs to, or of a later one.
    pub hash: u32,
    /// What the peer said with the hash.
    pub note: u16,
}

impl<'a> Progress<'a> {
    /// The same with stamps, one for each rank.
    ///
    /// # Panics
    /// When there are not as many as ranks.
    #[must_use]
    pub fn with_stamps(self, stamps: impl IntoIterator<Item = &'a StampLine>) -> Self {
        let stamps: Box<[_]> = stamps.into_iter().collect();
        assert_eq!(stamps.len(), self.ranks.len(), "every rank has a stamp");
        Self { stamps, ..self }
    }

    /// Stores this rank's stamp, with the hash of the call that it belongs to and a note. Everything done before is visible to whoever
    /// sees it. Wakes nobody; see [`notify`](Self::notify).
    #[inline]
    pub fn publish_stamp(&mut self, stamp: u64, hash: u32, note: u16) {
        let (line, label) = (self.stamps[self.me], u64::from(hash) << 32 | u64::from(note));
        if intact(Site::LabelBeforeStamp) {
            // Relaxed: published by the stamp.
            line.label.store(label, Ordering::Relaxed);
        }
        line.stamp.store(stamp);
        if !intact(Site::LabelBeforeStamp) {
            // Relaxed: what the mutant does wrong is to come late.
            line.label.store(label, Ordering::Relaxed);
        }
        if intact(Site::StampNotifies) {
            self.changed |= 1 << STAMP;
        }
    }

    /// Asks for this rank's stamp, which the others have read, so that publishing it takes no longer than a store.
    #[inline]
    pub fn prepare_stamp(&self) {
        prefetch_to_write(core::ptr::from_ref(self.stamps[self.me]).cast(), 64);
    }

    /// Looks at the stamp of `rank`. What the rank did before it stored it is visible afterwards.
    #[inline]
    pub fn stamp(&self, rank: usize) -> Stamped {
        let line = &self.stamps[rank];
        let stamp = line.stamp.load();
        // Relaxed: ordered by the acquire load of the stamp.
        let label = line.label.load(Ordering::Relaxed);
        Stamped { stamp, hash: (label >> 32) as u32, note: label as u16 }
    }

    /// The word to wait on for a stamp of `rank`, and its tag in the park flag of a waiter.
    pub fn stamp_word(&self, rank: usize) -> (&'a WordU64, NonZeroU32) {
        (&self.stamps[rank].stamp, tag(rank, STAMP))
    }

    /// Remembers that `rank` has come to `step`: it has finished reading everything before, and nothing else is certain.
    #[inline]
    pub fn came_to(&mut self, rank: usize, step: u64) {
        let before = if intact(Site::StampIsNoCredit) { step - 1 } else { step };
        self.raise_bound(rank, before);
    }
}
