//! What the tests share; no test uses all of it.
#![allow(dead_code)]

pub(crate) mod raw;

use deadline::Deadline;
use std::time::Duration;

/// Long enough for every test.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}
