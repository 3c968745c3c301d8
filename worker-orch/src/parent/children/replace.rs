//! Other processes in the place of those that were ended, and the thread that watches all of them.

use super::Children;
use crate::shared::Programs;
use child_process::{Child, DeathThread, Noticed};
use std::num::NonZeroU32;

impl Children {
    /// Starts the thread that ends the parent's waits when a child dies. Without it, which is only when there are no
    /// more descriptors or threads, a wait notices a death at its next poll.
    pub(in crate::parent) fn watch_deaths(&mut self) {
        self.deaths = None;
        let alive: Vec<usize> = (0..self.len()).filter(|child| !self.handles[*child].ended).collect();
        let (numbers, block) = (alive.clone(), self.block.clone());
        let watches = alive.iter().map(|child| self.handles[*child].process.watch());
        self.deaths = DeathThread::start(watches, move |index| {
            let number = numbers.get(index).map_or(0, |number| *number as u32);
            block.parent().raise_death(NonZeroU32::MIN.saturating_add(number));
            block.wake_waiters();
            // It may have been about to park, and has then slept through the wake-up.
            if block.parent_is_parked() { Noticed::NotYet } else { Noticed::Yes }
        })
        .ok();
    }

    /// Chips are not replaced from here on, for this reason.
    pub(in crate::parent) fn keep_chips(&mut self, why: &'static str) {
        self.chips_stay = Some(why);
    }

    /// The children that were ended and have no process.
    pub(in crate::parent) fn ended(&self) -> Vec<usize> {
        (0..self.len()).filter(|child| self.handles[*child].ended).collect()
    }

    pub(in crate::parent) fn has_ended(&self) -> bool {
        self.handles.iter().any(|handle| handle.ended)
    }

    /// `process` serves in the place of a child that was ended. It has all programs.
    pub(in crate::parent) fn replace(&mut self, child: usize, process: Child, programs: &Programs) {
        let handle = &mut self.handles[child];
        self.block.set_about(child, process.pid(), &handle.name);
        handle.process = process;
        handle.ended = false;
        handle.registered = programs.changes().len();
    }
}
