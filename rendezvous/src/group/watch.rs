//! Which of the ranks that a wait depends on is gone.

use super::Group;
use crate::memory::Memory;
use child_process::ProcessWatch;
use deadline::{Death, HowDied, Watch};
use nix::errno::Errno;
use std::sync::{Mutex, PoisonError};

/// The peers' processes. Each is opened when it is first checked, so that a wait that never parks costs no
/// system call for it.
#[derive(Debug)]
pub(super) struct ProcessWatches {
    open: Mutex<Vec<Option<ProcessWatch>>>,
}

impl ProcessWatches {
    pub(super) fn new(nranks: u32) -> Self {
        Self { open: Mutex::new((0..nranks).map(|_| None).collect()) }
    }

    /// How `rank` died, or the leader's death if that is why; `None` while `rank` lives or has not joined
    /// yet.
    fn cause(&self, memory: &Memory, me: u32, rank: u32) -> Option<Death> {
        let death = self.death(memory, rank)?;
        // A leader that dies while it sends the memory makes the ranks fail that have not signed in: its
        // death is the first.
        let leader =
            memory.leader().filter(|leader| !memory.has_signed_in(rank) && ![me, rank].contains(leader));
        let first = leader.and_then(|leader| self.death(memory, leader));
        Some(first.filter(|leader| !memory.has_left(leader.peer)).unwrap_or(death))
    }

    /// How `rank` died; `None` while it lives or has not joined yet.
    fn death(&self, memory: &Memory, rank: u32) -> Option<Death> {
        let pid = i32::try_from(memory.pid(rank)?).ok().filter(|pid| *pid > 0)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = open.get_mut(rank as usize)?;
        if slot.as_ref().is_none_or(|watch| watch.pid() != pid) {
            *slot = match ProcessWatch::of_process(pid) {
                Ok(watch) => Some(watch),
                Err(Errno::ESRCH) => return Some(Death { peer: rank, pid, how: HowDied::Unknown }),
                // Too many descriptors, or a kernel without pidfds: nothing is known now, the deadline still
                // holds.
                Err(_) => None,
            };
        }
        slot.as_ref()?.death().map(|how| Death { peer: rank, pid, how })
    }
}

impl Group {
    /// How `rank` died, or another whose death is why; `None` while `rank` lives or has not joined yet.
    fn cause(&self, rank: u32) -> Option<Death> {
        match &self.hosts {
            None => self.process_watches.cause(&self.memory, self.me.rank(), rank),
            Some(hosts) => hosts.lost(rank).map(|(peer, _)| {
                let pid = self.memory.pid(peer).unwrap_or(0) as i32;
                Death { peer, pid, how: HowDied::Unknown }
            }),
        }
    }

    /// The first other rank that is dead without having left. Whether it has left is checked last: a rank that
    /// leaves and ends between the two checks would otherwise pass for one that died.
    pub(super) fn first_dead(&self) -> Option<Death> {
        let me = self.me.rank();
        (0..self.me.nranks()).filter(|rank| *rank != me).find_map(|rank| {
            let death = self.cause(rank)?;
            let left = self.memory.has_left(rank) || self.memory.has_left(death.peer);
            (!left).then_some(death)
        })
    }

    /// Whether the process of `rank` has ended, whether or not it had left.
    pub fn has_ended(&self, rank: u32) -> bool {
        let reported = self.memory.reported_death().is_some_and(|death| death.peer == rank);
        reported
            || match &self.hosts {
                None => self.process_watches.death(&self.memory, rank).is_some(),
                Some(hosts) => hosts.lost(rank).is_some(),
            }
    }
}

/// Watches the ranks that a wait still needs. One that has left is as gone as one that died.
pub(super) struct Needed<'a, F> {
    group: &'a Group,
    missing: F,
}

impl<'a, F: Fn() -> Vec<u32>> Needed<'a, F> {
    pub(super) fn new(group: &'a Group, missing: F) -> Self {
        Self { group, missing }
    }
}

impl<F: Fn() -> Vec<u32>> Watch for Needed<'_, F> {
    fn first_death(&self) -> Option<Death> {
        let memory = &self.group.memory;
        if let Some(death) = memory.reported_death() {
            return Some(death);
        }
        (self.missing)().into_iter().find_map(|rank| {
            if memory.has_left(rank) {
                let pid = memory.pid(rank).unwrap_or(0) as i32;
                return Some(Death { peer: rank, pid, how: HowDied::Unknown });
            }
            self.group.cause(rank)
        })
    }
}
