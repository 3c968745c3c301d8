//! A plan is checked after it was made, as if somebody else had made it.
//!
//! One run of the instructions of all ranks shows that it ends, and that every rank ends with exactly what the goal says. It counts for
//! every order of events, because all reads and writes of a room are in an order that waits enforce: a reader has waited for the
//! writer, and a writer for all readers of what it overwrites.

use super::code::{Code, Instr, Place};
use ccl_schedule::{Expect, Program};
use std::collections::HashMap;

/// What a room holds: of which chunk, and of which ranks, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Data {
    chunk: u32,
    of: u64,
}

#[derive(Clone, Default)]
struct Room {
    data: Option<Data>,
    /// The event after which it was written.
    written: u32,
    /// Who read it since, and at which event.
    reads: Vec<(usize, u32)>,
}

struct Rank {
    at: usize,
    rooms: Vec<Room>,
    own: HashMap<Place, Data>,
    /// For each rank, the event up to which this one has waited for it.
    knows: Vec<u32>,
    /// The same at each of its stamps.
    stamps: Vec<Vec<u32>>,
}

struct Run<'a> {
    program: &'a dyn Program,
    codes: &'a [Code],
    ranks: Vec<Rank>,
}

/// Checks the instructions of all ranks. The text says what is wrong.
pub(super) fn check(program: &dyn Program, codes: &[Code]) -> Result<(), String> {
    let nranks = codes.len();
    let rank = |code: &Code| Rank {
        at: 0,
        rooms: vec![Room::default(); code.rooms as usize],
        own: HashMap::new(),
        knows: vec![0; nranks],
        stamps: Vec::new(),
    };
    let mut run = Run { program, codes, ranks: codes.iter().map(rank).collect() };
    loop {
        let (mut moved, mut left) = (false, false);
        for (rank, code) in codes.iter().enumerate() {
            while run.ranks[rank].at < code.instrs.len() && run.step(rank)? {
                moved = true;
            }
            left |= run.ranks[rank].at < code.instrs.len();
        }
        if !left {
            return run.results();
        }
        if !moved {
            return Err("ranks wait for each other".to_owned());
        }
    }
}

impl Run<'_> {
    /// Runs one instruction. `false` when the rank has to wait.
    fn step(&mut self, rank: usize) -> Result<bool, String> {
        let (code, at) = (&self.codes[rank], self.ranks[rank].at);
        match code.instrs[at] {
            Instr::Publish => {
                let mut knows = self.ranks[rank].knows.clone();
                knows[rank] = at as u32;
                self.ranks[rank].stamps.push(knows);
            }
            Instr::Wait { rank: on, stamp } => {
                let seen = stamp.checked_sub(1).and_then(|at| {
                    self.ranks.get(usize::from(on)).and_then(|peer| peer.stamps.get(at as usize))
                });
                let Some(seen) = seen.cloned() else { return Ok(false) };
                let knows = &mut self.ranks[rank].knows;
                knows.iter_mut().zip(&seen).for_each(|(own, other)| *own = (*own).max(*other));
            }
            Instr::Copy { from, to, chunk } => {
                let data = self.read(rank, from, chunk)?;
                self.write(rank, to, data)?;
            }
            Instr::Fold { first, count, to, targets, chunk } => {
                let mut sum = Data { chunk, of: 0 };
                for source in code.sources(first, count) {
                    let data = self.read(rank, *source, chunk)?;
                    if sum.of & data.of != 0 {
                        return Err(format!("rank {rank} adds a contribution to chunk {chunk} twice"));
                    }
                    sum.of |= data.of;
                }
                to[..usize::from(targets)].iter().try_for_each(|to| self.write(rank, *to, sum))?;
            }
        }
        self.ranks[rank].at += 1;
        Ok(true)
    }

    fn read(&mut self, rank: usize, from: Place, chunk: u32) -> Result<Data, String> {
        let wrong = |what: &str| Err(format!("rank {rank} reads {from:?}, {what}"));
        let data = match from {
            Place::Input(chunk) => {
                if self.ranks[rank].own.contains_key(&Place::Output(chunk)) {
                    return wrong("which the output may have overwritten");
                }
                let nranks = self.program.ranks();
                let given = self.program.goal().contributes(nranks, rank as u32, chunk);
                given.then_some(Data { chunk, of: 1 << rank })
            }
            Place::Output(_) | Place::Private(_) => self.ranks[rank].own.get(&from).copied(),
            Place::Window { rank: owner, room } => {
                let (owner, event) = (usize::from(owner), self.ranks[rank].at as u32 + 1);
                let known = if owner == rank { u32::MAX } else { self.ranks[rank].knows[owner] };
                let Some(room) = self.ranks[owner].rooms.get_mut(room as usize) else {
                    return wrong("which is not there");
                };
                if known < room.written {
                    return wrong("which may not have been written");
                }
                room.reads.push((rank, event));
                room.data
            }
        };
        match data {
            Some(data) if data.chunk == chunk => Ok(data),
            Some(_) => wrong("which holds another chunk"),
            None => wrong("which holds nothing"),
        }
    }

    fn write(&mut self, rank: usize, to: Place, data: Data) -> Result<(), String> {
        let event = self.ranks[rank].at as u32 + 1;
        match to {
            Place::Input(_) => return Err(format!("rank {rank} writes its input")),
            Place::Output(_) | Place::Private(_) => {
                self.ranks[rank].own.insert(to, data);
            }
            Place::Window { rank: owner, room } => {
                let Rank { rooms, knows, .. } = &mut self.ranks[rank];
                let Some(room) = rooms.get_mut(room as usize).filter(|_| usize::from(owner) == rank) else {
                    return Err(format!("rank {rank} writes to the window of rank {owner}"));
                };
                if let Some((reader, _)) =
                    room.reads.iter().find(|(reader, at)| *reader != rank && knows[*reader] < *at)
                {
                    return Err(format!("rank {rank} writes {to:?}, which rank {reader} may not have read"));
                }
                *room = Room { data: Some(data), written: event, reads: Vec::new() };
            }
        }
        Ok(())
    }

    fn results(&self) -> Result<(), String> {
        let nranks = self.program.ranks();
        let everybody = u64::MAX >> (64 - nranks);
        for (rank, state) in self.ranks.iter().enumerate() {
            for chunk in 0..self.program.chunks() {
                let of = match self.program.goal().expect(nranks, rank as u32, chunk) {
                    Expect::All => everybody,
                    Expect::One(one) => 1 << one,
                    Expect::Any => continue,
                };
                if state.own.get(&Place::Output(chunk)) != Some(&Data { chunk, of }) {
                    return Err(format!("rank {rank} ends with a wrong chunk {chunk}"));
                }
            }
        }
        Ok(())
    }
}
