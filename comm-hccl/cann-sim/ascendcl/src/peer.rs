//! Peer access between devices.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::gate::{call, ensure, refuse};
use comm_hccl::sys::*;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> aclError {
    call("aclrtDeviceCanAccessPeer", |state| {
        ensure(!can.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let (device, peer) = (state.visible_id(device)?, state.visible_id(peer)?);
        let reachable = device != peer && state.attachment.config().peer_access;
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { can.write(reachable.into()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtDeviceEnablePeerAccess(peer: i32, flags: u32) -> aclError {
    call("aclrtDeviceEnablePeerAccess", |state| {
        ensure(flags == 0, ACL_ERROR_INVALID_PARAM, "flags must be 0")?;
        let (peer, current) = (state.visible_id(peer)?, state.current_visible_id()?);
        ensure(peer != current, ACL_ERROR_RT_PARAM_INVALID, "a device is not its own peer")?;
        ensure(
            state.attachment.config().peer_access,
            ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
            "this machine has no peer access",
        )?;
        state.peers.entry(peer).or_default();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtDevicePeerAccessStatus(
    device: i32,
    peer: i32,
    status: *mut i32,
) -> aclError {
    call("aclrtDevicePeerAccessStatus", |state| {
        ensure(!status.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        state.visible_id(device)?;
        // The peer is a physical id here.
        let config = state.attachment.config();
        let visible = u32::try_from(peer).ok().and_then(|p| p.checked_sub(config.physical_base));
        let Some(visible) = visible.filter(|&v| v < config.devices) else {
            return refuse(ACL_ERROR_RT_INVALID_DEVICEID, format!("unknown physical device {peer}"));
        };
        let up = match state.peers.get_mut(&visible) {
            None => false,
            // The path takes a moment to come up: the first query answers no.
            Some(asked) => {
                *asked = asked.saturating_add(1);
                *asked > 1
            }
        };
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { status.write(up.into()) };
        Ok(())
    })
}
