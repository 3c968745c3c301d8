//! Access from this process's device to a peer's device.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::{Device, Generation};
use crate::error::{DeviceError, acl_optional};
use crate::ids::{PhysicalDevice, VisibleDevice};
use crate::warning::{self, PeerWarning};
use std::time::{Duration, Instant};

/// How often the status of the path is polled; the vendor offers nothing to wait on.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl Generation {
    /// How long the status may take to show that the path is up. After that it may never show it.
    fn confirmed_within(self) -> Duration {
        match self {
            Self::A5 => Duration::from_secs(30),
            Self::A2a3 | Self::Unknown => Duration::from_secs(3),
        }
    }
}

impl Device {
    /// Enables access to a peer's device, once for each peer, and waits for the path to come up: a few seconds, and at
    /// most half of the time until `deadline`.
    ///
    /// The vendor may refuse to enable access that is enabled already, and may never report the path as up although it is.
    /// Both are warnings, which belong to the error of whatever fails later. The vendor has no call that disables access
    /// for one of several users; the reset of the device does.
    pub fn enable_peer(
        &self,
        peer: VisibleDevice,
        peer_physical: PhysicalDevice,
        deadline: Instant,
    ) -> Result<Option<PeerWarning>, DeviceError> {
        if peer == self.visible() {
            return Ok(None);
        }
        let mut enabled = self.enabled_peers();
        if let Some(known) = enabled.get(&peer) {
            return Ok(known.clone());
        }
        let warning = self.enable(peer, peer_physical, deadline)?;
        warning.iter().for_each(warning::print);
        enabled.insert(peer, warning.clone());
        Ok(warning)
    }

    fn enable(
        &self,
        peer: VisibleDevice,
        peer_physical: PhysicalDevice,
        deadline: Instant,
    ) -> Result<Option<PeerWarning>, DeviceError> {
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
        let refused =
            match unsafe { acl_optional!(vendor, aclrtDeviceEnablePeerAccess(peer_logical.raw(), 0)) } {
                Ok(()) => None,
                Err(DeviceError::Vendor(error)) if !error.code.is_unsupported() => Some(error),
                Err(error) => return Err(error),
            };
        let start = Instant::now();
        let patience =
            self.generation().confirmed_within().min(deadline.saturating_duration_since(start) / 2);
        loop {
            let mut up = 0;
            // SAFETY: two numbers that the vendor checks, and a valid place. The peer is a physical id here.
            match unsafe {
                acl_optional!(vendor, aclrtDevicePeerAccessStatus(this, peer_physical.0 as i32, &mut up))
            } {
                // An older library enables the path before it returns.
                Err(DeviceError::Unavailable { .. }) => break,
                Err(error) => return Err(error),
                Ok(()) if up != 0 => return Ok(None),
                Ok(()) if start.elapsed() >= patience => {
                    let unconfirmed = || PeerWarning::Unconfirmed { peer, waited: start.elapsed() };
                    return Ok(Some(
                        refused.map_or_else(unconfirmed, |source| PeerWarning::NotEnabled { peer, source }),
                    ));
                }
                Ok(()) => std::thread::sleep(POLL_INTERVAL),
            }
        }
        Ok(refused.map(|source| PeerWarning::NotEnabled { peer, source }))
    }
}
