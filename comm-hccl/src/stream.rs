//! Streams.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::{Device, Handle, Owner};
use crate::error::{DeviceError, acl, acl_optional};
use crate::memory::as_ptr;
use crate::sys::{ACL_INT32, ACL_RT_MEMCPY_SDMA_AUTOMATIC_SUM, aclrtStream};
use comm_context::abi::DeviceAddr;

/// An ordered queue of work on a device.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    /// `None` once released.
    handle: Option<Handle>,
    owner: Owner,
}

impl Stream {
    /// Makes a stream.
    pub fn create(device: &Device) -> Result<Self, DeviceError> {
        let mut handle: aclrtStream = std::ptr::null_mut();
        // SAFETY: `handle` is a valid place for one handle.
        unsafe { acl!(device.vendor(), aclrtCreateStream(&mut handle)) }?;
        Ok(Self { device: device.clone(), handle: Some(Handle(handle)), owner: Owner::This })
    }

    /// Adopts a stream of the caller's, which stays the caller's.
    ///
    /// # Safety
    /// The stream was made in the device's context and is destroyed only after this object.
    pub unsafe fn adopt(device: &Device, stream: aclrtStream) -> Self {
        Self { device: device.clone(), handle: Some(Handle(stream)), owner: Owner::Caller }
    }

    /// The vendor's handle, for calls that this crate does not wrap. Valid until the stream is released.
    pub fn as_raw(&self) -> aclrtStream {
        self.handle.map_or(std::ptr::null_mut(), |h| h.0)
    }

    /// Waits until everything queued so far is done. The vendor sets no limit.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream is alive while `self` is.
        unsafe { acl!(self.device.vendor(), aclrtSynchronizeStream(self.as_raw())) }
    }

    /// Queues that the 32-bit word at `by` is added to the one at `to`, in one step for all devices that add to it. Both are device
    /// memory, own or a peer's.
    ///
    /// Whether the sum wraps or saturates at 2^31 the vendor does not say.
    pub fn add_word(&self, to: DeviceAddr, by: DeviceAddr) -> Result<(), DeviceError> {
        // SAFETY: the stream is alive while `self` is; both sides are device addresses, which the driver checks; what is reserved must be
        // null.
        unsafe {
            acl_optional!(
                self.device.vendor(),
                aclrtReduceAsync(
                    as_ptr(to),
                    as_ptr(by),
                    size_of::<u32>() as u64,
                    ACL_RT_MEMCPY_SDMA_AUTOMATIC_SUM,
                    ACL_INT32,
                    self.as_raw(),
                    std::ptr::null_mut()
                )
            )
        }
    }

    /// Destroys it, unless it was adopted.
    pub fn release(mut self) -> Result<(), DeviceError> {
        self.release_once()
    }

    fn release_once(&mut self) -> Result<(), DeviceError> {
        match self.handle.take() {
            Some(handle) if self.owner == Owner::This && !self.device.is_abandoned() => {
                // SAFETY: made by aclrtCreateStream, and taken out so that it is destroyed once.
                unsafe { acl!(self.device.vendor(), aclrtDestroyStream(handle.0)) }
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let released = self.release_once();
        self.device.keep_first_error(released);
    }
}
