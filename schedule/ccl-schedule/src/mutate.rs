//! Schedules with deliberate faults, to test that a checker finds them.

use crate::op::{Dir, Land, Math, Op, Tile};
use crate::program::{Goal, Program};

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `rank` drops the operand of its `nth` addition.
    Drop {
        /// The faulty rank.
        rank: u32,
        /// Which of its additions, from 0.
        nth: u32,
    },
    /// `rank` adds the operand of its `nth` addition twice.
    Duplicate {
        /// The faulty rank.
        rank: u32,
        /// Which of its additions, from 0.
        nth: u32,
    },
    /// Sends of `first` in `dir` go to the peer of `second`, and vice versa.
    Swap {
        /// One sender.
        first: u32,
        /// The other sender.
        second: u32,
        /// The direction.
        dir: Dir,
    },
    /// `rank` sends in `dir` to the peer of the next rank, which then has two senders.
    WrongPeer {
        /// The sender.
        rank: u32,
        /// The direction.
        dir: Dir,
    },
}

/// A program with one [`Fault`].
pub struct Broken<P> {
    inner: P,
    fault: Fault,
    /// Step of the faulty addition.
    at: Option<u32>,
}

fn adds(op: Op) -> bool {
    matches!(
        op,
        Op::Recv { land: Land::Reduce, .. } | Op::RecvAsync { land: Land::Reduce, .. } | Op::Reduce { .. }
    )
}

impl<P: Program> Broken<P> {
    /// Breaks a program; `None` when the rank has no such addition.
    pub fn new(inner: P, fault: Fault) -> Option<Self> {
        let at = match fault {
            Fault::Drop { rank, nth } | Fault::Duplicate { rank, nth } => {
                let mut steps = (0..).map_while(|s| inner.op(rank, s).map(|op| (s, op)));
                Some(steps.by_ref().filter(|&(_, op)| adds(op)).nth(nth as usize)?.0)
            }
            _ => None,
        };
        Some(Broken { inner, fault, at })
    }

    /// A scratch tile that only the fault uses.
    fn spare(&self) -> u32 {
        self.inner.chunks() + self.inner.scratch()
    }
}

impl<P: Program> Program for Broken<P> {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn goal(&self) -> Goal {
        self.inner.goal()
    }
    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }
    fn chunks(&self) -> u32 {
        self.inner.chunks()
    }
    fn scratch(&self) -> u32 {
        self.inner.scratch() + 1
    }
    fn dirs(&self) -> &[Dir] {
        self.inner.dirs()
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        match self.fault {
            Fault::Swap { first, second, dir: d } if d == dir && rank == first => {
                self.inner.peer(second, dir)
            }
            Fault::Swap { first, second, dir: d } if d == dir && rank == second => {
                self.inner.peer(first, dir)
            }
            Fault::WrongPeer { rank: r, dir: d } if d == dir && rank == r => {
                self.inner.peer((r + 1) % self.ranks(), dir)
            }
            _ => self.inner.peer(rank, dir),
        }
    }
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        let Some(at) = self.at else { return self.inner.op(rank, step) };
        let spare = self.spare();
        match self.fault {
            Fault::Drop { rank: r, .. } if r == rank && step == at => {
                Some(match self.inner.op(rank, at)? {
                    Op::Recv { dir, .. } => Op::Recv { dir, tile: spare, land: Land::Copy },
                    Op::RecvAsync { dir, .. } => Op::RecvAsync { dir, tile: spare, land: Land::Copy },
                    Op::Reduce { from, .. } => Op::Copy { from, to: spare },
                    op => op,
                })
            }
            // The data goes to the spare tile first and is added from there twice.
            Fault::Duplicate { rank: r, .. } if r == rank && step >= at => {
                let (first, tile) = match self.inner.op(rank, at)? {
                    Op::Recv { dir, tile, .. } => (Op::Recv { dir, tile: spare, land: Land::Copy }, tile),
                    Op::Reduce { from, to } => (Op::Copy { from, to: spare }, to),
                    // Posted receives land at their wait, one step later.
                    Op::RecvAsync { dir, tile, land } => {
                        return match step - at {
                            0 => Some(Op::RecvAsync { dir, tile, land }),
                            1 | 2 => self.inner.op(rank, step),
                            3 => Some(Op::Reduce { from: Tile::Mem(tile), to: tile }),
                            _ => self.inner.op(rank, step - 1),
                        };
                    }
                    _ => return None,
                };
                match step - at {
                    0 => Some(first),
                    1 | 2 => Some(Op::Reduce { from: Tile::Mem(spare), to: tile }),
                    _ => self.inner.op(rank, step - 2),
                }
            }
            _ => self.inner.op(rank, step),
        }
    }
    fn math(&self, rank: u32, number: u32) -> Option<Math> {
        self.inner.math(rank, number)
    }
    fn messages(&self) -> u64 {
        self.inner.messages()
    }
}
