//! The table of open communicators.

use super::report::guarded;
use crate::comm::{ArgumentError, CommError, Communicator, Timeout};
use core::ffi::c_int;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Open communicators by number. Numbers are not reused, so a stale handle never names another communicator.
pub(super) struct Handles {
    open: Mutex<Open>,
}

struct Open {
    next: u64,
    comms: BTreeMap<u64, Arc<Entry>>,
}

/// A communicator that groups of collectives keep alive beside its handle.
pub type SharedComm = Arc<Box<dyn Communicator>>;

/// A communicator, and what C callers must repeat when they release a domain.
pub(super) struct Entry {
    pub(super) comm: SharedComm,
    /// How long a call may take, as the environment said when the communicator was made: to read it takes
    /// longer than a barrier needs for everything else.
    pub(super) within: Timeout,
    domains: Mutex<BTreeMap<u64, Shape>>,
}

/// How many members a domain has, and which of them this rank is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) count: usize,
    pub(super) domain_rank: u32,
}

impl Entry {
    fn domains(&self) -> MutexGuard<'_, BTreeMap<u64, Shape>> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn allocated(&self, id: u64, shape: Shape) {
        self.domains().insert(id, shape);
    }

    /// Removes the domain `id` if it has this shape; an unknown one is left for the backend to refuse.
    pub(super) fn released(&self, id: u64, given: Shape) -> Result<(), CommError> {
        let mut domains = self.domains();
        match domains.get(&id) {
            Some(made) if *made != given => Err(ArgumentError::OtherDomain {
                count: given.count,
                domain_rank: given.domain_rank,
                made_count: made.count,
                made_rank: made.domain_rank,
            }
            .into()),
            _ => {
                domains.remove(&id);
                Ok(())
            }
        }
    }
}

// The communicator that a thread used last: most programs have one, and then need no lock to find it. A destroyed
// one is not found, because numbers are not reused and the reference is weak.
std::thread_local!(static LAST: RefCell<(u64, Weak<Entry>)> = const { RefCell::new((0, Weak::new())) });

/// Handles start here: outside the range of user-space pointers, so that pointers and small integers passed
/// by mistake are refused.
const FIRST: u64 = 0xc41b_c033_0000_0001;

impl Handles {
    pub(super) const fn new() -> Self {
        Self { open: Mutex::new(Open { next: FIRST, comms: BTreeMap::new() }) }
    }

    pub(super) fn add(&self, comm: Box<dyn Communicator>, within: Timeout) -> u64 {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = open.next;
        open.next += 1;
        open.comms
            .insert(handle, Arc::new(Entry { comm: Arc::new(comm), within, domains: Mutex::default() }));
        handle
    }

    #[inline]
    pub(super) fn get(&self, handle: u64) -> Result<Arc<Entry>, CommError> {
        let last = LAST.try_with(|last| match &*last.borrow() {
            (number, entry) if *number == handle => entry.upgrade(),
            _ => None,
        });
        last.ok().flatten().map_or_else(|| self.find(handle), Ok)
    }

    #[cold]
    fn find(&self, handle: u64) -> Result<Arc<Entry>, CommError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let found = open.comms.get(&handle).cloned().ok_or_else(|| unknown(handle))?;
        // A thread that is ending has nowhere to keep it.
        let _ = LAST.try_with(|last| last.replace((handle, Arc::downgrade(&found))));
        Ok(found)
    }

    /// Takes the communicator out, unless a call on it is under way or a group over it is open.
    pub(super) fn remove(&self, handle: u64) -> Result<(Box<dyn Communicator>, Timeout), CommError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = open.comms.remove(&handle).ok_or_else(|| unknown(handle))?;
        let keep = |open: &mut Open, entry, refused| {
            open.comms.insert(handle, entry);
            Err(CommError::from(refused))
        };
        let Entry { comm, within, domains } = match Arc::try_unwrap(entry) {
            Ok(entry) => entry,
            Err(entry) => return keep(&mut open, entry, ArgumentError::HandleInUse { value: handle }),
        };
        Arc::try_unwrap(comm).map(|comm| (comm, within)).or_else(|comm| {
            let groups = Arc::strong_count(&comm) - 1;
            let refused = ArgumentError::GroupsOpen { value: handle, groups };
            keep(&mut open, Arc::new(Entry { comm, within, domains }), refused)
        })
    }
}

fn unknown(handle: u64) -> CommError {
    match handle {
        0 => ArgumentError::Null { what: "handle" }.into(),
        value => ArgumentError::Handle { value }.into(),
    }
}

/// The rank of the communicator behind `handle`, for people.
pub(super) fn rank_of(handle: u64) -> Option<String> {
    super::HANDLES.get(handle).ok().map(|entry| format!("rank {}", entry.comm.rank()))
}

/// Runs a call on the communicator behind `handle`.
pub(super) fn with_handle(
    call: &str,
    handle: u64,
    body: impl FnOnce(&dyn Communicator, &Entry) -> Result<(), CommError>,
) -> c_int {
    guarded(
        call,
        || rank_of(handle),
        || {
            let entry = super::HANDLES.get(handle)?;
            body(entry.comm.as_ref().as_ref(), &entry)
        },
    )
}
