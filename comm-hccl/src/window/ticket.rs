//! What a peer needs to open a window: how it is shared, and the handle.

use crate::ids::{PhysicalDevice, VisibleDevice};
use crate::ipc::IpcKey;
use crate::physical::{FabricHandle, ShareableHandle};
use std::fmt;
use worker_errors::cursor::{Reader, Writer};

/// How a window is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ShareMode {
    /// Huge pages and a 128-byte handle over the fabric.
    Fabric = 1,
    /// Normal pages, a 64-bit handle, peer access.
    Shareable = 2,
    /// Plain memory and a 65-byte key.
    IpcKey = 3,
}

impl ShareMode {
    /// Best first.
    pub const ALL: [Self; 3] = [Self::Fabric, Self::Shareable, Self::IpcKey];

    /// Its place in [`Self::ALL`].
    pub(crate) fn position(self) -> usize {
        self as usize - 1
    }
}

impl fmt::Display for ShareMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fabric => "Fabric",
            Self::Shareable => "shareable handle",
            Self::IpcKey => "IPC key",
        })
    }
}

/// What a peer needs to open a window. It is passed in memory or over a private socket, never in files or logs; its
/// `Debug` does not show the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowTicket {
    pub(super) size: usize,
    /// The owner's device, as the driver numbers it.
    pub(super) device: VisibleDevice,
    /// The owner's device, as the machine numbers it.
    pub(super) physical: PhysicalDevice,
    pub(super) share: Share,
}

/// The mode and its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    Fabric(FabricHandle),
    Shareable(ShareableHandle),
    IpcKey(IpcKey),
}

/// A malformed ticket, by the part that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the window ticket of a peer has a wrong {0}; check that all ranks run the same version")]
pub struct TicketError(pub &'static str);

const MAGIC: u32 = u32::from_le_bytes(*b"CWT1");
/// Where the handle starts.
const HANDLE_AT: usize = 32;
/// Zeros before the handle.
const RESERVED: usize = HANDLE_AT - 24;

impl WindowTicket {
    /// Bytes of the wire form.
    pub const LEN: usize = HANDLE_AT + 128;

    /// Bytes of the window, rounded up.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How the window is shared.
    pub fn mode(&self) -> ShareMode {
        match self.share {
            Share::Fabric(_) => ShareMode::Fabric,
            Share::Shareable(_) => ShareMode::Shareable,
            Share::IpcKey(_) => ShareMode::IpcKey,
        }
    }

    /// The wire form: magic, mode, size, both ids, zeros, then the handle at 32; little endian.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut to = Writer::default();
        to.u32(MAGIC).u32(self.mode() as u32).u64(self.size as u64);
        to.u32(self.device.0).u32(self.physical.0).raw(&[0; RESERVED]);
        match &self.share {
            Share::Fabric(fabric) => to.raw(&fabric.0),
            Share::Shareable(shareable) => to.u64(shareable.0),
            Share::IpcKey(key) => to.raw(&key.0),
        };
        let written = to.into_bytes();
        let mut bytes = [0; Self::LEN];
        bytes[..written.len()].copy_from_slice(&written);
        bytes
    }

    /// Reads what a peer sent.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, TicketError> {
        let mut from = Reader::new(bytes);
        if from.u32() != Some(MAGIC) {
            return Err(TicketError("magic"));
        }
        let mode = from.u32();
        let size = from.number().filter(|&size| size > 0 && size <= isize::MAX as usize / 2);
        let (device, physical, reserved) = (from.u32(), from.u32(), from.array());
        let share = match mode {
            Some(1) => from.array().map(FabricHandle).map(Share::Fabric),
            Some(2) => from.u64().map(ShareableHandle).map(Share::Shareable),
            Some(3) => from.array().map(IpcKey).map(Share::IpcKey),
            _ => return Err(TicketError("mode")),
        };
        let zeros = reserved == Some([0; RESERVED]) && from.rest().iter().all(|&byte| byte == 0);
        let (Some(device), Some(physical), Some(share), true) = (device, physical, share, zeros) else {
            return Err(TicketError("padding"));
        };
        Ok(Self {
            size: size.ok_or(TicketError("size"))?,
            device: VisibleDevice(device),
            physical: PhysicalDevice(physical),
            share,
        })
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
            device: VisibleDevice(3),
            physical: PhysicalDevice(11),
            share,
        })
        .to_vec()
    }

    #[test]
    fn a_ticket_survives_the_wire_and_shows_no_handle() {
        for (ticket, mode) in tickets().into_iter().zip(ShareMode::ALL) {
            assert_eq!(ticket.mode(), mode);
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
        for (at, part) in [(0, "magic"), (4, "mode"), (15, "size"), (24, "padding"), (159, "padding")] {
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
