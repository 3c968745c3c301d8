//! A program held as lists of operations: from a file, or written by a test.

use crate::op::{Dir, Op};
use crate::program::{Goal, Program};
use std::collections::BTreeMap;

/// A program that stores the operations of every rank and its channels one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedProgram {
    name: String,
    goal: Goal,
    chunks: u32,
    scratch: u32,
    dirs: Vec<Dir>,
    peers: BTreeMap<(u32, Dir), (u32, Dir)>,
    lists: Vec<Vec<Op>>,
}

impl ListedProgram {
    /// One list of operations per rank, without channels or scratch tiles yet.
    pub fn new(name: &str, goal: Goal, chunks: u32, lists: Vec<Vec<Op>>) -> Self {
        let (dirs, peers) = (Vec::new(), BTreeMap::new());
        Self { name: name.to_owned(), goal, chunks, scratch: 0, dirs, peers, lists }
    }

    /// The same program with this many scratch tiles per rank.
    pub fn with_scratch(self, tiles: u32) -> Self {
        Self { scratch: tiles, ..self }
    }

    /// Adds a channel from a rank and its direction to another rank and its direction. Returns the channel
    /// that it replaces, if the source had one.
    pub fn connect(&mut self, from: (u32, Dir), to: (u32, Dir)) -> Option<(u32, Dir)> {
        for dir in [from.1, to.1] {
            if let Err(at) = self.dirs.binary_search(&dir) {
                self.dirs.insert(at, dir);
            }
        }
        self.peers.insert(from, to)
    }

    /// The same program with channels from every rank east to the next one, around a ring.
    pub fn on_ring(mut self) -> Self {
        let n = self.ranks();
        for rank in 0..n {
            self.connect((rank, Dir::E), ((rank + 1) % n, Dir::W));
        }
        self
    }

    /// The same program with the ring of [`Self::on_ring`] and its channels back.
    pub fn on_two_way_ring(self) -> Self {
        let mut program = self.on_ring();
        let n = program.ranks();
        for rank in 0..n {
            program.connect(((rank + 1) % n, Dir::W), (rank, Dir::E));
        }
        program
    }
}

impl Program for ListedProgram {
    fn name(&self) -> &str {
        &self.name
    }
    fn goal(&self) -> Goal {
        self.goal
    }
    fn ranks(&self) -> u32 {
        self.lists.len() as u32
    }
    fn chunks(&self) -> u32 {
        self.chunks
    }
    fn scratch(&self) -> u32 {
        self.scratch
    }
    fn dirs(&self) -> &[Dir] {
        &self.dirs
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        self.peers.get(&(rank, dir)).copied()
    }
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        self.lists[rank as usize].get(step as usize).copied()
    }
    fn messages(&self) -> u64 {
        self.lists.iter().flatten().filter(|op| matches!(op, Op::Send { .. })).count() as u64
    }
}
