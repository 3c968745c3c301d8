//! System calls that no crate wraps, each behind a safe function.

pub(crate) mod futex;
pub(crate) mod membarrier;
pub(crate) mod slice;
