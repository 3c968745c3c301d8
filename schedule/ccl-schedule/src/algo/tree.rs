//! `tree_allreduce`: reduce up a binary tree in heap order, broadcast down again.

use super::{BuildError, at_least};
use crate::op::{Dir, Land, Op, Tile};
use crate::program::{Goal, Program};
use std::any::Any;

/// All-reduce on a binary tree; the children of rank r are 2r + 1 and 2r + 2.
///
/// All chunks go up before the first comes down. A root that answered chunk by chunk would fill the slots of
/// children that are still sending, and deadlock.
#[derive(Clone, Debug)]
pub struct TreeAllReduce {
    ranks: u32,
    chunks: u32,
}

impl TreeAllReduce {
    /// For any number of ranks from 1; `chunks` (0 is 1) cuts the tensor so that levels overlap.
    pub fn new(ranks: u32, chunks: u32) -> Result<Self, BuildError> {
        at_least("tree_allreduce", ranks, 1)?;
        let chunks = chunks.max(1);
        if ranks > 1 << 30 || chunks > 1 << 28 {
            return Err(BuildError::TooLarge { name: "tree_allreduce", ranks, split: chunks });
        }
        Ok(TreeAllReduce { ranks, chunks })
    }

    fn children(&self, rank: u32) -> u32 {
        (self.ranks - 1).saturating_sub(2 * rank).min(2)
    }
}

impl Program for TreeAllReduce {
    fn name(&self) -> &str {
        "tree_allreduce"
    }
    fn goal(&self) -> Goal {
        Goal::AllReduce
    }
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        self.chunks
    }
    fn dirs(&self) -> &[Dir] {
        &[Dir::PARENT, Dir::CHILD_LEFT, Dir::CHILD_RIGHT]
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        match dir {
            Dir::PARENT if rank > 0 => {
                Some(((rank - 1) / 2, if rank % 2 == 1 { Dir::CHILD_LEFT } else { Dir::CHILD_RIGHT }))
            }
            Dir::CHILD_LEFT if self.children(rank) > 0 => Some((2 * rank + 1, Dir::PARENT)),
            Dir::CHILD_RIGHT if self.children(rank) > 1 => Some((2 * rank + 2, Dir::PARENT)),
            _ => None,
        }
    }
    #[inline]
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        let children = self.children(rank);
        let per_chunk = children + u32::from(rank > 0);
        if per_chunk == 0 || step >= 2 * self.chunks * per_chunk {
            return None;
        }
        let (down, step) = (step >= self.chunks * per_chunk, step % (self.chunks * per_chunk));
        let (chunk, part) = (step / per_chunk, step % per_chunk);
        let child = |i| if i == 0 { Dir::CHILD_LEFT } else { Dir::CHILD_RIGHT };
        Some(match (down, rank > 0) {
            (false, _) if part < children => Op::Recv { dir: child(part), tile: chunk, land: Land::Reduce },
            (false, _) => Op::Send { dir: Dir::PARENT, chunk, from: Tile::Mem(chunk) },
            (true, true) if part == 0 => Op::Recv { dir: Dir::PARENT, tile: chunk, land: Land::Copy },
            (true, true) => Op::Send { dir: child(part - 1), chunk, from: Tile::Mem(chunk) },
            (true, false) => Op::Send { dir: child(part), chunk, from: Tile::Mem(chunk) },
        })
    }
    fn messages(&self) -> u64 {
        2 * u64::from(self.ranks - 1) * u64::from(self.chunks)
    }
    fn known(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
