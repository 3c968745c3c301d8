//! The kernel's futex as a model: compare and sleep are one step under a lock that a wake takes too.

use deadline::monotonic_ns;
use loom::sync::{Condvar, Mutex};

/// Models have no clock. A sleep that would end within this time ends at once; any other sleep ends
/// with a wake only, so that a lost wake-up is a deadlock.
const SOON_NS: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct FutexModel {
    lock: Mutex<()>,
    wakes: Condvar,
}

impl FutexModel {
    /// Sleeps until a wake or `until_ns`, unless `unchanged` is already false. Like the kernel, it
    /// compares once and not again afterwards: the caller must check.
    pub(crate) fn sleep_while(&self, unchanged: impl FnOnce() -> bool, until_ns: u64) {
        if until_ns < monotonic_ns() + SOON_NS {
            loom::thread::yield_now();
            return;
        }
        let guard = self.lock.lock().unwrap();
        if unchanged() {
            drop(self.wakes.wait(guard).unwrap());
        }
    }

    pub(crate) fn wake_all(&self) {
        let _guard = self.lock.lock().unwrap();
        self.wakes.notify_all();
    }
}
