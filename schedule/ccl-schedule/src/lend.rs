//! Passing by reference: a send lends its tile, and the receiver reads it where it lies.
//!
//! On windows nothing is copied into slots. So a tile that is lent may not change until all who borrowed it have read it. Two questions
//! follow. Does the schedule complete with the right sums when every write waits for the borrowers ([`prove_by_reference`])? And which
//! writes need that wait, because no chain of messages orders the reads before them anyway ([`unguarded_writes`])? Neither depends
//! on the order in which ranks run, for the same reason as in `untimed`.

use crate::multiset::{EXACT_RANKS, Multisets};
use crate::op::{Dir, Land, Op, Tile};
use crate::program::{Expect, Program};
use crate::prove::{Misuse, ProofError, Wrong};
use crate::untimed::Algebra;
use crate::wiring::{NONE, Wiring};
use std::collections::VecDeque;
use std::fmt;
use thiserror::Error;

/// What has been proved about a schedule that passes by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Tiles that were lent.
    pub messages: u64,
    /// Writes that had to wait for a borrower in some order of the ranks.
    pub waits: usize,
}

/// A write that may come before a borrower has read the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnguardedWrite {
    /// The rank that lent the tile and writes it.
    pub rank: u32,
    /// The step of the write.
    pub step: u32,
    /// The tile.
    pub tile: u32,
    /// The rank that borrowed it.
    pub reader: u32,
    /// The step at which that rank is done with it.
    pub read_at: u32,
}

impl fmt::Display for UnguardedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, step, tile, reader, read_at } = self;
        write!(
            f,
            "rank {rank} writes tile {tile} at step {step}, which rank {reader} has borrowed and reads until its step {read_at}; \
             nothing orders the two"
        )
    }
}

/// Why a schedule cannot pass by reference.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LendError {
    /// It is wrong in itself.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// More ranks than contributions are counted for.
    #[error("passing by reference is proved for up to {EXACT_RANKS} ranks, the schedule has {0}")]
    TooManyRanks(u32),
    /// Ranks that wait for each other.
    #[error("deadlock by reference: {0}")]
    Deadlock(String),
}

/// A lent tile on its way.
#[derive(Clone, Copy)]
struct Loan {
    number: usize,
    owner: u32,
    tile: u32,
    label: u32,
}

/// The life of a loan, for the order of events.
struct Life {
    owner: u32,
    tile: u32,
    lent_at: u32,
    reader: u32,
    read_at: u32,
}

/// A write to a tile of its own rank, with what the rank knew of the others then.
struct Write {
    rank: u32,
    step: u32,
    tile: u32,
    knew: Vec<u32>,
}

/// Whether a write waits for those who borrowed the tile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    Waits,
    None,
}

struct Run<'a, P: Program + ?Sized> {
    program: &'a P,
    wiring: &'a Wiring,
    guard: Guard,
    sets: Multisets,
    per_rank: usize,
    tiles: Vec<<Multisets as Algebra>::Value>,
    labels: Vec<u32>,
    loans: Vec<u32>,
    step: Vec<u32>,
    queues: Vec<VecDeque<(Loan, Vec<u32>)>>,
    held: Vec<Option<Loan>>,
    posted: Vec<Option<(u32, Land)>>,
    /// The last step of every rank that a rank knows to be done, plus one.
    knows: Vec<Vec<u32>>,
    lives: Vec<Life>,
    writes: Vec<Write>,
    waited: usize,
    messages: u64,
}

/// Why a rank stops.
enum Stop {
    Done,
    NoToken(u32),
    Borrowed(u32),
}

impl<'a, P: Program + ?Sized> Run<'a, P> {
    fn new(program: &'a P, wiring: &'a Wiring, guard: Guard) -> Self {
        let (ranks, chunks) = (program.ranks(), program.chunks());
        let per_rank = (chunks + program.scratch()) as usize;
        let mut sets = Multisets::new(ranks);
        let cells = ranks as usize * per_rank;
        let (mut tiles, mut labels) = (vec![Multisets::EMPTY; cells], vec![NONE; cells]);
        for rank in 0..ranks {
            for chunk in 0..chunks {
                let at = rank as usize * per_rank + chunk as usize;
                labels[at] = chunk;
                if program.goal().contributes(ranks, rank, chunk) {
                    tiles[at] = sets.initial(rank, chunk);
                }
            }
        }
        let channels = wiring.channels().len();
        Run {
            program,
            wiring,
            guard,
            sets,
            per_rank,
            tiles,
            labels,
            loans: vec![0; cells],
            step: vec![0; ranks as usize],
            queues: vec![VecDeque::new(); channels],
            held: vec![None; channels],
            posted: vec![None; channels],
            knows: vec![vec![0; ranks as usize]; ranks as usize],
            lives: Vec::new(),
            writes: Vec::new(),
            waited: 0,
            messages: 0,
        }
    }

    /// Runs until all ranks are done or none can go on; what the blocked ones wait for is returned.
    fn run(&mut self) -> Result<Vec<(u32, Stop)>, ProofError> {
        loop {
            let (mut moved, mut blocked) = (false, Vec::new());
            for rank in 0..self.program.ranks() {
                let before = self.step[rank as usize];
                match self.advance(rank)? {
                    Stop::Done => {}
                    stop => blocked.push((rank, stop)),
                }
                moved |= self.step[rank as usize] > before;
            }
            if blocked.is_empty() || !moved {
                return Ok(blocked);
            }
        }
    }

    fn misuse(&self, rank: u32, what: Misuse) -> ProofError {
        let step = self.step[rank as usize];
        let op = self.program.op(rank, step).map_or_else(String::new, |op| op.to_string());
        ProofError::Misuse { rank, step, op, what }
    }

    fn cell(&self, rank: u32, tile: u32) -> Result<usize, ProofError> {
        if tile as usize >= self.per_rank {
            return Err(self.misuse(rank, Misuse::NoTile(tile)));
        }
        Ok(rank as usize * self.per_rank + tile as usize)
    }

    fn channel(&self, rank: u32, dir: Dir, id: u32) -> Result<usize, ProofError> {
        if id == NONE { Err(self.misuse(rank, Misuse::NoPeer(dir))) } else { Ok(id as usize) }
    }

    fn advance(&mut self, rank: u32) -> Result<Stop, ProofError> {
        while let Some(op) = self.program.op(rank, self.step[rank as usize]) {
            let stop = match op {
                Op::Send { dir, chunk, from } => {
                    let id = self.channel(rank, dir, self.wiring.tx(rank, dir))?;
                    self.lend(rank, id, chunk, from)?;
                    None
                }
                Op::Recv { dir, land: Land::Forward, .. } => self.hold(rank, dir)?,
                Op::Recv { dir, tile, land } => self.receive(rank, dir, tile, land)?,
                Op::RecvAsync { dir, tile, land } => {
                    let id = self.channel(rank, dir, self.wiring.rx(rank, dir))?;
                    if land == Land::Forward || self.posted[id].is_some() {
                        return Err(self.misuse(rank, Misuse::Busy(dir)));
                    }
                    self.posted[id] = Some((tile, land));
                    None
                }
                Op::Wait { dir } => {
                    let id = self.channel(rank, dir, self.wiring.rx(rank, dir))?;
                    let Some((tile, land)) = self.posted[id] else {
                        return Err(self.misuse(rank, Misuse::NothingPosted(dir)));
                    };
                    let stop = self.receive(rank, dir, tile, land)?;
                    if stop.is_none() {
                        self.posted[id] = None;
                    }
                    stop
                }
                Op::Copy { from, to } => self.local(rank, from, to, Land::Copy)?,
                Op::Reduce { from, to } => self.local(rank, from, to, Land::Reduce)?,
                Op::Store { from, to } => self.local(rank, Tile::Mem(from), to, Land::Copy)?,
                Op::Math { .. } => return Err(self.misuse(rank, Misuse::NotASum("a computation"))),
            };
            if let Some(stop) = stop {
                return Ok(stop);
            }
            self.step[rank as usize] += 1;
            self.knows[rank as usize][rank as usize] = self.step[rank as usize];
        }
        Ok(Stop::Done)
    }

    fn lend(&mut self, rank: u32, id: usize, chunk: u32, from: Tile) -> Result<(), ProofError> {
        let (owner, tile, label, lent_at) = match from {
            Tile::Mem(tile) => (rank, tile, self.labels[self.cell(rank, tile)?], self.step[rank as usize]),
            // Lent on: it has been out since its owner lent it.
            Tile::Held(dir) | Tile::Take(dir) => {
                let held = self.held(rank, dir)?;
                (held.owner, held.tile, held.label, self.lives[held.number].lent_at)
            }
        };
        let chunk = if chunk < self.program.chunks() { chunk } else { label };
        if label != NONE && label != chunk {
            return Err(self.misuse(rank, Misuse::OtherChunk { holds: label, wants: chunk }));
        }
        let cell = self.cell(owner, tile)?;
        self.loans[cell] += 1;
        let reader = self.wiring.channels()[id].dst;
        self.lives.push(Life { owner, tile, lent_at, reader, read_at: u32::MAX });
        let loan = Loan { number: self.lives.len() - 1, owner, tile, label: chunk };
        // What the receiver learns: everything that this rank knows, this send included.
        let mut knows = self.knows[rank as usize].clone();
        knows[rank as usize] = self.step[rank as usize] + 1;
        self.queues[id].push_back((loan, knows));
        self.messages += 1;
        self.release(rank, from)
    }

    fn held(&self, rank: u32, dir: Dir) -> Result<Loan, ProofError> {
        let id = self.wiring.rx(rank, dir);
        let held = self.held.get(id as usize).copied().flatten();
        held.ok_or_else(|| self.misuse(rank, Misuse::NothingHeld(dir)))
    }

    /// The next message of a direction; what its sender knew is known here from now on.
    fn next(&mut self, rank: u32, dir: Dir) -> Result<Option<Loan>, ProofError> {
        let id = self.channel(rank, dir, self.wiring.rx(rank, dir))?;
        if self.held[id].is_some() {
            return Err(self.misuse(rank, Misuse::Busy(dir)));
        }
        let Some((loan, knew)) = self.queues[id].pop_front() else { return Ok(None) };
        self.knows[rank as usize].iter_mut().zip(knew).for_each(|(own, other)| *own = other.max(*own));
        Ok(Some(loan))
    }

    fn no_token(&self, rank: u32, dir: Dir) -> Stop {
        Stop::NoToken(self.wiring.channels()[self.wiring.rx(rank, dir) as usize].src)
    }

    fn hold(&mut self, rank: u32, dir: Dir) -> Result<Option<Stop>, ProofError> {
        match self.next(rank, dir)? {
            None => Ok(Some(self.no_token(rank, dir))),
            Some(loan) => {
                self.held[self.wiring.rx(rank, dir) as usize] = Some(loan);
                Ok(None)
            }
        }
    }

    fn receive(&mut self, rank: u32, dir: Dir, tile: u32, land: Land) -> Result<Option<Stop>, ProofError> {
        if let Some(stop) = self.borrowed(rank, tile)? {
            return Ok(Some(stop));
        }
        let Some(loan) = self.next(rank, dir)? else { return Ok(Some(self.no_token(rank, dir))) };
        self.write(rank, tile, (loan.owner, loan.tile, loan.label), land)?;
        self.give_back(rank, loan);
        Ok(None)
    }

    fn local(&mut self, rank: u32, from: Tile, to: u32, land: Land) -> Result<Option<Stop>, ProofError> {
        if let Some(stop) = self.borrowed(rank, to)? {
            return Ok(Some(stop));
        }
        let source = match from {
            Tile::Mem(tile) => (rank, tile, self.labels[self.cell(rank, tile)?]),
            Tile::Held(dir) | Tile::Take(dir) => {
                let loan = self.held(rank, dir)?;
                (loan.owner, loan.tile, loan.label)
            }
        };
        self.write(rank, to, source, land)?;
        self.release(rank, from)?;
        Ok(None)
    }

    /// Whether a write to a tile has to wait: a rank that borrowed it has not read it.
    fn borrowed(&mut self, rank: u32, tile: u32) -> Result<Option<Stop>, ProofError> {
        if self.guard == Guard::None || self.loans[self.cell(rank, tile)?] == 0 {
            return Ok(None);
        }
        let reader =
            self.lives.iter().find(|life| (life.owner, life.tile, life.read_at) == (rank, tile, u32::MAX));
        self.waited += 1;
        Ok(Some(Stop::Borrowed(reader.map_or(rank, |life| life.reader))))
    }

    fn write(&mut self, rank: u32, tile: u32, from: (u32, u32, u32), land: Land) -> Result<(), ProofError> {
        let (owner, source, label) = from;
        let (to, value) = (self.cell(rank, tile)?, self.tiles[self.cell(owner, source)?]);
        let relabel = land == Land::Copy && tile >= self.program.chunks();
        if !relabel && label != NONE && self.labels[to] != NONE && label != self.labels[to] {
            let what = Misuse::OtherChunk { holds: label, wants: self.labels[to] };
            return Err(self.misuse(rank, what));
        }
        if tile >= self.program.chunks() {
            self.labels[to] = label;
        }
        self.tiles[to] = if land == Land::Reduce { self.sets.add(self.tiles[to], value) } else { value };
        let (step, knew) = (self.step[rank as usize], self.knows[rank as usize].clone());
        self.writes.push(Write { rank, step, tile, knew });
        Ok(())
    }

    /// After the last use of a slot, its loan ends.
    fn release(&mut self, rank: u32, from: Tile) -> Result<(), ProofError> {
        if let Tile::Take(dir) = from {
            let loan = self.held(rank, dir)?;
            self.held[self.wiring.rx(rank, dir) as usize] = None;
            self.give_back(rank, loan);
        }
        Ok(())
    }

    fn give_back(&mut self, rank: u32, loan: Loan) {
        self.loans[loan.owner as usize * self.per_rank + loan.tile as usize] -= 1;
        self.lives[loan.number].read_at = self.step[rank as usize];
    }
}

/// Proves a schedule that passes by reference: it completes although every write waits for those who borrowed the tile, nothing is left
/// over, and every contribution arrives exactly once.
pub fn prove_by_reference<P: Program + ?Sized>(program: &P) -> Result<Lent, LendError> {
    let ranks = program.ranks();
    if ranks > EXACT_RANKS {
        return Err(LendError::TooManyRanks(ranks));
    }
    let wiring = Wiring::install(program).map_err(ProofError::from)?;
    let mut run = Run::new(program, &wiring, Guard::Waits);
    let blocked = run.run()?;
    if !blocked.is_empty() {
        let waits = blocked.iter().take(6).map(|(rank, stop)| {
            let step = run.step[*rank as usize];
            let op = program.op(*rank, step).map_or_else(String::new, |op| op.to_string());
            match stop {
                Stop::Borrowed(reader) => {
                    format!("rank {rank} at step {step} in {op} waits until rank {reader} has read the tile")
                }
                Stop::NoToken(src) => format!("rank {rank} at step {step} in {op} waits for rank {src}"),
                Stop::Done => String::new(),
            }
        });
        return Err(LendError::Deadlock(waits.collect::<Vec<_>>().join("; ")));
    }
    for (id, channel) in wiring.channels().iter().enumerate() {
        let count = run.queues[id].len() as u32;
        if count > 0 {
            let (src, dir, dst) = (channel.src, channel.src_dir, channel.dst);
            return Err(ProofError::Unreceived { src, dir, dst, count }.into());
        }
        if run.held[id].is_some() || run.posted[id].is_some() {
            return Err(ProofError::Unreleased { rank: channel.dst, dir: channel.dst_dir }.into());
        }
    }
    for rank in 0..ranks {
        for chunk in 0..program.chunks() {
            let wanted = match program.goal().expect(ranks, rank, chunk) {
                Expect::All => run.sets.run(0, ranks),
                Expect::One(rank) => run.sets.run(rank, 1),
                Expect::Any => continue,
            };
            let set = run.tiles[rank as usize * run.per_rank + chunk as usize];
            if set != wanted {
                let (missing, extra) = run.sets.difference(set, wanted);
                return Err(ProofError::Contribution(Wrong { rank, chunk, missing, extra }).into());
            }
        }
    }
    Ok(Lent { messages: run.messages, waits: run.waited })
}

/// The writes of a schedule that may come before a borrower has read the tile, unless they wait for it: no chain of messages leads from the
/// read to the write. An executor must wait there, and only there.
pub fn unguarded_writes<P: Program + ?Sized>(program: &P) -> Result<Vec<UnguardedWrite>, LendError> {
    if program.ranks() > EXACT_RANKS {
        return Err(LendError::TooManyRanks(program.ranks()));
    }
    let wiring = Wiring::install(program).map_err(ProofError::from)?;
    let mut run = Run::new(program, &wiring, Guard::None);
    if !run.run()?.is_empty() {
        return Err(LendError::Deadlock("without waiting for borrowers, too".to_owned()));
    }
    let mut found = Vec::new();
    for life in &run.lives {
        // The first write after the loan decides: later ones know at least as much.
        let write = run
            .writes
            .iter()
            .find(|write| (write.rank, write.tile) == (life.owner, life.tile) && write.step > life.lent_at);
        if let Some(write) = write
            && write.knew[life.reader as usize] <= life.read_at
        {
            let Write { rank, step, tile, .. } = *write;
            found.push(UnguardedWrite { rank, step, tile, reader: life.reader, read_at: life.read_at });
        }
    }
    found.sort_unstable_by_key(|write| (write.rank, write.step, write.tile, write.reader));
    Ok(found)
}
