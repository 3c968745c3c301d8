//! What a C caller can do wrong that the types of Rust exclude.

use crate::error::CollError;
use comm_context::capi::CError;
use comm_context::comm::{ArgumentError, CommError};
use core::ffi::c_int;
use core::fmt::Display;
use worker_errors::ErrorCode;

/// The error of a call through C.
#[derive(Debug, thiserror::Error)]
pub(super) enum EntryError {
    #[error(transparent)]
    Call(CollError),

    #[error(transparent)]
    Comm(#[from] CommError),

    #[error("coll is NULL; pass what comm_coll_create returned")]
    NullGroup,

    #[error(
        "{0:#x} is not the handle of a live group; pass what comm_coll_create returned, before comm_coll_destroy"
    )]
    Group(u64),

    #[error("another thread is inside a call on the group {0:#x}; let one thread at a time use a group")]
    InUse(u64),

    #[error(
        "{started} calls that another thread started on this group are not over; wait for them there, or make the \
         group with COMM_COLL_PROGRESS_THREAD"
    )]
    OtherThread { started: usize },

    #[error("dtype is {0}; pass a TensorDType, COMM_COLL_FLOAT64 or COMM_COLL_BOOL")]
    DType(c_int),

    #[error("op is {0}; pass a CommCollOp")]
    Op(c_int),

    #[error("{what} is {given}; pass a rank of the group, 0 to {}", .nranks - 1)]
    Rank { what: &'static str, given: c_int, nranks: usize },

    #[error("color is {0}; pass 0 or more, or -1 for no group")]
    Color(c_int),

    #[error(
        "{0} is not a call of this group that was started and is not over; pass what a comm_coll_start call gave, once"
    )]
    Request(u64),

    #[error(
        "options->{what} is {given}; start from COMM_COLL_OPTIONS of the header that belongs to this library"
    )]
    Options { what: &'static str, given: u64 },

    #[error("this process has {0} open groups and can have no more; destroy some")]
    Full(usize),
}

impl From<CollError> for EntryError {
    #[cold]
    fn from(error: CollError) -> Self {
        Self::Call(error)
    }
}

impl From<ArgumentError> for EntryError {
    fn from(error: ArgumentError) -> Self {
        Self::Comm(error.into())
    }
}

impl CError for EntryError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Call(error) => error.code(),
            Self::Comm(error) => error.code(),
            Self::Full(_) => ErrorCode::OutOfMemory,
            _ => ErrorCode::Invalid,
        }
    }

    fn repeats(&self) -> Option<&dyn Display> {
        match self {
            Self::Call(CollError::Broken { cause }) => Some(cause),
            Self::Call(CollError::Wait { cause, .. } | CollError::Setup { cause, .. }) => cause.repeats(),
            Self::Comm(error) => error.repeats(),
            _ => None,
        }
    }
}
