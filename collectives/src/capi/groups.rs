//! The table of open groups: found by number, behind a lock that nobody waits for.
//!
//! The number in a handle is the key of its slot's [`EntryLock`], so that a stale handle finds a lock that is closed or has another
//! key: numbers are never used twice. The thread that made a group enters it without a locked instruction, as long as no other thread
//! uses it.
//!
//! # Safety
//! The cell of a slot belongs to the thread that is inside its lock, or has reserved it.
#![allow(unsafe_code)]

use super::error::EntryError;
use crate::group::Collectives;
use crate::started::Ticket;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use mailbox_atomics::{EntryLock, Inside, NotEntered, ThreadNumber};
use std::sync::Arc;

/// Groups that a process can have at once.
const SLOTS: usize = 1024;
/// What a handle starts with: no address of a process does, and no small number.
const MARK: u64 = 0xc011 << 48;
const MARK_BITS: u64 = 0xffff << 48;

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
    lock: EntryLock,
    group: UnsafeCell<Option<Group>>,
}

// SAFETY: see the head of the file: one thread at a time has the cell, and a group may go from thread to thread; while calls are under
// way that its thread also works on from elsewhere, `Entered::new` keeps other threads out.
unsafe impl Sync for Slot {}

static TABLE: [Slot; SLOTS] =
    [const { Slot { lock: EntryLock::new(), group: UnsafeCell::new(None) } }; SLOTS];

/// Groups that were ever made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A slot for a group that is about to be made.
pub(super) struct Reserved(&'static Slot, usize);

impl Reserved {
    pub(super) fn new() -> Result<Self, EntryError> {
        let me = ThreadNumber::current();
        let slots = || TABLE.iter().enumerate();
        // One that this thread enters at the least cost, if there is one.
        let mut slots = slots().filter(|(_, slot)| slot.lock.suits(me)).chain(slots());
        slots
            .find_map(|(at, slot)| slot.lock.reserve().then(|| Self(slot, at)))
            .ok_or(EntryError::Full(SLOTS))
    }

    /// Opens the group and returns its handle.
    pub(super) fn open(self, coll: Collectives<'static>) -> u64 {
        // Relaxed: only a number. There are more than a lifetime of groups needs.
        let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        let key = ((number * SLOTS as u64) & !MARK_BITS) | self.1 as u64;
        // SAFETY: the slot is reserved.
        unsafe { *self.0.group.get() = Some(Group { coll, started: Vec::new(), thread: None }) };
        self.0.lock.open(key, ThreadNumber::current());
        core::mem::forget(self);
        MARK | key
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.lock.give_back();
    }
}

impl Group {
    /// Whether this thread may, while calls are under way: the one that started them may work on them from calls on other groups.
    #[cold]
    fn may_be_entered(&self) -> bool {
        let mine = THIS_THREAD.try_with(Arc::clone).ok();
        match (&self.thread, mine) {
            _ if self.coll.has_progress_thread() => true,
            (Some(owner), Some(mine)) if Arc::ptr_eq(owner, &mine) => true,
            // That thread is gone, and its list of groups with it.
            (Some(owner), _) => Arc::strong_count(owner) == 1,
            _ => false,
        }
    }
}

/// A group of which this thread is inside a call.
pub(super) struct Entered {
    slot: &'static Slot,
    inside: Inside<'static>,
}

impl Entered {
    /// Enters the group behind `handle`, if there is one and nobody else is inside.
    #[inline]
    pub(super) fn new(handle: u64) -> Result<Self, Refused> {
        let slot = &TABLE[handle as usize % SLOTS];
        if handle & MARK_BITS != MARK {
            return Err(Refused::Unknown);
        }
        match slot.lock.enter(handle & !MARK_BITS, ThreadNumber::current()) {
            Ok(inside) => {
                let entered = Self { slot, inside };
                let group: &Group = &entered;
                match group.started.len() {
                    // Looked at in place: a value that goes through memory on its way costs as much as the rest of a call.
                    started if started > 0 && !group.may_be_entered() => {
                        Err(Refused::OtherThread { started })
                    }
                    _ => Ok(entered),
                }
            }
            Err(NotEntered::InUse) => Err(Refused::InUse),
            Err(NotEntered::Closed) => Err(Refused::Unknown),
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
        self.inside.close();
        group
    }
}

impl Deref for Entered {
    type Target = Group;

    #[inline]
    fn deref(&self) -> &Group {
        // SAFETY: this thread is inside, so the cell is its own; an open lock has a group behind it.
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

/// Why a thread may not enter, small enough for registers: every call passes it on.
pub(super) enum Refused {
    Unknown,
    InUse,
    OtherThread { started: usize },
}

impl Refused {
    /// The same for people.
    #[cold]
    pub(super) fn on(self, handle: u64) -> EntryError {
        match self {
            Self::Unknown if handle == 0 => EntryError::NullGroup,
            Self::Unknown => EntryError::Group(handle),
            Self::InUse => EntryError::InUse(handle),
            Self::OtherThread { started } => EntryError::OtherThread { started },
        }
    }
}
