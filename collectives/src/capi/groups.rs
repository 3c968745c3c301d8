//! The table of open groups: found by number, without a lock.
//!
//! A slot has a word that is 0 when it is free, the handle when its group is open, and the handle with a bit more while a thread is
//! inside a call. A thread that exchanges the second for the third owns the group until it stores the second again. Handles are never
//! used twice, so a stale one finds another number, or 0.
//!
//! # Safety
//! The cell of a slot belongs to whoever took the slot: by an exchange with acquire, given back by a store with release.
#![allow(unsafe_code)]

use super::error::EntryError;
use crate::group::Collectives;
use crate::started::Ticket;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Groups that a process can have at once.
const SLOTS: usize = 1024;
/// A slot that is being filled.
const TAKEN: u64 = 1;
/// What a handle starts with: no address of a process does, and no small number.
const MARK: u64 = 0xc011 << 48;
const MARK_BITS: u64 = 0xffff << 48;
/// A thread is inside a call.
const BUSY: u64 = 1 << 47;

/// A group as C callers have it.
pub(super) struct Group {
    pub(super) coll: Collectives<'static>,
    /// Calls that were started, and that the caller does not know to be over.
    pub(super) started: Vec<Started>,
    /// The thread that started them, which holds another reference as long as it lives.
    thread: Option<Arc<()>>,
}

/// A started call.
pub(super) struct Started {
    pub(super) number: u64,
    pub(super) ticket: Ticket,
    /// Lists of counts that the call reads until it is over.
    pub(super) _counts: [Box<[usize]>; 2],
}

std::thread_local!(static THIS_THREAD: Arc<()> = Arc::new(()));

#[repr(align(128))]
struct Slot {
    word: AtomicU64,
    group: UnsafeCell<Option<Group>>,
}

// SAFETY: see the head of the file: one thread at a time has the cell, and a group may go from thread to thread; while calls are under
// way that its thread also works on from elsewhere, `Entered::new` keeps other threads out.
unsafe impl Sync for Slot {}

static TABLE: [Slot; SLOTS] =
    [const { Slot { word: AtomicU64::new(0), group: UnsafeCell::new(None) } }; SLOTS];

/// Groups that were ever made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A slot for a group that is about to be made.
pub(super) struct Reserved(&'static Slot, usize);

impl Reserved {
    pub(super) fn new() -> Result<Self, EntryError> {
        let take = |(at, slot): (usize, &'static Slot)| {
            // Acquire: pairs with the release of who freed it. Relaxed: a slot that is in use is passed over.
            let taken = slot.word.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok().then(|| Self(slot, at))
        };
        TABLE.iter().enumerate().find_map(take).ok_or(EntryError::Full(SLOTS))
    }

    /// Opens the group and returns its handle.
    pub(super) fn open(self, coll: Collectives<'static>) -> u64 {
        // Relaxed: only a number. There are more than a lifetime of groups needs.
        let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = MARK | ((number * SLOTS as u64) & (BUSY - 1)) | self.1 as u64;
        // SAFETY: the slot is taken.
        unsafe { *self.0.group.get() = Some(Group { coll, started: Vec::new(), thread: None }) };
        // Release: pairs with the acquire in `enter`.
        self.0.word.store(handle, Ordering::Release);
        std::mem::forget(self);
        handle
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `new`.
        self.0.word.store(0, Ordering::Release);
    }
}

/// A group of which this thread is inside a call.
pub(super) struct Entered {
    slot: &'static Slot,
    handle: u64,
}

impl Entered {
    /// Enters the group behind `handle`, if there is one and nobody else is inside.
    #[inline]
    pub(super) fn new(handle: u64) -> Result<Self, EntryError> {
        let slot = &TABLE[handle as usize % SLOTS];
        if handle & (MARK_BITS | BUSY) != MARK {
            return Err(unknown(handle));
        }
        // Acquire: pairs with the release of who made the group or left it last. Relaxed: refused, whatever it is.
        match slot.word.compare_exchange(handle, handle | BUSY, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                let entered = Self { slot, handle };
                if entered.started.is_empty() { Ok(entered) } else { entered.checked() }
            }
            Err(word) if word == handle | BUSY => Err(EntryError::InUse(handle)),
            Err(_) => Err(unknown(handle)),
        }
    }

    /// Refuses another thread than that which started the calls under way: it may work on them from calls on other groups.
    #[cold]
    fn checked(self) -> Result<Self, EntryError> {
        let started = self.started.len();
        let mine = THIS_THREAD.try_with(Arc::clone).ok();
        match (&self.thread, mine) {
            _ if self.coll.has_progress_thread() => Ok(self),
            (Some(owner), Some(mine)) if Arc::ptr_eq(owner, &mine) => Ok(self),
            // That thread is gone, and its list of groups with it.
            (Some(owner), _) if Arc::strong_count(owner) == 1 => Ok(self),
            _ => Err(EntryError::OtherThread { started }),
        }
    }

    /// Keeps a started call. From now on the group belongs to this thread, until the call is over.
    pub(super) fn keep(&mut self, started: Started) {
        self.thread = THIS_THREAD.try_with(Arc::clone).ok();
        self.started.push(started);
    }

    /// Closes the handle and takes the group out.
    pub(super) fn remove(self) -> Option<Group> {
        // SAFETY: this thread is inside, so the cell is its own.
        let group = unsafe { (*self.slot.group.get()).take() };
        // Release: pairs with the acquire in `Reserved::new`.
        self.slot.word.store(0, Ordering::Release);
        std::mem::forget(self);
        group
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `new`.
        self.slot.word.store(self.handle, Ordering::Release);
    }
}

impl Deref for Entered {
    type Target = Group;

    #[inline]
    fn deref(&self) -> &Group {
        // SAFETY: this thread is inside, so the cell is its own; an open slot has a group.
        unsafe { (*self.slot.group.get()).as_ref().unwrap_unchecked() }
    }
}

impl DerefMut for Entered {
    #[inline]
    fn deref_mut(&mut self) -> &mut Group {
        // SAFETY: as above.
        unsafe { (*self.slot.group.get()).as_mut().unwrap_unchecked() }
    }
}

#[cold]
fn unknown(handle: u64) -> EntryError {
    if handle == 0 { EntryError::NullGroup } else { EntryError::Group(handle) }
}
