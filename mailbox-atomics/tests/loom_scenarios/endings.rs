//! How waits end: deadline, death, abort, and the value that came together with one of them.

use super::long;
use deadline::{Deadline, Death, HowDied};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use mailbox_atomics::{Listener, ParkFlag, StickyWord, Wait, WaitError, WordU32, WordU64};
use std::num::NonZeroU32;
use std::time::Duration;

const DEATH: Death = Death { peer: 1, pid: 7, how: HowDied::Exited(0) };
const REASON: NonZeroU32 = NonZeroU32::MIN;

/// The processes and the deadline are checked whenever the clock has moved.
const ALWAYS: Duration = Duration::from_nanos(1);

fn passed() -> Deadline {
    Deadline::after(Duration::from_nanos(1)).unwrap()
}

fn reached(value: u64) -> impl Fn(u64) -> Option<()> {
    move |found| (found >= value).then_some(())
}

/// MA-3
pub(crate) fn the_deadline_ends_a_wait() {
    let ended = Wait::until(passed()).on(&WordU64::new(0), None, reached(1));
    assert!(matches!(ended, Err(WaitError::TimedOut { .. })));
}

/// MA-3: the peer dies after the first check, while the waiter is parked.
pub(crate) fn a_death_ends_a_parked_wait() {
    let checks = std::cell::Cell::new(0);
    let watch = || {
        checks.set(checks.get() + 1);
        (checks.get() > 1).then_some(DEATH)
    };
    let wait = long().watching(&watch).polling_every(ALWAYS);
    assert_eq!(wait.on(&WordU64::new(0), None, reached(1)), Err(WaitError::PeerDied(DEATH)));
}

/// MA-3: an abort ends a wait although the word never gets there.
pub(crate) fn an_abort_ends_a_wait() {
    let shared = Arc::new((WordU64::new(0), WordU32::new(0), StickyWord::new()));
    let there = shared.clone();
    let writer = thread::spawn(move || {
        there.2.raise(REASON);
        there.0.store_and_notify(1, [Listener::new(&there.1)]);
    });
    let ended = long().abort_on(&shared.2).on(&shared.0, Some(&mut ParkFlag::new(&shared.1)), reached(2));
    assert_eq!(ended, Err(WaitError::Aborted { reason: REASON }));
    writer.join().unwrap();
}

/// MA-3: a cancel word that can be withdrawn ends a wait in the same way.
pub(crate) fn a_cancel_ends_a_wait() {
    let (word, cancel) = (WordU64::new(0), WordU32::new(0));
    cancel.store(3);
    let wait = long().cancel_on(&cancel);
    let aborted = Err(WaitError::Aborted { reason: NonZeroU32::new(3).unwrap() });
    assert_eq!(wait.on(&word, None, reached(1)), aborted);
    cancel.store(0);
    word.store(1);
    assert_eq!(wait.on(&word, None, reached(1)), Ok(()));
}

/// MA-4: the value was stored before the abort was raised, so it is there when the abort is noticed.
pub(crate) fn a_value_stored_before_an_abort_is_delivered() {
    let shared = Arc::new((WordU64::new(0), StickyWord::new()));
    let there = shared.clone();
    let writer = thread::spawn(move || {
        there.0.store(1);
        there.1.raise(REASON);
    });
    assert_eq!(long().abort_on(&shared.1).on(&shared.0, None, reached(1)), Ok(()));
    writer.join().unwrap();
}

/// MA-4: the value was stored before its writer died.
pub(crate) fn a_value_stored_before_a_death_is_delivered() {
    let shared = Arc::new((WordU64::new(0), AtomicBool::new(false)));
    let there = shared.clone();
    let writer = thread::spawn(move || {
        there.0.store(1);
        there.1.store(true, Ordering::Release);
    });
    let watch = || shared.1.load(Ordering::Acquire).then_some(DEATH);
    let wait = long().watching(&watch).polling_every(ALWAYS);
    assert_eq!(wait.on(&shared.0, None, reached(1)), Ok(()));
    writer.join().unwrap();
}

/// MA-4: the value is stored between the check of the word and the check of the clock.
pub(crate) fn a_value_stored_just_before_the_deadline_is_delivered() {
    let word = WordU64::new(0);
    let watch = || {
        word.store(1);
        None
    };
    assert_eq!(Wait::until(passed()).watching(&watch).on(&word, None, reached(1)), Ok(()));
}

/// MA-5
pub(crate) fn the_first_reason_stays() {
    let word = StickyWord::new();
    word.raise(NonZeroU32::new(7).unwrap());
    word.raise(NonZeroU32::new(9).unwrap());
    assert_eq!(word.raised(), NonZeroU32::new(7));
}
