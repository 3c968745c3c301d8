//! The ACL runtime of this process, initialised once.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::open_device;
use crate::error::{DeviceError, acl};
use crate::load::{Vendor, vendor_text};
use crate::result::Code;
use crate::sys::ACL_ERROR_REPEAT_INITIALIZE;
use crate::vendor_call::recorded;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The initialised ACL runtime.
#[derive(Debug, Clone, Copy)]
pub struct Runtime {
    vendor: &'static Vendor,
}

/// Who called `aclInit` in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// This crate did, in that pid.
    Ours(u32),
    /// Other code did (100002), and will finalise it; first seen in that pid.
    Foreign(u32),
    Finalised,
}

static STATE: Mutex<State> = Mutex::new(State::New);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime {
    /// Initialises the runtime, or joins the one that this process has (HC-3).
    pub fn start(vendor: &'static Vendor) -> Result<Self, DeviceError> {
        let this = std::process::id();
        let mut state = state();
        match *state {
            State::Finalised => return Err(DeviceError::Finalised),
            State::Ours(pid) | State::Foreign(pid) if pid != this => {
                return Err(DeviceError::Forked { initialised: pid, this });
            }
            State::Ours(_) | State::Foreign(_) => {}
            State::New => {
                // SAFETY: a null path means no configuration file.
                *state = match unsafe { acl!(vendor, aclInit(std::ptr::null())) } {
                    Ok(()) => State::Ours(this),
                    Err(DeviceError::Vendor(e)) if e.code == Code::Acl(ACL_ERROR_REPEAT_INITIALIZE) => {
                        State::Foreign(this)
                    }
                    Err(error) => return Err(error),
                };
            }
        }
        Ok(Self { vendor })
    }

    /// The libraries.
    pub fn vendor(&self) -> &'static Vendor {
        self.vendor
    }

    /// The chip's name; empty when the vendor has none.
    pub fn soc_name(&self) -> String {
        // SAFETY: takes nothing; returns null or a static text.
        recorded("aclrtGetSocName", || unsafe { vendor_text((self.vendor.acl.aclrtGetSocName)()) })
    }

    /// How many devices this process may open.
    pub fn device_count(&self) -> Result<u32, DeviceError> {
        let mut count = 0;
        // SAFETY: `count` is a valid place for one number.
        unsafe { acl!(self.vendor, aclrtGetDeviceCount(&mut count)) }?;
        Ok(count)
    }

    /// Ends the runtime, if this crate started it. The vendor cannot start it again in this process, so this comes last.
    pub fn finalise(self) -> Result<(), DeviceError> {
        if let Some(device) = open_device() {
            return Err(DeviceError::InUse { device, holders: 1 });
        }
        let mut state = state();
        if let State::Ours(pid) = *state
            && pid == std::process::id()
        {
            *state = State::Finalised;
            // SAFETY: takes nothing, and no device is open.
            unsafe { acl!(self.vendor, aclFinalize()) }?;
        }
        Ok(())
    }
}
