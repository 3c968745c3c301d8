//! Direct schedules: every rank has a queue to every other one, and no data is passed on.
//!
//! Sums are added in the order of the ranks, 0 first, on every rank: all ranks end with the same bits.

use super::{BuildError, add_mod, at_least, sub_mod};
use crate::op::{Dir, Land, Op, Tile};
use crate::program::{Goal, Program};

/// What a [`Direct`] schedule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectKind {
    /// All-reduce in one step: every rank sends everything to everybody, and adds up everything.
    OneShot,
    /// All-reduce in two steps: every rank adds up one chunk, and sends the sum to everybody.
    TwoShot,
    /// One rank sends to all others.
    Broadcast,
    /// One rank adds up what all others send.
    Reduce,
    /// One rank collects a chunk of every other.
    Gather,
    /// One rank deals out a chunk to every other.
    Scatter,
    /// Every rank sends a chunk to every other.
    AllToAll,
    /// Every rank sends its chunk to everybody.
    AllGather,
    /// Every rank adds up its chunk of all.
    ReduceScatter,
    /// One rank collects the chunks that all have added up.
    ReduceTwoShot,
}

/// A direct schedule for up to 64 ranks. Roots are rank 0.
#[derive(Clone, Debug)]
pub struct Direct {
    kind: DirectKind,
    ranks: u32,
    dirs: Vec<Dir>,
}

/// The most ranks that a queue to everybody is made for.
pub const MAX_DIRECT: u32 = 64;

impl Direct {
    /// For 1 to 64 ranks.
    pub fn new(kind: DirectKind, ranks: u32) -> Result<Self, BuildError> {
        let direct = Direct { kind, ranks, dirs: (1..ranks.min(MAX_DIRECT)).map(Dir::ahead).collect() };
        at_least(direct.label(), ranks, 1)?;
        if ranks > MAX_DIRECT {
            return Err(BuildError::TooMany { name: direct.label(), ranks, most: MAX_DIRECT });
        }
        Ok(direct)
    }

    fn label(&self) -> &'static str {
        match self.kind {
            DirectKind::OneShot => "direct_one_shot",
            DirectKind::TwoShot => "direct_two_shot",
            DirectKind::Broadcast => "broadcast",
            DirectKind::Reduce => "reduce",
            DirectKind::Gather => "gather",
            DirectKind::Scatter => "scatter",
            DirectKind::AllToAll => "all_to_all",
            DirectKind::AllGather => "direct_all_gather",
            DirectKind::ReduceScatter => "direct_reduce_scatter",
            DirectKind::ReduceTwoShot => "direct_reduce_two_shot",
        }
    }

    /// The direction of another rank.
    fn towards(&self, rank: u32, other: u32) -> Dir {
        Dir::ahead(sub_mod(other, rank, self.ranks))
    }

    fn send(&self, rank: u32, other: u32, chunk: u32) -> Op {
        Op::Send { dir: self.towards(rank, other), chunk, from: Tile::Mem(chunk) }
    }

    fn recv(&self, rank: u32, other: u32, tile: u32, land: Land) -> Op {
        Op::Recv { dir: self.towards(rank, other), tile, land }
    }

    /// The `i`-th other rank from this one on: no two ranks send to the same one first.
    fn other(&self, rank: u32, i: u32) -> u32 {
        add_mod(rank, i + 1, self.ranks)
    }

    /// Operation `step` of the sum of a chunk in the order of the ranks, in the scratch tile; there are `ranks + 1`.
    fn sum(&self, rank: u32, chunk: u32, step: u32) -> Op {
        let scratch = self.chunks();
        if step == self.ranks {
            return Op::Copy { from: Tile::Mem(scratch), to: chunk };
        }
        match (step == rank, step == 0) {
            (true, true) => Op::Copy { from: Tile::Mem(chunk), to: scratch },
            (true, false) => Op::Reduce { from: Tile::Mem(chunk), to: scratch },
            (false, true) => self.recv(rank, step, scratch, Land::Copy),
            (false, false) => self.recv(rank, step, scratch, Land::Reduce),
        }
    }
}

impl Program for Direct {
    fn name(&self) -> &str {
        self.label()
    }
    fn goal(&self) -> Goal {
        match self.kind {
            DirectKind::OneShot | DirectKind::TwoShot => Goal::AllReduce,
            DirectKind::Broadcast => Goal::Broadcast { root: 0 },
            DirectKind::Reduce | DirectKind::ReduceTwoShot => Goal::Reduce { root: 0 },
            DirectKind::AllGather => Goal::AllGather { per_rank: 1 },
            DirectKind::ReduceScatter => Goal::ReduceScatter { per_rank: 1 },
            DirectKind::Gather => Goal::Gather { root: 0, per_rank: 1 },
            DirectKind::Scatter => Goal::Scatter { root: 0, per_rank: 1 },
            DirectKind::AllToAll => Goal::AllToAll,
        }
    }
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        match self.kind {
            DirectKind::OneShot | DirectKind::Broadcast | DirectKind::Reduce => 1,
            DirectKind::AllToAll => self.ranks * self.ranks,
            _ => self.ranks,
        }
    }
    fn scratch(&self) -> u32 {
        u32::from(matches!(
            self.kind,
            DirectKind::OneShot
                | DirectKind::TwoShot
                | DirectKind::Reduce
                | DirectKind::ReduceScatter
                | DirectKind::ReduceTwoShot
        ))
    }
    fn dirs(&self) -> &[Dir] {
        &self.dirs
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        let at = self.dirs.iter().position(|&known| known == dir)? as u32 + 1;
        let peer = add_mod(rank, at, self.ranks);
        let sends = match self.kind {
            DirectKind::Broadcast | DirectKind::Scatter => rank == 0,
            DirectKind::Reduce | DirectKind::Gather => peer == 0,
            _ => true,
        };
        sends.then(|| (peer, self.towards(peer, rank)))
    }
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        let (n, others) = (self.ranks, self.ranks - 1);
        if others == 0 {
            return None;
        }
        match self.kind {
            DirectKind::OneShot if step < others => Some(self.send(rank, self.other(rank, step), 0)),
            DirectKind::OneShot => (step - others <= n).then(|| self.sum(rank, 0, step - others)),
            DirectKind::AllGather if step < others => Some(self.send(rank, self.other(rank, step), rank)),
            DirectKind::AllGather => (step < 2 * others).then(|| {
                let from = self.other(rank, step - others);
                self.recv(rank, from, from, Land::Copy)
            }),
            // The first half of two shots; then, for one rank, it collects.
            DirectKind::ReduceScatter | DirectKind::ReduceTwoShot if step < others => {
                let owner = self.other(rank, step);
                Some(self.send(rank, owner, owner))
            }
            DirectKind::ReduceScatter | DirectKind::ReduceTwoShot if step <= others + n => {
                Some(self.sum(rank, rank, step - others))
            }
            DirectKind::ReduceScatter => None,
            DirectKind::ReduceTwoShot if rank == 0 => (step <= 2 * others + n).then(|| {
                let owner = step - others - n;
                self.recv(0, owner, owner, Land::Copy)
            }),
            DirectKind::ReduceTwoShot => (step == others + n + 1).then(|| self.send(rank, 0, rank)),
            DirectKind::TwoShot => match step {
                s if s < others => {
                    let owner = self.other(rank, s);
                    Some(self.send(rank, owner, owner))
                }
                s if s <= others + n => Some(self.sum(rank, rank, s - others)),
                s if s <= 2 * others + n => Some(self.send(rank, self.other(rank, s - others - n - 1), rank)),
                s if s <= 3 * others + n => {
                    let owner = self.other(rank, s - 2 * others - n - 1);
                    Some(self.recv(rank, owner, owner, Land::Copy))
                }
                _ => None,
            },
            DirectKind::Broadcast if rank == 0 => (step < others).then(|| self.send(0, step + 1, 0)),
            DirectKind::Broadcast => (step == 0).then(|| self.recv(rank, 0, 0, Land::Copy)),
            DirectKind::Reduce if rank == 0 => (step <= n).then(|| self.sum(0, 0, step)),
            DirectKind::Reduce => (step == 0).then(|| self.send(rank, 0, 0)),
            DirectKind::Gather if rank == 0 => {
                (step < others).then(|| self.recv(0, step + 1, step + 1, Land::Copy))
            }
            DirectKind::Gather => (step == 0).then(|| self.send(rank, 0, rank)),
            DirectKind::Scatter if rank == 0 => (step < others).then(|| self.send(0, step + 1, step + 1)),
            DirectKind::Scatter => (step == 0).then(|| self.recv(rank, 0, rank, Land::Copy)),
            DirectKind::AllToAll if step < others => {
                let to = self.other(rank, step);
                Some(self.send(rank, to, rank * n + to))
            }
            DirectKind::AllToAll => (step < 2 * others).then(|| {
                let from = self.other(rank, step - others);
                self.recv(rank, from, from * n + rank, Land::Copy)
            }),
        }
    }
    fn messages(&self) -> u64 {
        let (n, others) = (u64::from(self.ranks), u64::from(self.ranks - 1));
        match self.kind {
            DirectKind::OneShot
            | DirectKind::AllToAll
            | DirectKind::AllGather
            | DirectKind::ReduceScatter => n * others,
            DirectKind::ReduceTwoShot => (n + 1) * others,
            DirectKind::TwoShot => 2 * n * others,
            _ => others,
        }
    }
}
