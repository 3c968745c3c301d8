//! Tasks that have a time limit of their own, and tasks that are cancelled.

use super::Children;
use crate::shared::{Activity, Prerequisite};
use deadline::{Deadline, coarse_monotonic_ns};
use mailbox_atomics::WaitError;
use std::time::Duration;

/// How often such tasks are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A task that may take `limit` from when it begins.
#[derive(Debug)]
pub(super) struct Limited {
    task: Prerequisite,
    run: u64,
    limit: Duration,
}

impl Children {
    /// Task `seq` of `child`, which was sent in the current run, may take this long.
    pub(in crate::parent) fn limit_task(&mut self, child: usize, seq: u64, limit: Duration) {
        let block = &self.block;
        // Those that are over count no more.
        self.limits.retain(|one| block.child(usize::from(one.task.child)).done() < one.task.seq);
        let task = Prerequisite { child: child as u16, seq };
        self.limits.push(Limited { task, run: self.run, limit });
    }

    /// Waits until `child` says that it has finished frame `seq`. A task of the first run that is not over that takes longer than its
    /// limit ends the wait as the deadline does.
    #[inline(always)]
    pub(super) fn wait_done(&self, child: usize, seq: u64, deadline: Deadline) -> Result<u64, WaitError> {
        if self.limits.is_empty() {
            return self.wait_done_until(child, seq, deadline);
        }
        self.wait_done_or_limit(child, seq, deadline)
    }

    #[inline(never)]
    fn wait_done_or_limit(&self, child: usize, seq: u64, deadline: Deadline) -> Result<u64, WaitError> {
        loop {
            let look = Deadline::after(LOOK_EVERY).unwrap_or(deadline);
            let first = if look.monotonic_ns() < deadline.monotonic_ns() { look } else { deadline };
            match self.wait_done_until(child, seq, first) {
                Err(WaitError::TimedOut { .. }) if !deadline.has_passed() && self.over_limit().is_none() => {}
                // As the caller knows its deadline.
                Err(WaitError::TimedOut { .. }) => {
                    let (waited, limit) = (deadline.elapsed(), deadline.limit());
                    return Err(WaitError::TimedOut { waited, limit });
                }
                other => return other,
            }
        }
    }

    /// The task that takes longer than its limit, in words.
    pub(super) fn over_limit(&self) -> Option<String> {
        let (now, first) = (coarse_monotonic_ns(), self.first_under_way());
        let over = |one: &&Limited| {
            let activity = self.block.child(usize::from(one.task.child)).activity();
            let Activity::Task { seq, since_ns, need: None } = activity else { return false };
            let limit = u64::try_from(one.limit.as_nanos()).unwrap_or(u64::MAX);
            one.run == first && seq == one.task.seq && now.saturating_sub(since_ns) > limit
        };
        let Limited { task, limit, .. } = self.limits.iter().find(over)?;
        let child = usize::from(task.child);
        let program = self.frame_words(child, task.seq);
        let name = &self.handles[child].name;
        Some(format!(
            "{program}, task {} of {name}, takes longer than its limit of {limit:?}; give it more with Args::within",
            task.seq
        ))
    }
}
