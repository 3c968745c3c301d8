//! Which unfinished tasks touch which memory: where the edges of a graph come from.
//!
//! Accesses are kept by the byte range that they span ([`ranges`]); those of views that leave out parts of their rows by
//! buffer and strides, and there by their box ([`boxes`]). A look at what overlaps a new access takes a few searches and a
//! step for each edge. Accesses of one range, or of one box, share a node, so that a tensor with ten thousand readers is one
//! step away for its neighbours.
//!
//! Accesses of tasks that have ended are dropped where they are met, and all of them when there are twice as many as
//! the last time, or as many new nodes. The node of a range stays until it was empty twice: most ranges are used again.

mod boxes;
mod extent;
mod ranges;
#[cfg(test)]
mod tests;

use boxes::Boxes;
pub(crate) use extent::Extent;
use ranges::Ranges;

/// What a task does with a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// The accesses of one byte range, or of one box.
#[derive(Debug)]
struct Accesses<K> {
    writers: Vec<K>,
    readers: Vec<K>,
    /// One was entered since the last sweep.
    is_used: bool,
}

impl<K> Default for Accesses<K> {
    fn default() -> Self {
        Self { writers: Vec::new(), readers: Vec::new(), is_used: true }
    }
}

impl<K: Copy> Accesses<K> {
    fn len(&self) -> usize {
        self.writers.len() + self.readers.len()
    }

    /// Calls `conflict` with those that a new access has to come after, and returns how many have ended and were dropped.
    #[inline]
    fn conflicts(&mut self, kind: Use, ended: impl Fn(K) -> bool, mut conflict: impl FnMut(K)) -> usize {
        let mut visit = |tasks: &mut Vec<K>| {
            let before = tasks.len();
            tasks.retain(|task| {
                let lives = !ended(*task);
                if lives {
                    conflict(*task);
                }
                lives
            });
            before - tasks.len()
        };
        let mut dropped = visit(&mut self.writers);
        if kind == Use::Write {
            dropped += visit(&mut self.readers);
        }
        dropped
    }

    /// Enters an access; `covers` says that whoever conflicts with one of the others conflicts with it. Returns how many
    /// were dropped.
    fn enter(&mut self, kind: Use, task: K, covers: bool) -> usize {
        self.is_used = true;
        let mut dropped = 0;
        if kind == Use::Write && covers {
            dropped = self.len();
            self.writers.clear();
            self.readers.clear();
        }
        match kind {
            Use::Read => self.readers.push(task),
            Use::Write => self.writers.push(task),
        }
        dropped
    }

    /// Drops what has ended. Whether it is empty and was not used since the last time.
    fn sweep(&mut self, ended: impl Fn(K) -> bool) -> bool {
        self.writers.retain(|task| !ended(*task));
        self.readers.retain(|task| !ended(*task));
        self.len() == 0 && !std::mem::replace(&mut self.is_used, false)
    }
}

/// Below so many accesses none are dropped all at once.
const FEW: usize = 1024;

#[derive(Debug)]
pub(crate) struct TensorMap<K> {
    ranges: Ranges<Accesses<K>>,
    /// By buffer; one for each of the grids that views make of it.
    boxes: Ranges<Vec<Boxes<K>>>,
    accesses: usize,
    /// Nodes since the last sweep.
    made: usize,
    sweep_at: usize,
    /// Of ranges that are not in use, with the memory of their lists.
    spare: Vec<Accesses<K>>,
}

impl<K: Copy + PartialEq> TensorMap<K> {
    pub(crate) fn new() -> Self {
        let (ranges, boxes) = (Ranges::new(), Ranges::new());
        Self { ranges, boxes, accesses: 0, made: 0, sweep_at: FEW, spare: Vec::new() }
    }

    /// Calls `conflict` with each task that the new access has to come after, some of them more than once. Tasks for
    /// which `ended` holds are dropped.
    pub(crate) fn conflicts(
        &mut self,
        extent: &Extent,
        kind: Use,
        ended: impl Fn(K) -> bool,
        mut conflict: impl FnMut(K),
    ) {
        let Self { ranges, boxes, accesses, .. } = self;
        let mut visit = |found: &mut Accesses<K>| *accesses -= found.conflicts(kind, &ended, &mut conflict);
        ranges.overlapping(extent.lo, extent.hi, &mut visit);
        boxes.overlapping(extent.lo, extent.hi, |grids| {
            grids.iter_mut().for_each(|boxes| boxes.touching(extent, &mut visit));
        });
    }

    /// Enters the access of `task`, whose conflicts are known. What a write covers needs no entry any more: a dense one
    /// its byte range, any one its own box.
    pub(crate) fn enter(&mut self, extent: &Extent, kind: Use, task: K, ended: impl Fn(K) -> bool) {
        if self.accesses.max(self.made) >= self.sweep_at {
            self.sweep(ended);
        }
        let dropped = match &extent.place {
            None => {
                let (spare, made) = (&mut self.spare, &mut self.made);
                let found = self.ranges.entry(extent.lo, extent.hi, || {
                    *made += 1;
                    spare.pop().unwrap_or_default()
                });
                found.enter(kind, task, extent.dense)
            }
            Some((grid, bounds)) => {
                let grids = self.boxes.entry(grid.addr, grid.end, Vec::new);
                let known = grids.iter().position(|boxes| boxes.grid() == grid);
                let known = known.unwrap_or_else(|| {
                    grids.push(Boxes::new(*grid));
                    grids.len() - 1
                });
                let (found, is_new) = grids[known].entry(bounds, extent);
                self.made += usize::from(is_new);
                found.enter(kind, task, true)
            }
        };
        self.accesses = self.accesses + 1 - dropped;
    }

    /// Drops everything of tasks that have ended.
    fn sweep(&mut self, ended: impl Fn(K) -> bool) {
        let Self { ranges, boxes, spare, .. } = self;
        let mut left = 0;
        let look = |found: &mut Accesses<K>| {
            let unused = found.sweep(&ended);
            left += found.len();
            unused
        };
        ranges.sweep(look, |found| found.len() == 0, |found| spare.push(found));
        let look = |grids: &mut Vec<Boxes<K>>| {
            left += grids.iter_mut().map(|boxes| boxes.sweep(&ended)).sum::<usize>();
            grids.retain(|boxes| !boxes.is_empty());
            grids.is_empty()
        };
        boxes.sweep(look, Vec::is_empty, drop);
        (self.accesses, self.made) = (left, 0);
        self.sweep_at = FEW.max(2 * self.accesses);
        self.spare.truncate(FEW);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        if !self.ranges.is_empty() || !self.boxes.is_empty() {
            self.sweep(|_| true);
        }
    }
}
