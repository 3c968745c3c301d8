//! `recursive_doubling`: in round k every rank exchanges its sum with the rank that differs in bit k.

use super::{BuildError, at_least};
use crate::op::{Dir, Land, Op, Tile};
use crate::program::{Goal, Program};

/// log2(n) exchanges of the whole tensor: the fewest rounds, for small tensors.
#[derive(Clone, Debug)]
pub struct RecursiveDoubling {
    dirs: Vec<Dir>,
}

impl RecursiveDoubling {
    /// For a power of two of ranks.
    pub fn new(ranks: u32) -> Result<Self, BuildError> {
        let name = "recursive_doubling";
        at_least(name, ranks, 1)?;
        if !ranks.is_power_of_two() {
            let below = 1 << ranks.ilog2();
            return Err(BuildError::NotPowerOfTwo { name, ranks, below, above: 2 * u64::from(below) });
        }
        Ok(RecursiveDoubling { dirs: (0..ranks.ilog2()).map(Dir::exchange).collect() })
    }
}

impl Program for RecursiveDoubling {
    fn name(&self) -> &str {
        "recursive_doubling"
    }
    fn goal(&self) -> Goal {
        Goal::AllReduce
    }
    fn ranks(&self) -> u32 {
        1 << self.dirs.len()
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn dirs(&self) -> &[Dir] {
        &self.dirs
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        let bit = self.dirs.iter().position(|&d| d == dir)?;
        Some((rank ^ (1 << bit), dir))
    }
    fn op(&self, _rank: u32, step: u32) -> Option<Op> {
        let dir = *self.dirs.get(step as usize / 3)?;
        Some(match step % 3 {
            // Posted first, so that the slot is freed even while this rank waits to send.
            0 => Op::RecvAsync { dir, tile: 0, land: Land::Reduce },
            1 => Op::Send { dir, chunk: 0, from: Tile::Mem(0) },
            _ => Op::Wait { dir },
        })
    }
    fn messages(&self) -> u64 {
        u64::from(self.ranks()) * self.dirs.len() as u64
    }
}
