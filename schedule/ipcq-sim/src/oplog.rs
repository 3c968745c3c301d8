//! The log of all data movements, replayed in the order of start times while the engine still runs.
//!
//! An engine reports movements in causal order, which is not the order of time: PEs run ahead of each other.
//! When the log has grown, the engine lets the slower PEs catch up and reports a time before which no further
//! movement will start ([`Probe::watermark`]). The log then sorts the movements before it, replays them and
//! drops them. Its size therefore depends on how far PEs must run ahead of each other, not on the length of
//! the run.

use crate::memory::Memory;
use crate::plan::Plan;
use crate::probe::{Probe, Source};
use crate::units::Ps;
use ccl_schedule::{Land, NONE};
use std::io::{self, Write};
use thiserror::Error;

/// Where data goes.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// In flight: channel, sequence number and size.
    Wire(u32, u32, Size),
    /// Into a slot: channel, sequence number and size.
    Slot(u32, u32, Size),
    /// Out of a slot, for a posted receive of this channel or to be forwarded.
    Landing(u32, Size),
    /// Into a tile of a rank, copied or added.
    Tile(u32, u32, Land),
}

/// The two sizes of chunks.
#[derive(Clone, Copy, Debug)]
enum Size {
    /// With one element of the remainder.
    Larger,
    /// Without.
    Smaller,
}

/// One movement of data, without its start. Half a cache line, because replay accesses them in random order.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// When the source is no longer read, or the target written.
    end: Ps,
    /// From where; `None` is the wire.
    from: Option<Source>,
    /// To where.
    to: Target,
}

/// What replay finds wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// A slot was read after its credit was returned and it was written again.
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

/// Movements that are kept before the first are replayed: with what replay touches, they fit a second-level
/// cache.
const KEPT: usize = 1 << 13;

/// Logs what an engine reports, and replays it on a memory.
pub struct OpLog<'a> {
    plan: &'a Plan<'a>,
    starts: Vec<Ps>,
    moves: Vec<Move>,
    /// How many are kept before some are replayed.
    enough: usize,
    /// Up to when everything has been replayed.
    replayed: Ps,
    order: Order,
    replay: Replay,
    failed: Option<ReplayError>,
    csv: Option<Csv<'a>>,
}

/// Where the log is written, and what went wrong there.
struct Csv<'a> {
    out: Box<dyn Write + 'a>,
    result: io::Result<()>,
}

impl<'a> OpLog<'a> {
    /// For one run of a plan on `memory`, which holds what the ranks start with. The log is written to `csv`,
    /// if given, in the order of start times.
    pub fn new(plan: &'a Plan<'a>, memory: Memory, csv: Option<Box<dyn Write + 'a>>) -> OpLog<'a> {
        let room = KEPT + KEPT / 2;
        let csv = csv.map(|mut out| {
            let result = writeln!(out, "start_ps,end_ps,bytes,from,to");
            Csv { out, result }
        });
        OpLog {
            plan,
            starts: Vec::with_capacity(room),
            moves: Vec::with_capacity(room),
            enough: KEPT,
            replayed: 0,
            order: Order::default(),
            replay: Replay::new(plan, memory),
            failed: None,
            csv,
        }
    }

    /// Replays the rest and returns the memory, or what is wrong. The outer result is that of writing.
    pub fn finish(mut self) -> io::Result<Result<Memory, ReplayError>> {
        self.drain(Ps::MAX);
        if let Some(Csv { mut out, result }) = self.csv {
            result.and_then(|()| out.flush())?;
        }
        Ok(self.failed.map_or(Ok(self.replay.memory), Err))
    }

    #[inline]
    fn push(&mut self, (start, end): (Ps, Ps), from: Option<Source>, to: Target) {
        self.starts.push(start);
        self.moves.push(Move { end, from, to });
    }

    /// Replays and drops everything before `until`.
    fn drain(&mut self, until: Ps) {
        self.order.sort(&self.starts, self.replayed, until);
        self.replayed = until;
        for i in self.order.numbers() {
            let (start, moved) = (self.starts[i], self.moves[i]);
            if let Some(csv) = &mut self.csv
                && csv.result.is_ok()
            {
                csv.result = line(&mut *csv.out, start, moved, self.replay.bytes(moved.to));
            }
            if self.failed.is_none() {
                self.failed = self.replay.apply(self.plan, start, moved).err();
            }
        }
        let mut kept = 0;
        for i in 0..self.starts.len() {
            if self.starts[i] >= until {
                self.starts[kept] = self.starts[i];
                self.moves[kept] = self.moves[i];
                kept += 1;
            }
        }
        self.starts.truncate(kept);
        self.moves.truncate(kept);
        // What is kept is scanned again; the limit grows with it, so that this stays a small part of the
        // work.
        self.enough = KEPT.max(2 * kept);
    }
}

fn line(out: &mut dyn Write, start: Ps, moved: Move, bytes: usize) -> io::Result<()> {
    write!(out, "{start},{},{bytes},", moved.end)?;
    match moved.from {
        None => write!(out, "wire,"),
        Some(Source::Tile(rank, tile)) => write!(out, "rank {rank} tile {tile},"),
        Some(Source::Slot(channel, seq)) => write!(out, "slot {channel}:{seq},"),
        Some(Source::Landing(channel)) => write!(out, "landing {channel},"),
    }?;
    match moved.to {
        Target::Wire(channel, seq, _) => writeln!(out, "wire {channel}:{seq}"),
        Target::Slot(channel, seq, _) => writeln!(out, "slot {channel}:{seq}"),
        Target::Landing(channel, _) => writeln!(out, "landing {channel}"),
        Target::Tile(rank, tile, land) => writeln!(out, "rank {rank} tile {tile} {}", land.name()),
    }
}

/// Sorts numbers by time; its lists are reused.
#[derive(Default)]
struct Order {
    keys: Vec<u64>,
    sorted: Vec<u64>,
    places: Vec<u32>,
    /// What a key holds below the time.
    mask: u64,
}

impl Order {
    /// Sorts the numbers of the times before `until` by time; the sort is stable. No time is before `first`.
    fn sort(&mut self, times: &[Ps], first: Ps, until: Ps) {
        let last = if until == Ps::MAX { times.iter().copied().max().unwrap_or(first) } else { until };
        let time_bits = Ps::BITS - (last - first).leading_zeros();
        let index_bits = usize::BITS - times.len().leading_zeros();
        let chosen = times.iter().copied().zip(0u64..).filter(|&(time, _)| time < until);
        self.keys.clear();
        if time_bits + index_bits > u64::BITS {
            self.mask = u64::MAX;
            self.keys.extend(chosen.map(|(_, i)| i));
            return self.keys.sort_by_key(|&i| times[i as usize]);
        }
        // A radix sort by time. Time and number share a word, and every pass is stable.
        self.mask = (1 << index_bits) - 1;
        self.keys.extend(chosen.map(|(time, i)| (time - first) << index_bits | i));
        let passes = time_bits.div_ceil(11);
        let bits = time_bits.div_ceil(passes.max(1));
        for pass in 0..passes {
            let digit = |key: u64| (key >> (index_bits + pass * bits)) as usize & ((1 << bits) - 1);
            self.places.clear();
            self.places.resize(1 << bits, 0);
            for &key in &self.keys {
                self.places[digit(key)] += 1;
            }
            let mut before = 0;
            for place in &mut self.places {
                before += std::mem::replace(place, before);
            }
            self.sorted.resize(self.keys.len(), 0);
            for &key in &self.keys {
                let place = &mut self.places[digit(key)];
                self.sorted[*place as usize] = key;
                *place += 1;
            }
            std::mem::swap(&mut self.keys, &mut self.sorted);
        }
    }

    fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.keys.iter().map(|key| (key & self.mask) as usize)
    }
}

/// The memories of all ranks, and the data of tokens from their issue until their slot is written again.
///
/// A channel has room for twice as many tokens as slots (rounded up to a power of two): token q + 2 n is not
/// issued before token q + n has taken the slot of token q, and from then on reading q is an error.
struct Replay {
    memory: Memory,
    sizes: [usize; 2],
    smaller_from: u32,
    chunks: u32,
    /// Slots of a channel.
    slots: u32,
    /// Tokens of a channel.
    room: u32,
    tokens: Vec<u8>,
    /// The token that was written here last, and until when it is read.
    holds: Vec<(u32, Ps)>,
    landings: Vec<u8>,
}

impl Replay {
    fn new(plan: &Plan<'_>, memory: Memory) -> Replay {
        let slots = u64::from(plan.slots).min(plan.program.messages().max(1)) as u32;
        let room = (2 * slots).next_power_of_two();
        let channels = plan.wiring.channels().len();
        let sizes = plan.cut.sizes().map(|size| size as usize);
        Replay {
            memory,
            sizes,
            smaller_from: plan.smaller_from,
            chunks: plan.cut.chunks,
            slots,
            room,
            tokens: vec![0; channels * room as usize * sizes[0]],
            holds: vec![(NONE, 0); channels * room as usize],
            landings: vec![0; channels * sizes[0]],
        }
    }

    /// The bytes that are moved.
    #[inline]
    fn bytes(&self, to: Target) -> usize {
        let size = match to {
            Target::Wire(_, _, size) | Target::Slot(_, _, size) | Target::Landing(_, size) => size,
            Target::Tile(_, tile, _) => size(usize::from(tile >= self.smaller_from && tile < self.chunks)),
        };
        self.sizes[size as usize]
    }

    #[inline]
    fn place(&self, channel: u32, seq: u32) -> usize {
        channel as usize * self.room as usize + (seq & (self.room - 1)) as usize
    }

    /// Where the bytes of a token are.
    #[inline]
    fn token(&self, channel: u32, seq: u32) -> usize {
        self.place(channel, seq) * self.sizes[0]
    }

    fn landing(&self, channel: u32) -> usize {
        channel as usize * self.sizes[0]
    }

    /// Moves data. A slot is the token that it holds: a read of any other is a use after credit.
    #[inline]
    fn apply(&mut self, plan: &Plan<'_>, start: Ps, Move { end, from, to }: Move) -> Result<(), ReplayError> {
        let (span, bytes) = ((start, end), self.bytes(to));
        match (from, to) {
            (Some(Source::Tile(rank, tile)), Target::Wire(channel, seq, _)) => {
                let at = self.token(channel, seq);
                let data = self.memory.tile(rank, tile);
                let len = bytes.min(data.len());
                self.tokens[at..at + len].copy_from_slice(&data[..len]);
            }
            (Some(Source::Slot(channel, seq)), Target::Wire(onto, number, _)) => {
                self.read(plan, channel, seq, span)?;
                let (from, at) = (self.token(channel, seq), self.token(onto, number));
                self.tokens.copy_within(from..from + bytes, at);
            }
            (Some(Source::Landing(channel)), Target::Wire(onto, number, _)) => {
                let (from, at) = (self.landing(channel), self.token(onto, number));
                self.tokens[at..at + bytes].copy_from_slice(&self.landings[from..from + bytes]);
            }
            (_, Target::Slot(channel, seq, _)) => self.write(plan, channel, seq, start)?,
            (Some(Source::Slot(channel, seq)), Target::Landing(onto, _)) => {
                self.read(plan, channel, seq, span)?;
                let (from, at) = (self.token(channel, seq), self.landing(onto));
                self.landings[at..at + bytes].copy_from_slice(&self.tokens[from..from + bytes]);
            }
            (Some(Source::Slot(channel, seq)), Target::Tile(rank, tile, land)) => {
                self.read(plan, channel, seq, span)?;
                let from = self.token(channel, seq);
                self.memory.write(rank, tile, land, &self.tokens[from..from + bytes]);
            }
            (Some(Source::Landing(channel)), Target::Tile(rank, tile, land)) => {
                let from = self.landing(channel);
                self.memory.write(rank, tile, land, &self.landings[from..from + bytes]);
            }
            (Some(Source::Tile(from, source)), Target::Tile(rank, tile, land)) => {
                let data = self.memory.tile(from, source).to_vec();
                self.memory.write(rank, tile, land, &data[..bytes.min(data.len())]);
            }
            // Only slots are filled from the wire, and landings from slots.
            (None, _) | (_, Target::Landing(..)) => {}
        }
        Ok(())
    }

    #[inline]
    fn read(&mut self, plan: &Plan<'_>, channel: u32, seq: u32, span: (Ps, Ps)) -> Result<(), ReplayError> {
        let (after, own) = (self.place(channel, seq + self.slots), self.place(channel, seq));
        if self.holds[after].0 == seq + self.slots {
            return Err(self.used_after(plan, channel, seq, span));
        }
        let (holds, until) = &mut self.holds[own];
        debug_assert_eq!(*holds, seq, "a token is read after it was written");
        *until = span.1.max(*until);
        Ok(())
    }

    #[inline]
    fn write(&mut self, plan: &Plan<'_>, channel: u32, seq: u32, start: Ps) -> Result<(), ReplayError> {
        if let Some(before) = seq.checked_sub(self.slots) {
            let until = self.holds[self.place(channel, before)].1;
            if start < until {
                return Err(self.used_after(plan, channel, before, (start, until)));
            }
        }
        let place = self.place(channel, seq);
        self.holds[place] = (seq, 0);
        Ok(())
    }

    #[cold]
    fn used_after(&self, plan: &Plan<'_>, channel: u32, seq: u32, (at, until): (Ps, Ps)) -> ReplayError {
        let ends = plan.wiring.channels()[channel as usize];
        ReplayError::UseAfterCredit {
            channel,
            src: ends.src,
            dir: ends.src_dir.to_string(),
            dst: ends.dst,
            slot: seq % self.slots,
            seq,
            by: seq + self.slots,
            at,
            until,
        }
    }
}

#[inline]
fn size(class: usize) -> Size {
    if class == 0 { Size::Larger } else { Size::Smaller }
}

impl Probe for OpLog<'_> {
    #[inline]
    fn issued(&mut self, channel: u32, seq: u32, class: usize, from: Source, span: (Ps, Ps)) {
        self.push(span, Some(from), Target::Wire(channel, seq, size(class)));
    }

    #[inline]
    fn visible(&mut self, channel: u32, seq: u32, class: usize, from: Ps, at: Ps) {
        self.push((from, at), None, Target::Slot(channel, seq, size(class)));
    }

    #[inline]
    fn landed(&mut self, channel: u32, seq: u32, class: usize, from: Ps, to: Ps) {
        let source = Some(Source::Slot(channel, seq));
        self.push((from, to), source, Target::Landing(channel, size(class)));
    }

    #[inline]
    fn wrote(&mut self, rank: u32, tile: u32, land: Land, from: Source, span: (Ps, Ps)) {
        self.push(span, Some(from), Target::Tile(rank, tile, land));
    }

    #[inline]
    fn wants_watermark(&self) -> bool {
        self.starts.len() >= self.enough
    }

    fn watermark(&mut self, time: Ps) {
        self.drain(time);
    }
}
