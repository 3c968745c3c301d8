//! What can go wrong between this crate's caller and the vendor.

use crate::ids::{LogicalDevice, VisibleDevice, VisibleDevicesError};
use crate::result::VendorError;
use crate::warning::PeerWarning;
use crate::window::ShareMode;
use comm_context::abi::DeviceAddr;
use std::path::PathBuf;

/// Why a device operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The vendor refused.
    #[error(transparent)]
    Vendor(#[from] VendorError),
    /// The library lacks the function.
    #[error("the installed CANN has no {function}; a newer one is needed for this")]
    Unavailable {
        /// The function.
        function: &'static str,
    },
    /// The list of devices is malformed.
    #[error(transparent)]
    VisibleDevices(#[from] VisibleDevicesError),
    /// The device does not exist.
    #[error(
        "{device} does not exist: this process sees {count} device(s); check `npu-smi info` and ASCEND_RT_VISIBLE_DEVICES"
    )]
    NoSuchDevice {
        /// What was asked for.
        device: LogicalDevice,
        /// How many there are.
        count: u32,
    },
    /// This process drives a device already.
    #[error("this process already drives {open}, so it cannot open {asked}; start one process per device")]
    AlreadyOpen {
        /// The one that is open.
        open: LogicalDevice,
        /// The other one.
        asked: LogicalDevice,
    },
    /// The process was forked after `aclInit`.
    #[error(
        "aclInit was called in pid {initialised}, and this is its forked child pid {this}; fork before the first vendor call"
    )]
    Forked {
        /// Where the runtime was initialised.
        initialised: u32,
        /// The child.
        this: u32,
    },
    /// `aclFinalize` was called; the vendor cannot start again in the same process.
    #[error("the ACL runtime of this process was finalised and cannot be started again; start a new process")]
    Finalised,
    /// A copy or fill beyond the end.
    #[error(
        "{len} bytes at offset {offset} do not fit into {size} bytes of device memory; copy fewer, or allocate more"
    )]
    OutOfRange {
        /// Where it starts.
        offset: usize,
        /// How long it is.
        len: usize,
        /// What there is.
        size: usize,
    },
    /// Nothing can be allocated with this size.
    #[error("{size} bytes cannot be allocated; ask for at least 1 and less than half the address space")]
    BadSize {
        /// The size.
        size: usize,
    },
    /// Objects of the device are still alive.
    #[error("{device} cannot be closed: {holders} object(s) of it are still alive; drop them first")]
    InUse {
        /// The device.
        device: LogicalDevice,
        /// Streams, memories, mappings and the like.
        holders: usize,
    },
    /// An address that nothing was allocated at.
    #[error(
        "{len} bytes at {addr} are not inside one allocation of this device; take addresses from what was allocated"
    )]
    NotAllocated {
        /// Where they start.
        addr: DeviceAddr,
        /// How many.
        len: usize,
    },
    /// Something is used after its release.
    #[error("the {what} is already released; release it once, and use it before")]
    Released {
        /// What was used.
        what: &'static str,
    },
    /// A text for the vendor contains a NUL byte.
    #[error("{what} {text:?} contains a NUL byte; leave it out")]
    NulByte {
        /// What the text is.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// A kernel's file cannot be read.
    #[error("{} cannot be read: {reason}; check the path", path.display())]
    KernelFile {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// Nothing says for which kind of core a kernel is compiled.
    #[error(
        "{} does not say for which kind of core `{symbol}` is compiled: it has no section .ascend.meta.{symbol} and \
         no .json file with a `magic` beside it; build it from its source with `cargo xtask kernels`. An object that was \
         compiled for another runtime, without a __global__ entry, cannot be launched",
        path.display()
    )]
    NoKernelType {
        /// The file.
        path: PathBuf,
        /// The kernel.
        symbol: String,
    },
    /// A peer's device is not in this process's list.
    #[error(
        "the peer's {peer} is not visible to this process; name the devices of all ranks in ASCEND_RT_VISIBLE_DEVICES of every rank"
    )]
    PeerNotVisible {
        /// The device.
        peer: VisibleDevice,
    },
    /// The devices cannot reach each other.
    #[error(
        "{device} cannot reach the peer's {peer}: there is no peer-to-peer path between them; choose others"
    )]
    NoPeerPath {
        /// Ours.
        device: VisibleDevice,
        /// The peer's.
        peer: VisibleDevice,
    },
    /// This mode is not used on this generation of chips.
    #[error("{mode} is not used on Ascend A5")]
    NotUsedHere {
        /// The mode.
        mode: ShareMode,
    },
    /// Memory shared in this mode cannot be reached from another host.
    #[error("{mode}s end at the host")]
    EndsAtHost {
        /// The mode.
        mode: ShareMode,
    },
    /// Something failed after a warning that may be the cause.
    #[error("{source}; before that, {warning}")]
    Warned {
        /// The warning.
        warning: PeerWarning,
        /// What failed.
        source: Box<DeviceError>,
    },
    /// A vendor call succeeded with a result that it must not have.
    #[error("{function} succeeded but returned {what}; check the versions of driver and CANN")]
    Unexpected {
        /// The function.
        function: &'static str,
        /// What it returned.
        what: &'static str,
    },
}

impl DeviceError {
    /// Whether this machine or library lacks the feature, so that another share mode may work.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Vendor(error) => error.code.is_unsupported(),
            Self::Unavailable { .. }
            | Self::PeerNotVisible { .. }
            | Self::NoPeerPath { .. }
            | Self::NotUsedHere { .. } => true,
            Self::Warned { source, .. } => source.is_unsupported(),
            _ => false,
        }
    }

    /// The same error with the warning that came before it.
    pub(crate) fn after(self, warning: Option<PeerWarning>) -> Self {
        match warning {
            Some(warning) => Self::Warned { warning, source: Box::new(self) },
            None => self,
        }
    }
}

/// Calls a function of `libascendcl.so`: the code becomes a result that names the function. Use it in
/// `unsafe`.
macro_rules! acl {
    ($vendor:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let vendor: &$crate::load::Vendor = $vendor;
        let code = $crate::vendor_call::recorded(stringify!($name), || (vendor.acl.$name)($($arg),*));
        vendor.acl_result(stringify!($name), code).map_err($crate::error::DeviceError::from)
    }};
}

/// The same for an optional function.
macro_rules! acl_optional {
    ($vendor:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let vendor: &$crate::load::Vendor = $vendor;
        match vendor.acl.$name {
            None => Err($crate::error::DeviceError::Unavailable { function: stringify!($name) }),
            Some(function) => {
                let code = $crate::vendor_call::recorded(stringify!($name), || function($($arg),*));
                vendor.acl_result(stringify!($name), code).map_err($crate::error::DeviceError::from)
            }
        }
    }};
}

/// Fails when an optional function is missing. What one call acquires and another releases is acquired only when both
/// are there.
macro_rules! acl_present {
    ($vendor:expr, $name:ident) => {
        match $vendor.acl.$name {
            None => Err($crate::error::DeviceError::Unavailable { function: stringify!($name) }),
            Some(_) => Ok(()),
        }
    };
}

pub(crate) use {acl, acl_optional, acl_present};
