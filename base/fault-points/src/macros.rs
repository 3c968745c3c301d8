//! The macros that place fault points. Without the feature `inject` they expand to nothing.

/// A point between two steps, at which a test can end or delay the process:
/// `fault_point!("rendezvous.accepted")`.
#[cfg(feature = "inject")]
#[macro_export]
macro_rules! fault_point {
    ($name:literal) => {
        $crate::step($name)
    };
}

/// A point between two steps, at which a test can end or delay the process:
/// `fault_point!("rendezvous.accepted")`.
#[cfg(not(feature = "inject"))]
#[macro_export]
macro_rules! fault_point {
    ($name:literal) => {
        ()
    };
}

/// A point before a system call, which a test can also make fail:
/// `fault_call!("region.reserve").map_err(Errno::from_raw)`. Its value is a `Result<(), i32>`: the errno.
#[cfg(feature = "inject")]
#[macro_export]
macro_rules! fault_call {
    ($name:literal) => {
        $crate::call($name)
    };
}

/// A point before a system call, which a test can also make fail:
/// `fault_call!("region.reserve").map_err(Errno::from_raw)`. Its value is a `Result<(), i32>`: the errno.
#[cfg(not(feature = "inject"))]
#[macro_export]
macro_rules! fault_call {
    ($name:literal) => {
        $crate::no_fault()
    };
}

/// Sets the rank of this process, for plans that name one.
#[cfg(feature = "inject")]
#[macro_export]
macro_rules! fault_rank {
    ($rank:expr) => {
        $crate::set_rank($rank)
    };
}

/// Sets the rank of this process, for plans that name one.
#[cfg(not(feature = "inject"))]
#[macro_export]
macro_rules! fault_rank {
    ($rank:expr) => {
        ()
    };
}

/// Sets the number of this process as a Worker's child, for plans that name one.
#[cfg(feature = "inject")]
#[macro_export]
macro_rules! fault_child {
    ($number:expr) => {
        $crate::set_child($number)
    };
}

/// Sets the number of this process as a Worker's child, for plans that name one.
#[cfg(not(feature = "inject"))]
#[macro_export]
macro_rules! fault_child {
    ($number:expr) => {
        ()
    };
}

/// No fault: the call is made.
#[doc(hidden)]
#[inline(always)]
pub const fn no_fault() -> Result<(), i32> {
    Ok(())
}

#[cfg(all(test, not(feature = "inject")))]
mod tests {
    /// FP-1: a constant expression neither loads nor calls anything.
    #[test]
    fn without_the_feature_a_point_is_a_constant() {
        const POINT: () = fault_point!("test.point");
        const CALL: Result<(), i32> = fault_call!("test.call");
        assert_eq!((POINT, CALL), ((), Ok(())));
    }
}
