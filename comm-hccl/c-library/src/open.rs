//! Opens the communicator of a C caller.
//!
//! # Safety
//! Relies on the C caller for the validity of its stream.
#![allow(unsafe_code)]

use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use comm_hccl::{Device, DeviceError, HcclComm, LoadError, Runtime, Vendor, VisibleDevices};
use core::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

/// Joins on the device that the calling thread has set.
pub(crate) fn open(
    me: Membership,
    stream: *mut c_void,
    path: &Path,
    within: Timeout,
) -> Result<Box<dyn Communicator>, CommError> {
    let device = adopt().map_err(|source| {
        let what = format!("init on rank {}: the device cannot be used", me.rank());
        CommError::Backend { what, source: Arc::new(source) }
    })?;
    if stream.is_null() {
        return Ok(Box::new(HcclComm::rendezvous(&device, path, me, within)?));
    }
    // SAFETY: by comm.h the stream is one of the device that the caller has set, and outlives the communicator.
    Ok(Box::new(unsafe { HcclComm::rendezvous_on_stream(&device, stream, path, me, within) }?))
}

/// Why the caller's device cannot be used.
#[derive(Debug, thiserror::Error)]
enum AdoptError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn adopt() -> Result<Device, AdoptError> {
    let runtime = Runtime::start(Vendor::load(None)?)?;
    let list = VisibleDevices::from_env().map_err(DeviceError::from)?;
    Ok(Device::adopt(runtime, &list)?)
}
