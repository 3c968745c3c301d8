//! Stopping children: after a loss, and at close.

use super::{ChildHandle, Children};
use crate::parent::first_cause::{Event, Problems, is_because_of_peer};
use crate::shared::{Frame, Kind};
use deadline::{Deadline, Death, HowDied, Watch};
use fault_points::fault_point;
use mailbox_atomics::{Wait, WaitError};
use nix::sys::signal::Signal;
use std::num::NonZeroU32;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

/// How long processes have to act on a signal before the next one.
const SIGNAL_GRACE: Duration = Duration::from_millis(100);

/// How long processes have to notice that a sibling is gone, before they are killed. Kernels that poll their abort
/// word take microseconds. It counts in what it takes to report a death, once for each level of Workers.
const GRACE: Duration = Duration::from_millis(25);

impl Children {
    /// After a loss: all children stop. Those that are in a task and do not look are killed.
    pub(super) fn stop_all(&self) {
        self.block.parent().raise_abort();
        if let Some(group) = &self.group {
            group.halt(NonZeroU32::MIN);
        }
        self.block.wake_waiters();
        self.kill(&self.not_back(GRACE));
    }

    /// The children that have not finished what they were sent after so much time, and live.
    pub(super) fn not_back(&self, within: Duration) -> Vec<usize> {
        let Ok(deadline) = Deadline::after(within) else { return Vec::new() };
        let still_in_task = |child: &usize| {
            let handle = &self.handles[*child];
            if handle.ended || handle.process.watch().death().is_some() {
                return false;
            }
            let watch = WatchOne(handle);
            let wait = Wait::until(deadline).watching(&watch);
            let mut parked = self.block.park_flag(self.block.children(), *child);
            let done = self.block.child(*child).done_number();
            let back = done.wait_for(handle.ring.sent(), &wait, &mut parked);
            matches!(back, Err(WaitError::TimedOut { .. }))
        };
        (0..self.len()).filter(still_in_task).collect()
    }

    /// Asks all children to end, waits for all of them under one deadline, then ends those that are left by
    /// signals.
    pub(in crate::parent) fn close(mut self, patience: Duration) -> Problems {
        let mut problems = Problems::default();
        // From here on children end because they are asked to.
        self.deaths = None;
        self.timed_out = None;
        self.block.parent().shutdown_word().raise(NonZeroU32::MIN);
        let Ok(deadline) = Deadline::after(patience) else {
            let text = format!("close cannot wait {patience:?}; give it a shorter limit");
            problems.add(Event::CleanUp, Failure::new(ErrorCode::Invalid, text).in_phase("close"));
            return problems;
        };
        self.send_shutdown(deadline);
        fault_point!("worker.close.asked");
        let mut stuck: Vec<&ChildHandle> = Vec::new();
        for (child, handle) in self.handles.iter().enumerate() {
            let lost = self.loss.is_some() || handle.ended;
            match if lost { handle.process.try_reap() } else { handle.process.reap(deadline) } {
                None => stuck.push(handle),
                // After a loss the cause is known already.
                Some(how) if !lost && how != HowDied::Exited(0) => {
                    let failure = self.exit_failure(child, how);
                    let because_of_peer = failure.direct_cause().is_some_and(is_because_of_peer);
                    problems.add(Event::Died { noticed_ns: 0, because_of_peer }, failure);
                }
                Some(_) => {}
            }
        }
        fault_point!("worker.close.waited");
        end_by_signals(&stuck);
        if self.loss.is_none()
            && let Some(handle) = stuck.first()
        {
            let pid = handle.pid();
            let mut text =
                format!("{} (pid {pid}) did not end within {patience:?} and was killed", handle.name);
            if handle.process.try_reap().is_none() {
                text += &format!(
                    ", which has not ended it yet: it is inside the kernel, where a device may not answer; see \
                     /proc/{pid}/stack and the system's log"
                );
            }
            let failure = Failure::new(ErrorCode::TimedOut, text).in_phase("close");
            problems.add(Event::TimedOut { noticed_ns: 0 }, failure);
        }
        fault_point!("worker.close.gone");
        // Dropping the processes kills and reaps those that are left, should there be any.
        problems
    }

    /// Wakes the children that are idle. One whose ring is full is busy, and checks the shutdown word after
    /// its last task.
    fn send_shutdown(&mut self, deadline: Deadline) {
        for child in 0..self.len() {
            let (shutdown, done) =
                (self.block.parent().shutdown_word(), self.block.child(child).done_number());
            let may_sleep = self.handles[child].ring.shut_down(shutdown, NonZeroU32::MIN, done);
            if self.loss.is_none() && may_sleep {
                let _ = self.send(child, &Frame::new(Kind::Shutdown, 0), deadline);
            }
        }
    }

    fn exit_failure(&self, child: usize, how: HowDied) -> Failure {
        let handle = &self.handles[child];
        let text = format!("{} (pid {}) ended with an error: {how}", handle.name, handle.pid());
        let failure = Failure::new(super::death_code(how), text).in_phase("close");
        self.block.exit_failure(child).into_iter().fold(failure, Failure::caused_by)
    }
}

/// All are killed before the first is waited for: they end side by side, and share the time that they have for it.
impl Drop for Children {
    fn drop(&mut self) {
        // These deaths are none to report.
        self.deaths = None;
        self.handles.iter().for_each(|handle| handle.process.signal(Signal::SIGKILL as i32));
    }
}

fn end_by_signals(stuck: &[&ChildHandle]) {
    for signal in [Signal::SIGTERM as i32, Signal::SIGKILL as i32] {
        stuck.iter().for_each(|handle| handle.process.signal(signal));
        let Ok(grace) = Deadline::after(SIGNAL_GRACE) else { break };
        for handle in stuck {
            handle.process.reap(grace);
        }
    }
}

/// Watches one child.
struct WatchOne<'a>(&'a ChildHandle);

impl Watch for WatchOne<'_> {
    fn first_death(&self) -> Option<Death> {
        self.0.process.watch().death().map(|how| Death { peer: 0, pid: self.0.pid(), how })
    }
}
