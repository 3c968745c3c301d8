//! The log of everything that moved data, and its replay in the order of start times on memory with real slots.

use crate::config::DType;
use crate::memory::Memory;
use crate::plan::Plan;
use crate::probe::{Probe, Source};
use crate::units::Ps;
use ccl_schedule::{Land, NONE};
use std::io::{self, Write};
use thiserror::Error;

/// Where a record's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// On its way: channel and sequence number.
    Wire(u32, u32),
    /// Into a slot: channel and sequence number.
    Slot(u32, u32),
    /// Out of a slot, for a posted receive of this channel or to be forwarded.
    Landing(u32),
    /// Into a tile of a rank, copied or added.
    Tile(u32, u32, Land),
}

/// One movement of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it starts.
    pub start: Ps,
    /// When the source is no longer read, or the target written.
    pub end: Ps,
    /// Bytes.
    pub bytes: u64,
    /// From where; `None` is the wire.
    pub from: Option<Source>,
    /// To where.
    pub to: Target,
}

/// Collects records while an engine runs.
#[derive(Debug, Default)]
pub struct OpLog {
    records: Vec<Record>,
    sizes: [u64; 2],
    smaller_from: u32,
    chunks: u32,
}

/// What replay finds wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// A slot was read after it had been given back and written again.
    #[error(
        "use after credit: slot {slot} of channel {channel} (rank {src} {dir} to rank {dst}) is overwritten by token {by} \
         at {at} ps while token {seq} is in use until {until} ps; set credit_at to last_use or copy"
    )]
    UseAfterCredit {
        /// The channel.
        channel: u32,
        /// Its sender.
        src: u32,
        /// The sender's direction.
        dir: String,
        /// Its receiver.
        dst: u32,
        /// The slot.
        slot: u32,
        /// The token that is in use.
        seq: u32,
        /// The token that overwrites it.
        by: u32,
        /// When the overwriting starts.
        at: Ps,
        /// When the use ends.
        until: Ps,
    },
}

impl OpLog {
    /// For one run of a plan.
    pub fn new(plan: &Plan<'_>) -> OpLog {
        // A message is issued, becomes visible, and is landed.
        let records = Vec::with_capacity(3 * plan.program.messages().min(1 << 24) as usize);
        OpLog { records, sizes: plan.cut.sizes(), smaller_from: plan.smaller_from, chunks: plan.cut.chunks }
    }

    /// All records, in the order in which causes come before effects.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    fn tile_bytes(&self, tile: u32) -> u64 {
        self.sizes[usize::from(tile >= self.smaller_from && tile < self.chunks)]
    }

    /// Record numbers in the order of start times; equal times keep causes before effects.
    fn order(&self) -> Vec<u32> {
        // By radix: times are small numbers, and a pass keeps the order of the one before.
        const BITS: u32 = 11;
        let last = self.records.iter().map(|record| record.start).max().unwrap_or(0);
        let mut order: Vec<(Ps, u32)> = self.records.iter().map(|record| record.start).zip(0..).collect();
        let mut sorted = order.clone();
        for shift in (0..Ps::BITS - last.leading_zeros()).step_by(BITS as usize) {
            let digit = |key: Ps| (key >> shift) as usize & ((1 << BITS) - 1);
            let mut places = [0u32; (1 << BITS) + 1];
            for &(key, _) in &order {
                places[digit(key) + 1] += 1;
            }
            for i in 1..places.len() {
                places[i] += places[i - 1];
            }
            for &(key, i) in &order {
                let place = &mut places[digit(key)];
                sorted[*place as usize] = (key, i);
                *place += 1;
            }
            std::mem::swap(&mut order, &mut sorted);
        }
        order.into_iter().map(|(_, i)| i).collect()
    }

    /// Writes the log as CSV, in the order of start times.
    pub fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "start_ps,end_ps,bytes,from,to")?;
        for i in self.order() {
            let record = &self.records[i as usize];
            let from = match record.from {
                None => "wire".to_owned(),
                Some(Source::Tile(rank, tile)) => format!("rank {rank} tile {tile}"),
                Some(Source::Slot(channel, seq)) => format!("slot {channel}:{seq}"),
                Some(Source::Landing(channel)) => format!("landing {channel}"),
            };
            let to = match record.to {
                Target::Wire(channel, seq) => format!("wire {channel}:{seq}"),
                Target::Slot(channel, seq) => format!("slot {channel}:{seq}"),
                Target::Landing(channel) => format!("landing {channel}"),
                Target::Tile(rank, tile, land) => format!("rank {rank} tile {tile} {}", land.name()),
            };
            writeln!(out, "{},{},{},{from},{to}", record.start, record.end, record.bytes)?;
        }
        Ok(())
    }

    /// Replays the data on `memory`, through slots that are overwritten as the log says.
    pub fn replay(&self, plan: &Plan<'_>, dtype: DType, memory: &mut Memory) -> Result<(), ReplayError> {
        debug_assert_eq!(dtype.bytes(), plan.cut.elem_bytes);
        let (slots, size) = (plan.slots as usize, plan.cut.sizes()[0] as usize);
        let channels = plan.wiring.channels().len();
        let used = slots.min(plan.program.messages().max(1) as usize);
        let mut state = Slots {
            used,
            size,
            bytes: vec![0; channels * used * size],
            holds: vec![(NONE, 0); channels * used],
        };
        // No more tokens of a channel can be on their way than it has slots.
        let mut wires: Vec<u8> = vec![0; channels * used * size];
        let wire = |channel: u32, seq: u32| (channel as usize * used + seq as usize % used) * size;
        let mut landings: Vec<Vec<u8>> = vec![Vec::new(); channels];
        let mut data = Vec::new();
        for i in self.order() {
            let record = &self.records[i as usize];
            data.clear();
            match record.from {
                Some(Source::Tile(rank, tile)) => data.extend_from_slice(memory.tile(rank, tile)),
                Some(Source::Slot(channel, seq)) => {
                    data.extend_from_slice(state.read(plan, channel, seq, record)?);
                }
                Some(Source::Landing(channel)) => data.extend_from_slice(&landings[channel as usize]),
                None => {
                    if let Target::Slot(channel, seq) = record.to {
                        data.extend_from_slice(&wires[wire(channel, seq)..][..size]);
                    }
                }
            }
            data.truncate(record.bytes as usize);
            match record.to {
                Target::Wire(channel, seq) => {
                    wires[wire(channel, seq)..][..data.len()].copy_from_slice(&data);
                }
                Target::Slot(channel, seq) => state.write(plan, channel, seq, record, &data)?,
                Target::Landing(channel) => data.clone_into(&mut landings[channel as usize]),
                Target::Tile(rank, tile, land) => memory.write(rank, tile, land, &data),
            }
        }
        Ok(())
    }
}

struct Slots {
    used: usize,
    size: usize,
    bytes: Vec<u8>,
    /// The token that a slot holds, and until when it is read.
    holds: Vec<(u32, Ps)>,
}

impl Slots {
    fn read(
        &mut self,
        plan: &Plan<'_>,
        channel: u32,
        seq: u32,
        record: &Record,
    ) -> Result<&[u8], ReplayError> {
        let slot = seq as usize % self.used;
        let at = channel as usize * self.used + slot;
        let (holds, until) = &mut self.holds[at];
        if *holds != seq {
            return Err(use_after(plan, channel, slot, (seq, *holds), (record.start, record.end)));
        }
        *until = (*until).max(record.end);
        Ok(&self.bytes[at * self.size..][..self.size])
    }

    fn write(
        &mut self,
        plan: &Plan<'_>,
        channel: u32,
        seq: u32,
        record: &Record,
        data: &[u8],
    ) -> Result<(), ReplayError> {
        let slot = seq as usize % self.used;
        let at = channel as usize * self.used + slot;
        let (holds, until) = self.holds[at];
        if holds != NONE && record.start < until {
            return Err(use_after(plan, channel, slot, (holds, seq), (record.start, until)));
        }
        self.holds[at] = (seq, 0);
        self.bytes[at * self.size..][..data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn use_after(
    plan: &Plan<'_>,
    channel: u32,
    slot: usize,
    (seq, by): (u32, u32),
    (at, until): (Ps, Ps),
) -> ReplayError {
    let ends = plan.wiring.channels()[channel as usize];
    ReplayError::UseAfterCredit {
        channel,
        src: ends.src,
        dir: ends.src_dir.to_string(),
        dst: ends.dst,
        slot: slot as u32,
        seq,
        by,
        at,
        until,
    }
}

impl Probe for OpLog {
    fn issued(&mut self, channel: u32, seq: u32, class: usize, from: Source, (start, end): (Ps, Ps)) {
        let to = Target::Wire(channel, seq);
        self.records.push(Record { start, end, bytes: self.sizes[class], from: Some(from), to });
    }

    fn visible(&mut self, channel: u32, seq: u32, class: usize, from: Ps, at: Ps) {
        let to = Target::Slot(channel, seq);
        self.records.push(Record { start: from, end: at, bytes: self.sizes[class], from: None, to });
    }

    fn landed(&mut self, channel: u32, seq: u32, class: usize, from: Ps, to: Ps) {
        let (source, target) = (Some(Source::Slot(channel, seq)), Target::Landing(channel));
        self.records.push(Record {
            start: from,
            end: to,
            bytes: self.sizes[class],
            from: source,
            to: target,
        });
    }

    fn wrote(&mut self, rank: u32, tile: u32, land: Land, from: Source, (start, end): (Ps, Ps)) {
        let bytes = self.tile_bytes(tile);
        self.records.push(Record { start, end, bytes, from: Some(from), to: Target::Tile(rank, tile, land) });
    }
}
