//! `hello_send`: every rank sends to the east and receives from the west.

use super::{BuildError, add_mod, at_least};
use crate::op::{Dir, Land, Op, Tile};
use crate::program::{Goal, Program};

/// One message per rank: the smallest schedule that uses a queue.
#[derive(Clone, Debug)]
pub struct HelloSend {
    ranks: u32,
}

impl HelloSend {
    /// For at least two ranks.
    pub fn new(ranks: u32) -> Result<Self, BuildError> {
        at_least("hello_send", ranks, 2)?;
        Ok(HelloSend { ranks })
    }
}

impl Program for HelloSend {
    fn name(&self) -> &str {
        "hello_send"
    }
    fn goal(&self) -> Goal {
        Goal::Shift
    }
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn dirs(&self) -> &[Dir] {
        &[Dir::E, Dir::W]
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        (dir == Dir::E).then(|| (add_mod(rank, 1, self.ranks), Dir::W))
    }
    fn op(&self, _rank: u32, step: u32) -> Option<Op> {
        match step {
            0 => Some(Op::Send { dir: Dir::E, chunk: 0, from: Tile::Mem(0) }),
            1 => Some(Op::Recv { dir: Dir::W, tile: 0, land: Land::Copy }),
            _ => None,
        }
    }
    fn messages(&self) -> u64 {
        u64::from(self.ranks)
    }
}
