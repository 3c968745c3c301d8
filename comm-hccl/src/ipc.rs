//! Memory shared by IPC keys, the oldest mode.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::{Device, Handle, VendorPid};
use crate::error::{DeviceError, acl_optional, acl_present};
use crate::memory::{DeviceMemory, as_ptr};
use crate::sys::*;
use comm_context::abi::DeviceAddr;
use std::fmt;

/// The vendor's key: exactly 65 bytes, the last one NUL. Its `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcKey(pub(crate) [u8; Self::LEN]);

impl IpcKey {
    /// The only length that the vendor accepts.
    pub const LEN: usize = 65;
}

impl fmt::Debug for IpcKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IpcKey(..)")
    }
}

/// Device memory that has a key. The key is destroyed before the memory is freed.
#[derive(Debug)]
pub struct IpcExport {
    /// `None` once destroyed.
    key: Option<IpcKey>,
    memory: DeviceMemory,
}

impl IpcExport {
    /// Makes a key for device memory. No process may open it before [`IpcExport::allow`].
    pub fn new(memory: DeviceMemory) -> Result<Self, DeviceError> {
        acl_present!(memory.device().vendor(), aclrtIpcMemClose)?;
        let mut key = IpcKey([0; IpcKey::LEN]);
        // SAFETY: the memory is alive and of this size; the key has room for the length passed.
        unsafe {
            acl_optional!(
                memory.device().vendor(),
                aclrtIpcMemGetExportKey(
                    as_ptr(memory.addr()),
                    memory.size(),
                    key.0.as_mut_ptr().cast(),
                    IpcKey::LEN,
                    ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT
                )
            )
        }?;
        Ok(Self { key: Some(key), memory })
    }

    /// The key.
    pub fn key(&self) -> IpcKey {
        self.key.unwrap_or(IpcKey([0; IpcKey::LEN]))
    }

    /// The memory behind it.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Allows these processes to open the key.
    pub fn allow(&self, pids: &[VendorPid]) -> Result<(), DeviceError> {
        let key = terminated(&self.key());
        let mut pids: Vec<i32> = pids.iter().map(|p| p.0).collect();
        // SAFETY: the key ends in NUL; `pids` is valid for its length.
        unsafe {
            acl_optional!(
                self.memory.device().vendor(),
                aclrtIpcMemSetImportPid(key.as_ptr().cast(), pids.as_mut_ptr(), pids.len())
            )
        }
    }

    /// Destroys the key and frees the memory. Returns the first error.
    pub fn release(mut self) -> Result<(), DeviceError> {
        let closed = self.close_once();
        closed.and(self.memory.release_once())
    }

    fn close_once(&mut self) -> Result<(), DeviceError> {
        match self.key.take() {
            Some(key) if !self.memory.device().is_abandoned() => close(self.memory.device(), &key),
            _ => Ok(()),
        }
    }
}

impl Drop for IpcExport {
    fn drop(&mut self) {
        let closed = self.close_once();
        self.memory.device().keep_first_error(closed);
    }
}

/// A peer's memory, opened by its key.
#[derive(Debug)]
pub struct IpcImport {
    device: Device,
    /// `None` once closed.
    key: Option<IpcKey>,
    pointer: Handle,
    size: usize,
}

impl IpcImport {
    /// Opens a peer's key; `size` is what the peer says.
    pub fn open(device: &Device, key: &IpcKey, size: usize) -> Result<Self, DeviceError> {
        acl_present!(device.vendor(), aclrtIpcMemClose)?;
        let text = terminated(key);
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the key ends in NUL; `pointer` is a valid place.
        unsafe {
            acl_optional!(
                device.vendor(),
                aclrtIpcMemImportByKey(
                    &mut pointer,
                    text.as_ptr().cast(),
                    ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS
                )
            )
        }?;
        Ok(Self { device: device.clone(), key: Some(*key), pointer: Handle(pointer), size })
    }

    /// Where it starts here.
    pub fn addr(&self) -> DeviceAddr {
        DeviceAddr(self.pointer.0 as u64)
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Closes it.
    pub fn release(mut self) -> Result<(), DeviceError> {
        self.close_once()
    }

    fn close_once(&mut self) -> Result<(), DeviceError> {
        match self.key.take() {
            Some(key) if !self.device.is_abandoned() => close(&self.device, &key),
            _ => Ok(()),
        }
    }
}

impl Drop for IpcImport {
    fn drop(&mut self) {
        let closed = self.close_once();
        self.device.keep_first_error(closed);
    }
}

fn close(device: &Device, key: &IpcKey) -> Result<(), DeviceError> {
    let text = terminated(key);
    // SAFETY: the key ends in NUL.
    unsafe { acl_optional!(device.vendor(), aclrtIpcMemClose(text.as_ptr().cast())) }
}

/// The key as a C string that always ends in NUL, whatever a peer sent as its last byte.
fn terminated(key: &IpcKey) -> [u8; IpcKey::LEN + 1] {
    let mut text = [0; IpcKey::LEN + 1];
    text[..IpcKey::LEN].copy_from_slice(&key.0);
    text
}
