//! From a schedule to instructions.
//!
//! All ranks' lists are run together, without time, and every rank writes down what it will do. Two things are better than in the lists
//! themselves. A run of additions to one tile becomes one fold. And what a tile holds has its room by what becomes of it: in the
//! window when it is sent, in the output when it stays, so that a sum need not wait for those who still read what was sent before.
//!
//! A rank waits for a peer in the same places in which it stops here. Programs make no choices by time, so that a plan whose run here
//! ends also ends on any machine. Where all ranks stop because additions were put off, they are done at once and the run goes on.

use super::acts::{Act, Do, Src, acts};
use super::code::{Code, Instr, Place};
use super::{Passing, PlanError};
use ccl_schedule::{Expect, Goal, NONE, Program, Wiring};
use std::collections::VecDeque;
use std::rc::Rc;

/// Sources of one fold, at most.
const MOST_SOURCES: usize = 64;

/// What a tile holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// `None`: nothing yet.
    place: Option<Place>,
    chunk: u32,
    /// The room of this rank's window that has a copy of it, where it was lent.
    copied: Option<u32>,
    /// The loan, where it was lent by a message.
    loan: Option<usize>,
}

impl Held {
    fn at(place: Option<Place>, chunk: u32) -> Self {
        Self { place, chunk, copied: None, loan: None }
    }
}

/// A room of a window that was lent to a reader, which has finished at an event of its own.
struct Loan {
    reader: usize,
    read: Option<(u32, Rc<[u32]>)>,
}

/// A message under way: who sent it, after which event, and what that rank knew then.
struct Token {
    sender: usize,
    event: u32,
    clock: Rc<[u32]>,
    data: Held,
}

/// Additions to a tile that are put off.
struct Pending {
    tile: u32,
    chunk: u32,
    sources: Vec<Place>,
    loans: Vec<usize>,
    lent: bool,
    last: bool,
}

struct Rank {
    acts: Vec<Act>,
    at: usize,
    tiles: Vec<Held>,
    /// Whether the output has what the tile holds.
    in_output: Vec<bool>,
    /// The room of every tile in the window; [`NONE`] where it has none yet.
    homes: Vec<u32>,
    /// For every room, the loans since it was written.
    rooms: Vec<Vec<usize>>,
    pending: Option<Pending>,
    code: Code,
    /// For every rank, the event up to which this one knows it to be.
    knows: Vec<u32>,
    ended: bool,
}

#[derive(Default)]
struct Queue {
    tokens: VecDeque<Token>,
    held: Option<Held>,
    sent: u32,
    /// By value: the first of its rooms in the sender's window.
    rooms: Option<u32>,
    slots: u32,
}

pub(super) struct Lowering<'p> {
    program: &'p dyn Program,
    wiring: Wiring,
    passing: Passing,
    /// Whether additions are put off.
    fuses: bool,
    ranks: Vec<Rank>,
    queues: Vec<Queue>,
    loans: Vec<Loan>,
}

/// Whether a rank goes on or stops.
enum Went {
    On,
    Stopped,
}

/// The instructions of every rank.
pub(super) fn lower(program: &dyn Program, passing: Passing, fuses: bool) -> Result<Vec<Code>, PlanError> {
    let wiring = Wiring::install(program).map_err(|error| PlanError::Wrong(error.to_string()))?;
    let mut lowering = Lowering::new(program, wiring, passing, fuses)?;
    lowering.run()?;
    Ok(lowering.finish())
}

impl<'p> Lowering<'p> {
    fn new(
        program: &'p dyn Program,
        wiring: Wiring,
        passing: Passing,
        fuses: bool,
    ) -> Result<Self, PlanError> {
        let (nranks, chunks) = (program.ranks(), program.chunks());
        let tiles = (chunks + program.scratch()) as usize;
        let mut queues: Vec<Queue> = wiring.channels().iter().map(|_| Queue::default()).collect();
        let slots = if let Passing::Value { slots } = passing { slots } else { 0 };
        queues.iter_mut().for_each(|queue| queue.slots = slots);
        let mut ranks = Vec::new();
        for rank in 0..nranks {
            let (acts, early) = acts(program, &wiring, rank)?;
            // A receive that was posted early takes the message out of its slot, so that there is room for one more.
            early.iter().for_each(|id| queues[*id].slots = slots + 1);
            let first = |tile: u32| {
                let given = tile < chunks && program.goal().contributes(nranks, rank, tile);
                let chunk = if tile < chunks { tile } else { NONE };
                Held::at(given.then_some(Place::Input(tile)), chunk)
            };
            ranks.push(Rank {
                acts,
                at: 0,
                tiles: (0..tiles as u32).map(first).collect(),
                in_output: vec![false; chunks as usize],
                homes: vec![NONE; tiles],
                rooms: Vec::new(),
                pending: None,
                code: Code::default(),
                knows: vec![0; nranks as usize],
                ended: false,
            });
        }
        Ok(Self { program, wiring, passing, fuses, ranks, queues, loans: Vec::new() })
    }

    fn run(&mut self) -> Result<(), PlanError> {
        loop {
            let (mut moved, mut left) = (false, false);
            for rank in 0..self.ranks.len() {
                while let Some(act) = self.ranks[rank].acts.get(self.ranks[rank].at).copied() {
                    if let Went::Stopped = self.act(rank, act)? {
                        break;
                    }
                    self.ranks[rank].at += 1;
                    moved = true;
                }
                if self.ranks[rank].at == self.ranks[rank].acts.len() {
                    if !std::mem::replace(&mut self.ranks[rank].ended, true) {
                        self.flush(rank);
                        self.deliver(rank);
                        moved = true;
                    }
                } else {
                    left = true;
                }
            }
            if !left {
                return Ok(());
            }
            if !moved {
                let stuck: Vec<usize> =
                    (0..self.ranks.len()).filter(|rank| self.ranks[*rank].pending.is_some()).collect();
                if stuck.is_empty() {
                    let rank = self.ranks.iter().position(|rank| !rank.ended).unwrap_or(0);
                    return Err(PlanError::Untranslatable { rank: rank as u32 });
                }
                stuck.into_iter().for_each(|rank| self.flush(rank));
            }
        }
    }

    fn event(&self, rank: usize) -> u32 {
        self.ranks[rank].code.instrs.len() as u32
    }

    /// What a rank knows now, its own events included.
    fn clock(&self, rank: usize) -> Rc<[u32]> {
        let mut clock: Rc<[u32]> = self.ranks[rank].knows.as_slice().into();
        if let Some(clock) = Rc::get_mut(&mut clock) {
            clock[rank] = self.event(rank);
        }
        clock
    }

    fn emit(&mut self, rank: usize, instr: Instr) {
        self.ranks[rank].code.instrs.push(instr);
    }

    /// Lets a rank wait until another has come to an event, unless it knows that already. The stamp is put in later.
    fn wait(&mut self, rank: usize, on: usize, event: u32, clock: &[u32]) {
        if rank == on || self.ranks[rank].knows[on] >= event {
            return;
        }
        self.emit(rank, Instr::Wait { rank: on as u8, stamp: event });
        let knows = &mut self.ranks[rank].knows;
        knows.iter_mut().zip(clock).for_each(|(own, other)| *own = (*own).max(*other));
        knows[on] = knows[on].max(event);
    }

    /// Waits for the readers of a room that is about to be written. `false` while one of them has not read it.
    fn claim(&mut self, rank: usize, room: u32) -> bool {
        if self.ranks[rank].rooms[room as usize].iter().any(|loan| self.loans[*loan].read.is_none()) {
            return false;
        }
        for loan in std::mem::take(&mut self.ranks[rank].rooms[room as usize]) {
            let reader = self.loans[loan].reader;
            if let Some((event, clock)) = self.loans[loan].read.clone() {
                self.wait(rank, reader, event, &clock);
            }
        }
        true
    }

    fn new_rooms(&mut self, rank: usize, count: u32) -> u32 {
        let rooms = &mut self.ranks[rank].rooms;
        let first = rooms.len() as u32;
        rooms.resize_with(rooms.len() + count as usize, Vec::new);
        first
    }

    fn home(&mut self, rank: usize, tile: u32) -> u32 {
        if self.ranks[rank].homes[tile as usize] == NONE {
            self.ranks[rank].homes[tile as usize] = self.new_rooms(rank, 1);
        }
        self.ranks[rank].homes[tile as usize]
    }

    fn act(&mut self, rank: usize, act: Act) -> Result<Went, PlanError> {
        let went = match act.what {
            Do::Send { channel, from } => self.send(rank, channel, from),
            Do::Hold { channel } => {
                self.flush(rank);
                let Some(token) = self.queues[channel].tokens.pop_front() else { return Ok(Went::Stopped) };
                self.take(rank, &token);
                self.queues[channel].held = Some(token.data);
                Went::On
            }
            Do::Receive { channel, tile, reduce } => {
                if !self.ready(rank, tile, act) || self.queues[channel].tokens.is_empty() {
                    return Ok(Went::Stopped);
                }
                let Some(token) = self.queues[channel].tokens.pop_front() else { return Ok(Went::Stopped) };
                self.take(rank, &token);
                self.write(rank, tile, token.data, reduce, act, token.data.loan);
                Went::On
            }
            Do::Move { from, tile, reduce } => self.local(rank, from, tile, reduce, act),
        };
        if !self.fuses {
            self.flush(rank);
        }
        Ok(went)
    }

    fn take(&mut self, rank: usize, token: &Token) {
        if token.data.place.is_some() {
            self.wait(rank, token.sender, token.event, &token.clock);
        }
    }

    fn held(&self, rank: usize, from: Src) -> Held {
        match from {
            Src::Tile(tile) => self.ranks[rank].tiles[tile as usize],
            Src::Held(channel, _) => self.queues[channel].held.unwrap_or(Held::at(None, NONE)),
        }
    }

    /// After the last use of what a channel holds, its loan ends.
    fn release(&mut self, rank: usize, from: Src) {
        if let Src::Held(channel, true) = from
            && let Some(held) = self.queues[channel].held.take()
        {
            self.end_loan(rank, held.loan);
        }
    }

    fn end_loan(&mut self, rank: usize, loan: Option<usize>) {
        if let Some(loan) = loan {
            self.loans[loan].read = Some((self.event(rank), self.clock(rank)));
        }
    }

    fn send(&mut self, rank: usize, channel: usize, from: Src) -> Went {
        self.flush(rank);
        let reader = self.wiring.channels()[channel].dst as usize;
        let mut data = self.held(rank, from);
        if let Some(place) = data.place {
            let lent = match (self.passing, from, place) {
                (Passing::Value { .. }, ..) => match self.fill_slot(rank, channel, place, data.chunk) {
                    Some(room) => (rank, room),
                    None => return Went::Stopped,
                },
                // Lent on: the reader goes to the rank that wrote it.
                (Passing::Reference, _, Place::Window { rank: owner, room }) => (usize::from(owner), room),
                (Passing::Reference, Src::Tile(tile), _) => match data.copied {
                    Some(room) => (rank, room),
                    None => {
                        let room = self.home(rank, tile);
                        if !self.claim(rank, room) {
                            return Went::Stopped;
                        }
                        let to = Place::Window { rank: rank as u8, room };
                        self.emit(rank, Instr::Copy { from: place, to, chunk: data.chunk });
                        // The others read the copy; this rank goes on with what it has.
                        self.ranks[rank].tiles[tile as usize].copied = Some(room);
                        (rank, room)
                    }
                },
                (Passing::Reference, ..) => unreachable!("what a channel holds lies in a window"),
            };
            self.loans.push(Loan { reader, read: None });
            let loan = self.loans.len() - 1;
            self.ranks[lent.0].rooms[lent.1 as usize].push(loan);
            let place = Place::Window { rank: lent.0 as u8, room: lent.1 };
            data = Held { loan: Some(loan), ..Held::at(Some(place), data.chunk) };
        }
        self.release(rank, from);
        let (event, clock) = (self.event(rank), self.clock(rank));
        self.queues[channel].sent += 1;
        self.queues[channel].tokens.push_back(Token { sender: rank, event, clock, data });
        Went::On
    }

    /// Copies data to the next slot of a channel. `None` while its last message has not been read.
    fn fill_slot(&mut self, rank: usize, channel: usize, from: Place, chunk: u32) -> Option<u32> {
        let slots = self.queues[channel].slots;
        let first = match self.queues[channel].rooms {
            Some(first) => first,
            None => {
                let first = self.new_rooms(rank, slots);
                self.queues[channel].rooms = Some(first);
                first
            }
        };
        let room = first + self.queues[channel].sent % slots;
        if !self.claim(rank, room) {
            return None;
        }
        self.emit(rank, Instr::Copy { from, to: Place::Window { rank: rank as u8, room }, chunk });
        Some(room)
    }

    /// Whether a tile can be written now: the additions that are put off are its own, and its room is free if it needs one.
    fn ready(&mut self, rank: usize, tile: u32, act: Act) -> bool {
        if self.ranks[rank].pending.as_ref().is_some_and(|pending| pending.tile != tile) {
            self.flush(rank);
        }
        self.room_is_free(rank, tile, act)
    }

    fn room_is_free(&mut self, rank: usize, tile: u32, act: Act) -> bool {
        if !act.lent || self.passing != Passing::Reference {
            return true;
        }
        let room = self.home(rank, tile);
        self.claim(rank, room)
    }

    fn local(&mut self, rank: usize, from: Src, tile: u32, reduce: bool, act: Act) -> Went {
        let scratch = self.program.chunks();
        if let (Src::Tile(source), false, Some(pending)) = (from, reduce, &self.ranks[rank].pending)
            && pending.tile == source
            && source >= scratch
            && source != tile
            && act.dead
        {
            // The sum goes straight to where it is copied.
            if !self.room_is_free(rank, tile, act) {
                return Went::Stopped;
            }
            if let Some(pending) = &mut self.ranks[rank].pending {
                (pending.tile, pending.lent, pending.last) = (tile, act.lent, act.last);
            }
            return Went::On;
        }
        if let Src::Tile(source) = from
            && self.ranks[rank].pending.as_ref().is_some_and(|pending| pending.tile == source)
        {
            self.flush(rank);
        }
        if !self.ready(rank, tile, act) {
            return Went::Stopped;
        }
        let data = self.held(rank, from);
        let loan = match from {
            Src::Held(channel, true) => {
                self.queues[channel].held = None;
                data.loan
            }
            _ => None,
        };
        self.write(rank, tile, data, reduce, act, loan);
        Went::On
    }

    /// Puts off a write to a tile. `loan` ends with it.
    fn write(&mut self, rank: usize, tile: u32, data: Held, reduce: bool, act: Act, loan: Option<usize>) {
        let Some(place) = data.place else {
            self.end_loan(rank, loan);
            if !reduce {
                let unused = self.ranks[rank].pending.take();
                unused.into_iter().flat_map(|pending| pending.loans).for_each(|loan| {
                    self.end_loan(rank, Some(loan));
                });
                self.ranks[rank].tiles[tile as usize].place = None;
            }
            return;
        };
        let full =
            |pending: &Pending| pending.tile == tile && reduce && pending.sources.len() == MOST_SOURCES;
        if self.ranks[rank].pending.as_ref().is_some_and(full) {
            self.flush(rank);
        }
        let before = self.ranks[rank].tiles[tile as usize];
        let chunk = if tile < self.program.chunks() { tile } else { data.chunk };
        let this = &mut self.ranks[rank];
        let pending = this.pending.get_or_insert_with(|| Pending {
            tile,
            chunk,
            sources: before.place.into_iter().collect(),
            loans: Vec::new(),
            lent: false,
            last: false,
        });
        if !reduce {
            pending.sources.clear();
        }
        pending.sources.push(place);
        (pending.lent, pending.last, pending.chunk) = (act.lent, act.last, chunk);
        pending.loans.extend(loan);
    }

    /// Writes the additions of a rank that were put off.
    fn flush(&mut self, rank: usize) {
        let Some(pending) = self.ranks[rank].pending.take() else { return };
        let (tile, chunk) = (pending.tile, pending.chunk);
        let is_chunk = tile < self.program.chunks();
        let mut targets = Vec::new();
        if pending.lent && self.passing == Passing::Reference {
            targets.push(Place::Window { rank: rank as u8, room: self.home(rank, tile) });
        }
        let stays = pending.last && is_chunk && self.is_result(rank, tile);
        if is_chunk && (targets.is_empty() || stays) {
            targets.push(Place::Output(tile));
        } else if targets.is_empty() {
            let room = tile - self.program.chunks();
            let code = &mut self.ranks[rank].code;
            code.privates = code.privates.max(room + 1);
            targets.push(Place::Private(room));
        }
        if let [source] = pending.sources[..] {
            for to in targets.iter().filter(|to| **to != source) {
                self.emit(rank, Instr::Copy { from: source, to: *to, chunk });
            }
        } else {
            let code = &mut self.ranks[rank].code;
            let (first, count) = (code.sources.len() as u32, pending.sources.len() as u32);
            code.sources.extend(&pending.sources);
            let to = [targets[0], *targets.last().unwrap_or(&targets[0])];
            self.emit(rank, Instr::Fold { first, count, to, targets: targets.len() as u8, chunk });
        }
        if is_chunk {
            self.ranks[rank].in_output[tile as usize] = targets.contains(&Place::Output(tile));
        }
        self.ranks[rank].tiles[tile as usize] = Held::at(Some(targets[0]), chunk);
        for loan in pending.loans {
            self.end_loan(rank, Some(loan));
        }
    }

    /// Whether the goal says what this rank has in a chunk at the end.
    fn is_result(&self, rank: usize, chunk: u32) -> bool {
        let goal = self.program.goal();
        goal == Goal::Any || goal.expect(self.program.ranks(), rank as u32, chunk) != Expect::Any
    }

    /// Copies results to the output that are not there.
    fn deliver(&mut self, rank: usize) {
        for chunk in 0..self.program.chunks() {
            let held = self.ranks[rank].tiles[chunk as usize];
            if let Some(from) = held.place
                && !self.ranks[rank].in_output[chunk as usize]
                && self.is_result(rank, chunk)
            {
                self.emit(rank, Instr::Copy { from, to: Place::Output(chunk), chunk });
            }
        }
    }

    /// Puts stamps where somebody waits for them.
    fn finish(self) -> Vec<Code> {
        let mut awaited: Vec<Vec<u32>> = vec![Vec::new(); self.ranks.len()];
        for rank in &self.ranks {
            for instr in &rank.code.instrs {
                if let Instr::Wait { rank, stamp } = instr {
                    awaited[usize::from(*rank)].push(*stamp);
                }
            }
        }
        for (events, rank) in awaited.iter_mut().zip(&self.ranks) {
            events.sort_unstable();
            events.dedup();
            // A stamp that only copies separate from the next one comes with that: fewer flags for a moment more.
            let copies = |from: u32, to: u32| {
                rank.code.instrs[from as usize..to as usize]
                    .iter()
                    .all(|instr| matches!(instr, Instr::Copy { .. }))
            };
            let all = std::mem::take(events);
            let kept = all
                .iter()
                .enumerate()
                .filter(|(at, event)| all.get(at + 1).is_none_or(|next| !copies(**event, *next)));
            *events = kept.map(|(_, event)| *event).collect();
        }
        // The first stamp that comes at the event or after it.
        let number =
            |rank: u8, event: u32| awaited[usize::from(rank)].partition_point(|one| *one < event) + 1;
        let mut codes = Vec::new();
        for (rank, Rank { code, rooms, .. }) in self.ranks.into_iter().enumerate() {
            let mut stamps = awaited[rank].iter().copied().peekable();
            let mut instrs = Vec::with_capacity(code.instrs.len() + awaited[rank].len());
            for (event, instr) in code.instrs.iter().enumerate() {
                if stamps.next_if_eq(&(event as u32)).is_some() {
                    instrs.push(Instr::Publish);
                }
                instrs.push(match *instr {
                    Instr::Wait { rank, stamp } => Instr::Wait { rank, stamp: number(rank, stamp) as u32 },
                    other => other,
                });
            }
            instrs.extend(stamps.map(|_| Instr::Publish));
            let (rooms, publishes) = (rooms.len() as u32, awaited[rank].len() as u32);
            codes.push(Code { instrs, rooms, publishes, ..code });
        }
        codes
    }
}
