//! Children that were killed and have not ended.
//!
//! SIGKILL ends every process, but not one that is inside the kernel: that one ends when it comes out. It may wait there for
//! a device that does not answer, or to unmap a library while a kernel thread that has no core holds the lock of its file.
//! Nobody waits for it longer than [`ENDS_WITHIN`]. It is kept here, and is reaped, as soon as it has ended, when a child is
//! started or dropped.

use crate::process_watch::ProcessWatch;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a process has to end after SIGKILL; one that is not inside the kernel takes a few milliseconds.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_millis(750);

/// With the process that started them: a forked child has a copy of the list and none of the children, and the numbers of
/// their descriptors may be other files there.
static LEFT: Mutex<(u32, Vec<Arc<ProcessWatch>>)> = Mutex::new((0, Vec::new()));

/// Keeps a child that is to be reaped later.
pub(crate) fn keep(child: &Arc<ProcessWatch>) {
    with_list(|left| left.push(child.clone()));
}

/// Reaps those that have ended by now.
pub(crate) fn reap_ended() {
    with_list(|left| left.retain(|child| child.reap(libc::WNOHANG).is_none()));
}

/// Without waiting: in a forked child the lock may be held by a thread that does not exist there. What is not kept then is
/// reaped by the system when this process ends.
fn with_list(change: impl FnOnce(&mut Vec<Arc<ProcessWatch>>)) {
    let Ok(mut list) = LEFT.try_lock() else { return };
    let me = std::process::id();
    if list.0 != me {
        let inherited = std::mem::take(&mut list.1);
        inherited.into_iter().for_each(std::mem::forget);
        list.0 = me;
    }
    change(&mut list.1);
}
