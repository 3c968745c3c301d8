//! The memory of all ranks, and a program run on it without time: what the data must be at the end.

use crate::config::DType;
use crate::data;
use crate::plan::{Cut, Plan};
use ccl_schedule::{Land, NONE, Op, Program, Tile};
use std::collections::VecDeque;

/// The tiles of every rank: the chunks of its tensor one after the other, then the scratch tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    dtype: DType,
    cut: Cut,
    /// Bytes of the larger and the smaller kind of chunk, and how many are larger: a tile is found without dividing.
    tile: usize,
    small: usize,
    larger: u32,
    tensor: usize,
    per_rank: usize,
    bytes: Vec<u8>,
}

impl Memory {
    /// Bytes that the memory of a program needs.
    pub fn size(program: &dyn Program, cut: &Cut) -> u64 {
        let scratch = u64::from(program.scratch()) * cut.sizes()[0];
        u64::from(program.ranks()) * (cut.elems * cut.elem_bytes + scratch)
    }

    /// All zero.
    pub fn new(program: &dyn Program, cut: Cut, dtype: DType) -> Memory {
        let [tile, small] = cut.sizes().map(|size| size as usize);
        let tensor = (cut.elems * cut.elem_bytes) as usize;
        let per_rank = tensor + program.scratch() as usize * tile;
        let bytes = vec![0; per_rank * program.ranks() as usize];
        Memory { dtype, cut, tile, small, larger: cut.larger(), tensor, per_rank, bytes }
    }

    #[inline]
    fn range(&self, rank: u32, tile: u32) -> std::ops::Range<usize> {
        let base = rank as usize * self.per_rank;
        match tile.checked_sub(self.cut.chunks) {
            None => {
                let before = tile.min(self.larger) as usize;
                let start = base + before * self.tile + (tile as usize - before) * self.small;
                start..start + if tile < self.larger { self.tile } else { self.small }
            }
            Some(scratch) => {
                let start = base + self.tensor + scratch as usize * self.tile;
                start..start + self.tile
            }
        }
    }

    /// The bytes of a tile.
    pub fn tile(&self, rank: u32, tile: u32) -> &[u8] {
        &self.bytes[self.range(rank, tile)]
    }

    /// Copies or adds `data` to a tile. A scratch tile may be larger than the data.
    pub fn write(&mut self, rank: u32, tile: u32, land: Land, data: &[u8]) {
        let range = self.range(rank, tile);
        let to = &mut self.bytes[range];
        let len = to.len().min(data.len());
        match land {
            Land::Reduce => data::add(self.dtype, &mut to[..len], &data[..len]),
            Land::Copy | Land::Forward => to[..len].copy_from_slice(&data[..len]),
        }
    }

    /// The tensor of a rank.
    pub fn tensor(&self, rank: u32) -> &[u8] {
        let base = rank as usize * self.per_rank;
        &self.bytes[base..base + self.tensor]
    }

    /// The tensor of a rank, to fill it.
    pub fn tensor_mut(&mut self, rank: u32) -> &mut [u8] {
        let base = rank as usize * self.per_rank;
        &mut self.bytes[base..base + self.tensor]
    }

    /// Runs a program on this memory, without time or slots. Returns whether every rank came to its end.
    pub fn execute(&mut self, plan: &Plan<'_>) -> bool {
        let (program, ranks) = (plan.program, plan.program.ranks());
        let channels = plan.wiring.channels();
        let mut queues: Vec<VecDeque<Vec<u8>>> = vec![VecDeque::new(); channels.len()];
        let mut held: Vec<Vec<u8>> = vec![Vec::new(); channels.len()];
        let mut posted = vec![(0, Land::Copy); channels.len()];
        let mut spare: Vec<Vec<u8>> = Vec::new();
        let mut step = vec![0u32; ranks as usize];
        let mut waits = vec![false; channels.len()];
        let mut ready: VecDeque<u32> = (0..ranks).collect();
        let mut done = 0;
        'ranks: while let Some(rank) = ready.pop_front() {
            while let Some(op) = program.op(rank, step[rank as usize]) {
                match op {
                    Op::Send { dir, from, chunk } => {
                        let channel = plan.wiring.tx(rank, dir) as usize;
                        let mut token = spare.pop().unwrap_or_default();
                        token.clear();
                        match from {
                            Tile::Mem(tile) => token.extend_from_slice(self.tile(rank, tile)),
                            Tile::Held(dir) | Tile::Take(dir) => {
                                token.extend_from_slice(&held[plan.wiring.rx(rank, dir) as usize]);
                            }
                        }
                        token.truncate(self.range(0, chunk).len());
                        queues[channel].push_back(token);
                        if std::mem::take(&mut waits[channel]) {
                            ready.push_back(channels[channel].dst);
                        }
                    }
                    Op::Recv { dir, tile, land } => {
                        let channel = plan.wiring.rx(rank, dir) as usize;
                        let Some(token) = queues[channel].pop_front() else {
                            waits[channel] = true;
                            continue 'ranks;
                        };
                        if land == Land::Forward {
                            spare.push(std::mem::replace(&mut held[channel], token));
                        } else {
                            self.write(rank, tile, land, &token);
                            spare.push(token);
                        }
                    }
                    Op::RecvAsync { dir, tile, land } => {
                        posted[plan.wiring.rx(rank, dir) as usize] = (tile, land);
                    }
                    Op::Wait { dir } => {
                        let channel = plan.wiring.rx(rank, dir) as usize;
                        let Some(token) = queues[channel].pop_front() else {
                            waits[channel] = true;
                            continue 'ranks;
                        };
                        let (tile, land) = posted[channel];
                        self.write(rank, tile, land, &token);
                        spare.push(token);
                    }
                    Op::Copy { from, to } => self.local(plan, rank, from, to, Land::Copy, &held),
                    Op::Reduce { from, to } => self.local(plan, rank, from, to, Land::Reduce, &held),
                    Op::Store { from, to } => {
                        self.local(plan, rank, Tile::Mem(from), to, Land::Copy, &held);
                    }
                }
                step[rank as usize] += 1;
            }
            done += 1;
        }
        done == ranks
    }

    fn local(&mut self, plan: &Plan<'_>, rank: u32, from: Tile, to: u32, land: Land, held: &[Vec<u8>]) {
        match from {
            Tile::Mem(tile) => {
                let data = self.tile(rank, tile).to_vec();
                self.write(rank, to, land, &data);
            }
            Tile::Held(dir) | Tile::Take(dir) => {
                let channel = plan.wiring.rx(rank, dir);
                debug_assert_ne!(channel, NONE);
                self.write(rank, to, land, &held[channel as usize]);
            }
        }
    }
}
