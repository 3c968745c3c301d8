//! The bytes that kernels read. No allocation, no `std`.

mod addr;

pub use addr::DeviceAddr;

/// The most ranks that a context has room for.
pub const COMM_MAX_RANK_NUM: usize = 64;
