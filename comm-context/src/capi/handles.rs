//! The table of open communicators.

use super::guarded;
use crate::comm::{ArgumentError, CommError, Communicator};
use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Open communicators by number. Numbers are not used again, so a stale one is never somebody else's.
pub struct Handles {
    open: Mutex<Open>,
}

struct Open {
    next: u64,
    comms: BTreeMap<u64, Arc<Box<dyn Communicator>>>,
}

/// Handles start here: no pointer of a real program looks like it, and small integers passed by mistake are refused.
const FIRST: u64 = 0xc41b_c033_0000_0001;

/// Two threads of a rank destroy and use a communicator at the same time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("another thread is inside a call on this communicator; let it return, then destroy")]
struct InUse;

impl Handles {
    pub(super) const fn new() -> Self {
        Self { open: Mutex::new(Open { next: FIRST, comms: BTreeMap::new() }) }
    }

    pub(super) fn add(&self, comm: Box<dyn Communicator>) -> u64 {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = open.next;
        open.next += 1;
        open.comms.insert(handle, Arc::new(comm));
        handle
    }

    fn get(&self, handle: u64) -> Result<Arc<Box<dyn Communicator>>, CommError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.comms.get(&handle).cloned().ok_or_else(|| unknown(handle))
    }

    /// Takes the communicator out, unless a call on it is under way.
    pub(super) fn remove(&self, handle: u64) -> Result<Box<dyn Communicator>, CommError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let comm = open.comms.remove(&handle).ok_or_else(|| unknown(handle))?;
        Arc::try_unwrap(comm).map_err(|comm| {
            open.comms.insert(handle, comm);
            CommError::Backend { what: "not destroyed".to_owned(), source: Arc::new(InUse) }
        })
    }
}

fn unknown(handle: u64) -> CommError {
    match handle {
        0 => ArgumentError::Null { what: "handle" }.into(),
        value => ArgumentError::Handle { value }.into(),
    }
}

/// Runs a call on the communicator behind `handle`.
pub(super) fn with_handle(
    call: &str,
    handle: u64,
    body: impl FnOnce(&dyn Communicator) -> Result<(), CommError>,
) -> c_int {
    guarded(call, || body(super::HANDLES.get(handle)?.as_ref().as_ref()))
}
