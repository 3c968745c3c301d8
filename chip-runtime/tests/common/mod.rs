//! What the tests share.

use deadline::Deadline;
use std::time::Duration;

/// Long enough for every test.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}
