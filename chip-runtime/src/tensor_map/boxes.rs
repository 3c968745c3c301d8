//! The accesses of the boxes of one grid: ten thousand columns of a matrix, or tiles, whose byte ranges all overlap.
//!
//! A binary tree over the bits of the first corners, the highest bit of each dimension first, then the next: each fork is at the
//! highest bit in which the corners below it differ, so that these are neighbours in the grid. It knows the box around all below
//! it, and a look at the boxes that meet a new one leaves out what is below a fork that does not. Boxes with the same corner
//! are a list; they meet each other.

use super::Accesses;
use super::extent::{Bounds, Extent, Grid};
use comm_context::abi::TENSOR_MAX_DIMS;

/// Says that the rest is the number of a leaf.
const LEAF: u32 = 1 << 31;
/// In place of a fork or a leaf.
const NONE: u32 = u32::MAX;

/// A box, and the byte range that it spans; or what is around several.
#[derive(Clone, Copy, Debug)]
struct Span {
    lo: u64,
    hi: u64,
    bounds: Bounds,
}

#[derive(Debug)]
struct Fork {
    /// Around all below.
    all: Span,
    /// The bit that says on which side a corner is: see [`bit`].
    rank: u32,
    below: [u32; 2],
}

#[derive(Debug)]
struct Leaf<K> {
    span: Span,
    /// The next with the same corner.
    next: u32,
    accesses: Accesses<K>,
}

#[derive(Debug)]
pub(super) struct Boxes<K> {
    grid: Grid,
    forks: Vec<Fork>,
    leaves: Vec<Leaf<K>>,
    root: u32,
}

impl Span {
    fn around(&self, other: &Self) -> Self {
        Self {
            lo: self.lo.min(other.lo),
            hi: self.hi.max(other.hi),
            bounds: self.bounds.around(&other.bounds),
        }
    }
}

/// The bit of a corner with this rank. The highest bit of the first dimension has the highest.
fn bit(corner: &[u32; TENSOR_MAX_DIMS], rank: u32) -> usize {
    let dims = TENSOR_MAX_DIMS as u32;
    (corner[(dims - 1 - rank % dims) as usize] >> (rank / dims) & 1) as usize
}

/// The rank of the highest bit in which two corners differ.
fn difference(one: &[u32; TENSOR_MAX_DIMS], other: &[u32; TENSOR_MAX_DIMS]) -> Option<u32> {
    let pairs = one.iter().rev().zip(other.iter().rev());
    (0..)
        .zip(pairs)
        .filter_map(|(dim, (a, b))| Some((a ^ b).checked_ilog2()? * TENSOR_MAX_DIMS as u32 + dim))
        .max()
}

impl<K: Copy> Boxes<K> {
    pub(super) fn new(grid: Grid) -> Self {
        Self { grid, forks: Vec::new(), leaves: Vec::new(), root: NONE }
    }

    pub(super) fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Calls `visit` with the accesses of each box that has an element in common with the view; for a view that is not
    /// of this grid, whose byte range overlaps.
    pub(super) fn touching(&mut self, extent: &Extent, mut visit: impl FnMut(&mut Accesses<K>)) {
        match &extent.place {
            Some((grid, bounds)) if *grid == self.grid => {
                self.visit(self.root, &|span: &Span| !span.bounds.is_apart(bounds), &mut visit);
            }
            _ => {
                let meets = |span: &Span| span.lo < extent.hi && extent.lo < span.hi;
                self.visit(self.root, &meets, &mut visit);
            }
        }
    }

    /// As deep as there are bits at the most.
    fn visit(&mut self, at: u32, meets: &impl Fn(&Span) -> bool, visit: &mut impl FnMut(&mut Accesses<K>)) {
        if at & LEAF == 0 {
            let Fork { all, below, .. } = &self.forks[at as usize];
            if meets(all) {
                let [low, high] = *below;
                self.visit(low, meets, visit);
                self.visit(high, meets, visit);
            }
            return;
        }
        let mut next = at;
        while let Some(leaf) = self.leaves.get_mut((next & !LEAF) as usize) {
            if meets(&leaf.span) {
                visit(&mut leaf.accesses);
            }
            next = leaf.next;
        }
    }

    /// The accesses of exactly this box, which spans the bytes of `extent`, and whether it is new.
    pub(super) fn entry(&mut self, bounds: &Bounds, extent: &Extent) -> (&mut Accesses<K>, bool) {
        let mut at = self.nearest(bounds);
        while let Some(leaf) =
            self.leaves.get((at & !LEAF) as usize).filter(|leaf| leaf.span.bounds != *bounds)
        {
            at = leaf.next;
        }
        let is_new = at == NONE;
        if is_new {
            at = self.leaves.len() as u32;
            self.add(Span { lo: extent.lo, hi: extent.hi, bounds: *bounds }, Accesses::default());
        }
        (&mut self.leaves[(at & !LEAF) as usize].accesses, is_new)
    }

    /// The leaf whose corner has the most bits in common, from the highest on; none if there is no leaf.
    fn nearest(&self, bounds: &Bounds) -> u32 {
        let mut at = self.root;
        while at & LEAF == 0 {
            let fork = &self.forks[at as usize];
            at = fork.below[bit(&bounds.first, fork.rank)];
        }
        at
    }

    fn add(&mut self, span: Span, accesses: Accesses<K>) {
        let (nearest, new) = (self.nearest(&span.bounds), self.leaves.len() as u32 | LEAF);
        self.leaves.push(Leaf { span, next: NONE, accesses });
        if nearest == NONE {
            self.root = new;
            return;
        }
        let first = span.bounds.first;
        let head = (nearest & !LEAF) as usize;
        let rank = difference(&first, &self.leaves[head].span.bounds.first);
        // The new leaf is below all forks at higher bits.
        let (mut at, mut above) = (self.root, None);
        while at & LEAF == 0 && rank.is_none_or(|rank| self.forks[at as usize].rank > rank) {
            let fork = &mut self.forks[at as usize];
            fork.all = fork.all.around(&span);
            let side = bit(&first, fork.rank);
            above = Some((at, side));
            at = fork.below[side];
        }
        let Some(rank) = rank else {
            let next = std::mem::replace(&mut self.leaves[head].next, new);
            self.leaves[(new & !LEAF) as usize].next = next;
            return;
        };
        let side = bit(&first, rank);
        let mut below = [at; 2];
        below[side] = new;
        let fork = self.forks.len() as u32;
        self.forks.push(Fork { all: self.around(at).around(&span), rank, below });
        match above {
            Some((above, side)) => self.forks[above as usize].below[side] = fork,
            None => self.root = fork,
        }
    }

    fn around(&self, at: u32) -> Span {
        if at & LEAF == 0 {
            return self.forks[at as usize].all;
        }
        let mut leaf = &self.leaves[(at & !LEAF) as usize];
        let mut all = leaf.span;
        while let Some(next) = self.leaves.get((leaf.next & !LEAF) as usize) {
            all = all.around(&next.span);
            leaf = next;
        }
        all
    }

    /// Drops what has ended, and boxes that were empty twice if most are. Says how many accesses are left.
    pub(super) fn sweep(&mut self, ended: &impl Fn(K) -> bool) -> usize {
        let (mut left, mut unused) = (0, 0);
        for leaf in &mut self.leaves {
            unused += usize::from(leaf.accesses.sweep(ended));
            left += leaf.accesses.len();
        }
        if unused > self.leaves.len() / 2 {
            self.root = NONE;
            self.forks.clear();
            for leaf in std::mem::take(&mut self.leaves) {
                if leaf.accesses.len() > 0 {
                    self.add(leaf.span, leaf.accesses);
                }
            }
        }
        left
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.leaves.len()
    }

    /// How many forks and leaves a look at this view visits.
    #[cfg(test)]
    pub(super) fn steps(&mut self, extent: &Extent) -> usize {
        let steps = std::cell::Cell::new(0);
        let Some((_, bounds)) = extent.place else { return 0 };
        let meets = |span: &Span| {
            steps.set(steps.get() + 1);
            !span.bounds.is_apart(&bounds)
        };
        self.visit(self.root, &meets, &mut |_| {});
        steps.get()
    }
}
