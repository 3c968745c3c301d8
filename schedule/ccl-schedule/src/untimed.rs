//! One untimed run of a program: every rank runs until it blocks, over values of any algebra.
//!
//! Channels have one producer and one consumer and programs make no choice that depends on time, so whether a
//! run completes, and with which values, does not depend on the order in which ranks are scheduled.

use crate::op::{Dir, Function, Land, Math, Op, Operand, Tile};
use crate::program::Program;
use crate::prove::{Misuse, ProofError};
use crate::wiring::{NONE, Wiring};

/// When the credit of a slot that a `recv` holds is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditPoint {
    /// At the `recv`: held data has been copied out, or is at risk.
    Recv,
    /// After the last use of the slot.
    LastUse,
}

/// What tiles and tokens carry in a run.
pub(crate) trait Algebra {
    type Value: Copy;
    const EMPTY: Self::Value;
    /// Whether tiles and tokens are stored.
    const CARRIES: bool = true;
    fn initial(&mut self, rank: u32, chunk: u32) -> Self::Value;
    fn add(&mut self, a: Self::Value, b: Self::Value) -> Self::Value;
}

/// Only counts: enough to decide whether a run completes.
pub(crate) struct Counts;

impl Algebra for Counts {
    type Value = ();
    const EMPTY: () = ();
    const CARRIES: bool = false;
    fn initial(&mut self, _rank: u32, _chunk: u32) {}
    fn add(&mut self, _a: (), _b: ()) {}
}

#[derive(Clone, Copy)]
struct Token<V> {
    value: V,
    label: u32,
}

#[derive(Clone, Copy, Default)]
struct Queue {
    sent: u32,
    received: u32,
    credited: u32,
    held: bool,
    sender_waits: bool,
    receiver_waits: bool,
    /// A posted receive: the landing tile, and whether the token has been taken.
    posted: Option<(u32, Land)>,
    landed: bool,
}

pub(crate) struct Run<'a, P: Program + ?Sized, A: Algebra> {
    program: &'a P,
    wiring: &'a Wiring,
    pub(crate) algebra: A,
    slots: u32,
    credit: CreditPoint,
    step: Vec<u32>,
    queues: Vec<Queue>,
    tokens: Vec<Token<A::Value>>,
    /// Held slots and landed receives, per channel.
    held: Vec<Token<A::Value>>,
    tiles: Vec<A::Value>,
    /// Labels of scratch tiles ([`NONE`]: none yet).
    labels: Vec<u32>,
    stored: Vec<bool>,
    per_rank: usize,
    chunks: u32,
    ready: Vec<u32>,
    next: Vec<u32>,
    done: u32,
    pub(crate) messages: u64,
}

enum Stop {
    Done,
    Blocked,
}

impl<'a, P: Program + ?Sized, A: Algebra> Run<'a, P, A> {
    pub(crate) fn new(
        program: &'a P,
        wiring: &'a Wiring,
        mut algebra: A,
        slots: u32,
        credit: CreditPoint,
    ) -> Self {
        let (ranks, chunks, scratch) = (program.ranks(), program.chunks(), program.scratch());
        let (channels, per_rank) = (wiring.channels().len(), (chunks + scratch) as usize);
        let empty = Token { value: A::EMPTY, label: NONE };
        let mut tiles = Vec::new();
        let (mut tokens, mut labels, mut stored) = (Vec::new(), Vec::new(), Vec::new());
        if A::CARRIES {
            tiles = vec![A::EMPTY; ranks as usize * per_rank];
            for rank in 0..ranks {
                for chunk in (0..chunks).filter(|&c| program.goal().contributes(ranks, rank, c)) {
                    tiles[rank as usize * per_rank + chunk as usize] = algebra.initial(rank, chunk);
                }
            }
            tokens = vec![empty; channels * slots as usize];
            labels = vec![NONE; ranks as usize * scratch as usize];
            stored = vec![false; if scratch > 0 { ranks as usize * chunks as usize } else { 0 }];
        }
        Run {
            program,
            wiring,
            algebra,
            slots,
            credit,
            step: vec![0; ranks as usize],
            queues: vec![Queue::default(); channels],
            tokens,
            held: vec![empty; if A::CARRIES { channels } else { 0 }],
            tiles,
            labels,
            stored,
            per_rank,
            chunks,
            ready: (0..ranks).rev().collect(),
            next: Vec::new(),
            done: 0,
            messages: 0,
        }
    }

    /// Runs until every rank is done (true) or none can proceed (false).
    pub(crate) fn run(&mut self) -> Result<bool, ProofError> {
        loop {
            while let Some(rank) = self.ready.pop() {
                if let Stop::Done = self.advance(rank)? {
                    self.done += 1;
                }
            }
            if self.next.is_empty() {
                break;
            }
            // In wake-up order.
            std::mem::swap(&mut self.ready, &mut self.next);
            self.ready.reverse();
        }
        Ok(self.done == self.program.ranks())
    }

    fn misuse(&self, rank: u32, what: Misuse) -> ProofError {
        let step = self.step[rank as usize];
        let op = self.program.op(rank, step).map_or_else(String::new, |op| op.to_string());
        ProofError::Misuse { rank, step, op, what }
    }

    fn tx(&self, rank: u32, dir: Dir) -> Result<usize, ProofError> {
        match self.wiring.tx(rank, dir) {
            NONE => Err(self.misuse(rank, Misuse::NoPeer(dir))),
            id => Ok(id as usize),
        }
    }

    fn rx(&self, rank: u32, dir: Dir) -> Result<usize, ProofError> {
        match self.wiring.rx(rank, dir) {
            NONE => Err(self.misuse(rank, Misuse::NoPeer(dir))),
            id => Ok(id as usize),
        }
    }

    fn advance(&mut self, rank: u32) -> Result<Stop, ProofError> {
        while let Some(op) = self.program.op(rank, self.step[rank as usize]) {
            match op {
                Op::Send { dir, chunk, from } => {
                    let id = self.tx(rank, dir)?;
                    let q = &mut self.queues[id];
                    if q.sent - q.credited >= self.slots {
                        q.sender_waits = true;
                        return Ok(Stop::Blocked);
                    }
                    let seq = q.sent;
                    q.sent += 1;
                    self.messages += 1;
                    if A::CARRIES {
                        if chunk as usize >= self.per_rank {
                            return Err(self.misuse(rank, Misuse::NoTile(chunk)));
                        }
                        let token = self.load(rank, from)?;
                        // A send that is labelled with a scratch tile carries the label of its data.
                        let chunk = if chunk < self.chunks { chunk } else { token.label };
                        if token.label != chunk && token.label != NONE {
                            return Err(
                                self.misuse(rank, Misuse::OtherChunk { holds: token.label, wants: chunk })
                            );
                        }
                        let slots = self.slots as usize;
                        self.tokens[id * slots + seq as usize % slots] =
                            Token { value: token.value, label: chunk };
                    }
                    self.release(rank, from)?;
                    self.land(id);
                    self.wake_receiver(id);
                }
                Op::Recv { dir, tile, land } => {
                    let id = self.rx(rank, dir)?;
                    if self.queues[id].held || self.queues[id].posted.is_some() {
                        return Err(self.misuse(rank, Misuse::Busy(dir)));
                    }
                    let q = &mut self.queues[id];
                    if q.received == q.sent {
                        q.receiver_waits = true;
                        return Ok(Stop::Blocked);
                    }
                    let token = self.take(id);
                    if land == Land::Forward {
                        self.queues[id].held = true;
                        if A::CARRIES {
                            self.held[id] = token;
                        }
                        if self.credit == CreditPoint::Recv {
                            self.return_credit(id);
                        }
                    } else {
                        self.write(rank, tile, token, land)?;
                        self.return_credit(id);
                    }
                }
                Op::RecvAsync { dir, tile, land } => {
                    let id = self.rx(rank, dir)?;
                    if land == Land::Forward || self.queues[id].held || self.queues[id].posted.is_some() {
                        return Err(self.misuse(rank, Misuse::Busy(dir)));
                    }
                    self.queues[id].posted = Some((tile, land));
                    self.land(id);
                }
                Op::Wait { dir } => {
                    let id = self.rx(rank, dir)?;
                    let Some((tile, land)) = self.queues[id].posted else {
                        return Err(self.misuse(rank, Misuse::NothingPosted(dir)));
                    };
                    if !self.queues[id].landed {
                        self.queues[id].receiver_waits = true;
                        return Ok(Stop::Blocked);
                    }
                    self.queues[id].posted = None;
                    self.queues[id].landed = false;
                    if A::CARRIES {
                        self.write(rank, tile, self.held[id], land)?;
                    }
                }
                Op::Copy { from, to } => {
                    let token = self.load(rank, from)?;
                    self.write(rank, to, token, Land::Copy)?;
                    self.release(rank, from)?;
                }
                Op::Reduce { from, to } => {
                    let token = self.load(rank, from)?;
                    self.write(rank, to, token, Land::Reduce)?;
                    self.release(rank, from)?;
                }
                Op::Store { from, to } => {
                    let token = self.load(rank, Tile::Mem(from))?;
                    self.write(rank, to, token, Land::Copy)?;
                    if let Some(stored) =
                        self.stored.get_mut(rank as usize * self.chunks as usize + to as usize)
                    {
                        *stored = true;
                    }
                }
                Op::Math { number, to } => {
                    let Some(math) = self.program.math(rank, number) else {
                        return Err(self.misuse(rank, Misuse::NoMath(number)));
                    };
                    self.compute(rank, &math, to)?;
                }
            }
            self.step[rank as usize] += 1;
        }
        Ok(Stop::Done)
    }

    /// A computation. Of its values only sums are known.
    fn compute(&mut self, rank: u32, math: &Math, to: u32) -> Result<(), ProofError> {
        if A::CARRIES {
            let (Function::Add, [Operand::Tile(a), Operand::Tile(b), Operand::None]) =
                (math.function, math.args)
            else {
                return Err(self.misuse(rank, Misuse::NotASum(math.function.name())));
            };
            let (a, b) = (self.load(rank, a)?, self.load(rank, b)?);
            if a.label != b.label && a.label != NONE && b.label != NONE {
                return Err(self.misuse(rank, Misuse::OtherChunk { holds: b.label, wants: a.label }));
            }
            let label = if a.label == NONE { b.label } else { a.label };
            let value = self.algebra.add(a.value, b.value);
            self.write(rank, to, Token { value, label }, Land::Copy)?;
        }
        math.tiles().try_for_each(|tile| self.release(rank, tile))
    }

    /// Takes the next token out of the queue, without its credit.
    fn take(&mut self, id: usize) -> Token<A::Value> {
        let q = &mut self.queues[id];
        let seq = q.received as usize;
        q.received += 1;
        if A::CARRIES {
            self.tokens[id * self.slots as usize + seq % self.slots as usize]
        } else {
            Token { value: A::EMPTY, label: NONE }
        }
    }

    /// Completes a posted receive whose token has arrived.
    fn land(&mut self, id: usize) {
        let q = &self.queues[id];
        if q.posted.is_some() && !q.landed && q.received < q.sent {
            let token = self.take(id);
            if A::CARRIES {
                self.held[id] = token;
            }
            self.queues[id].landed = true;
            self.return_credit(id);
        }
    }

    fn return_credit(&mut self, id: usize) {
        let q = &mut self.queues[id];
        q.credited += 1;
        if std::mem::take(&mut q.sender_waits) {
            self.next.push(self.wiring.channels()[id].src);
        }
    }

    fn wake_receiver(&mut self, id: usize) {
        if std::mem::take(&mut self.queues[id].receiver_waits) {
            self.next.push(self.wiring.channels()[id].dst);
        }
    }

    fn release(&mut self, rank: u32, from: Tile) -> Result<(), ProofError> {
        if let Tile::Take(dir) = from {
            let id = self.rx(rank, dir)?;
            if !std::mem::take(&mut self.queues[id].held) {
                return Err(self.misuse(rank, Misuse::NothingHeld(dir)));
            }
            if self.credit == CreditPoint::LastUse {
                self.return_credit(id);
            }
        }
        Ok(())
    }

    fn load(&self, rank: u32, from: Tile) -> Result<Token<A::Value>, ProofError> {
        if !A::CARRIES {
            return Ok(Token { value: A::EMPTY, label: NONE });
        }
        match from {
            Tile::Mem(tile) => {
                if tile as usize >= self.per_rank {
                    return Err(self.misuse(rank, Misuse::NoTile(tile)));
                }
                let value = self.tiles[rank as usize * self.per_rank + tile as usize];
                Ok(Token { value, label: self.label(rank, tile) })
            }
            Tile::Held(dir) | Tile::Take(dir) => {
                let id = self.rx(rank, dir)?;
                if !self.queues[id].held {
                    return Err(self.misuse(rank, Misuse::NothingHeld(dir)));
                }
                Ok(self.held[id])
            }
        }
    }

    fn label(&self, rank: u32, tile: u32) -> u32 {
        match tile.checked_sub(self.chunks) {
            None => tile,
            Some(i) => self.labels[rank as usize * (self.per_rank - self.chunks as usize) + i as usize],
        }
    }

    fn write(&mut self, rank: u32, tile: u32, token: Token<A::Value>, land: Land) -> Result<(), ProofError> {
        if !A::CARRIES {
            return Ok(());
        }
        if tile as usize >= self.per_rank {
            return Err(self.misuse(rank, Misuse::NoTile(tile)));
        }
        let holds = self.label(rank, tile);
        // A copy relabels a scratch tile; every other operation must stay within one chunk.
        let relabel = land == Land::Copy && tile >= self.chunks;
        if !relabel && token.label != NONE && holds != NONE && token.label != holds {
            return Err(self.misuse(rank, Misuse::OtherChunk { holds: token.label, wants: holds }));
        }
        if tile < self.chunks {
            if self.stored.get(rank as usize * self.chunks as usize + tile as usize) == Some(&true) {
                return Err(self.misuse(rank, Misuse::Stored(tile)));
            }
        } else {
            let scratch = self.per_rank - self.chunks as usize;
            self.labels[rank as usize * scratch + (tile - self.chunks) as usize] = token.label;
        }
        let at = rank as usize * self.per_rank + tile as usize;
        self.tiles[at] = match land {
            Land::Reduce => self.algebra.add(self.tiles[at], token.value),
            _ => token.value,
        };
        Ok(())
    }

    /// The value in a chunk of a rank.
    pub(crate) fn value(&self, rank: u32, chunk: u32) -> A::Value {
        self.tiles[rank as usize * self.per_rank + chunk as usize]
    }

    /// The current step of a rank.
    pub(crate) fn at_step(&self, rank: u32) -> u32 {
        self.step[rank as usize]
    }

    /// Tokens of a channel that were not received.
    pub(crate) fn unreceived(&self, id: usize) -> u32 {
        self.queues[id].sent - self.queues[id].received
    }

    /// Directions in which a rank still holds a slot or a posted receive.
    pub(crate) fn unreleased(&self, id: usize) -> bool {
        self.queues[id].held || self.queues[id].posted.is_some()
    }

    /// The most tokens sent on one channel.
    pub(crate) fn most_sent(&self) -> u32 {
        self.queues.iter().map(|q| q.sent).max().unwrap_or(0)
    }
}
