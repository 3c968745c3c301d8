//! The macros that place fault points. Without the feature `inject` they are nothing.

/// A point between two steps, at which a test can end or delay the process: `fault_point!("rendezvous.accepted")`.
#[cfg(feature = "inject")]
#[macro_export]
macro_rules! fault_point {
    ($name:literal) => {
        $crate::step($name)
    };
}

/// A point between two steps, at which a test can end or delay the process: `fault_point!("rendezvous.accepted")`.
#[cfg(not(feature = "inject"))]
#[macro_export]
macro_rules! fault_point {
    ($name:literal) => {
        ()
    };
}

/// A point before a system call, which a test can also make fail: `fault_call!("region.reserve").and_then(|()| …)`. Gives a
/// `nix::Result<()>`.
#[cfg(feature = "inject")]
#[macro_export]
macro_rules! fault_call {
    ($name:literal) => {
        $crate::call($name)
    };
}

/// A point before a system call, which a test can also make fail: `fault_call!("region.reserve").and_then(|()| …)`. Gives a
/// `nix::Result<()>`.
#[cfg(not(feature = "inject"))]
#[macro_export]
macro_rules! fault_call {
    ($name:literal) => {
        $crate::no_fault()
    };
}

/// Says which rank this process is, for plans that name one.
#[cfg(feature = "inject")]
#[macro_export]
macro_rules! fault_rank {
    ($rank:expr) => {
        $crate::set_rank($rank)
    };
}

/// Says which rank this process is, for plans that name one.
#[cfg(not(feature = "inject"))]
#[macro_export]
macro_rules! fault_rank {
    ($rank:expr) => {
        ()
    };
}

/// Says which child of a Worker this process is, for plans that name one.
#[cfg(feature = "inject")]
#[macro_export]
macro_rules! fault_child {
    ($number:expr) => {
        $crate::set_child($number)
    };
}

/// Says which child of a Worker this process is, for plans that name one.
#[cfg(not(feature = "inject"))]
#[macro_export]
macro_rules! fault_child {
    ($number:expr) => {
        ()
    };
}

/// The call goes ahead.
#[doc(hidden)]
#[inline(always)]
pub fn no_fault() -> nix::Result<()> {
    Ok(())
}
