//! Which unfinished tasks touch which memory: where the edges of a graph come from.
//!
//! Accesses are kept by the byte range that they span. A range is in the class of its length (a power of two), and each
//! class is ordered by start, so that a look at the ranges that overlap a new one visits few others: in each class that
//! is in use it begins where the longest range of the class could still reach. Accesses of one range share a node, so
//! that a tensor with ten thousand readers is one step away for its neighbours.
//!
//! Accesses of tasks that have ended are dropped where they are met, and all of them when there are twice as many as
//! the last time. The node of a range stays until it was empty twice: most ranges are used again.

use comm_context::abi::{TENSOR_MAX_DIMS, TensorDesc};
use std::collections::BTreeMap;

/// The memory of a view: its byte range, and its box where it has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extent {
    lo: u64,
    hi: u64,
    /// Whether it touches every byte of the range.
    dense: bool,
    grid: Grid,
}

/// A box in the grid that the strides of a view make of its buffer. Without dimensions: not one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grid {
    addr: u64,
    size: u8,
    ndims: u8,
    strides: [u32; TENSOR_MAX_DIMS],
    first: [u32; TENSOR_MAX_DIMS],
    len: [u32; TENSOR_MAX_DIMS],
}

const NO_GRID: Grid = Grid { addr: 0, size: 0, ndims: 0, strides: [0; 5], first: [0; 5], len: [0; 5] };

impl Extent {
    /// That of a checked descriptor; `None` if it is empty.
    pub(crate) fn of(desc: &TensorDesc, element: u64) -> Option<Self> {
        if desc.extent == 0 {
            return None;
        }
        let lo = desc.addr + desc.start_offset * element;
        let hi = lo + desc.extent * element;
        let grid = if desc.ndims > 1 { Grid::of(desc, element).unwrap_or(NO_GRID) } else { NO_GRID };
        Some(Self { lo, hi, dense: desc.is_contiguous == 1, grid })
    }

    #[cfg(test)]
    fn overlaps(&self, other: &Self) -> bool {
        self.lo < other.hi && other.lo < self.hi && !self.grid.is_apart(&other.grid)
    }

    /// Whether it touches every byte of the range.
    fn covers(&self, lo: u64, hi: u64) -> bool {
        self.dense && self.lo <= lo && hi <= self.hi
    }

    /// The class of its length.
    fn class(&self) -> usize {
        (self.hi - self.lo).ilog2() as usize
    }

    /// Where its node is: by start, then by end.
    fn key(&self) -> u128 {
        key(self.lo, self.hi)
    }
}

/// One number, which compares faster than two.
fn key(lo: u64, hi: u64) -> u128 {
    u128::from(lo) << 64 | u128::from(hi)
}

impl Grid {
    /// `None` if the view is not a box: a row that runs over the end of the row below would count for both.
    fn of(desc: &TensorDesc, element: u64) -> Option<Self> {
        let ndims = desc.ndims as usize;
        let mut grid = Self {
            addr: desc.addr,
            size: element as u8,
            ndims: ndims as u8,
            strides: desc.strides,
            len: desc.shapes,
            ..NO_GRID
        };
        let mut rest = desc.start_offset;
        for dim in 0..ndims {
            let stride = u64::from(desc.strides[dim]);
            grid.first[dim] = u32::try_from(rest / stride).ok()?;
            rest %= stride;
            let end = u64::from(grid.first[dim]) + u64::from(desc.shapes[dim]);
            if dim > 0 && end * stride > u64::from(desc.strides[dim - 1]) {
                return None;
            }
        }
        (rest == 0).then_some(grid)
    }

    /// Whether the two are boxes of one grid without a common element.
    fn is_apart(&self, other: &Self) -> bool {
        let ndims = usize::from(self.ndims);
        let same = ndims > 0
            && (self.addr, self.size, self.ndims) == (other.addr, other.size, other.ndims)
            && self.strides[..ndims] == other.strides[..ndims];
        same && (0..ndims).any(|dim| {
            let end = |grid: &Self| u64::from(grid.first[dim]) + u64::from(grid.len[dim]);
            end(self) <= u64::from(other.first[dim]) || end(other) <= u64::from(self.first[dim])
        })
    }
}

/// What a task does with a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

#[derive(Debug)]
struct Access<K> {
    task: K,
    /// Few views are boxes in which something else fits beside them.
    grid: Option<Box<Grid>>,
}

/// The accesses of one byte range.
#[derive(Debug)]
struct Node<K> {
    writers: Vec<Access<K>>,
    readers: Vec<Access<K>>,
    /// An access was entered since the last sweep.
    is_used: bool,
}

/// The classes of one power of two each.
const CLASSES: usize = 64;
/// Below so many accesses none are dropped all at once.
const FEW: usize = 1024;

#[derive(Debug)]
pub(crate) struct TensorMap<K> {
    /// Nodes by [`key`].
    classes: Vec<BTreeMap<u128, Node<K>>>,
    /// One bit for each class with a node.
    used: u64,
    accesses: usize,
    sweep_at: usize,
    /// Nodes that are not in use, with the memory of their lists.
    spare: Vec<Node<K>>,
}

impl<K: Copy + PartialEq> TensorMap<K> {
    pub(crate) fn new() -> Self {
        Self {
            classes: (0..CLASSES).map(|_| BTreeMap::new()).collect(),
            used: 0,
            accesses: 0,
            sweep_at: FEW,
            spare: Vec::new(),
        }
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
        let mut used = self.used;
        while used != 0 {
            let class = used.trailing_zeros() as usize;
            used &= used - 1;
            // A range of this class is shorter than this.
            let longest = if class == CLASSES - 1 { u64::MAX } else { 2 << class };
            let (from, to) = (key(extent.lo.saturating_sub(longest), 0), key(extent.hi, 0));
            // Without a bound above, for which the tree would be searched once more.
            for (at, node) in self.classes[class].range_mut(from..).take_while(|(at, _)| **at < to) {
                // The lower half of a key is the end.
                if *at as u64 <= extent.lo {
                    continue;
                }
                let mut visit = |accesses: &mut Vec<Access<K>>| {
                    let before = accesses.len();
                    accesses.retain(|access| {
                        if ended(access.task) {
                            return false;
                        }
                        // The ranges overlap.
                        if access.grid.as_ref().is_none_or(|grid| !extent.grid.is_apart(grid)) {
                            conflict(access.task);
                        }
                        true
                    });
                    before - accesses.len()
                };
                let mut dropped = visit(&mut node.writers);
                if kind == Use::Write {
                    dropped += visit(&mut node.readers);
                }
                self.accesses -= dropped;
            }
        }
    }

    /// Enters the access of `task`, whose conflicts are known. What a dense write covers needs no entry any more:
    /// whoever conflicts with it conflicts with the write.
    pub(crate) fn enter(&mut self, extent: &Extent, kind: Use, task: K, ended: impl Fn(K) -> bool) {
        if self.accesses >= self.sweep_at {
            self.sweep(ended);
        }
        let class = extent.class();
        self.used |= 1 << class;
        let spare = &mut self.spare;
        let node = self.classes[class].entry(extent.key()).or_insert_with(|| {
            spare.pop().unwrap_or_else(|| Node { writers: Vec::new(), readers: Vec::new(), is_used: true })
        });
        node.is_used = true;
        if kind == Use::Write && extent.covers(extent.lo, extent.hi) {
            self.accesses -= node.writers.len() + node.readers.len();
            node.writers.clear();
            node.readers.clear();
        }
        let list = match kind {
            Use::Read => &mut node.readers,
            Use::Write => &mut node.writers,
        };
        let grid = (extent.grid.ndims > 0).then(|| Box::new(extent.grid));
        list.push(Access { task, grid });
        self.accesses += 1;
    }

    /// Drops everything of tasks that have ended.
    fn sweep(&mut self, ended: impl Fn(K) -> bool) {
        self.accesses = 0;
        let mut used = self.used;
        while used != 0 {
            let class = used.trailing_zeros() as usize;
            used &= used - 1;
            let nodes = &mut self.classes[class];
            let mut unused = 0;
            for node in nodes.values_mut() {
                node.writers.retain(|access| !ended(access.task));
                node.readers.retain(|access| !ended(access.task));
                let count = node.writers.len() + node.readers.len();
                self.accesses += count;
                if count == 0 && !std::mem::replace(&mut node.is_used, false) {
                    unused += 1;
                }
            }
            // Where most are needed, the others are not in the way.
            if unused > nodes.len() / 2 {
                let is_empty = |node: &Node<K>| node.writers.is_empty() && node.readers.is_empty();
                let empty = nodes.extract_if(.., |_, node| is_empty(node));
                self.spare.extend(empty.map(|(_, node)| node));
            }
            if nodes.is_empty() {
                self.used &= !(1 << class);
            }
        }
        self.sweep_at = FEW.max(2 * self.accesses);
        self.spare.truncate(FEW);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        if self.used != 0 {
            self.sweep(|_| true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::abi::{DType, DeviceAddr};
    use std::collections::BTreeSet;

    fn view(shape: &[u32], strides: &[u32], start: u64) -> Extent {
        let desc = TensorDesc::builder(DeviceAddr(4096), 1 << 20, DType::Float32, shape)
            .strides(strides)
            .start_offset(start)
            .build()
            .unwrap();
        Extent::of(&desc, 4).unwrap()
    }

    fn conflicts(map: &mut TensorMap<u32>, extent: &Extent, kind: Use) -> Vec<u32> {
        let mut found = BTreeSet::new();
        map.conflicts(
            extent,
            kind,
            |_| false,
            |task| {
                found.insert(task);
            },
        );
        found.into_iter().collect()
    }

    #[test]
    fn reads_come_after_writes_and_writes_after_both() {
        let mut map = TensorMap::new();
        let (all, low, high) = (view(&[100], &[1], 0), view(&[50], &[1], 0), view(&[50], &[1], 50));
        map.enter(&all, Use::Write, 1, |_| false);
        assert_eq!(conflicts(&mut map, &low, Use::Read), [1]);
        map.enter(&low, Use::Read, 2, |_| false);
        assert_eq!(conflicts(&mut map, &low, Use::Read), [1]);
        assert_eq!(conflicts(&mut map, &low, Use::Write), [1, 2]);
        assert_eq!(conflicts(&mut map, &high, Use::Write), [1]);
        map.enter(&low, Use::Write, 3, |_| false);
        // The reader is behind the writer now.
        assert_eq!(conflicts(&mut map, &low, Use::Write), [1, 3]);
        assert_eq!(conflicts(&mut map, &all, Use::Write), [1, 3]);
    }

    #[test]
    fn columns_of_a_matrix_are_apart_and_a_view_over_a_row_end_is_not_a_box() {
        let (left, right) = (view(&[8, 5], &[10, 1], 0), view(&[8, 5], &[10, 1], 5));
        assert!(!left.overlaps(&right) && !right.overlaps(&left) && left.overlaps(&left));
        // One column in common, from either side.
        let shared = view(&[8, 5], &[10, 1], 4);
        assert!(left.overlaps(&shared) && shared.overlaps(&left));
        // Ten columns from the middle of a row on: they run over its end.
        assert!(left.overlaps(&view(&[4, 10], &[10, 1], 5)));
        // Other strides: only the ranges count.
        assert!(left.overlaps(&view(&[4, 5], &[20, 1], 5)));
        assert!(!view(&[2, 2], &[10, 1], 0).overlaps(&view(&[2, 2], &[10, 1], 20)));
    }

    #[test]
    fn what_ended_is_dropped() {
        let mut map = TensorMap::new();
        for task in 0..100_000u32 {
            let extent = view(&[4], &[1], u64::from(task % 60_000));
            map.enter(&extent, Use::Read, task, |other| other + 100 < task);
        }
        assert!(map.accesses <= 2 * FEW, "{}", map.accesses);
        let all = view(&[60_000], &[1], 0);
        let mut found = Vec::new();
        map.conflicts(&all, Use::Write, |task| task < 99_990, |task| found.push(task));
        assert_eq!(found, (99_990..100_000).collect::<Vec<_>>());
        let nodes = |map: &TensorMap<u32>| map.classes.iter().map(BTreeMap::len).sum::<usize>();
        assert!(nodes(&map) <= 4 * FEW, "{}", nodes(&map));
        map.clear();
        assert_eq!(map.accesses, 0);
        // Those that were in use stay once more.
        map.clear();
        assert_eq!((nodes(&map), map.used), (0, 0));
    }

    #[test]
    fn the_nodes_of_ranges_that_are_used_again_stay() {
        let mut map = TensorMap::new();
        for round in 0..10 {
            for at in 0..50 {
                let extent = view(&[4], &[1], 4 * at);
                assert_eq!(conflicts(&mut map, &extent, Use::Write), Vec::<u32>::new(), "{round}");
                map.enter(&extent, Use::Write, 7, |_| false);
                assert_eq!(conflicts(&mut map, &extent, Use::Read), [7]);
            }
            map.clear();
            assert_eq!((map.accesses, map.classes[4].len(), map.spare.len()), (0, 50, 0));
        }
    }

    #[test]
    fn random_ranges_are_found_as_by_looking_at_all() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        let mut map = TensorMap::new();
        let mut all = Vec::new();
        for task in 0..400u32 {
            let most = 1 << next(12);
            let len = 1 + next(most) as u32;
            let extent = view(&[len], &[1], next(2000));
            let wanted: Vec<u32> = all
                .iter()
                .filter(|(other, _): &&(Extent, u32)| other.overlaps(&extent))
                .map(|(_, t)| *t)
                .collect();
            assert_eq!(conflicts(&mut map, &extent, Use::Write), wanted);
            // Readers only: nothing is covered.
            map.enter(&extent, Use::Read, task, |_| false);
            all.push((extent, task));
        }
    }
}
