//! `hierarchical`: reduce-scatter within the cube, across cubes, across SIPs, and all-gather in reverse.

use super::ring::{Rounds, Turn};
use super::{BuildError, Shape, add_mod, at_least, sub_mod};
use crate::op::{Dir, Land, Op, Tile};
use crate::program::{Goal, Program};

/// A ring per level on a shard that shrinks level by level, so the slow outer links carry the least.
///
/// Rank = (sip · cubes + cube) · pes + pe. The tensor has one chunk per rank.
#[derive(Clone, Debug)]
pub struct Hierarchical {
    size: [u32; 3],
    rounds: [Rounds; 3],
}

const OUT: [Dir; 3] = [Dir::E, Dir::S, Dir::UP];
const BACK: [Dir; 3] = [Dir::W, Dir::N, Dir::DOWN];

impl Hierarchical {
    /// `shape.levels` gives PEs per cube, cubes per SIP and SIPs; without them, all ranks are one cube.
    pub fn new(ranks: u32, shape: &Shape) -> Result<Self, BuildError> {
        at_least("hierarchical", ranks, 1)?;
        let size = shape.levels.unwrap_or([ranks, 1, 1]);
        if size.iter().map(|&x| u64::from(x)).product::<u64>() != u64::from(ranks) {
            return Err(BuildError::BadLevels { levels: size, ranks });
        }
        if ranks > 1 << 28 {
            return Err(BuildError::TooLarge { name: "hierarchical", ranks, split: 1 });
        }
        let units = [size[1] * size[2], size[2], 1];
        Ok(Hierarchical { size, rounds: [0, 1, 2].map(|l| Rounds::new(size[l] - 1, units[l], shape.window)) })
    }

    fn units(&self, level: usize) -> u32 {
        self.size[level + 1..].iter().product()
    }

    fn place(&self, rank: u32) -> [u32; 3] {
        [rank % self.size[0], rank / self.size[0] % self.size[1], rank / self.size[0] / self.size[1]]
    }

    /// The first chunk of the part that `place` owns after the levels below `level` are scattered.
    fn base(&self, place: [u32; 3], level: usize) -> u32 {
        (0..level).map(|l| add_mod(place[l], 1 % self.size[l], self.size[l]) * self.units(l)).sum()
    }
}

impl Program for Hierarchical {
    fn name(&self) -> &str {
        "hierarchical"
    }
    fn goal(&self) -> Goal {
        Goal::AllReduce
    }
    fn ranks(&self) -> u32 {
        self.size.iter().product()
    }
    fn chunks(&self) -> u32 {
        self.ranks()
    }
    fn dirs(&self) -> &[Dir] {
        &[Dir::E, Dir::W, Dir::N, Dir::S, Dir::UP, Dir::DOWN]
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        let level = OUT.iter().position(|&d| d == dir)?;
        if self.size[level] == 1 {
            return None;
        }
        let mut place = self.place(rank);
        place[level] = add_mod(place[level], 1, self.size[level]);
        Some(((place[2] * self.size[1] + place[1]) * self.size[0] + place[0], BACK[level]))
    }
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        let mut left = step;
        for (phase, level) in [0, 1, 2, 2, 1, 0].into_iter().enumerate() {
            let rounds = self.rounds[level];
            if left >= rounds.steps() {
                left -= rounds.steps();
                continue;
            }
            let gather = phase >= 3;
            let (place, size, units) = (self.place(rank), self.size[level], self.units(level));
            // A gather continues where the scatter ended: one part ahead of this rank's own.
            let first = if gather { add_mod(place[level], 1, size) } else { place[level] };
            let chunk = |first: u32, i: u32| {
                self.base(place, level) + sub_mod(first, i / units, size) * units + i % units
            };
            return Some(match rounds.turn(left) {
                Turn::Send(i) => {
                    let chunk = chunk(first, i);
                    Op::Send { dir: OUT[level], chunk, from: Tile::Mem(chunk) }
                }
                Turn::Recv(i) => Op::Recv {
                    dir: BACK[level],
                    tile: chunk(sub_mod(first, 1, size), i),
                    land: if gather { Land::Copy } else { Land::Reduce },
                },
            });
        }
        None
    }
    fn messages(&self) -> u64 {
        let per_rank: u32 = self.rounds.iter().map(|r| r.steps()).sum();
        u64::from(self.ranks()) * u64::from(per_rank)
    }
}
