//! Rings: kernbench2's whole-tile ring, and the bandwidth-optimal reduce-scatter and all-gather.

use super::forward::ForwardRing;
use super::{BuildError, Shape, add_mod, at_least, sub_mod};
use crate::op::{Dir, Land, Op, Tile};
use crate::program::{Goal, Program};
use std::any::Any;

/// kernbench2's ring: every rank forwards whole tiles for n − 1 rounds and adds them up.
#[derive(Clone, Debug)]
pub struct RingAccumulate {
    ring: ForwardRing,
}

impl RingAccumulate {
    /// For any number of ranks from 1.
    pub fn new(ranks: u32) -> Result<Self, BuildError> {
        at_least("ring_accumulate", ranks, 1)?;
        if ranks > 1 << 29 {
            return Err(BuildError::TooLarge { name: "ring_accumulate", ranks, split: 1 });
        }
        Ok(RingAccumulate { ring: ForwardRing { size: ranks, out: Dir::E, back: Dir::W } })
    }
}

impl Program for RingAccumulate {
    fn name(&self) -> &str {
        "ring_accumulate"
    }
    fn goal(&self) -> Goal {
        Goal::AllReduce
    }
    fn ranks(&self) -> u32 {
        self.ring.size
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn scratch(&self) -> u32 {
        1
    }
    fn dirs(&self) -> &[Dir] {
        &[Dir::E, Dir::W]
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        (dir == Dir::E && self.ring.size > 1).then(|| (add_mod(rank, 1, self.ring.size), Dir::W))
    }
    #[inline]
    fn op(&self, _rank: u32, step: u32) -> Option<Op> {
        let steps = self.ring.steps();
        match step {
            0 => Some(Op::Copy { from: Tile::Mem(0), to: 1 }),
            s if s <= steps => Some(self.ring.op(s - 1)),
            s if s == steps + 1 => Some(Op::Store { from: 1, to: 0 }),
            _ => None,
        }
    }
    fn messages(&self) -> u64 {
        u64::from(self.ring.size) * u64::from(self.ring.size - 1)
    }
    fn known(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// Which part of the ring collective a [`Ring`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// Reduce-scatter, then all-gather.
    AllReduce,
    /// The first half alone.
    ReduceScatter,
    /// The second half alone.
    AllGather,
}

/// Rounds of a ring in which `units` messages per round are kept in flight `window` deep.
///
/// Message i leaves right after message i − window has arrived. A window of at most `units` never needs data
/// that has not arrived, and a window of at most the slot count never deadlocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    total: u32,
    window: u32,
}

/// A step of [`Rounds`]: the message number that is sent or received.
pub(super) enum Turn {
    Send(u32),
    Recv(u32),
}

impl Rounds {
    pub(super) fn new(rounds: u32, units: u32, window: u32) -> Self {
        let total = rounds * units;
        Rounds { total, window: window.clamp(1, units.max(1)).min(total.max(1)) }
    }

    pub(super) fn steps(self) -> u32 {
        2 * self.total
    }

    /// What happens at `step`, which is below [`Self::steps`].
    #[inline]
    pub(super) fn turn(self, step: u32) -> Turn {
        if step < self.window {
            return Turn::Send(step);
        }
        let (pair, odd) = ((step - self.window) >> 1, (step - self.window) & 1);
        if step >= 2 * self.total - self.window {
            Turn::Recv(step - self.total)
        } else if odd == 0 {
            Turn::Recv(pair)
        } else {
            Turn::Send(pair + self.window)
        }
    }
}

/// The bandwidth-optimal ring: in round k every rank sends chunk rank − k and receives chunk
/// rank − k − 1.
#[derive(Clone, Debug)]
pub struct Ring {
    kind: RingKind,
    ranks: u32,
    split: u32,
    rounds: Rounds,
}

impl Ring {
    /// For any number of ranks from 1. `shape.split` cuts every chunk, so that transfers overlap.
    pub fn new(kind: RingKind, ranks: u32, shape: &Shape) -> Result<Self, BuildError> {
        let ring = Ring { kind, ranks, split: shape.split.max(1), rounds: Rounds::new(0, 1, 1) };
        at_least(ring.label(), ranks, 1)?;
        let half = u64::from(ranks - 1) * u64::from(ring.split);
        if 4 * half.max(u64::from(ranks) * u64::from(ring.split)) >= 1 << 31 {
            return Err(BuildError::TooLarge { name: ring.label(), ranks, split: ring.split });
        }
        let count = if kind == RingKind::AllReduce { 2 * (ranks - 1) } else { ranks - 1 };
        Ok(Ring { rounds: Rounds::new(count, ring.split, shape.window), ..ring })
    }

    fn label(&self) -> &'static str {
        match self.kind {
            RingKind::AllReduce => "ring_reduce_scatter_allgather",
            RingKind::ReduceScatter => "reduce_scatter",
            RingKind::AllGather => "all_gather",
        }
    }

    /// Round and chunk of message `i`, counted from the chunk that `rank` sends first.
    #[inline]
    fn at(&self, rank: u32, i: u32) -> (u32, u32) {
        let (round, part) = if self.split == 1 { (i, 0) } else { (i / self.split, i % self.split) };
        let back = if round >= self.ranks { round - self.ranks } else { round };
        let chunk = sub_mod(rank, back, self.ranks);
        (round, if self.split == 1 { chunk } else { chunk * self.split + part })
    }
}

impl Program for Ring {
    fn name(&self) -> &str {
        self.label()
    }
    fn goal(&self) -> Goal {
        match self.kind {
            RingKind::AllReduce => Goal::AllReduce,
            RingKind::ReduceScatter => Goal::ReduceScatter { per_rank: self.split },
            RingKind::AllGather => Goal::AllGather { per_rank: self.split },
        }
    }
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        self.ranks * self.split
    }
    fn dirs(&self) -> &[Dir] {
        &[Dir::E, Dir::W]
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        (dir == Dir::E && self.ranks > 1).then(|| (add_mod(rank, 1, self.ranks), Dir::W))
    }
    #[inline]
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        if step >= self.rounds.steps() {
            return None;
        }
        // Alone, a reduce-scatter must end with chunk r on rank r: it starts one chunk earlier.
        let rank = if self.kind == RingKind::ReduceScatter { sub_mod(rank, 1, self.ranks) } else { rank };
        Some(match self.rounds.turn(step) {
            Turn::Send(i) => {
                let (_, chunk) = self.at(rank, i);
                Op::Send { dir: Dir::E, chunk, from: Tile::Mem(chunk) }
            }
            Turn::Recv(i) => {
                let (round, tile) = self.at(sub_mod(rank, 1, self.ranks), i);
                let reduce = self.kind != RingKind::AllGather && round < self.ranks - 1;
                Op::Recv { dir: Dir::W, tile, land: if reduce { Land::Reduce } else { Land::Copy } }
            }
        })
    }
    fn messages(&self) -> u64 {
        u64::from(self.ranks) * u64::from(self.rounds.total)
    }
    fn known(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
