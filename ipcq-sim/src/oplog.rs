//! The log of everything that moved data, and its replay in the order of start times, tracking which token each slot holds.

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
    /// On its way: channel, sequence number and size.
    Wire(u32, u32, Size),
    /// Into a slot: channel, sequence number and size.
    Slot(u32, u32, Size),
    /// Out of a slot, for a posted receive of this channel or to be forwarded.
    Landing(u32, Size),
    /// Into a tile of a rank, copied or added.
    Tile(u32, u32, Land),
}

/// The two sizes of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// With the element that does not come out even.
    Larger,
    /// Without.
    Smaller,
}

/// One movement of data; [`OpLog::bytes`] tells how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it starts.
    pub start: Ps,
    /// When the source is no longer read, or the target written.
    pub end: Ps,
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

    /// The bytes that a record moves.
    #[inline]
    pub fn bytes(&self, record: &Record) -> u64 {
        let size = match record.to {
            Target::Wire(_, _, size) | Target::Slot(_, _, size) | Target::Landing(_, size) => size,
            Target::Tile(_, tile, _) => size(usize::from(tile >= self.smaller_from && tile < self.chunks)),
        };
        self.sizes[size as usize]
    }

    /// Record numbers in the order of start times; equal times keep causes before effects.
    fn order(&self) -> Vec<u32> {
        let last = self.records.iter().map(|record| record.start).max().unwrap_or(0);
        let index_bits = usize::BITS - self.records.len().leading_zeros();
        let time_bits = Ps::BITS - last.leading_zeros();
        let starts = self.records.iter().map(|record| record.start).zip(0u32..);
        if index_bits + time_bits > u64::BITS {
            let mut order: Vec<(Ps, u32)> = starts.collect();
            order.sort_unstable();
            return order.into_iter().map(|(_, i)| i).collect();
        }
        // Time and number share a word. By radix over the time alone: a pass keeps the order of the one before.
        const BITS: u32 = 12;
        let mut order: Vec<u64> = starts.map(|(start, i)| start << index_bits | u64::from(i)).collect();
        let mut sorted = vec![0; order.len()];
        for shift in (index_bits..index_bits + time_bits).step_by(BITS as usize) {
            let digit = |key: u64| (key >> shift) as usize & ((1 << BITS) - 1);
            let mut places = [0u32; 1 << BITS];
            for &key in &order {
                places[digit(key)] += 1;
            }
            let mut before = 0;
            for place in &mut places {
                before += std::mem::replace(place, before);
            }
            for &key in &order {
                let place = &mut places[digit(key)];
                sorted[*place as usize] = key;
                *place += 1;
            }
            std::mem::swap(&mut order, &mut sorted);
        }
        let mask = (1 << index_bits) - 1;
        order.into_iter().map(|key| (key & mask) as u32).collect()
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
                Target::Wire(channel, seq, _) => format!("wire {channel}:{seq}"),
                Target::Slot(channel, seq, _) => format!("slot {channel}:{seq}"),
                Target::Landing(channel, _) => format!("landing {channel}"),
                Target::Tile(rank, tile, land) => format!("rank {rank} tile {tile} {}", land.name()),
            };
            writeln!(out, "{},{},{},{from},{to}", record.start, record.end, self.bytes(record))?;
        }
        Ok(())
    }

    /// Replays the data on `memory`. A slot is the token that it holds: a read of any other is a use after credit.
    pub fn replay(&self, plan: &Plan<'_>, dtype: DType, memory: &mut Memory) -> Result<(), ReplayError> {
        debug_assert_eq!(dtype.bytes(), plan.cut.elem_bytes);
        let size = plan.cut.sizes()[0] as usize;
        let channels = plan.wiring.channels().len();
        let mut slots = Slots::new(plan, size);
        // The data of tokens, from their issue until their slot is written again.
        let mut tokens: Vec<u8> = vec![0; channels * slots.room as usize * size];
        let mut landings: Vec<u8> = vec![0; channels * size];
        let landing = |channel: u32| channel as usize * size;
        let order = self.order();
        for (n, &i) in order.iter().enumerate() {
            if n % AHEAD == 0 {
                let soon = order[n..].iter().take(AHEAD).map(|&i| self.records[i as usize].start);
                std::hint::black_box(soon.fold(0, |sum, start| sum ^ start));
            }
            let record = &self.records[i as usize];
            let bytes = self.bytes(record) as usize;
            match (record.from, record.to) {
                (Some(Source::Tile(rank, tile)), Target::Wire(channel, seq, _)) => {
                    let data = memory.tile(rank, tile);
                    let len = bytes.min(data.len());
                    tokens[slots.token(channel, seq)..][..len].copy_from_slice(&data[..len]);
                }
                (Some(Source::Slot(channel, seq)), Target::Wire(to, number, _)) => {
                    slots.read(plan, channel, seq, record)?;
                    let from = slots.token(channel, seq);
                    tokens.copy_within(from..from + bytes, slots.token(to, number));
                }
                (Some(Source::Landing(channel)), Target::Wire(to, number, _)) => {
                    let data = &landings[landing(channel)..][..bytes];
                    tokens[slots.token(to, number)..][..bytes].copy_from_slice(data);
                }
                (_, Target::Slot(channel, seq, _)) => slots.write(plan, channel, seq, record)?,
                (Some(Source::Slot(channel, seq)), Target::Landing(to, _)) => {
                    slots.read(plan, channel, seq, record)?;
                    let data = &tokens[slots.token(channel, seq)..][..bytes];
                    landings[landing(to)..][..bytes].copy_from_slice(data);
                }
                (Some(Source::Slot(channel, seq)), Target::Tile(rank, tile, land)) => {
                    slots.read(plan, channel, seq, record)?;
                    memory.write(rank, tile, land, &tokens[slots.token(channel, seq)..][..bytes]);
                }
                (Some(Source::Landing(channel)), Target::Tile(rank, tile, land)) => {
                    memory.write(rank, tile, land, &landings[landing(channel)..][..bytes]);
                }
                (Some(Source::Tile(from, source)), Target::Tile(rank, tile, land)) => {
                    let data = memory.tile(from, source).to_vec();
                    memory.write(rank, tile, land, &data[..bytes.min(data.len())]);
                }
                // Only slots are filled from the wire, and landings from slots.
                (None, _) | (_, Target::Landing(..)) => {}
            }
        }
        Ok(())
    }
}

/// Records that are fetched ahead, all at once, so that the misses overlap.
const AHEAD: usize = 16;

/// Which token every slot holds. The bytes stay where the token was issued: a channel has room for twice as many tokens
/// as slots (rounded up to a power of two), and token q + 2 n is not issued before token q + n has taken the slot of token q, after which reading q is an
/// error.
struct Slots {
    size: usize,
    /// Slots of a channel.
    count: u32,
    /// Tokens of a channel.
    room: u32,
    /// The token that a slot holds, and until when it is read.
    holds: Vec<(u32, Ps)>,
}

impl Slots {
    fn new(plan: &Plan<'_>, size: usize) -> Slots {
        let count = u64::from(plan.slots).min(plan.program.messages().max(1)) as u32;
        let room = (2 * count).next_power_of_two();
        Slots { size, count, room, holds: vec![(NONE, 0); plan.wiring.channels().len() * count as usize] }
    }

    fn slot(&self, channel: u32, seq: u32) -> usize {
        channel as usize * self.count as usize + (seq % self.count) as usize
    }

    /// Where the bytes of a token are.
    fn token(&self, channel: u32, seq: u32) -> usize {
        (channel as usize * self.room as usize + (seq & (self.room - 1)) as usize) * self.size
    }

    fn read(&mut self, plan: &Plan<'_>, channel: u32, seq: u32, record: &Record) -> Result<(), ReplayError> {
        let slot = self.slot(channel, seq);
        let (holds, until) = &mut self.holds[slot];
        if *holds != seq {
            let slot = seq % self.count;
            return Err(use_after(plan, channel, slot, (seq, *holds), (record.start, record.end)));
        }
        *until = (*until).max(record.end);
        Ok(())
    }

    fn write(&mut self, plan: &Plan<'_>, channel: u32, seq: u32, record: &Record) -> Result<(), ReplayError> {
        let slot = self.slot(channel, seq);
        let (holds, until) = self.holds[slot];
        if holds != NONE && record.start < until {
            return Err(use_after(plan, channel, seq % self.count, (holds, seq), (record.start, until)));
        }
        self.holds[slot] = (seq, 0);
        Ok(())
    }
}

#[inline]
fn size(class: usize) -> Size {
    if class == 0 { Size::Larger } else { Size::Smaller }
}

fn use_after(
    plan: &Plan<'_>,
    channel: u32,
    slot: u32,
    (seq, by): (u32, u32),
    (at, until): (Ps, Ps),
) -> ReplayError {
    let ends = plan.wiring.channels()[channel as usize];
    ReplayError::UseAfterCredit {
        channel,
        src: ends.src,
        dir: ends.src_dir.to_string(),
        dst: ends.dst,
        slot,
        seq,
        by,
        at,
        until,
    }
}

impl Probe for OpLog {
    #[inline]
    fn issued(&mut self, channel: u32, seq: u32, class: usize, from: Source, (start, end): (Ps, Ps)) {
        let to = Target::Wire(channel, seq, size(class));
        self.records.push(Record { start, end, from: Some(from), to });
    }

    #[inline]
    fn visible(&mut self, channel: u32, seq: u32, class: usize, from: Ps, at: Ps) {
        let to = Target::Slot(channel, seq, size(class));
        self.records.push(Record { start: from, end: at, from: None, to });
    }

    #[inline]
    fn landed(&mut self, channel: u32, seq: u32, class: usize, from: Ps, to: Ps) {
        let (source, target) = (Some(Source::Slot(channel, seq)), Target::Landing(channel, size(class)));
        self.records.push(Record { start: from, end: to, from: source, to: target });
    }

    #[inline]
    fn wrote(&mut self, rank: u32, tile: u32, land: Land, from: Source, (start, end): (Ps, Ps)) {
        self.records.push(Record { start, end, from: Some(from), to: Target::Tile(rank, tile, land) });
    }
}
