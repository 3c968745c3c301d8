//! Device memory: plain allocations, and copies to and from any device address.
//!
//! Device memory is not Rust memory: addresses are numbers, and all access is by copies.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid. The driver checks device addresses, and the
//! call fixes the direction of a copy, so a wrong address is an error and cannot touch this process's memory.
#![allow(unsafe_code)]

use crate::device::{Device, Handle};
use crate::error::{DeviceError, acl, acl_optional};
use crate::sys::*;
use comm_context::abi::DeviceAddr;
use std::ffi::c_void;

/// The address as the vendor takes it; never dereferenced in this process.
pub(crate) fn as_ptr(addr: DeviceAddr) -> *mut c_void {
    addr.0 as *mut c_void
}

impl Device {
    /// Copies bytes to the device. They have arrived when the call returns.
    pub fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), DeviceError> {
        let len = bytes.len();
        // SAFETY: `bytes` is readable for its length; the device side is checked by the driver.
        unsafe {
            acl!(
                self.vendor(),
                aclrtMemcpy(as_ptr(to), len, bytes.as_ptr().cast(), len, ACL_MEMCPY_HOST_TO_DEVICE)
            )
        }
    }

    /// Copies bytes from the device.
    pub fn read(&self, from: DeviceAddr, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let len = bytes.len();
        // SAFETY: `bytes` is writable for its length; the device side is checked by the driver.
        unsafe {
            acl!(
                self.vendor(),
                aclrtMemcpy(bytes.as_mut_ptr().cast(), len, as_ptr(from), len, ACL_MEMCPY_DEVICE_TO_HOST)
            )
        }
    }

    /// Copies bytes from one place on the device to another.
    pub fn copy(&self, to: DeviceAddr, from: DeviceAddr, len: usize) -> Result<(), DeviceError> {
        // SAFETY: both sides are device addresses, which the driver checks.
        unsafe {
            acl!(self.vendor(), aclrtMemcpy(as_ptr(to), len, as_ptr(from), len, ACL_MEMCPY_DEVICE_TO_DEVICE))
        }
    }

    /// Whether an address is memory of a device, and not of the host.
    pub fn owns(&self, addr: DeviceAddr) -> Result<bool, DeviceError> {
        let location = aclrtMemLocation { id: 0, r#type: ACL_MEM_LOCATION_TYPE_UNREGISTERED };
        let mut found = aclrtPtrAttributes { location, pageSize: 0, rsv: [0; 4] };
        // SAFETY: the address is looked up and not followed; `found` is a valid place.
        unsafe { acl_optional!(self.vendor(), aclrtPointerGetAttributes(as_ptr(addr), &mut found)) }?;
        Ok(found.location.r#type == ACL_MEM_LOCATION_TYPE_DEVICE)
    }

    /// Fills device memory with one byte.
    pub fn fill(&self, to: DeviceAddr, byte: u8, len: usize) -> Result<(), DeviceError> {
        // SAFETY: the device side is checked by the driver.
        unsafe { acl!(self.vendor(), aclrtMemset(as_ptr(to), len, i32::from(byte), len)) }
    }
}

/// Memory of `aclrtMalloc`.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Device,
    /// `None` once released.
    pointer: Option<Handle>,
    size: usize,
}

impl DeviceMemory {
    /// Allocates `size` bytes with undefined contents.
    pub fn allocate(device: &Device, size: usize) -> Result<Self, DeviceError> {
        check_size(size)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is a valid place for one address.
        unsafe { acl!(device.vendor(), aclrtMalloc(&mut pointer, size, ACL_MEM_MALLOC_HUGE_FIRST)) }?;
        Ok(Self { device: device.clone(), pointer: Some(Handle(pointer)), size })
    }

    /// Where it starts.
    pub fn addr(&self) -> DeviceAddr {
        DeviceAddr(self.pointer.map_or(0, |p| p.0 as u64))
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Copies bytes into it.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(self.range(offset, bytes.len())?, bytes)
    }

    /// Copies bytes out of it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(self.range(offset, bytes.len())?, bytes)
    }

    /// Fills all of it with one byte.
    pub fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        self.device.fill(self.addr(), byte, self.size)
    }

    /// Frees it.
    pub fn release(mut self) -> Result<(), DeviceError> {
        self.release_once()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    fn range(&self, offset: usize, len: usize) -> Result<DeviceAddr, DeviceError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(DeviceAddr(self.addr().0 + offset as u64)),
            _ => Err(DeviceError::OutOfRange { offset, len, size: self.size }),
        }
    }

    pub(crate) fn release_once(&mut self) -> Result<(), DeviceError> {
        match self.pointer.take() {
            Some(pointer) if !self.device.is_abandoned() => {
                // SAFETY: given by aclrtMalloc, and taken out so that it is freed once.
                unsafe { acl!(self.device.vendor(), aclrtFree(pointer.0)) }
            }
            _ => Ok(()),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let released = self.release_once();
        self.device.keep_first_error(released);
    }
}

/// Refuses sizes whose rounding up could overflow in the vendor's arithmetic.
pub(crate) fn check_size(size: usize) -> Result<(), DeviceError> {
    if size == 0 || size > isize::MAX as usize / 2 { Err(DeviceError::BadSize { size }) } else { Ok(()) }
}
