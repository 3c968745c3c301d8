//! The memory of all ranks, and an untimed run of a program on it: what the data must be at the end.

use crate::config::DType;
use crate::data;
use crate::engine::with_known;
use crate::plan::{Cut, Plan};
use ccl_schedule::{Dir, Land, Op, Program, Tile, Wiring};
use std::collections::VecDeque;
use std::ops::Range;

/// The tiles of every rank: the chunks of its tensor one after the other, then the scratch tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    dtype: DType,
    cut: Cut,
    /// Bytes of the larger and the smaller kind of chunk, and how many are larger: a tile is found without
    /// dividing.
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
    fn range(&self, rank: u32, tile: u32) -> Range<usize> {
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

    /// Runs a program on this memory, without time or slots. Returns whether every rank finished; a rank
    /// whose next operation has no peer stops there.
    pub fn execute(&mut self, plan: &Plan<'_>) -> bool {
        with_known!(plan.program, program => Execution::new(self, plan, program).run())
    }
}

/// A token: its cell and its bytes.
type Token = (u32, u32);

/// One run of a program on a memory.
struct Execution<'a, G: Program + ?Sized> {
    memory: &'a mut Memory,
    wiring: &'a Wiring,
    program: &'a G,
    /// The data of tokens, a cell of the larger chunk size each.
    cells: Vec<u8>,
    spare: Vec<u32>,
    /// Per channel: tokens in flight, the one that is held, the receive that is posted, whether the receiver
    /// waits.
    queues: Vec<VecDeque<Token>>,
    held: Vec<Option<Token>>,
    posted: Vec<(u32, Land)>,
    waits: Vec<bool>,
    ready: VecDeque<u32>,
}

impl<'a, G: Program + ?Sized> Execution<'a, G> {
    fn new(memory: &'a mut Memory, plan: &'a Plan<'_>, program: &'a G) -> Self {
        let channels = plan.wiring.channels().len();
        Execution {
            memory,
            wiring: &plan.wiring,
            program,
            cells: Vec::new(),
            spare: Vec::new(),
            queues: vec![VecDeque::new(); channels],
            held: vec![None; channels],
            posted: vec![(0, Land::Copy); channels],
            waits: vec![false; channels],
            ready: (0..program.ranks()).collect(),
        }
    }

    fn run(mut self) -> bool {
        let mut step = vec![0u32; self.program.ranks() as usize];
        let mut done = 0;
        while let Some(rank) = self.ready.pop_front() {
            if self.advance(rank, &mut step[rank as usize]) {
                done += 1;
            }
        }
        done == self.program.ranks()
    }

    /// Runs a rank until it waits (false) or is done (true).
    fn advance(&mut self, rank: u32, step: &mut u32) -> bool {
        while let Some(op) = self.program.op(rank, *step) {
            match op {
                Op::Send { dir, from, chunk } => {
                    let channel = self.wiring.tx(rank, dir) as usize;
                    if channel >= self.queues.len() {
                        return false;
                    }
                    let token = self.token(rank, from, self.memory.range(0, chunk).len());
                    self.queues[channel].push_back(token);
                    if std::mem::take(&mut self.waits[channel]) {
                        self.ready.push_back(self.wiring.channels()[channel].dst);
                    }
                }
                Op::Recv { dir, tile, land } => {
                    let channel = self.wiring.rx(rank, dir) as usize;
                    let Some(token) = self.receive(channel) else { return false };
                    match land {
                        Land::Forward => self.held[channel] = Some(token),
                        land => self.land(rank, tile, land, token),
                    }
                }
                Op::RecvAsync { dir, tile, land } => {
                    if let Some(posted) = self.posted.get_mut(self.wiring.rx(rank, dir) as usize) {
                        *posted = (tile, land);
                    }
                }
                Op::Wait { dir } => {
                    let channel = self.wiring.rx(rank, dir) as usize;
                    let Some(token) = self.receive(channel) else { return false };
                    let (tile, land) = self.posted[channel];
                    self.land(rank, tile, land, token);
                }
                Op::Copy { from, to } => self.local(rank, from, to, Land::Copy),
                Op::Reduce { from, to } => self.local(rank, from, to, Land::Reduce),
                Op::Store { from, to } => self.local(rank, Tile::Mem(from), to, Land::Copy),
            }
            *step += 1;
        }
        true
    }

    fn receive(&mut self, channel: usize) -> Option<Token> {
        let token = self.queues.get_mut(channel)?.pop_front();
        self.waits[channel] = token.is_none();
        token
    }

    /// An unused cell.
    fn cell(&mut self) -> u32 {
        self.spare.pop().unwrap_or_else(|| {
            let cell = self.cells.len().checked_div(self.memory.tile).unwrap_or(0);
            self.cells.resize(self.cells.len() + self.memory.tile, 0);
            cell as u32
        })
    }

    fn at(&self, (cell, len): Token) -> Range<usize> {
        let start = cell as usize * self.memory.tile;
        start..start + len as usize
    }

    /// Data to send, at most `len` bytes of it. A slot that is taken is passed on as it is.
    fn token(&mut self, rank: u32, from: Tile, len: usize) -> Token {
        let cut = |has: usize| has.min(len) as u32;
        match from {
            Tile::Mem(tile) => {
                let cell = self.cell();
                let from = self.memory.range(rank, tile);
                let token = (cell, cut(from.len()));
                let to = self.at(token);
                self.cells[to].copy_from_slice(&self.memory.bytes[from][..token.1 as usize]);
                token
            }
            Tile::Take(dir) => {
                let (cell, has) = self.take(rank, dir);
                (cell, cut(has as usize))
            }
            Tile::Held(dir) => {
                let held = self.held(rank, dir);
                let token = (self.cell(), cut(held.1 as usize));
                let (from, to) = (self.at((held.0, token.1)), self.at(token));
                self.cells.copy_within(from, to.start);
                token
            }
        }
    }

    /// The held slot of a direction; empty if there is none.
    fn held(&self, rank: u32, dir: Dir) -> Token {
        self.held.get(self.wiring.rx(rank, dir) as usize).copied().flatten().unwrap_or((0, 0))
    }

    /// The same, for the last time.
    fn take(&mut self, rank: u32, dir: Dir) -> Token {
        let held = self.held.get_mut(self.wiring.rx(rank, dir) as usize).and_then(Option::take);
        held.unwrap_or_else(|| (self.cell(), 0))
    }

    fn land(&mut self, rank: u32, tile: u32, land: Land, token: Token) {
        let data = &self.cells[self.at(token)];
        self.memory.write(rank, tile, land, data);
        self.spare.push(token.0);
    }

    fn local(&mut self, rank: u32, from: Tile, to: u32, land: Land) {
        match from {
            Tile::Mem(tile) => {
                let data = self.memory.tile(rank, tile).to_vec();
                self.memory.write(rank, to, land, &data);
            }
            Tile::Held(dir) => {
                let data = &self.cells[self.at(self.held(rank, dir))];
                self.memory.write(rank, to, land, data);
            }
            Tile::Take(dir) => {
                let token = self.take(rank, dir);
                self.land(rank, to, land, token);
            }
        }
    }
}
