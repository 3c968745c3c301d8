//! Who of those that a wait depends on is gone.

use crate::group::Group;
use crate::memory::Memory;
use child_process::ProcessWatch;
use deadline::{Death, HowDied, Watch};
use nix::errno::Errno;
use std::sync::{Mutex, PoisonError};

/// The peers' processes, each opened when it is first looked at: a wait that never naps costs no system call for this.
#[derive(Debug)]
pub(crate) struct ProcessWatches {
    open: Mutex<Vec<Option<ProcessWatch>>>,
}

impl ProcessWatches {
    pub(crate) fn new(nranks: u32) -> Self {
        Self { open: Mutex::new((0..nranks).map(|_| None).collect()) }
    }

    /// How `rank` died, or the death that sent it home; `None` while it lives or has not come yet.
    fn cause(&self, memory: &Memory, me: u32, rank: u32) -> Option<Death> {
        let death = self.death(memory, rank)?;
        // A host that dies while it lets the ranks in sends those home that have not entered yet: its death came first.
        let host = memory.host().filter(|host| !memory.has_signed_in(rank) && ![me, rank].contains(host));
        let first = host.and_then(|host| self.death(memory, host)).filter(|host| !memory.has_left(host.peer));
        Some(first.unwrap_or(death))
    }

    /// How `rank` died; `None` while it lives or has not come yet.
    fn death(&self, memory: &Memory, rank: u32) -> Option<Death> {
        let pid = i32::try_from(memory.pid(rank)?).ok().filter(|pid| *pid > 0)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = open.get_mut(rank as usize)?;
        if slot.as_ref().is_none_or(|line| line.pid() != pid) {
            *slot = match ProcessWatch::of_process(pid) {
                Ok(line) => Some(line),
                Err(Errno::ESRCH) => return Some(Death { peer: rank, pid, how: HowDied::Unknown }),
                // Too many descriptors, or a kernel without pidfds: this look tells nothing, the deadline still holds.
                Err(_) => None,
            };
        }
        slot.as_ref()?.death().map(|how| Death { peer: rank, pid, how })
    }

    /// The first rank other than `me` that is dead without having left. Whether it has left is looked at last: a rank that leaves and then ends, all after that
    /// look, would pass for one that died.
    pub(crate) fn first_dead(&self, memory: &Memory, me: u32) -> Option<Death> {
        (0..memory.layout.nranks).filter(|rank| *rank != me).find_map(|rank| {
            let death = self.cause(memory, me, rank)?;
            (!memory.has_left(rank)).then_some(death)
        })
    }
}

/// Watches the ranks that a wait still needs. One that has left is as gone as one that died.
pub(crate) struct Needed<'a, F> {
    group: &'a Group,
    missing: F,
}

impl<'a, F: Fn() -> Vec<u32>> Needed<'a, F> {
    pub(crate) fn new(group: &'a Group, missing: F) -> Self {
        Self { group, missing }
    }
}

impl<F: Fn() -> Vec<u32>> Watch for Needed<'_, F> {
    fn first_death(&self) -> Option<Death> {
        if let Some(told) = self.group.reported_death() {
            return Some(told);
        }
        let memory = &self.group.memory;
        (self.missing)().into_iter().find_map(|rank| {
            if memory.has_left(rank) {
                let pid = memory.pid(rank).unwrap_or(0) as i32;
                return Some(Death { peer: rank, pid, how: HowDied::Unknown });
            }
            self.group.process_watches().cause(memory, self.group.me.rank(), rank)
        })
    }
}
