//! Errors of ABI values.

use super::{COMM_MAX_RANK_NUM, DeviceAddr, TENSOR_MAX_DIMS};

/// Why bytes are not a context or tensor descriptor, or why one cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AbiError {
    /// There are fewer bytes than the struct has.
    #[error("{what} has {need} bytes, but only {have} are given; pass all of them")]
    Length {
        /// The struct.
        what: &'static str,
        /// Its size.
        need: usize,
        /// How many there are.
        have: usize,
    },

    /// The rank or the number of ranks is impossible.
    #[error(
        "rank {rank} of {nranks} is impossible; a context has 1 to {COMM_MAX_RANK_NUM} ranks, numbered from 0"
    )]
    Ranks {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        nranks: u32,
    },

    /// A rank is named that the context does not have.
    #[error("rank {rank} is not in the context, which has {nranks} ranks, counted from 0")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        nranks: u32,
    },

    /// An address that must point at something is null.
    #[error("{what} is null; pass its address")]
    Null {
        /// Which address.
        what: &'static str,
    },

    /// The window of a rank is null, empty, or runs beyond the address space.
    #[error(
        "the window of rank {rank} is impossible: {size} bytes at {base}; pass what its allocation returned"
    )]
    Window {
        /// The rank.
        rank: u32,
        /// Where it starts.
        base: DeviceAddr,
        /// The size of all windows.
        size: u64,
    },

    /// An address is not in the window of this rank.
    #[error("{addr} is not in this rank's window of {size} bytes at {base}; take an address from there")]
    NotInWindow {
        /// The address.
        addr: DeviceAddr,
        /// Where the window starts.
        base: DeviceAddr,
        /// Its size.
        size: u64,
    },

    /// A slice does not lie in the window.
    #[error(
        "the slice of {size} bytes at offset {offset} does not lie in the window of {window} bytes; choose one that does"
    )]
    SliceOutside {
        /// Where it starts.
        offset: u64,
        /// Its size.
        size: u64,
        /// The size of the window.
        window: u64,
    },

    /// A tensor has too many dimensions, or another number of strides.
    #[error(
        "a tensor has at most {TENSOR_MAX_DIMS} dimensions and as many strides, not {ndims} and {strides}"
    )]
    Dims {
        /// The number of dimensions.
        ndims: usize,
        /// The number of strides.
        strides: usize,
    },

    /// A stride is zero.
    #[error("the stride of dimension {dim} is 0; strides are in elements and always more than 0")]
    ZeroStride {
        /// The dimension.
        dim: usize,
    },

    /// The extent of a tensor does not fit in 64 bits, or a stride not in 32.
    #[error("the tensor is too large: its {what} overflows; make it smaller")]
    Overflow {
        /// What overflows.
        what: &'static str,
    },

    /// A tensor reaches beyond its buffer.
    #[error(
        "the tensor ends {need} bytes into its buffer, which has {have}; describe less of it, or allocate more"
    )]
    BeyondBuffer {
        /// Where the last element ends, in bytes from the start of the buffer.
        need: u64,
        /// The size of the buffer.
        have: u64,
    },

    /// The buffer of a tensor is not aligned for its elements.
    #[error("the buffer at {addr} is not aligned to the {align} bytes of an element; choose another address")]
    Misaligned {
        /// Where it starts.
        addr: DeviceAddr,
        /// What it must be a multiple of.
        align: u64,
    },

    /// The number is not that of a data type.
    #[error("unknown data type {code}; use a TensorDType")]
    DType {
        /// The number.
        code: u8,
    },

    /// A byte that must be 0 or 1 is something else.
    #[error("{what} is {value}; it must be 0 or 1")]
    Flag {
        /// Which byte.
        what: &'static str,
        /// Its value.
        value: u8,
    },

    /// A field that follows from the others contradicts them.
    #[error("{what} is {found}, shape and strides say {expected}")]
    Contradiction {
        /// Which field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        expected: u64,
    },

    /// A reserved byte is not zero.
    #[error(
        "a reserved byte of {what} is not zero, so that a newer or another program wrote it; run one build"
    )]
    Reserved {
        /// The struct.
        what: &'static str,
    },
}
