//! HCCL's communicator, as far as this crate uses it: joining, the barrier, leaving.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::{Device, Handle};
use crate::error::DeviceError;
use crate::load::{Vendor, vendor_text};
use crate::stream::Stream;
use crate::sys::*;
use crate::vendor_call::recorded;
use std::fmt;

/// How the other ranks reach rank 0. Opaque; its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct RootInfo(Box<[u8; Self::LEN]>);

impl RootInfo {
    /// Bytes.
    pub const LEN: usize = HCCL_ROOT_INFO_BYTES;

    /// Opens rank 0's listener.
    pub fn open(device: &Device) -> Result<Self, DeviceError> {
        let vendor = device.vendor();
        let mut info = Box::new(HcclRootInfo { internal: [0; Self::LEN] });
        device.keep_context(|| {
            // SAFETY: `info` is a valid place for one root info.
            let code = recorded("HcclGetRootInfo", || unsafe { (vendor.hccl.HcclGetRootInfo)(&mut *info) });
            Ok(vendor.hccl_result("HcclGetRootInfo", code)?)
        })?;
        Ok(Self(Box::new(info.internal.map(|c| c as u8))))
    }

    /// As rank 0 sent it.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self(Box::new(*bytes))
    }

    /// To send to the other ranks.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for RootInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootInfo(..)")
    }
}

/// A rank's membership in an HCCL communicator.
#[derive(Debug)]
pub struct Group {
    device: Device,
    /// `None` once released.
    handle: Option<Handle>,
}

impl Group {
    /// Joins. Blocks until every rank has joined or the vendor gives up (`HCCL_CONNECT_TIMEOUT`, 120 s by default). A
    /// caller that needs a shorter deadline joins on a [`VendorThread`](crate::VendorThread).
    pub fn join(device: &Device, root: &RootInfo, ranks: u32, rank: u32) -> Result<Self, DeviceError> {
        let vendor = device.vendor();
        let info = Box::new(HcclRootInfo { internal: root.0.map(|b| b as core::ffi::c_char) });
        let mut handle: HcclComm = std::ptr::null_mut();
        let joined = device.keep_context(|| {
            // SAFETY: `info` is valid for the call, `handle` is a valid place; the vendor checks the numbers.
            let code = recorded("HcclCommInitRootInfo", || unsafe {
                (vendor.hccl.HcclCommInitRootInfo)(ranks, &*info, rank, &mut handle)
            });
            Ok(vendor.hccl_result("HcclCommInitRootInfo", code)?)
        });
        // When the call succeeds but the context cannot be restored, the membership must still be released.
        let group = Self { device: device.clone(), handle: (!handle.is_null()).then_some(Handle(handle)) };
        joined.map(|()| group)
    }

    /// The vendor's handle, for calls that this crate does not wrap. Valid until the membership is released.
    pub fn as_raw(&self) -> HcclComm {
        self.handle.map_or(std::ptr::null_mut(), |h| h.0)
    }

    pub(crate) fn vendor(&self) -> &'static Vendor {
        self.device.vendor()
    }

    pub(crate) fn keep_context<T>(
        &self,
        body: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        self.device.keep_context(body)
    }

    /// The communicator's name.
    pub fn name(&self) -> Result<String, DeviceError> {
        let vendor = self.device.vendor();
        // One byte more than the vendor may fill, so that there always is a NUL.
        let mut name = [0 as core::ffi::c_char; COMM_NAME_MAX_LENGTH + 1];
        // SAFETY: the communicator is alive; `name` has room for the longest name.
        let code = recorded("HcclGetCommName", || unsafe {
            (vendor.hccl.HcclGetCommName)(self.as_raw(), name.as_mut_ptr())
        });
        vendor.hccl_result("HcclGetCommName", code)?;
        // SAFETY: `name` ends in NUL at the latest at its end.
        Ok(unsafe { vendor_text(name.as_ptr()) })
    }

    /// Waits for every rank. The call is synchronous, so the stream need not be synchronised, and it restores the thread's
    /// ACL context.
    pub fn barrier(&self, stream: &Stream) -> Result<(), DeviceError> {
        let vendor = self.device.vendor();
        self.device.keep_context(|| {
            // SAFETY: communicator and stream are alive.
            let code = recorded("HcclBarrier", || unsafe {
                (vendor.hccl.HcclBarrier)(self.as_raw(), stream.as_raw())
            });
            Ok(vendor.hccl_result("HcclBarrier", code)?)
        })
    }

    /// Fails with the error of an operation that was queued on the communicator.
    pub fn check(&self) -> Result<(), DeviceError> {
        let vendor = self.device.vendor();
        let mut found = HCCL_SUCCESS;
        // SAFETY: the communicator is alive; `found` is a valid place.
        let code = recorded("HcclGetCommAsyncError", || unsafe {
            (vendor.hccl.HcclGetCommAsyncError)(self.as_raw(), &mut found)
        });
        vendor.hccl_result("HcclGetCommAsyncError", code)?;
        Ok(vendor.hccl_result("an operation on the communicator", found)?)
    }

    /// Leaves.
    pub fn release(mut self) -> Result<(), DeviceError> {
        self.release_once()
    }

    fn release_once(&mut self) -> Result<(), DeviceError> {
        let vendor = self.device.vendor();
        match self.handle.take() {
            Some(handle) if !self.device.is_abandoned() => self.device.keep_context_in_release(|| {
                // SAFETY: given by HcclCommInitRootInfo, and taken out so that it is destroyed once.
                let code = recorded("HcclCommDestroy", || unsafe { (vendor.hccl.HcclCommDestroy)(handle.0) });
                Ok(vendor.hccl_result("HcclCommDestroy", code)?)
            }),
            _ => Ok(()),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let released = self.release_once();
        self.device.keep_first_error(released);
    }
}
