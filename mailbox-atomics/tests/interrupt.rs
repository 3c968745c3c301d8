//! A process that is asked to stop leaves its waits. Alone in its file: what asks is for the whole process.
#![cfg(not(loom))]

use deadline::Deadline;
use mailbox_atomics::{Wait, WaitError, WordI32, interrupt_waits, is_interrupted};
use shared_memory::Region;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static ASKED: AtomicBool = AtomicBool::new(false);

/// MA-3
#[test]
fn f92_a_wait_without_watch_or_abort_ends_when_the_process_is_interrupted() {
    let region = Region::create("interrupt", 4096).unwrap();
    let word = region.words::<WordI32>(0).unwrap();
    interrupt_waits(|| ASKED.load(Ordering::Relaxed));
    let waited = |limit| {
        let wait = Wait::until(Deadline::after(limit).unwrap());
        wait.on(word, None, |value| (value != 0).then_some(()))
    };
    assert!(!is_interrupted());
    assert!(matches!(waited(Duration::from_millis(120)), Err(WaitError::TimedOut { .. })));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            ASKED.store(true, Ordering::Relaxed);
        });
        let since = Instant::now();
        assert_eq!(waited(Duration::from_secs(60)), Err(WaitError::Interrupted));
        assert!(since.elapsed() < Duration::from_secs(30));
    });
    // What was delivered wins.
    word.store_and_wake(1);
    assert_eq!(waited(Duration::from_secs(60)), Ok(()));
}
