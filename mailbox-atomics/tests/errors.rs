//! What a wait says that ends without what it waited for: causes, to which the caller adds the rest.
#![cfg(not(loom))]
#![allow(missing_docs)]

use deadline::{Deadline, Death, HowDied};
use mailbox_atomics::{Barrier, Place, StickyWord, Wait};
use std::num::NonZeroU32;
use std::time::Duration;

#[test]
fn what_a_wait_says_that_ends_early() {
    let within = |ms| Wait::until(Deadline::after(Duration::from_millis(ms)).unwrap());
    let said = |how: &Wait<'_>| {
        let places = [Place::default(), Place::default()];
        Barrier::new(&places, 0).wait(how).unwrap_err().to_string()
    };
    let late = said(&within(5));
    assert!(late.starts_with("barrier phase 1: timed out after "), "{late}");
    assert!(late.ends_with(" of 5ms; missing: [1]"), "{late}");
    let abort = StickyWord::new();
    abort.raise(NonZeroU32::new(7).unwrap());
    assert_eq!(said(&within(60_000).abort_on(&abort)), "barrier phase 1: aborted (reason 7); missing: [1]");
    let dead = || Some(Death { peer: 1, pid: 77, how: HowDied::Exited(3) });
    assert_eq!(
        said(&within(60_000).watching(&dead)),
        "barrier phase 1: peer 1 (pid 77) died: exited with code 3; missing: [1]"
    );
}
