//! Events: what orders two streams of a device.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::{Device, Handle};
use crate::error::{DeviceError, acl_optional};
use crate::stream::Stream;
use crate::sys::{ACL_EVENT_RECORDED_STATUS_COMPLETE, aclrtEvent};

/// A mark in a stream that other streams of the device can wait for, and the host can look at.
///
/// Streams that wait for it must be [synchronised](Stream::synchronize) before it is released.
#[derive(Debug)]
pub struct Event {
    device: Device,
    /// `None` once released.
    handle: Option<Handle>,
}

impl Event {
    /// Makes an event. It must be recorded before it is waited for.
    pub fn create(device: &Device) -> Result<Self, DeviceError> {
        let mut handle: aclrtEvent = std::ptr::null_mut();
        // SAFETY: `handle` is a valid place for one handle.
        unsafe { acl_optional!(device.vendor(), aclrtCreateEvent(&mut handle)) }?;
        Ok(Self { device: device.clone(), handle: Some(Handle(handle)) })
    }

    fn as_raw(&self) -> aclrtEvent {
        self.handle.map_or(std::ptr::null_mut(), |h| h.0)
    }

    /// Marks what is queued on the stream up to now. Recorded again, it stands for the new mark.
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: event and stream are alive while they are borrowed.
        unsafe { acl_optional!(self.device.vendor(), aclrtRecordEvent(self.as_raw(), stream.as_raw())) }
    }

    /// Lets what is queued on the stream from now on wait until the event is complete.
    pub fn block(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: as in `record`.
        unsafe { acl_optional!(self.device.vendor(), aclrtStreamWaitEvent(stream.as_raw(), self.as_raw())) }
    }

    /// Whether what it marks is done.
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        let mut status = 0;
        // SAFETY: the event is alive while `self` is; `status` is a valid place for one number.
        unsafe { acl_optional!(self.device.vendor(), aclrtQueryEventStatus(self.as_raw(), &mut status)) }?;
        Ok(status == ACL_EVENT_RECORDED_STATUS_COMPLETE)
    }

    /// Destroys it.
    pub fn release(mut self) -> Result<(), DeviceError> {
        self.release_once()
    }

    fn release_once(&mut self) -> Result<(), DeviceError> {
        match self.handle.take() {
            Some(handle) if !self.device.is_abandoned() => {
                // SAFETY: made by aclrtCreateEvent, and taken out so that it is destroyed once.
                unsafe { acl_optional!(self.device.vendor(), aclrtDestroyEvent(handle.0)) }
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let released = self.release_once();
        self.device.keep_first_error(released);
    }
}
