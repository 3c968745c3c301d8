//! Warnings: what did not fail, and may be why something fails later.
//!
//! # Safety
//! Writes bytes of its own to standard error.
#![allow(unsafe_code)]

use crate::ids::VisibleDevice;
use crate::result::VendorError;
use std::time::Duration;

/// Why memory of a peer may be out of reach although nothing has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerWarning {
    /// The vendor refused to enable access and does not report it as up. It also refuses a second time.
    #[error("access to the peer's {peer} could not be enabled ({source})")]
    NotEnabled {
        /// The peer's device.
        peer: VisibleDevice,
        /// What the vendor said.
        source: VendorError,
    },
    /// The vendor does not report access as up. It may never do so although the peer can be reached.
    #[error("access to the peer's {peer} was enabled, but was not reported as up in {:.1} s", waited.as_secs_f64())]
    Unconfirmed {
        /// The peer's device.
        peer: VisibleDevice,
        /// How long this rank polled.
        waited: Duration,
    },
}

/// Prints a warning as one line on standard error. A system call and no lock: this may be a forked child (F56).
pub(crate) fn print(warning: &PeerWarning) {
    let line = format!("[chipcomm] warning: {warning}\n");
    // SAFETY: the bytes are valid for the call. Whether they arrive does not matter.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
