//! `mesh_allreduce`: a ring of whole tiles along every row, then one of the row sums along every column.

use super::forward::ForwardRing;
use super::{BuildError, add_mod, at_least};
use crate::op::{Dir, Op, Tile};
use crate::program::{Goal, Program};

/// All-reduce on a mesh whose rows and columns close to rings. Rank = row · width + column.
#[derive(Clone, Debug)]
pub struct MeshAllReduce {
    row: ForwardRing,
    column: ForwardRing,
}

impl MeshAllReduce {
    /// For `width · height` ranks; without a shape, the most square mesh is taken.
    pub fn new(ranks: u32, shape: Option<(u32, u32)>) -> Result<Self, BuildError> {
        at_least("mesh_allreduce", ranks, 1)?;
        let (width, height) = match shape {
            Some(shape) => shape,
            None => square(ranks)?,
        };
        if u64::from(width) * u64::from(height) != u64::from(ranks) {
            return Err(BuildError::BadMesh { width, height, ranks });
        }
        if ranks > 1 << 28 {
            return Err(BuildError::TooLarge { name: "mesh_allreduce", ranks, split: 1 });
        }
        Ok(MeshAllReduce {
            row: ForwardRing { size: width, out: Dir::E, back: Dir::W },
            column: ForwardRing { size: height, out: Dir::S, back: Dir::N },
        })
    }

    /// Width and height.
    pub fn shape(&self) -> (u32, u32) {
        (self.row.size, self.column.size)
    }
}

fn square(ranks: u32) -> Result<(u32, u32), BuildError> {
    let height = (1..=ranks.isqrt()).rev().find(|&h| ranks.is_multiple_of(h)).unwrap_or(1);
    if height == 1 && ranks > 3 {
        return Err(BuildError::NoMesh { ranks });
    }
    Ok((ranks / height, height))
}

impl Program for MeshAllReduce {
    fn name(&self) -> &str {
        "mesh_allreduce"
    }
    fn goal(&self) -> Goal {
        Goal::AllReduce
    }
    fn ranks(&self) -> u32 {
        self.row.size * self.column.size
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn scratch(&self) -> u32 {
        1
    }
    fn dirs(&self) -> &[Dir] {
        &[Dir::E, Dir::W, Dir::N, Dir::S]
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        let (w, h) = self.shape();
        let (x, y) = (rank % w, rank / w);
        match dir {
            Dir::E if w > 1 => Some((y * w + add_mod(x, 1, w), Dir::W)),
            Dir::S if h > 1 => Some((add_mod(y, 1, h) * w + x, Dir::N)),
            _ => None,
        }
    }
    fn op(&self, _rank: u32, step: u32) -> Option<Op> {
        let (row, column) = (self.row.steps(), self.column.steps());
        // load | row ring | row sum becomes the tile to send | column ring | store
        Some(match step {
            0 => Op::Copy { from: Tile::Mem(0), to: 1 },
            s if s <= row => self.row.op(s - 1),
            s if s == row + 1 => Op::Copy { from: Tile::Mem(1), to: 0 },
            s if s <= row + 1 + column => self.column.op(s - row - 2),
            s if s == row + column + 2 => Op::Store { from: 1, to: 0 },
            _ => return None,
        })
    }
    fn messages(&self) -> u64 {
        let (w, h) = self.shape();
        u64::from(self.ranks()) * (u64::from(w - 1) + u64::from(h - 1))
    }
}
