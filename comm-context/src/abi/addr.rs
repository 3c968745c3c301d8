//! Device addresses.

use core::fmt;

use bytemuck::{Pod, Zeroable};

/// An address of device memory, valid on the rank that holds it. In the simulation it is a pointer of the
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct DeviceAddr(pub u64);

impl DeviceAddr {
    /// The null address.
    pub const NULL: Self = Self(0);

    /// Whether this is the null address.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further, unless that overflows.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl fmt::Display for DeviceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
