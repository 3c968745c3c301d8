//! Windows: memory of one rank that other ranks reach, shared in one of three modes.
//!
//! The caller tries the modes in the order of [`ShareMode::ALL`] and keeps why each was refused; see
//! [`DeviceError::is_unsupported`]. A window is zeroed before its ticket exists (HC-7).

mod ticket;

pub use ticket::{ShareMode, TicketError, WindowTicket};

use crate::device::{Device, Generation, VendorPid};
use crate::error::DeviceError;
use crate::ipc::{IpcExport, IpcImport};
use crate::memory::DeviceMemory;
use crate::physical::{Mapping, Pages, PhysicalMemory};
use comm_context::abi::DeviceAddr;
use std::time::Instant;
use ticket::Share;

/// Who may open a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Importers {
    /// Processes of this host, once they are [allowed](LocalWindow::allow).
    Allowed,
    /// Whoever has the ticket, on any host that the fabric reaches. The driver knows no processes of other hosts that it
    /// could check.
    AnyHost,
}

/// This rank's own window.
#[derive(Debug)]
pub struct LocalWindow {
    memory: LocalMemory,
    ticket: WindowTicket,
}

#[derive(Debug)]
enum LocalMemory {
    Mapped(Mapping),
    Ipc(IpcExport),
}

impl LocalWindow {
    /// Allocates at least `size` bytes, zeroes them, and makes the ticket. No process can open the window before
    /// [`LocalWindow::allow`].
    pub fn create(device: &Device, mode: ShareMode, size: usize) -> Result<Self, DeviceError> {
        Self::create_for(device, mode, size, &Importers::Allowed)
    }

    /// The same with a choice of who may open it. Only [`ShareMode::Fabric`] reaches other hosts.
    pub fn create_for(
        device: &Device,
        mode: ShareMode,
        size: usize,
        importers: &Importers,
    ) -> Result<Self, DeviceError> {
        if *importers == Importers::AnyHost && mode != ShareMode::Fabric {
            return Err(DeviceError::EndsAtHost { mode });
        }
        let map = |pages| {
            let mapping = Mapping::new(PhysicalMemory::allocate(device, size, pages)?)?;
            device.fill(mapping.addr(), 0, mapping.size())?;
            Ok::<_, DeviceError>(mapping)
        };
        let (memory, size, share) = match mode {
            ShareMode::Fabric if device.generation() == Generation::A5 => {
                return Err(DeviceError::NotUsedHere { mode });
            }
            ShareMode::Fabric => {
                let mapping = map(Pages::Huge)?;
                let handle = mapping.memory().export_fabric(importers)?;
                let size = mapping.size();
                (LocalMemory::Mapped(mapping), size, Share::Fabric(handle))
            }
            ShareMode::Shareable => {
                let mapping = map(Pages::Normal)?;
                let handle = mapping.memory().export_shareable()?;
                let size = mapping.size();
                (LocalMemory::Mapped(mapping), size, Share::Shareable(handle))
            }
            ShareMode::IpcKey => {
                let size = size.next_multiple_of(IPC_UNIT);
                let memory = DeviceMemory::allocate(device, size)?;
                memory.fill(0)?;
                let export = IpcExport::new(memory)?;
                let key = export.key();
                (LocalMemory::Ipc(export), size, Share::IpcKey(key))
            }
        };
        let ticket = WindowTicket { size, device: device.visible(), physical: device.physical()?, share };
        Ok(Self { memory, ticket })
    }

    /// Where it starts, for this rank.
    pub fn addr(&self) -> DeviceAddr {
        match &self.memory {
            LocalMemory::Mapped(mapping) => mapping.addr(),
            LocalMemory::Ipc(export) => export.memory().addr(),
        }
    }

    /// Bytes, rounded up.
    pub fn size(&self) -> usize {
        self.ticket.size
    }

    /// What the peers need to open it.
    pub fn ticket(&self) -> &WindowTicket {
        &self.ticket
    }

    /// Allows these processes to open it.
    pub fn allow(&self, pids: &[VendorPid]) -> Result<(), DeviceError> {
        match (&self.memory, &self.ticket.share) {
            (LocalMemory::Mapped(mapping), Share::Fabric(handle)) => {
                mapping.memory().allow_fabric(handle, pids)
            }
            (LocalMemory::Mapped(mapping), Share::Shareable(handle)) => {
                mapping.memory().allow_shareable(*handle, pids)
            }
            (LocalMemory::Ipc(export), _) => export.allow(pids),
            (LocalMemory::Mapped(_), Share::IpcKey(_)) => unreachable!("create pairs keys with plain memory"),
        }
    }

    /// Releases it. Returns the first error.
    pub fn release(self) -> Result<(), DeviceError> {
        match self.memory {
            LocalMemory::Mapped(mapping) => mapping.release(),
            LocalMemory::Ipc(export) => export.release(),
        }
    }
}

/// Keys cover whole huge pages, so that two windows never share one.
const IPC_UNIT: usize = 2 << 20;

/// A peer's window, open here.
#[derive(Debug)]
pub struct PeerWindow {
    memory: PeerMemory,
}

#[derive(Debug)]
enum PeerMemory {
    Mapped(Mapping),
    Ipc(IpcImport),
}

impl PeerWindow {
    /// Opens a peer's window. The owner must have allowed this process; `deadline` bounds the wait for peer
    /// access.
    pub fn open(device: &Device, ticket: &WindowTicket, deadline: Instant) -> Result<Self, DeviceError> {
        let memory = match &ticket.share {
            Share::Fabric(handle) => {
                PeerMemory::Mapped(Mapping::new(PhysicalMemory::import_fabric(device, handle, ticket.size)?)?)
            }
            Share::Shareable(handle) => {
                let warning = device.enable_peer(ticket.device, ticket.physical, deadline)?;
                let imported = PhysicalMemory::import_shareable(device, *handle, ticket.size);
                let mapped = imported.and_then(Mapping::new);
                PeerMemory::Mapped(mapped.map_err(|error| error.after(warning))?)
            }
            Share::IpcKey(key) => PeerMemory::Ipc(IpcImport::open(device, key, ticket.size)?),
        };
        Ok(Self { memory })
    }

    /// Where it starts, as this rank reaches it.
    pub fn addr(&self) -> DeviceAddr {
        match &self.memory {
            PeerMemory::Mapped(mapping) => mapping.addr(),
            PeerMemory::Ipc(import) => import.addr(),
        }
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        match &self.memory {
            PeerMemory::Mapped(mapping) => mapping.size(),
            PeerMemory::Ipc(import) => import.size(),
        }
    }

    /// Releases it. Returns the first error.
    pub fn release(self) -> Result<(), DeviceError> {
        match self.memory {
            PeerMemory::Mapped(mapping) => mapping.release(),
            PeerMemory::Ipc(import) => import.release(),
        }
    }
}
