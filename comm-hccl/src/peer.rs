//! Access from this process's device to a peer's device.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::Device;
use crate::error::{DeviceError, acl_optional};
use crate::ids::{PhysicalDevice, VisibleDevice};
use std::time::{Duration, Instant};

/// How often the status of the path is polled; the vendor offers nothing to wait on.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl Device {
    /// Enables access to a peer's device and waits, at most until `deadline`, for the path to come up.
    ///
    /// The vendor has no call that undoes this for one of several users; the reset of the device does.
    pub fn enable_peer(
        &self,
        peer: VisibleDevice,
        peer_physical: PhysicalDevice,
        deadline: Instant,
    ) -> Result<(), DeviceError> {
        if peer == self.visible() {
            return Ok(());
        }
        let peer_logical =
            self.visible_devices().logical(peer).ok_or(DeviceError::PeerNotVisible { peer })?;
        let (this, vendor) = (self.logical().raw(), self.vendor());
        let mut can = 0;
        // SAFETY: a valid place and two numbers that the vendor checks.
        unsafe { acl_optional!(vendor, aclrtDeviceCanAccessPeer(&mut can, this, peer_logical.raw())) }?;
        if can == 0 {
            return Err(DeviceError::NoPeerPath { device: self.visible(), peer });
        }
        // SAFETY: a number that the vendor checks; the flags must be 0.
        unsafe { acl_optional!(vendor, aclrtDeviceEnablePeerAccess(peer_logical.raw(), 0)) }?;
        let start = Instant::now();
        loop {
            let mut up = 0;
            // SAFETY: two numbers that the vendor checks, and a valid place. The peer is a physical id here.
            match unsafe {
                acl_optional!(vendor, aclrtDevicePeerAccessStatus(this, peer_physical.0 as i32, &mut up))
            } {
                // An older library enables the path before it returns.
                Err(DeviceError::Unavailable { .. }) => return Ok(()),
                Err(error) => return Err(error),
                Ok(()) if up != 0 => return Ok(()),
                Ok(()) if Instant::now() >= deadline => {
                    return Err(DeviceError::PeerAccessTimedOut { peer, waited: start.elapsed() });
                }
                Ok(()) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}
