//! Every object of this process.

use crate::addresses;
use crate::device_process::{DeviceProcess, Running};
use crate::gate::{Answer, Refusal, ensure, refuse};
use crate::view::View;
use cann_sim::{Attachment, Kind};
use comm_hccl::sys::*;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
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
    pub(crate) view: Arc<View>,
    /// The kind of object that it is counted as.
    pub(crate) kind: Kind,
}

/// Physical memory, own or a peer's.
pub(crate) struct Physical {
    pub(crate) device: u32,
    pub(crate) view: Arc<View>,
    pub(crate) kind: Kind,
    /// Handles that were made of it, by their nonce. Of a peer's memory, the one that was imported.
    pub(crate) exports: Vec<u64>,
}

/// A reserved range and what is mapped there.
pub(crate) struct Reservation {
    pub(crate) device: u32,
    pub(crate) size: usize,
    pub(crate) mapped: Option<Mapped>,
    /// Devices that may use the mapping, driver-visible.
    pub(crate) access: HashSet<u32>,
}

/// Physical memory in a reserved range.
pub(crate) struct Mapped {
    pub(crate) view: Arc<View>,
    /// Whether it is a peer's.
    pub(crate) imported: bool,
}

/// Where a device address leads.
pub(crate) struct Place {
    pub(crate) view: Arc<View>,
    pub(crate) offset: usize,
    /// Whether the memory is a peer's.
    pub(crate) imported: bool,
}

/// A stream, and the kernel that runs on it.
pub(crate) struct Stream {
    pub(crate) device: u32,
    pub(crate) running: Option<Arc<Running>>,
    /// What the next kernel waits for: events, with the kernels that they stood for then.
    pub(crate) waits: Vec<(usize, Vec<Arc<Running>>)>,
}

/// An event.
pub(crate) struct Event {
    pub(crate) device: u32,
    /// The kernels whose end it stands for; `None` until it is recorded.
    pub(crate) recorded: Option<Vec<Arc<Running>>>,
}

/// A kernel binary, open in the device's process.
pub(crate) struct Binary {
    pub(crate) device: u32,
    pub(crate) library: usize,
    pub(crate) path: PathBuf,
    /// The load option with the kernels' type.
    pub(crate) magic: Option<u32>,
}

/// A kernel of a binary.
pub(crate) struct Function {
    pub(crate) binary: usize,
    pub(crate) entry: usize,
    /// Whether the vendor's loader would know the type of the kernel.
    pub(crate) typed: bool,
}

/// Why a device does nothing until it is reset.
pub(crate) struct Fault {
    pub(crate) code: i32,
    pub(crate) reason: String,
}

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
    pub(crate) streams: HashMap<usize, Stream>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) ranges: BTreeMap<usize, Range>,
    pub(crate) physical: HashMap<usize, Physical>,
    pub(crate) reservations: BTreeMap<usize, Reservation>,
    pub(crate) binaries: HashMap<usize, Binary>,
    pub(crate) functions: HashMap<usize, Function>,
    /// The processes in which kernels run, by logical device.
    pub(crate) processes: BTreeMap<u32, DeviceProcess>,
    pub(crate) faults: BTreeMap<u32, Fault>,
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
            events: HashMap::new(),
            ranges: BTreeMap::new(),
            physical: HashMap::new(),
            reservations: BTreeMap::new(),
            binaries: HashMap::new(),
            functions: HashMap::new(),
            processes: BTreeMap::new(),
            faults: BTreeMap::new(),
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

    /// Finds the memory behind addresses that the current device may use.
    pub(crate) fn locate(&self, address: usize, len: usize) -> Result<Place, Refusal> {
        let visible = self.current_visible_id()?;
        let inside = |base: usize, size: usize| {
            address >= base && address.checked_add(len).is_some_and(|end| end <= base + size)
        };
        if let Some((&base, range)) = self.ranges.range(..=address).next_back()
            && inside(base, range.view.size())
        {
            let imported = range.kind == Kind::IpcImport;
            return Ok(Place { view: Arc::clone(&range.view), offset: address - base, imported });
        }
        match self.reservations.range(..=address).next_back() {
            Some((&base, r)) if inside(base, r.size) => {
                let Some(mapped) = r.mapped.as_ref().filter(|mapped| inside(base, mapped.view.size())) else {
                    return refuse(ACL_ERROR_RT_PARAM_INVALID, "nothing is mapped there");
                };
                ensure(
                    r.access.contains(&visible),
                    ACL_ERROR_RT_DRV_INTERNAL_ERROR,
                    "the device has no access to the mapping; see aclrtMemSetAccess",
                )?;
                let view = Arc::clone(&mapped.view);
                Ok(Place { view, offset: address - base, imported: mapped.imported })
            }
            _ => refuse(ACL_ERROR_RT_PARAM_INVALID, "not device memory, or beyond its end"),
        }
    }

    /// Refuses device addresses where the vendor takes a pointer of the host.
    pub(crate) fn host_memory(&self, address: usize, len: usize) -> Answer {
        let overlaps =
            |base: usize, size: usize| address < base + size && base < address.saturating_add(len.max(1));
        let ranges = self.ranges.iter().any(|(&base, range)| overlaps(base, range.view.size()));
        let reserved = self.reservations.iter().any(|(&base, r)| overlaps(base, r.size));
        ensure(!ranges && !reserved, ACL_ERROR_RT_PARAM_INVALID, "a device address where host memory belongs")
    }

    /// Refuses with the device's fault.
    pub(crate) fn healthy(&self, device: u32) -> Answer {
        match self.faults.get(&device) {
            Some(fault) => refuse(fault.code, fault.reason.clone()),
            None => Ok(()),
        }
    }

    /// The process of a device. It starts with all memory that the device can use.
    pub(crate) fn process(&mut self, device: u32) -> Result<&mut DeviceProcess, Refusal> {
        if !self.processes.contains_key(&device) {
            let visible = self.visible_id(device as i32)?;
            let ranges = self.ranges.iter().filter(|(_, range)| range.device == device);
            let reserved =
                self.reservations.iter().filter(|(_, r)| r.device == device && r.access.contains(&visible));
            let mapped = reserved.filter_map(|(base, r)| Some((base, &r.mapped.as_ref()?.view)));
            let memory = ranges.map(|(base, range)| (base, &range.view)).chain(mapped);
            let started =
                DeviceProcess::start().map_err(|error| error.to_string()).and_then(|mut process| {
                    memory.into_iter().try_for_each(|(base, view)| process.map(*base, view))?;
                    Ok(process)
                });
            let started = started.or_else(|error| refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, error))?;
            self.processes.insert(device, started);
        }
        match self.processes.get_mut(&device) {
            Some(process) => Ok(process),
            None => refuse(ACL_ERROR_INTERNAL_ERROR, "the device's process was not started"),
        }
    }

    /// Memory that a device can use from now on.
    pub(crate) fn now_usable(&mut self, device: u32, base: usize, view: &View) -> Answer {
        match self.processes.get_mut(&device) {
            None => Ok(()),
            Some(process) => {
                process.map(base, view).or_else(|error| refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, error))
            }
        }
    }

    /// Memory that a device can use no longer. A process that is gone has no memory.
    pub(crate) fn no_longer_usable(&mut self, device: u32, base: usize, size: usize) {
        if let Some(process) = self.processes.get_mut(&device) {
            let _ = process.unmap(base, size);
        }
    }

    /// Cleans up everything of one device, or of all, as a reset does.
    pub(crate) fn reclaim(&mut self, device: Option<u32>) {
        let goes = |of: u32| device.is_none_or(|d| d == of);
        let attachment = self.attachment;
        let (ending, staying) =
            std::mem::take(&mut self.processes).into_iter().partition(|(device, _)| goes(*device));
        self.processes = staying;
        BTreeMap::into_values(ending).for_each(|process| drop(process.end()));
        self.faults.retain(|device, _| !goes(*device));
        self.streams.retain(|_, stream| keep_or_reclaim(attachment, !goes(stream.device), Kind::Stream));
        self.events.retain(|_, event| keep_or_reclaim(attachment, !goes(event.device), Kind::Event));
        self.keys.retain(|_, key| {
            let kind = if key.import.is_some() { Kind::IpcImport } else { Kind::IpcKey };
            let keep = keep_or_reclaim(attachment, !goes(key.device), kind);
            if !keep {
                crate::share::forget(attachment, key.nonce, key.import.is_some());
            }
            keep
        });
        self.ranges.retain(|&base, range| {
            let keep = !goes(range.device);
            if !keep {
                addresses::release(base, range.view.size());
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
                addresses::release(base, r.size);
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
                let imported = p.kind == Kind::Imported;
                p.exports.iter().for_each(|&nonce| crate::share::forget(attachment, nonce, imported));
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
