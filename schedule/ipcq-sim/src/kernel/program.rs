//! The schedule that a recorded kernel makes: operations, channels, and where every tile lies.

use super::error::{Form, KernelError, KernelFault, Site, proof_text};
use super::lower::{Lowered, Peers};
use super::{Kernel, Space};
use crate::config::{DType, Settings};
use crate::plan::Cut;
use ccl_schedule::{Dir, Goal, Math, Op, Program, Proof, ProofError, prove};
use std::any::Any;
use std::sync::Arc;

/// A tile: where it lies, how large it is, and its format. A slot lies in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileInfo {
    pub(crate) home: Option<(Space, u64)>,
    pub(crate) bytes: u64,
    pub(crate) dtype: DType,
}

/// Where the tiles of all ranks lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TileMap {
    pub(crate) cut: Cut,
    pub(crate) dtype: DType,
    /// The space of the tensor; it starts at address 0 there.
    pub(crate) tensor: Space,
    /// Bytes of TCM, SRAM and HBM that a rank uses.
    pub(crate) used: [u64; 3],
    /// By rank: the tiles behind the chunks.
    pub(crate) tiles: Vec<Vec<TileInfo>>,
}

impl TileMap {
    /// A tile of a rank.
    pub(crate) fn tile(&self, rank: u32, tile: u32) -> TileInfo {
        match tile.checked_sub(self.cut.chunks) {
            None => TileInfo {
                home: Some((self.tensor, self.cut.start(tile) * self.cut.elem_bytes)),
                bytes: self.cut.len(tile) * self.cut.elem_bytes,
                dtype: self.dtype,
            },
            Some(other) => self.tiles[rank as usize][other as usize],
        }
    }

    /// Where an address is in the memory of a rank: TCM, then SRAM, then HBM.
    pub(crate) fn offset(&self, space: Space, address: u64) -> u64 {
        self.used[..order(space)].iter().sum::<u64>() + address
    }

    /// Where a space ends in the memory of a rank.
    pub(crate) fn end(&self, space: Space) -> u64 {
        self.used[..=order(space)].iter().sum()
    }

    /// The largest message or tile.
    pub(crate) fn largest(&self) -> u64 {
        let others = self.tiles.iter().flatten().map(|tile| tile.bytes).max().unwrap_or(0);
        others.max(self.cut.sizes()[0])
    }
}

/// The place of a space in [`TileMap::used`].
fn order(space: Space) -> usize {
    match space {
        Space::Tcm => 0,
        Space::Sram => 1,
        Space::Hbm => 2,
    }
}

/// A kernel that was recorded on all ranks.
#[derive(Clone, Debug)]
pub struct KernelProgram {
    name: String,
    goal: Goal,
    form: Form,
    scratch: u32,
    dirs: Vec<Dir>,
    peers: Peers,
    ranks: Vec<Lowered>,
    pub(crate) map: Arc<TileMap>,
    /// Bytes of the size classes behind the two of the chunks.
    pub(crate) classes: Vec<u64>,
    /// The class of every tile behind the chunks, by rank.
    class_of: Vec<Vec<u32>>,
}

impl KernelProgram {
    pub(super) fn new(kernel: &Kernel, chunks: u32, ranks: Vec<Lowered>, peers: Peers) -> KernelProgram {
        let cut = Cut { elems: kernel.form.len(), chunks, elem_bytes: kernel.form.dtype.bytes() };
        let mut used = [0; 3];
        let end = |space: Space, end: u64, used: &mut [u64; 3]| {
            let at = &mut used[order(space)];
            *at = end.max(*at).next_multiple_of(64);
        };
        end(kernel.space, cut.elems * cut.elem_bytes, &mut used);
        let tiles: Vec<Vec<TileInfo>> = ranks.iter().map(|rank| rank.tiles.clone()).collect();
        for tile in tiles.iter().flatten() {
            if let Some((space, address)) = tile.home {
                end(space, address + tile.bytes, &mut used);
            }
        }
        let mut classes: Vec<u64> = tiles.iter().flatten().map(|tile| tile.bytes).collect();
        classes.sort_unstable();
        classes.dedup();
        let class = |tile: &TileInfo| 2 + classes.binary_search(&tile.bytes).unwrap_or(0) as u32;
        let class_of = tiles.iter().map(|tiles| tiles.iter().map(class).collect()).collect();
        let mut dirs: Vec<Dir> = peers.iter().flat_map(|(from, to)| [from.1, to.1]).collect();
        dirs.sort_unstable();
        dirs.dedup();
        KernelProgram {
            name: kernel.name.clone(),
            goal: kernel.goal,
            form: kernel.form.clone(),
            scratch: tiles.iter().map(Vec::len).max().unwrap_or(0) as u32,
            dirs,
            peers,
            map: Arc::new(TileMap { cut, dtype: kernel.form.dtype, tensor: kernel.space, used, tiles }),
            classes,
            class_of,
            ranks,
        }
    }

    /// The line of an operation of a rank.
    pub fn site(&self, rank: u32, step: u32) -> Option<Site> {
        self.ranks.get(rank as usize)?.sites.get(step as usize).copied()
    }

    /// The settings of a run: those given, with the kernel's own ranks, elements and format.
    pub fn settings(&self, base: &Settings) -> Settings {
        Settings {
            entry: self.name.clone(),
            algorithm: self.name.clone(),
            world_size: Some(self.ranks()),
            n_elem: self.form.len(),
            dtype: self.form.dtype,
            ..base.clone()
        }
    }

    /// Proves the goal, and that no rank waits for ever, with the slots and credits of the settings.
    pub fn prove(&self, settings: &Settings) -> Result<Proof, KernelError> {
        prove(self, settings.n_slots, settings.credit_point()).map_err(|error| self.explain(&error))
    }

    /// A proof's error in terms of the kernel.
    pub fn explain(&self, error: &ProofError) -> KernelError {
        let text = proof_text(error, |rank, step| self.site(rank, step));
        KernelError::new(&self.name, None, None, KernelFault::Proof(text))
    }

    /// An error of one operation.
    pub(super) fn fault(&self, rank: u32, step: u32, what: KernelFault) -> KernelError {
        KernelError::new(&self.name, self.site(rank, step), Some(rank), what)
    }

    /// Refuses messages that do not fit a slot.
    pub(super) fn check_slots(&self, slot: u64) -> Result<(), KernelError> {
        for rank in 0..self.ranks() {
            for (step, op) in self.ranks[rank as usize].ops.iter().enumerate() {
                if let Op::Send { chunk, .. } = op {
                    let tile = self.map.tile(rank, *chunk);
                    if tile.bytes > slot {
                        let form = Form { shape: vec![tile.bytes / tile.dtype.bytes()], dtype: tile.dtype };
                        let what = KernelFault::SlotTooSmall { form, bytes: tile.bytes, slot };
                        return Err(self.fault(rank, step as u32, what));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Program for KernelProgram {
    fn name(&self) -> &str {
        &self.name
    }
    fn goal(&self) -> Goal {
        self.goal
    }
    fn ranks(&self) -> u32 {
        self.ranks.len() as u32
    }
    fn chunks(&self) -> u32 {
        self.map.cut.chunks
    }
    fn scratch(&self) -> u32 {
        self.scratch
    }
    fn dirs(&self) -> &[Dir] {
        &self.dirs
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        self.peers.get(&(rank, dir)).copied()
    }
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        self.ranks[rank as usize].ops.get(step as usize).copied()
    }
    fn math(&self, rank: u32, number: u32) -> Option<Math> {
        self.ranks[rank as usize].math.get(number as usize).copied()
    }
    fn size_class(&self, rank: u32, tile: u32) -> Option<u32> {
        let other = tile.checked_sub(self.map.cut.chunks)?;
        Some(self.class_of[rank as usize][other as usize])
    }
    fn messages(&self) -> u64 {
        let sends = self.ranks.iter().flat_map(|rank| &rank.ops);
        sends.filter(|op| matches!(op, Op::Send { .. })).count() as u64
    }
    fn known(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
