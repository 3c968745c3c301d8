//! The instructions of a plan.

use shared_memory::{FNV_OFFSET, fnv1a};

/// Where data stands, from the rank that runs the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A chunk of the caller's input.
    Input(u32),
    /// A chunk of the caller's output. Before the end of the call also room for what the chunk holds meanwhile.
    Output(u32),
    /// Room of this rank that nobody else reads.
    Private(u32),
    /// Room in the window of a rank, which that rank writes and all may read.
    Window {
        /// Whose.
        rank: u8,
        /// Which.
        room: u32,
    },
}

/// One instruction of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instr {
    /// Adds one to this rank's stamp: everything before has been done.
    Publish,
    /// Waits until the stamp of a rank, counted from the beginning of the plan, has reached a value.
    Wait {
        /// Whose.
        rank: u8,
        /// The value.
        stamp: u32,
    },
    /// Copies a chunk, or whatever has its length.
    Copy {
        /// The source.
        from: Place,
        /// The target.
        to: Place,
        /// The chunk that the data belongs to.
        chunk: u32,
    },
    /// Combines sources in their order, and writes the result to one or two targets.
    Fold {
        /// The first source in [`Code::sources`].
        first: u32,
        /// How many; at most 64.
        count: u32,
        /// The targets.
        to: [Place; 2],
        /// How many of them count.
        targets: u8,
        /// The chunk that the data belongs to.
        chunk: u32,
    },
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) instrs: Vec<Instr>,
    pub(super) sources: Vec<Place>,
    /// Rooms in its window.
    pub(super) rooms: u32,
    /// Rooms of its own.
    pub(super) privates: u32,
    /// How often it publishes.
    pub(super) publishes: u32,
}

impl Code {
    /// The sources of a fold.
    #[inline]
    pub(super) fn sources(&self, first: u32, count: u32) -> &[Place] {
        &self.sources[first as usize..(first + count) as usize]
    }

    /// A hash over every instruction, from `hash` on.
    pub(super) fn hash(&self, hash: u64) -> u64 {
        let mut words = vec![u64::from(self.rooms), u64::from(self.publishes)];
        for instr in &self.instrs {
            match *instr {
                Instr::Publish => words.push(1),
                Instr::Wait { rank, stamp } => words.extend([2, u64::from(rank), u64::from(stamp)]),
                Instr::Copy { from, to, chunk } => words.extend([3, word(from), word(to), u64::from(chunk)]),
                Instr::Fold { first, count, to, targets, chunk } => {
                    words.extend([4, u64::from(count), u64::from(targets), word(to[0]), u64::from(chunk)]);
                    words.extend(self.sources(first, count).iter().map(|place| word(*place)));
                }
            }
        }
        words.iter().fold(hash, |hash, word| fnv1a(hash, &word.to_le_bytes()))
    }
}

fn word(place: Place) -> u64 {
    match place {
        Place::Input(chunk) => u64::from(chunk),
        Place::Output(chunk) => 1 << 40 | u64::from(chunk),
        Place::Private(room) => 2 << 40 | u64::from(room),
        Place::Window { rank, room } => 3 << 40 | u64::from(rank) << 32 | u64::from(room),
    }
}

/// A hash over the code of all ranks. Never 0.
pub(super) fn hash(codes: &[Code], chunks: u32) -> u64 {
    let start = fnv1a(FNV_OFFSET, &chunks.to_le_bytes());
    codes.iter().fold(start, |hash, code| code.hash(hash)).max(1)
}
