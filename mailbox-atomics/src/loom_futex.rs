//! The kernel's futex, as a model: compare and sleep are one step under a lock that a wake takes too.

use loom::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(crate) struct Bed {
    lock: Mutex<()>,
    wakes: Condvar,
}

impl Bed {
    /// Sleeps until a wake, unless `unchanged` is already false. Like the kernel, it compares once and does not check again
    /// afterwards: the caller must.
    pub(crate) fn sleep_while(&self, unchanged: impl FnOnce() -> bool) {
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
