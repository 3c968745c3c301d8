//! The log of all data movements, replayed in the order of start times while the engine still runs.
//!
//! An engine reports movements in causal order, which is not the order of time: PEs run ahead of each other.
//! When the log has grown, the engine lets the slower PEs catch up and reports a time before which no further
//! movement will start ([`Probe::watermark`]). The log then sorts the movements before it, replays them and
//! drops them. Its size therefore depends on how far PEs must run ahead of each other, not on the length of
//! the run.
//!
//! As CSV, a line is one movement: when, how many bytes, what, and PE, memory space and address of source and destination.
//! A token is read at its source when it is sent (`dma_read`) and written to its slot when it arrives (`dma_write`); in
//! between it is in flight, which is the space `vc_comm` with the number of the token in its channel.

mod addresses;
mod order;
mod replay;

use crate::memory::Memory;
use crate::plan::Plan;
use crate::probe::{Probe, Source};
use crate::units::Ps;
use addresses::Addresses;
use ccl_schedule::{Land, Math};
use order::Order;
use replay::Replay;
use std::io::{self, Write};
use thiserror::Error;

/// Where data goes.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// In flight: channel, sequence number and size class.
    Wire(u32, u32, u16),
    /// Into a slot: channel, sequence number and size class.
    Slot(u32, u32, u16),
    /// Out of a slot, for a posted receive of this channel or to be forwarded.
    Landing(u32, u16),
    /// Into a tile of a rank, copied or added.
    Tile(u32, u32, Land),
    /// Into a tile, computed: a number in the list of computations.
    Math(u32),
}

/// A computation.
#[derive(Clone, Copy, Debug)]
struct Computed {
    rank: u32,
    math: Math,
    to: u32,
    from: [Option<Source>; 3],
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
    addresses: Addresses,
    starts: Vec<Ps>,
    moves: Vec<Move>,
    computed: Vec<Computed>,
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
    pub fn new(plan: &Plan<'_>, memory: Memory, csv: Option<Box<dyn Write + 'a>>) -> OpLog<'a> {
        let room = KEPT + KEPT / 2;
        let csv = csv.map(|mut out| {
            let result = writeln!(
                out,
                "start_ps,end_ps,bytes,what,from_pe,from_space,from_address,to_pe,to_space,to_address"
            );
            Csv { out, result }
        });
        OpLog {
            addresses: Addresses::new(plan),
            computed: Vec::new(),
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

    /// The same, which keeps everything until [`Self::replay_until`]: for a host that reads memory while the run goes on.
    pub(crate) fn kept(plan: &Plan<'_>, memory: Memory) -> OpLog<'a> {
        OpLog { enough: usize::MAX, ..OpLog::new(plan, memory, None) }
    }

    /// Replays what starts before `time`; the memory is then as of that time.
    pub(crate) fn replay_until(&mut self, time: Ps) -> Result<&Memory, ReplayError> {
        if time > self.replayed {
            self.drain(time);
            self.enough = usize::MAX;
        }
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(&self.replay.memory),
        }
    }

    /// Whether everything has been replayed.
    pub(crate) fn is_done(&self) -> bool {
        self.starts.is_empty()
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
                let bytes = self.replay.bytes(moved.to, &self.computed);
                csv.result = line(&mut *csv.out, (start, moved, bytes), &self.addresses, &self.computed);
            }
            if self.failed.is_none() {
                let channels = &self.addresses.channels;
                self.failed = self.replay.apply(channels, start, moved, &self.computed).err();
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

/// A line of the log.
fn line(
    out: &mut dyn Write,
    (start, moved, bytes): (Ps, Move, usize),
    addresses: &Addresses,
    computed: &[Computed],
) -> io::Result<()> {
    let (what, to) = match moved.to {
        Target::Wire(_, seq, _) => ("dma_read", format!(",vc_comm,{seq}")),
        Target::Slot(channel, seq, _) => ("dma_write", addresses.slot(channel, seq).to_string()),
        Target::Landing(channel, _) => ("ipcq_copy", addresses.landing(channel).to_string()),
        Target::Tile(rank, tile, land) => {
            (if land == Land::Reduce { "add" } else { "copy" }, addresses.tile(rank, tile).to_string())
        }
        Target::Math(number) => {
            let Computed { rank, math, to, .. } = computed[number as usize];
            (math.function.name(), addresses.tile(rank, to).to_string())
        }
    };
    let from = match (moved.from, moved.to) {
        (Some(source), _) => addresses.source(source).to_string(),
        (None, Target::Slot(_, seq, _)) => format!(",vc_comm,{seq}"),
        (None, Target::Math(number)) => {
            let first = computed[number as usize].from.into_iter().flatten().next();
            first.map_or_else(|| ",,".to_owned(), |source| addresses.source(source).to_string())
        }
        (None, _) => ",,".to_owned(),
    };
    writeln!(out, "{start},{},{bytes},{what},{from},{to}", moved.end)
}

impl Probe for OpLog<'_> {
    #[inline]
    fn issued(&mut self, channel: u32, seq: u32, class: usize, from: Source, span: (Ps, Ps)) {
        self.push(span, Some(from), Target::Wire(channel, seq, class as u16));
    }

    #[inline]
    fn visible(&mut self, channel: u32, seq: u32, class: usize, from: Ps, at: Ps) {
        self.push((from, at), None, Target::Slot(channel, seq, class as u16));
    }

    #[inline]
    fn landed(&mut self, channel: u32, seq: u32, class: usize, from: Ps, to: Ps) {
        let source = Some(Source::Slot(channel, seq));
        self.push((from, to), source, Target::Landing(channel, class as u16));
    }

    #[inline]
    fn wrote(&mut self, rank: u32, tile: u32, land: Land, from: Source, span: (Ps, Ps)) {
        self.push(span, Some(from), Target::Tile(rank, tile, land));
    }

    fn computed(&mut self, rank: u32, math: &Math, to: u32, from: [Option<Source>; 3], span: (Ps, Ps)) {
        self.computed.push(Computed { rank, math: *math, to, from });
        self.push(span, None, Target::Math(self.computed.len() as u32 - 1));
    }

    #[inline]
    fn wants_watermark(&self) -> bool {
        self.starts.len() >= self.enough
    }

    fn watermark(&mut self, time: Ps) {
        self.drain(time);
    }
}
