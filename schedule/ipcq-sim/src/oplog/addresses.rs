//! Where the data of a run lies: PE, memory space and address of every tile, slot and landing.
//!
//! A PE's tensor is at address 0 of its space: HBM for a schedule, the kernel's choice for a kernel. Scratch tiles are in TCM.
//! The slots of its queues are in the memory that `buffer_kind` names, queue by queue; landings are behind the scratch tiles.

use crate::config::BufferKind;
use crate::kernel::{TileMap, space_name};
use crate::plan::{Cut, Plan};
use crate::probe::Source;
use ccl_schedule::Channel;
use std::fmt;
use std::sync::Arc;

/// A place in the memory of a PE.
pub(super) struct Address {
    pe: u32,
    space: BufferKind,
    address: u64,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.pe, space_name(self.space), self.address)
    }
}

/// What is needed to name places, without the plan that they come from.
pub(super) struct Addresses {
    pub(super) channels: Vec<Channel>,
    /// The number of a channel among those that its receiver has.
    queue: Vec<u32>,
    kind: BufferKind,
    slots: u32,
    slot_size: u64,
    cut: Cut,
    scratch: u32,
    map: Option<Arc<TileMap>>,
}

impl Addresses {
    pub(super) fn new(plan: &Plan<'_>) -> Addresses {
        let channels = plan.wiring.channels().to_vec();
        let mut queues = vec![0; plan.program.ranks() as usize];
        let mut number = |rank: u32| {
            queues[rank as usize] += 1;
            queues[rank as usize] - 1
        };
        Addresses {
            queue: channels.iter().map(|channel| number(channel.dst)).collect(),
            channels,
            kind: plan.buffer_kind,
            slots: plan.slots,
            slot_size: plan.slot_size,
            cut: plan.cut,
            scratch: plan.program.scratch(),
            map: plan.kernel.map(|kernel| kernel.map.clone()),
        }
    }

    pub(super) fn tile(&self, pe: u32, tile: u32) -> Address {
        if let Some(map) = &self.map {
            let (space, address) = map.tile(pe, tile).home.unwrap_or((self.kind, 0));
            return Address { pe, space, address };
        }
        match tile.checked_sub(self.cut.chunks) {
            None => {
                Address { pe, space: BufferKind::Hbm, address: self.cut.start(tile) * self.cut.elem_bytes }
            }
            Some(scratch) => {
                Address { pe, space: BufferKind::Tcm, address: u64::from(scratch) * self.cut.sizes()[0] }
            }
        }
    }

    pub(super) fn slot(&self, channel: u32, seq: u32) -> Address {
        let queue = u64::from(self.queue[channel as usize]) * u64::from(self.slots);
        let address = (queue + u64::from(seq % self.slots)) * self.slot_size;
        Address { pe: self.channels[channel as usize].dst, space: self.kind, address }
    }

    pub(super) fn landing(&self, channel: u32) -> Address {
        let base = match &self.map {
            Some(map) => map.end(BufferKind::Tcm),
            None => u64::from(self.scratch) * self.cut.sizes()[0],
        };
        let address = base + u64::from(self.queue[channel as usize]) * self.slot_size;
        Address { pe: self.channels[channel as usize].dst, space: BufferKind::Tcm, address }
    }

    pub(super) fn source(&self, source: Source) -> Address {
        match source {
            Source::Tile(rank, tile) => self.tile(rank, tile),
            Source::Slot(channel, seq) => self.slot(channel, seq),
            Source::Landing(channel) => self.landing(channel),
        }
    }
}
