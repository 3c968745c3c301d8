//! Every object of this process.
//!
//! # Safety
//! Unmaps ranges that this library mapped, and declares that a `dlopen` handle may be sent to another thread.
#![allow(unsafe_code)]

use crate::gate::{Answer, Refusal, ensure, refuse};
use cann_sim::{Attachment, Kind, SharedMemory};
use comm_hccl::sys::*;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_void;
use std::sync::Arc;

/// The number behind `aclrtContext` of a thread without a context.
pub(crate) const NO_CONTEXT: usize = 0;
/// The context that HCCL leaves behind.
pub(crate) const FOREIGN_CONTEXT: usize = 0xF000;
/// The default context of device 0; the others follow.
const FIRST_CONTEXT: usize = 0x1000;

thread_local! {
    static CONTEXT: Cell<usize> = const { Cell::new(NO_CONTEXT) };
}

/// Memory that a device can use at an address.
pub(crate) struct Range {
    pub(crate) device: u32,
    pub(crate) size: usize,
    pub(crate) memory: Arc<SharedMemory>,
    /// The kind of object that it is counted as.
    pub(crate) kind: Kind,
}

/// Physical memory, own or a peer's.
pub(crate) struct Physical {
    pub(crate) device: u32,
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) kind: Kind,
    /// Handles that were made of it, by their nonce.
    pub(crate) exports: Vec<u64>,
}

/// A reserved range and what is mapped there.
pub(crate) struct Reservation {
    pub(crate) device: u32,
    pub(crate) size: usize,
    pub(crate) mapped: Option<Arc<SharedMemory>>,
    /// Devices that may use the mapping, driver-visible.
    pub(crate) access: HashSet<u32>,
}

/// A kernel binary, open.
pub(crate) struct Binary {
    pub(crate) device: u32,
    pub(crate) library: *mut c_void,
}

// SAFETY: the pointer is a handle of dlopen, which any thread may use; it is only touched under the state's
// lock.
unsafe impl Send for Binary {}

/// An IPC key, by its text.
pub(crate) struct IpcKey {
    pub(crate) device: u32,
    pub(crate) nonce: u64,
    /// Where a peer's memory is mapped; `None` for an own key.
    pub(crate) import: Option<usize>,
}

pub(crate) struct State {
    pub(crate) attachment: &'static Attachment,
    /// Driver-visible ids by logical id, as the vendor reads `ASCEND_RT_VISIBLE_DEVICES`.
    pub(crate) visible: Vec<u32>,
    pub(crate) initialised: bool,
    /// How often each logical device is set.
    pub(crate) set: BTreeMap<u32, u32>,
    pub(crate) streams: HashMap<usize, u32>,
    pub(crate) ranges: BTreeMap<usize, Range>,
    pub(crate) physical: HashMap<usize, Physical>,
    pub(crate) reservations: BTreeMap<usize, Reservation>,
    pub(crate) binaries: HashMap<usize, Binary>,
    pub(crate) functions: HashMap<usize, (usize, usize)>,
    pub(crate) keys: HashMap<Vec<u8>, IpcKey>,
    /// Driver-visible ids of the peers that the device may reach, with how often their status was queried.
    pub(crate) peers: HashMap<u32, u32>,
    next: usize,
}

impl State {
    pub(crate) fn new(attachment: &'static Attachment) -> Self {
        let count = attachment.config().devices;
        let visible = match std::env::var("ASCEND_RT_VISIBLE_DEVICES") {
            Err(_) => (0..count).collect(),
            // The vendor uses what comes before the first entry that it cannot read.
            Ok(list) => list.split(',').map_while(|e| e.parse().ok()).take_while(|&id| id < count).collect(),
        };
        Self {
            attachment,
            visible,
            initialised: false,
            set: BTreeMap::new(),
            streams: HashMap::new(),
            ranges: BTreeMap::new(),
            physical: HashMap::new(),
            reservations: BTreeMap::new(),
            binaries: HashMap::new(),
            functions: HashMap::new(),
            keys: HashMap::new(),
            peers: HashMap::new(),
            next: 0x10_0000,
        }
    }

    /// A new handle. It is a number that is never reused, not an address, so that the use of a stale one is noticed.
    pub(crate) fn handle(&mut self) -> usize {
        self.next += 0x10;
        self.next
    }

    /// The logical device of the calling thread's context.
    pub(crate) fn device(&self) -> Result<u32, Refusal> {
        ensure(self.initialised, ACL_ERROR_UNINITIALIZE, "aclInit was not called")?;
        let device = match current_context() {
            NO_CONTEXT => return refuse(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context"),
            FOREIGN_CONTEXT => self.set.keys().next().copied(),
            context => Some((context - FIRST_CONTEXT) as u32),
        };
        match device.filter(|d| self.set.contains_key(d)) {
            Some(device) => Ok(device),
            None => refuse(ACL_ERROR_RT_CONTEXT_NULL, "the context's device was reset"),
        }
    }

    /// The driver's number for a logical device.
    pub(crate) fn visible_id(&self, logical: i32) -> Result<u32, Refusal> {
        match usize::try_from(logical).ok().and_then(|index| self.visible.get(index)) {
            Some(&visible) => Ok(visible),
            None => refuse(ACL_ERROR_RT_INVALID_DEVICEID, format!("unknown logical device {logical}")),
        }
    }

    /// The driver's number for the calling thread's device.
    pub(crate) fn current_visible_id(&self) -> Result<u32, Refusal> {
        self.visible_id(self.device()? as i32)
    }

    /// Checks that the current device may use all of a range of addresses.
    pub(crate) fn usable(&self, address: usize, len: usize) -> Answer {
        let visible = self.current_visible_id()?;
        let inside = |base: usize, size: usize| {
            address >= base && address.checked_add(len).is_some_and(|end| end <= base + size)
        };
        if let Some((&base, range)) = self.ranges.range(..=address).next_back()
            && inside(base, range.size)
        {
            return Ok(());
        }
        match self.reservations.range(..=address).next_back() {
            Some((&base, r)) if inside(base, r.size) => {
                ensure(r.mapped.is_some(), ACL_ERROR_RT_PARAM_INVALID, "nothing is mapped there")?;
                ensure(
                    r.access.contains(&visible),
                    ACL_ERROR_RT_DRV_INTERNAL_ERROR,
                    "the device has no access to the mapping; see aclrtMemSetAccess",
                )
            }
            _ => refuse(ACL_ERROR_RT_PARAM_INVALID, "not device memory, or beyond its end"),
        }
    }

    /// Cleans up everything of one device, or of all, as a reset does.
    pub(crate) fn reclaim(&mut self, device: Option<u32>) {
        let goes = |of: u32| device.is_none_or(|d| d == of);
        let attachment = self.attachment;
        self.streams.retain(|_, of| keep_or_reclaim(attachment, !goes(*of), Kind::Stream));
        self.keys.retain(|_, key| {
            let kind = if key.import.is_some() { Kind::IpcImport } else { Kind::IpcKey };
            let keep = keep_or_reclaim(attachment, !goes(key.device), kind);
            if !keep && key.import.is_none() {
                crate::share::withdraw(attachment, key.nonce);
            }
            keep
        });
        self.ranges.retain(|&base, range| {
            let keep = !goes(range.device);
            if !keep {
                unmap(base, range.size);
                // An import is counted by its key.
                if range.kind != Kind::IpcImport {
                    attachment.reclaimed(range.kind);
                }
            }
            keep
        });
        self.reservations.retain(|&base, r| {
            let keep = !goes(r.device);
            if !keep {
                unmap(base, r.size);
                if r.mapped.is_some() {
                    attachment.reclaimed(Kind::Mapping);
                }
                attachment.reclaimed(Kind::Reservation);
            }
            keep
        });
        self.physical.retain(|_, p| {
            let keep = keep_or_reclaim(attachment, !goes(p.device), p.kind);
            if !keep {
                p.exports.iter().for_each(|&nonce| crate::share::withdraw(attachment, nonce));
            }
            keep
        });
        self.binaries.retain(|_, binary| keep_or_reclaim(attachment, !goes(binary.device), Kind::Binary));
        attachment.reclaimed_all(Kind::Communicator);
        self.peers.clear();
    }
}

fn keep_or_reclaim(attachment: &Attachment, keep: bool, kind: Kind) -> bool {
    if !keep {
        attachment.reclaimed(kind);
    }
    keep
}

/// The calling thread's context.
pub(crate) fn current_context() -> usize {
    CONTEXT.get()
}

/// Sets the calling thread's context.
pub(crate) fn set_current_context(context: usize) {
    CONTEXT.set(context);
}

/// The default context of a logical device.
pub(crate) fn context_of(device: u32) -> usize {
    FIRST_CONTEXT + device as usize
}

/// Unmaps a range of addresses.
pub(crate) fn unmap(base: usize, size: usize) {
    // SAFETY: this library mapped the range for the object that is being destroyed, and does not use it any more.
    unsafe { libc::munmap(base as *mut c_void, size) };
}
