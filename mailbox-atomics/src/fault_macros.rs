//! The macros that place fault points. Without the feature `fault-points` they are nothing.

/// A point between two steps, at which a test can end or delay the process: `fault_point!("rendezvous.seated")`.
#[cfg(feature = "fault-points")]
#[macro_export]
macro_rules! fault_point {
    ($name:literal) => {
        $crate::fault::step($name)
    };
}

/// A point between two steps, at which a test can end or delay the process: `fault_point!("rendezvous.seated")`.
#[cfg(not(feature = "fault-points"))]
#[macro_export]
macro_rules! fault_point {
    ($name:literal) => {
        ()
    };
}

/// A point before a system call, which a test can also make fail: `fault_call!("region.reserve").and_then(|()| …)`. Gives a
/// `nix::Result<()>`.
#[cfg(feature = "fault-points")]
#[macro_export]
macro_rules! fault_call {
    ($name:literal) => {
        $crate::fault::call($name)
    };
}

/// A point before a system call, which a test can also make fail: `fault_call!("region.reserve").and_then(|()| …)`. Gives a
/// `nix::Result<()>`.
#[cfg(not(feature = "fault-points"))]
#[macro_export]
macro_rules! fault_call {
    ($name:literal) => {
        $crate::no_fault()
    };
}

/// Says which rank this process is, for plans that name one.
#[cfg(feature = "fault-points")]
#[macro_export]
macro_rules! fault_rank {
    ($rank:expr) => {
        $crate::fault::set_rank($rank)
    };
}

/// Says which rank this process is, for plans that name one.
#[cfg(not(feature = "fault-points"))]
#[macro_export]
macro_rules! fault_rank {
    ($rank:expr) => {
        ()
    };
}

/// Says which hand of a Worker this process is, for plans that name one.
#[cfg(feature = "fault-points")]
#[macro_export]
macro_rules! fault_hand {
    ($number:expr) => {
        $crate::fault::set_hand($number)
    };
}

/// Says which hand of a Worker this process is, for plans that name one.
#[cfg(not(feature = "fault-points"))]
#[macro_export]
macro_rules! fault_hand {
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
