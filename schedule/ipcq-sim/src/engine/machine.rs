//! The PEs: each runs its program until it blocks. Times are kept in the slots, so there is no
//! global clock.
//!
//! What a PE does depends only on the times in its own channels, never on the order in which PEs are
//! scheduled. The engines share this file; they differ in the [`Transport`] that moves a token to its slot.
//! The functions on the path of every message are `inline(always)`: without it the compiler emits calls, and
//! a message costs a third more.

use super::{Engine, SimError, Timing};
use crate::config::{Backpressure, CreditAt, CreditWait};
use crate::net::Hop;
use crate::plan::Plan;
use crate::probe::{Doing, Probe, Source};
use crate::units::Ps;
use ccl_schedule::{Dir, Function, Land, NONE, Op, Operand, Program, Tile};

/// Moves tokens to their slots.
pub(super) trait Transport<G: Program + ?Sized, P: Probe> {
    fn launch(&mut self, machine: &mut Machine<'_, '_, G, P>, flight: Flight);
}

/// A token in flight.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    pub(super) at: Ps,
    pub(super) channel: u32,
    pub(super) class: u32,
    /// The sending PE and the number of the token among all that it has sent.
    pub(super) rank: u32,
    pub(super) number: u32,
}

const SENDER_WAITS: u8 = 1;
const RECEIVER_WAITS: u8 = 2;
const HELD: u8 = 4;
const POSTED: u8 = 8;
const LANDED: u8 = 16;

/// One channel, in one cache line. The time of slot k is the visible time of its token, then the arrival time
/// of its credit.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Chan {
    sent: u32,
    arrived: u32,
    received: u32,
    credited: u32,
    last_visible: Ps,
    last_credit: Ps,
    credit_latency: Ps,
    /// When its wire is free, where it has one of its own.
    wire_free: Ps,
    src: u32,
    dst: u32,
    flags: u8,
}

/// One PE.
#[derive(Clone, Copy)]
struct Pe {
    now: Ps,
    blocked: Ps,
    step: u32,
    sent: u32,
}

/// A posted receive.
#[derive(Clone, Copy)]
struct PostedReceive {
    posted: Ps,
    done: Ps,
    credit: Ps,
    tile: u32,
    land: Land,
}

pub(super) struct Machine<'a, 'p, G: Program + ?Sized, P: Probe> {
    pub(super) plan: &'a Plan<'p>,
    pub(super) probe: &'a mut P,
    /// When each link is free.
    pub(super) free: Vec<Ps>,
    program: &'a G,
    chans: Vec<Chan>,
    times: Vec<Ps>,
    /// Times per channel: a power of two, so that a sequence number finds its slot by masking.
    stride: usize,
    mask: u32,
    slots: u32,
    pes: Vec<Pe>,
    posts: Vec<PostedReceive>,
    /// For every tile of every rank, whether the window has what it holds; empty where sends stage nothing.
    staged: Vec<bool>,
    tiles: usize,
    ready: Vec<u32>,
    next: Vec<u32>,
    running: u32,
    messages: u64,
}

impl<'a, 'p, G: Program + ?Sized, P: Probe> Machine<'a, 'p, G, P> {
    pub(super) fn new(plan: &'a Plan<'p>, program: &'a G, probe: &'a mut P) -> Self {
        let ranks = plan.program.ranks();
        // No channel carries more than all messages, so more slots than that only cost memory.
        let slots = plan.slots.min(plan.program.messages().clamp(1, 1 << 16) as u32);
        let stride = slots.next_power_of_two();
        let tiles = (plan.program.chunks() + plan.program.scratch()) as usize;
        let before = plan.before.as_ref().map_or(&[][..], |before| &before.links);
        let wire_free = |channel: usize| before.get(channel).copied().unwrap_or(0);
        let links = plan.net.links() as usize;
        let free = if before.len() == links { before.to_vec() } else { vec![0; links] };
        let chans: Vec<Chan> = plan
            .wiring
            .channels()
            .iter()
            .zip(&plan.credit_latency)
            .enumerate()
            .map(|(id, (channel, &credit_latency))| Chan {
                sent: 0,
                arrived: 0,
                received: 0,
                credited: 0,
                last_visible: 0,
                last_credit: 0,
                credit_latency,
                wire_free: if plan.net.wire().is_some() { wire_free(id) } else { 0 },
                src: channel.src,
                dst: channel.dst,
                flags: 0,
            })
            .collect();
        Machine {
            plan,
            probe,
            free,
            program,
            times: vec![0; chans.len() * stride as usize],
            chans,
            stride: stride as usize,
            mask: stride - 1,
            slots,
            pes: (0..ranks).map(|r| Pe { now: plan.start(r), blocked: 0, step: 0, sent: 0 }).collect(),
            posts: Vec::new(),
            staged: vec![false; if plan.stages { ranks as usize * tiles } else { 0 }],
            tiles,
            ready: (0..ranks).rev().collect(),
            next: Vec::new(),
            running: ranks,
            messages: 0,
        }
    }

    /// Runs every PE that can proceed until none can. With events, `now` is the time of the current one; no
    /// PE proceeds before it.
    pub(super) fn settle<C: Transport<G, P>>(
        &mut self,
        transport: &mut C,
        now: Option<Ps>,
    ) -> Result<(), SimError> {
        loop {
            while let Some(rank) = self.ready.pop() {
                self.advance(transport, rank)?;
            }
            if self.next.is_empty() {
                return Ok(());
            }
            std::mem::swap(&mut self.ready, &mut self.next);
            if self.ready.len() > 1 {
                self.ready.reverse();
            }
            if self.probe.wants_watermark() {
                match now {
                    Some(now) => self.probe.watermark(now),
                    None => self.catch_up(transport)?,
                }
            }
        }
    }

    /// Without events, PEs run ahead of each other: runs those behind until they are past the middle, and
    /// reports how far all of them are.
    #[cold]
    fn catch_up<C: Transport<G, P>>(&mut self, transport: &mut C) -> Result<(), SimError> {
        let clocks = || self.ready.iter().map(|&rank| self.pes[rank as usize].now);
        let (first, last) = (clocks().min().unwrap_or(0), clocks().max().unwrap_or(0));
        let middle = first + (last - first) / 2;
        let mut ahead = Vec::new();
        while !self.ready.is_empty() {
            while let Some(rank) = self.ready.pop() {
                if self.pes[rank as usize].now > middle {
                    ahead.push(rank);
                } else {
                    self.advance(transport, rank)?;
                }
            }
            std::mem::swap(&mut self.ready, &mut self.next);
        }
        self.ready = ahead;
        let watermark = self.earliest();
        self.probe.watermark(watermark);
        Ok(())
    }

    /// The clock of the PE that is the farthest behind and not done.
    #[cold]
    fn earliest(&self) -> Ps {
        let running = self.pes.iter().zip(0..).filter(|&(pe, rank)| self.program.op(rank, pe.step).is_some());
        running.map(|(pe, _)| pe.now).min().unwrap_or(Ps::MAX)
    }

    pub(super) fn finish(self, engine: Engine, events: u64) -> Result<Timing, SimError> {
        if self.running > 0 {
            let waits = |rank: &u32| self.program.op(*rank, self.pes[*rank as usize].step).is_some();
            let first = (0..self.pes.len() as u32).find(waits).unwrap_or(0);
            return Err(SimError::Deadlock { blocked: self.running, ranks: self.pes.len() as u32, first });
        }
        let plan_wire = self.plan.net.wire().is_some();
        Ok(Timing {
            engine,
            finish: self.pes.iter().map(|pe| pe.now).collect(),
            blocked: self.pes.iter().map(|pe| pe.blocked).collect(),
            messages: self.messages,
            events,
            links: match (engine, plan_wire) {
                (Engine::A, true) => self.chans.iter().map(|chan| chan.wire_free).collect(),
                _ => self.free,
            },
        })
    }

    /// Whether every PE has ended its program.
    pub(super) fn is_done(&self) -> bool {
        self.running == 0
    }

    /// How many channels there are; what is behind them on the net is compute traffic.
    pub(super) fn channels(&self) -> u32 {
        self.chans.len() as u32
    }

    #[cold]
    fn misuse(&self, rank: u32, step: u32) -> SimError {
        let op = self.program.op(rank, step).map_or_else(String::new, |op| op.to_string());
        SimError::Misuse { rank, step, op }
    }

    #[inline]
    fn slot(&self, channel: u32, seq: u32) -> usize {
        channel as usize * self.stride + (seq & self.mask) as usize
    }

    /// When a PE that has waited since `now` for `ready` proceeds.
    #[inline]
    fn resume(&self, now: Ps, ready: Ps) -> Ps {
        if ready <= now {
            return now;
        }
        match self.plan.backpressure {
            Backpressure::Sleep => ready,
            Backpressure::Poll(interval) => now + (ready - now).div_ceil(interval) * interval,
        }
    }

    /// Waits, and accounts for it.
    #[inline]
    fn wait(&mut self, rank: u32, pe: &mut Pe, ready: Ps, doing: Doing) {
        let now = self.resume(pe.now, ready);
        self.probe.span(rank, doing, pe.now, now);
        pe.blocked += now - pe.now;
        pe.now = now;
    }

    fn advance<C: Transport<G, P>>(&mut self, transport: &mut C, rank: u32) -> Result<(), SimError> {
        let mut pe = self.pes[rank as usize];
        let result = self.run_ops(transport, rank, &mut pe);
        self.pes[rank as usize] = pe;
        result
    }

    fn run_ops<C: Transport<G, P>>(
        &mut self,
        transport: &mut C,
        rank: u32,
        pe: &mut Pe,
    ) -> Result<(), SimError> {
        while let Some(op) = self.program.op(rank, pe.step) {
            let completed = match op {
                Op::Send { dir, chunk, from } => self.send(transport, rank, pe, (dir, chunk, from))?,
                Op::Recv { dir, tile, land } => self.recv(rank, pe, dir, tile, land)?,
                Op::RecvAsync { dir, tile, land } => self.post(rank, pe, dir, tile, land)?,
                Op::Wait { dir } => self.wait_posted(rank, pe, dir)?,
                Op::Copy { from, to } => self.local(rank, pe, from, to, Land::Copy)?,
                Op::Reduce { from, to } => self.local(rank, pe, from, to, Land::Reduce)?,
                Op::Store { from, to } => self.local(rank, pe, Tile::Mem(from), to, Land::Copy)?,
                Op::Math { number, to } => self.math(rank, pe, number, to)?,
            };
            if !completed {
                return Ok(());
            }
            pe.step += 1;
        }
        self.running -= 1;
        Ok(())
    }

    #[inline(always)]
    fn send<C: Transport<G, P>>(
        &mut self,
        transport: &mut C,
        rank: u32,
        pe: &mut Pe,
        (dir, chunk, from): (Dir, u32, Tile),
    ) -> Result<bool, SimError> {
        let channel = self.plan.wiring.tx(rank, dir);
        let Some(chan) = self.chans.get_mut(channel as usize) else {
            return Err(self.misuse(rank, pe.step));
        };
        let seq = chan.sent;
        if seq >= self.slots {
            if seq - chan.credited >= self.slots {
                chan.flags |= SENDER_WAITS;
                return Ok(false);
            }
            let credit =
                self.times[channel as usize * self.stride + ((seq - self.slots) & self.mask) as usize];
            if credit > pe.now {
                self.wait(rank, pe, credit, Doing::BlockedSend);
            }
        }
        self.chans[channel as usize].sent = seq + 1;
        let class = self.plan.class(self.program, rank, chunk);
        if !self.staged.is_empty() {
            self.stage(rank, pe, class, from);
        }
        // A tile is captured at once; a slot is read once more, by the DMA engine, and is free after that.
        let (held, until) = match from {
            Tile::Mem(_) => ((NONE, 0), pe.now),
            Tile::Held(dir) | Tile::Take(dir) => {
                (self.held(rank, pe, dir)?, pe.now + self.plan.costs[class].read)
            }
        };
        let data = self.source(rank, from, held);
        self.probe.issued(channel, seq, class, data, (pe.now, until));
        if let Tile::Take(_) = from {
            self.chans[held.0 as usize].flags &= !HELD;
            if self.plan.credit_at == CreditAt::LastUse {
                self.credit(held.0, until);
            }
        }
        self.messages += 1;
        let number = pe.sent;
        pe.sent += 1;
        transport.launch(self, Flight { at: pe.now, channel, class: class as u32, rank, number });
        Ok(true)
    }

    /// Copies a tile to the window, where it is not there yet.
    #[cold]
    fn stage(&mut self, rank: u32, pe: &mut Pe, class: usize, from: Tile) {
        let Tile::Mem(tile) = from else { return };
        if !std::mem::replace(&mut self.staged[rank as usize * self.tiles + tile as usize], true) {
            let start = pe.now;
            pe.now += self.plan.costs[class].copy;
            self.probe.span(rank, Doing::Copy, start, pe.now);
        }
    }

    /// What the window has of a tile is not what the tile holds.
    #[inline]
    fn written(&mut self, rank: u32, tile: u32) {
        if !self.staged.is_empty() {
            self.staged[rank as usize * self.tiles + tile as usize] = false;
        }
    }

    /// What an operation reads: a tile, the held slot, or the copy that was made of it.
    fn source(&self, rank: u32, from: Tile, (channel, seq): (u32, u32)) -> Source {
        match from {
            Tile::Mem(tile) => Source::Tile(rank, tile),
            _ if self.plan.credit_at == CreditAt::Copy => Source::Landing(channel),
            _ => Source::Slot(channel, seq),
        }
    }

    /// The held slot of a direction: channel and sequence number.
    fn held(&self, rank: u32, pe: &Pe, dir: Dir) -> Result<(u32, u32), SimError> {
        let channel = self.plan.wiring.rx(rank, dir);
        match self.chans.get(channel as usize) {
            Some(chan) if chan.flags & HELD != 0 => Ok((channel, chan.received - 1)),
            _ => Err(self.misuse(rank, pe.step)),
        }
    }

    #[inline(always)]
    fn recv(&mut self, rank: u32, pe: &mut Pe, dir: Dir, tile: u32, land: Land) -> Result<bool, SimError> {
        let plan = self.plan;
        let channel = plan.wiring.rx(rank, dir);
        let Some(chan) = self.chans.get_mut(channel as usize) else {
            return Err(self.misuse(rank, pe.step));
        };
        if chan.flags & (HELD | POSTED) != 0 {
            return Err(self.misuse(rank, pe.step));
        }
        let seq = chan.received;
        if seq == chan.arrived {
            chan.flags |= RECEIVER_WAITS;
            return Ok(false);
        }
        chan.received = seq + 1;
        let slot = channel as usize * self.stride + (seq & self.mask) as usize;
        let visible = self.times[slot];
        if visible > pe.now {
            self.wait(rank, pe, visible, Doing::BlockedRecv);
        }
        let costs = &plan.costs[plan.class(self.program, rank, tile)];
        let found = pe.now;
        let read = found + costs.read;
        pe.now = read;
        self.probe.span(rank, Doing::Read, found, read);
        let data = Source::Slot(channel, seq);
        if land != Land::Forward {
            self.written(rank, tile);
        }
        match land {
            Land::Forward => {
                self.chans[channel as usize].flags |= HELD;
                if plan.credit_at == CreditAt::Copy {
                    self.probe.landed(channel, seq, plan.class(self.program, rank, tile), found, read);
                }
            }
            Land::Copy => self.probe.wrote(rank, tile, land, data, (found, read)),
            Land::Reduce => {
                pe.now += costs.math;
                self.probe.span(rank, Doing::Math, read, pe.now);
                // The slot is in use until it has been added, or only until it has been copied out.
                let used = if plan.credit_at == CreditAt::LastUse { pe.now } else { read };
                self.probe.wrote(rank, tile, land, data, (found, used));
            }
        }
        let credit = match plan.credit_at {
            CreditAt::Recv => found,
            CreditAt::Copy => read,
            CreditAt::LastUse if land == Land::Forward => return Ok(true),
            CreditAt::LastUse => pe.now,
        };
        let arrival = self.credit(channel, credit);
        self.wait_credit(pe, arrival);
        Ok(true)
    }

    #[inline]
    fn wait_credit(&self, pe: &mut Pe, arrival: Ps) {
        if self.plan.credit_wait == CreditWait::Blocking {
            pe.now = pe.now.max(arrival);
        }
    }

    /// Frees the oldest slot of a channel at `at`; returns when the credit reaches the sender. Credits stay
    /// in order.
    #[inline]
    pub(super) fn credit(&mut self, channel: u32, at: Ps) -> Ps {
        let chan = &mut self.chans[channel as usize];
        let arrival = (at + chan.credit_latency).max(chan.last_credit);
        chan.last_credit = arrival;
        let seq = chan.credited;
        chan.credited = seq + 1;
        if chan.flags & SENDER_WAITS != 0 {
            chan.flags &= !SENDER_WAITS;
            self.next.push(chan.src);
        }
        let slot = self.slot(channel, seq);
        self.times[slot] = arrival;
        self.probe.credit(channel, seq, arrival);
        arrival
    }

    /// Moves a token over the wire of its channel.
    #[inline(always)]
    pub(super) fn fly(&mut self, flight: Flight, hop: Hop) {
        let costs = &self.plan.costs[flight.class as usize];
        let chan = &mut self.chans[flight.channel as usize];
        let start = (flight.at + u64::from(hop.over)).max(chan.wire_free);
        let drained = start + costs.link[hop.rate as usize & 3];
        chan.wire_free = drained;
        self.probe.link(flight.channel, flight.channel, start, drained);
        self.deposit(flight.channel, flight.class, drained + u64::from(hop.prop));
    }

    /// Puts a token into its slot: data, metadata and head become visible in one step. Tokens stay in order.
    #[inline(always)]
    pub(super) fn deposit(&mut self, channel: u32, class: u32, tail: Ps) {
        let write = self.plan.costs[class as usize].write;
        let chan = &mut self.chans[channel as usize];
        let visible = (tail + write).max(chan.last_visible);
        chan.last_visible = visible;
        let seq = chan.arrived;
        chan.arrived = seq + 1;
        let flags = chan.flags;
        if flags & RECEIVER_WAITS != 0 {
            chan.flags &= !RECEIVER_WAITS;
            self.next.push(chan.dst);
        }
        let slot = self.slot(channel, seq);
        self.times[slot] = visible;
        self.probe.visible(channel, seq, class as usize, tail, visible);
        if flags & (POSTED | LANDED) == POSTED {
            self.land(channel);
        }
    }

    fn post(&mut self, rank: u32, pe: &mut Pe, dir: Dir, tile: u32, land: Land) -> Result<bool, SimError> {
        let channel = self.plan.wiring.rx(rank, dir);
        match self.chans.get_mut(channel as usize) {
            Some(chan) if chan.flags & (HELD | POSTED) == 0 && land != Land::Forward => chan.flags |= POSTED,
            _ => return Err(self.misuse(rank, pe.step)),
        }
        if self.posts.is_empty() {
            let none = PostedReceive { posted: 0, done: 0, credit: 0, tile: 0, land: Land::Copy };
            self.posts = vec![none; self.chans.len()];
        }
        self.posts[channel as usize] = PostedReceive { posted: pe.now, done: 0, credit: 0, tile, land };
        if self.chans[channel as usize].received < self.chans[channel as usize].arrived {
            self.land(channel);
        }
        Ok(true)
    }

    /// Reads the slot of a posted receive, without the PE.
    fn land(&mut self, channel: u32) {
        let chan = &mut self.chans[channel as usize];
        chan.flags |= LANDED;
        let seq = chan.received;
        chan.received = seq + 1;
        let post = self.posts[channel as usize];
        let found = self.times[self.slot(channel, seq)].max(post.posted);
        let class = self.plan.class(self.program, self.chans[channel as usize].dst, post.tile);
        let done = found + self.plan.costs[class].read;
        self.probe.landed(channel, seq, class, found, done);
        let credit = self.credit(channel, if self.plan.credit_at == CreditAt::Recv { found } else { done });
        self.posts[channel as usize] = PostedReceive { done, credit, ..post };
    }

    fn wait_posted(&mut self, rank: u32, pe: &mut Pe, dir: Dir) -> Result<bool, SimError> {
        let channel = self.plan.wiring.rx(rank, dir);
        let chan = match self.chans.get_mut(channel as usize) {
            Some(chan) if chan.flags & POSTED != 0 => chan,
            _ => return Err(self.misuse(rank, pe.step)),
        };
        if chan.flags & LANDED == 0 {
            chan.flags |= RECEIVER_WAITS;
            return Ok(false);
        }
        chan.flags &= !(POSTED | LANDED);
        let post = self.posts[channel as usize];
        if post.done > pe.now {
            self.wait(rank, pe, post.done, Doing::BlockedRecv);
        }
        self.wait_credit(pe, post.credit);
        let from = pe.now;
        if post.land == Land::Reduce {
            pe.now += self.plan.costs[self.plan.class(self.program, rank, post.tile)].math;
            self.probe.span(rank, Doing::Math, from, pe.now);
        }
        self.written(rank, post.tile);
        self.probe.wrote(rank, post.tile, post.land, Source::Landing(channel), (from, pe.now));
        Ok(true)
    }

    fn local(&mut self, rank: u32, pe: &mut Pe, from: Tile, to: u32, land: Land) -> Result<bool, SimError> {
        let held = match from {
            Tile::Mem(_) => (NONE, 0),
            Tile::Held(dir) | Tile::Take(dir) => self.held(rank, pe, dir)?,
        };
        let plan = self.plan;
        let costs = &plan.costs[plan.class(self.program, rank, to)];
        let (start, doing) = (pe.now, if land == Land::Copy { Doing::Copy } else { Doing::Math });
        pe.now += match (land, from) {
            (Land::Copy, Tile::Mem(tile)) => {
                plan.copy(costs, from, to) + plan.reach(rank, tile) + plan.reach(rank, to)
            }
            (Land::Copy, _) => plan.copy(costs, from, to) + plan.reach(rank, to),
            _ => costs.math,
        };
        self.probe.span(rank, doing, start, pe.now);
        let data = self.source(rank, from, held);
        self.written(rank, to);
        self.probe.wrote(rank, to, land, data, (start, pe.now));
        if let Tile::Take(_) = from {
            self.chans[held.0 as usize].flags &= !HELD;
            if self.plan.credit_at == CreditAt::LastUse {
                let arrival = self.credit(held.0, pe.now);
                self.wait_credit(pe, arrival);
            }
        }
        Ok(true)
    }

    fn math(&mut self, rank: u32, pe: &mut Pe, number: u32, to: u32) -> Result<bool, SimError> {
        let Some(math) = self.program.math(rank, number) else { return Err(self.misuse(rank, pe.step)) };
        let mut sources = [None; 3];
        for (source, arg) in sources.iter_mut().zip(math.args) {
            let Operand::Tile(tile) = arg else { continue };
            let held = match tile {
                Tile::Mem(_) => (NONE, 0),
                Tile::Held(dir) | Tile::Take(dir) => self.held(rank, pe, dir)?,
            };
            *source = Some(self.source(rank, tile, held));
        }
        // Softmax reads its row for the largest, for the sum and for the quotients.
        let passes = if let Function::Softmax(_) = math.function { 3 } else { 1 };
        let start = pe.now;
        pe.now += self.plan.math(self.plan.class(self.program, rank, to), passes);
        self.probe.span(rank, Doing::Math, start, pe.now);
        self.probe.computed(rank, &math, to, sources, (start, pe.now));
        for tile in math.tiles() {
            if let Tile::Take(dir) = tile {
                let (channel, _) = self.held(rank, pe, dir)?;
                self.chans[channel as usize].flags &= !HELD;
                if self.plan.credit_at == CreditAt::LastUse {
                    let arrival = self.credit(channel, pe.now);
                    self.wait_credit(pe, arrival);
                }
            }
        }
        Ok(true)
    }
}
