//! The inaccessible pages behind windows.

use rendezvous::Group;
use shared_memory::{PAGE, Region};
use std::collections::BTreeSet;
use std::ops::Range;

/// Guards that nobody needs any more and that are kept for the next window that ends there. Each takes two
/// of the mappings that a process may have.
const SPARE_GUARDS: usize = 256;

/// Which pages of the group's memory this process has made inaccessible.
///
/// Setting a guard is a system call that splits a mapping, and so is removing it. A guard is kept when its window is
/// released: most windows are allocated again at the same place. It is removed when its page becomes part of a window.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    /// Behind windows that are in use.
    used: BTreeSet<usize>,
    spare: BTreeSet<usize>,
}

impl Guards {
    /// Makes the pages of `windows` accessible, and those behind them inaccessible. What is behind an extent is
    /// inaccessible anyway.
    ///
    /// All members have agreed on the windows by now, so that a guard that cannot be set (too many mappings) must not
    /// fail the allocation.
    pub(crate) fn set(&mut self, group: &Group, windows: impl Iterator<Item = (u32, Range<usize>)>) {
        let region = group.region();
        for (rank, window) in windows {
            self.uncover(region, window.clone());
            let at = window.end;
            if at != group.extent(rank).end && (self.spare.remove(&at) || region.guard(at..at + PAGE).is_ok())
            {
                self.used.insert(at);
            }
        }
    }

    /// The windows that end at `ends` are not used any more.
    pub(crate) fn retire(&mut self, region: &Region, ends: impl Iterator<Item = usize>) {
        self.spare.extend(ends.filter(|end| self.used.remove(end)));
        while self.spare.len() > SPARE_GUARDS {
            if let Some(at) = self.spare.pop_first() {
                let _ = region.unguard(at..at + PAGE);
            }
        }
    }

    /// Removes the guards in `range`, which nobody needs any more.
    pub(crate) fn uncover(&mut self, region: &Region, range: Range<usize>) {
        while let Some(&at) = self.spare.range(range.clone()).next() {
            self.spare.remove(&at);
            let _ = region.unguard(at..at + PAGE);
        }
    }
}
