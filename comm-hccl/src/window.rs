//! Windows: memory of one rank that other ranks reach, by one of three ways.
//!
//! The caller tries the ways in the order of [`WindowWay::ALL`] and keeps why each was refused; see
//! [`DeviceError::is_unsupported`]. A window is zeroed before there is anything to announce (HC-7).

use crate::device::{Device, VendorPid};
use crate::error::DeviceError;
use crate::ids::{PhysicalDevice, VisibleDevice};
use crate::ipc::{IpcExport, IpcImport, IpcKey};
use crate::memory::DeviceMemory;
use crate::physical::{FabricHandle, Mapping, Pages, PhysicalMemory, ShareableHandle};
use comm_context::abi::DeviceAddr;
use std::fmt;
use std::time::Instant;

/// How a window is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WindowWay {
    /// Huge pages and a 128-byte handle over the fabric.
    Fabric = 1,
    /// Normal pages, a 64-bit handle, peer access.
    Shareable = 2,
    /// Plain memory and a 65-byte key.
    IpcKey = 3,
}

impl WindowWay {
    /// Best first.
    pub const ALL: [Self; 3] = [Self::Fabric, Self::Shareable, Self::IpcKey];

    /// Its place in [`Self::ALL`].
    pub(crate) fn position(self) -> usize {
        self as usize - 1
    }
}

impl fmt::Display for WindowWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fabric => "Fabric",
            Self::Shareable => "shareable handle",
            Self::IpcKey => "IPC key",
        })
    }
}

/// What a peer needs to open a window. It goes from process to process over memory or a private socket; its
/// `Debug` shows nothing of the handle, and it is not for files or logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowTicket {
    /// Bytes, rounded up.
    pub size: usize,
    /// The owner's card, as the driver numbers it.
    pub card: VisibleDevice,
    /// The owner's card, as the machine numbers it.
    pub physical: PhysicalDevice,
    /// The way and its handle.
    share: Share,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    Fabric(FabricHandle),
    Shareable(ShareableHandle),
    IpcKey(IpcKey),
}

/// Bytes that are no ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a peer sent a window ticket whose {0} is wrong; do all ranks run the same version?")]
pub struct TicketError(pub &'static str);

const MAGIC: u32 = u32::from_le_bytes(*b"CWT1");
const HANDLE_AT: usize = 32;

impl WindowTicket {
    /// Bytes of the wire form.
    pub const LEN: usize = HANDLE_AT + 128;

    /// The way it was shared.
    pub fn way(&self) -> WindowWay {
        match self.share {
            Share::Fabric(_) => WindowWay::Fabric,
            Share::Shareable(_) => WindowWay::Shareable,
            Share::IpcKey(_) => WindowWay::IpcKey,
        }
    }

    /// The wire form: magic, way, size, both ids, zeros, then the handle at 32; little endian.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.way() as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.size as u64).to_le_bytes());
        bytes[16..20].copy_from_slice(&self.card.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.physical.0.to_le_bytes());
        let handle = &mut bytes[HANDLE_AT..];
        match &self.share {
            Share::Fabric(fabric) => handle.copy_from_slice(&fabric.0),
            Share::Shareable(shareable) => handle[..8].copy_from_slice(&shareable.0.to_le_bytes()),
            Share::IpcKey(key) => handle[..IpcKey::LEN].copy_from_slice(&key.0),
        }
        bytes
    }

    /// Reads what a peer sent.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, TicketError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(0) != MAGIC {
            return Err(TicketError("magic"));
        }
        let handle = &bytes[HANDLE_AT..];
        let (share, used) = match word(4) {
            1 => (Share::Fabric(FabricHandle(handle.try_into().map_err(|_| TicketError("handle"))?)), 128),
            2 => (Share::Shareable(ShareableHandle(long(HANDLE_AT))), 8),
            3 => {
                let key = handle[..IpcKey::LEN].try_into().map_err(|_| TicketError("handle"))?;
                (Share::IpcKey(IpcKey(key)), IpcKey::LEN)
            }
            _ => return Err(TicketError("way")),
        };
        if bytes[24..HANDLE_AT].iter().chain(&handle[used..]).any(|&b| b != 0) {
            return Err(TicketError("padding"));
        }
        let size = usize::try_from(long(8)).ok().filter(|&s| s > 0 && s <= isize::MAX as usize / 2);
        Ok(Self {
            size: size.ok_or(TicketError("size"))?,
            card: VisibleDevice(word(16)),
            physical: PhysicalDevice(word(20)),
            share,
        })
    }
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
    /// Allocates at least `size` bytes, zeroes them, and makes the ticket. Nobody can open it until
    /// [`LocalWindow::allow`].
    pub fn create(device: &Device, way: WindowWay, size: usize) -> Result<Self, DeviceError> {
        let map = |pages| {
            let mapping = Mapping::new(PhysicalMemory::allocate(device, size, pages)?)?;
            device.fill(mapping.addr(), 0, mapping.size())?;
            Ok::<_, DeviceError>(mapping)
        };
        let (memory, size, share) = match way {
            WindowWay::Fabric => {
                let mapping = map(Pages::Huge)?;
                let handle = mapping.memory().export_fabric()?;
                let size = mapping.size();
                (LocalMemory::Mapped(mapping), size, Share::Fabric(handle))
            }
            WindowWay::Shareable => {
                let mapping = map(Pages::Normal)?;
                let handle = mapping.memory().export_shareable()?;
                let size = mapping.size();
                (LocalMemory::Mapped(mapping), size, Share::Shareable(handle))
            }
            WindowWay::IpcKey => {
                let size = size.next_multiple_of(IPC_UNIT);
                let memory = DeviceMemory::allocate(device, size)?;
                memory.fill(0)?;
                let export = IpcExport::new(memory)?;
                let key = export.key();
                (LocalMemory::Ipc(export), size, Share::IpcKey(key))
            }
        };
        let ticket = WindowTicket { size, card: device.visible(), physical: device.physical()?, share };
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

    /// What the peers need.
    pub fn ticket(&self) -> &WindowTicket {
        &self.ticket
    }

    /// Lets these processes open it.
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

    /// Releases it and gives the first error.
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
                device.enable_peer(ticket.card, ticket.physical, deadline)?;
                PeerMemory::Mapped(Mapping::new(PhysicalMemory::import_shareable(
                    device,
                    *handle,
                    ticket.size,
                )?)?)
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

    /// Releases it and gives the first error.
    pub fn release(self) -> Result<(), DeviceError> {
        match self.memory {
            PeerMemory::Mapped(mapping) => mapping.release(),
            PeerMemory::Ipc(import) => import.release(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tickets() -> Vec<WindowTicket> {
        [
            Share::Fabric(FabricHandle([7; 128])),
            Share::Shareable(ShareableHandle(u64::MAX - 1)),
            Share::IpcKey(IpcKey([b'k'; IpcKey::LEN])),
        ]
        .map(|share| WindowTicket {
            size: 4 << 20,
            card: VisibleDevice(3),
            physical: PhysicalDevice(11),
            share,
        })
        .to_vec()
    }

    #[test]
    fn a_ticket_survives_the_wire_and_shows_no_handle() {
        for (ticket, way) in tickets().into_iter().zip(WindowWay::ALL) {
            assert_eq!(ticket.way(), way);
            assert_eq!(WindowTicket::from_bytes(&ticket.to_bytes()), Ok(ticket));
            let text = format!("{ticket:?}");
            assert!(
                !text.contains("7, 7") && !text.contains("1844674407370955161") && !text.contains("107"),
                "{text}"
            );
        }
    }

    // F29
    #[test]
    fn f29_a_ticket_with_a_wrong_part_is_refused() {
        let good = tickets()[1].to_bytes();
        for (at, part) in [(0, "magic"), (4, "way"), (15, "size"), (24, "padding"), (159, "padding")] {
            let mut bad = good;
            bad[at] ^= 0xF0;
            assert_eq!(WindowTicket::from_bytes(&bad), Err(TicketError(part)), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn f29_any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), WindowTicket::LEN)) {
            let bytes: [u8; WindowTicket::LEN] = bytes.try_into().unwrap();
            if let Ok(ticket) = WindowTicket::from_bytes(&bytes) {
                prop_assert_eq!(ticket.to_bytes(), bytes);
            }
        }
    }
}
