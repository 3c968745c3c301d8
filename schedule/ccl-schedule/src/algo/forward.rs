//! The core of kernbench2's ring: every rank forwards whole tiles and adds each one as it passes.

use crate::op::{Dir, Land, Op, Tile};

/// Tile 0 travels around a ring of `size` ranks; every rank adds what it receives to tile 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardRing {
    pub(super) size: u32,
    pub(super) out: Dir,
    pub(super) back: Dir,
}

impl ForwardRing {
    pub(super) fn steps(self) -> u32 {
        if self.size < 2 { 0 } else { 3 * (self.size - 1) }
    }

    /// The operation at `step`, which is below [`Self::steps`].
    #[inline]
    pub(super) fn op(self, step: u32) -> Op {
        if step == 0 {
            return Op::Send { dir: self.out, chunk: 0, from: Tile::Mem(0) };
        }
        let (round, phase) = ((step - 1) / 3, (step - 1) % 3);
        let last = round + 2 == self.size;
        match phase {
            0 => Op::Recv { dir: self.back, tile: 0, land: Land::Forward },
            1 if last => Op::Reduce { from: Tile::Take(self.back), to: 1 },
            1 => Op::Reduce { from: Tile::Held(self.back), to: 1 },
            _ => Op::Send { dir: self.out, chunk: 0, from: Tile::Take(self.back) },
        }
    }
}
