//! The memory of all ranks, and an untimed run of a program on it: what the data must be at the end.

use crate::config::DType;
use crate::data;
use crate::engine::with_known;
use crate::kernel::{KernelProgram, Space, TileMap};
use crate::plan::{Cut, Plan};
use ccl_schedule::{Dir, Land, Math, Op, Operand, Program, Tile, Wiring};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// A computation of a kernel whose result its format cannot hold, although it can hold the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "rank {rank}, step {step}: the result exceeds the largest number of its format; use a larger format, or smaller values"
)]
pub struct Overflow {
    /// The rank.
    pub rank: u32,
    /// Its step.
    pub step: u32,
}

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
    /// Where the tiles of a kernel lie.
    map: Option<Arc<TileMap>>,
    bytes: Vec<u8>,
}

fn kernel(program: &dyn Program) -> Option<&KernelProgram> {
    program.known()?.downcast_ref()
}

impl Memory {
    /// Bytes that the memory of a program needs.
    pub fn size(program: &dyn Program, cut: &Cut) -> u64 {
        if let Some(kernel) = kernel(program) {
            return u64::from(program.ranks()) * kernel.map.used.iter().sum::<u64>();
        }
        let scratch = u64::from(program.scratch()) * cut.sizes()[0];
        u64::from(program.ranks()) * (cut.elems * cut.elem_bytes + scratch)
    }

    /// All zero.
    pub fn new(program: &dyn Program, cut: Cut, dtype: DType) -> Memory {
        let [mut tile, small] = cut.sizes().map(|size| size as usize);
        let tensor = (cut.elems * cut.elem_bytes) as usize;
        let mut per_rank = tensor + program.scratch() as usize * tile;
        let map = kernel(program).map(|kernel| kernel.map.clone());
        if let Some(map) = &map {
            (tile, per_rank) = (map.largest() as usize, map.used.iter().sum::<u64>() as usize);
        }
        let bytes = vec![0; per_rank * program.ranks() as usize];
        Memory { dtype, cut, tile, small, larger: cut.larger(), tensor, per_rank, map, bytes }
    }

    /// Bytes of the largest tile or message.
    pub(crate) fn largest(&self) -> usize {
        self.tile
    }

    /// Bytes of a tile, also of one that is a slot.
    #[inline]
    pub(crate) fn len(&self, rank: u32, tile: u32) -> usize {
        match &self.map {
            None => self.range(0, tile).len(),
            Some(map) => map.tile(rank, tile).bytes as usize,
        }
    }

    fn dtype(&self, rank: u32, tile: u32) -> DType {
        self.map.as_ref().map_or(self.dtype, |map| map.tile(rank, tile).dtype)
    }

    #[inline]
    fn range(&self, rank: u32, tile: u32) -> Range<usize> {
        let base = rank as usize * self.per_rank;
        if let Some(map) = &self.map {
            let tile = map.tile(rank, tile);
            // A slot lies in its queue, and has no bytes here.
            let Some((space, address)) = tile.home else { return base..base };
            let start = base + map.offset(space, address) as usize;
            return start..start + tile.bytes as usize;
        }
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
        let (range, dtype) = (self.range(rank, tile), self.dtype(rank, tile));
        let to = &mut self.bytes[range];
        let len = to.len().min(data.len());
        match land {
            Land::Reduce => data::add(dtype, &mut to[..len], &data[..len]),
            Land::Copy | Land::Forward => to[..len].copy_from_slice(&data[..len]),
        }
    }

    /// Writes the result of a computation to a tile; `args` is the data of its arguments that are tiles.
    pub(crate) fn compute(&mut self, rank: u32, math: &Math, to: u32, args: [&[u8]; 3]) {
        let result = data::compute(math, self.dtype(rank, to), args);
        self.write(rank, to, Land::Copy, &result);
    }

    fn tensor_range(&self, rank: u32) -> Range<usize> {
        let base = rank as usize * self.per_rank;
        let start = base + self.map.as_ref().map_or(0, |map| map.offset(map.tensor, 0) as usize);
        start..start + self.tensor
    }

    /// The tensor of a rank.
    pub fn tensor(&self, rank: u32) -> &[u8] {
        &self.bytes[self.tensor_range(rank)]
    }

    /// The tensor of a rank, to fill it.
    pub fn tensor_mut(&mut self, rank: u32) -> &mut [u8] {
        let range = self.tensor_range(rank);
        &mut self.bytes[range]
    }

    /// Where a kernel has memory at an address, if it uses so many bytes there.
    fn at(&self, rank: u32, space: Space, address: u64, bytes: u64) -> Option<Range<usize>> {
        let map = self.map.as_ref()?;
        let used = map.offset(space, address).checked_add(bytes)?;
        let base = rank as usize * self.per_rank;
        (used <= map.end(space) && base + self.per_rank <= self.bytes.len())
            .then(|| base + map.offset(space, address) as usize..base + used as usize)
    }

    /// Numbers that a kernel has at an address; `None` where it uses no such memory.
    pub fn read(&self, rank: u32, space: Space, address: u64, dtype: DType, len: usize) -> Option<Vec<f32>> {
        let range = self.at(rank, space, address, len as u64 * dtype.bytes())?;
        Some(data::decode(dtype, &self.bytes[range]))
    }

    /// Fills memory of a kernel; whether it uses that memory.
    pub fn fill(&mut self, rank: u32, space: Space, address: u64, dtype: DType, values: &[f32]) -> bool {
        let bytes = data::encode(dtype, values);
        let Some(range) = self.at(rank, space, address, bytes.len() as u64) else { return false };
        self.bytes[range].copy_from_slice(&bytes);
        true
    }

    /// Runs a program on this memory, without time or slots. Returns whether every rank finished; a rank
    /// whose next operation has no peer stops there. A kernel ends at the first result that its format cannot hold.
    pub fn execute(&mut self, plan: &Plan<'_>) -> Result<bool, Overflow> {
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
    overflow: Option<Overflow>,
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
            overflow: None,
        }
    }

    fn run(mut self) -> Result<bool, Overflow> {
        let mut step = vec![0u32; self.program.ranks() as usize];
        let mut done = 0;
        while let Some(rank) = self.ready.pop_front() {
            if self.advance(rank, &mut step[rank as usize]) {
                done += 1;
            }
        }
        self.overflow.map_or(Ok(done == self.program.ranks()), Err)
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
                    let token = self.token(rank, from, self.memory.len(rank, chunk));
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
                Op::Math { number, to } => {
                    let Some(math) = self.program.math(rank, number) else { return false };
                    self.math(rank, &math, to);
                }
            }
            if let Some(Overflow { step: at, .. }) = &mut self.overflow {
                *at = *step;
                self.ready.clear();
                return false;
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
        let range = self.at(token);
        let fits = land == Land::Reduce && self.fits(rank, tile, &[&self.cells[range.clone()]]);
        self.memory.write(rank, tile, land, &self.cells[range]);
        self.note(rank, tile, fits);
        self.spare.push(token.0);
    }

    /// Whether the operands of a sum, or of a computation, are all finite; only kernels are checked.
    fn fits(&self, rank: u32, tile: u32, data: &[&[u8]]) -> bool {
        let dtype = self.memory.dtype(rank, tile);
        self.memory.map.is_some()
            && !data.iter().any(|data| data::exceeds(dtype, data))
            && !data::exceeds(dtype, self.memory.tile(rank, tile))
    }

    /// Remembers a result that exceeds its format, though its operands did not.
    fn note(&mut self, rank: u32, tile: u32, fitted: bool) {
        let exceeds = |memory: &Memory| data::exceeds(memory.dtype(rank, tile), memory.tile(rank, tile));
        if fitted && self.memory.map.is_some() && exceeds(self.memory) {
            self.overflow = Some(Overflow { rank, step: 0 });
        }
    }

    fn math(&mut self, rank: u32, math: &Math, to: u32) {
        let args = math.args.map(|arg| match arg {
            Operand::Tile(Tile::Mem(tile)) => self.memory.tile(rank, tile).to_vec(),
            Operand::Tile(Tile::Held(dir) | Tile::Take(dir)) => {
                self.cells[self.at(self.held(rank, dir))].to_vec()
            }
            Operand::Scalar(_) | Operand::None => Vec::new(),
        });
        let dtype = self.memory.dtype(rank, to);
        let fits = !args.iter().any(|data| data::exceeds(dtype, data));
        self.memory.compute(rank, math, to, [&args[0], &args[1], &args[2]]);
        self.note(rank, to, fits);
        for tile in math.tiles() {
            if let Tile::Take(dir) = tile {
                let (cell, _) = self.take(rank, dir);
                self.spare.push(cell);
            }
        }
    }

    fn local(&mut self, rank: u32, from: Tile, to: u32, land: Land) {
        match from {
            Tile::Mem(tile) => {
                let data = self.memory.tile(rank, tile).to_vec();
                let fits = land == Land::Reduce && self.fits(rank, to, &[&data]);
                self.memory.write(rank, to, land, &data);
                self.note(rank, to, fits);
            }
            Tile::Held(dir) => {
                let range = self.at(self.held(rank, dir));
                let fits = land == Land::Reduce && self.fits(rank, to, &[&self.cells[range.clone()]]);
                self.memory.write(rank, to, land, &self.cells[range]);
                self.note(rank, to, fits);
            }
            Tile::Take(dir) => {
                let token = self.take(rank, dir);
                self.land(rank, to, land, token);
            }
        }
    }
}
