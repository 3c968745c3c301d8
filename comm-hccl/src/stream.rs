//! Streams.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::{Device, Handle, Owner};
use crate::error::{DeviceError, acl};
use crate::sys::aclrtStream;

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
