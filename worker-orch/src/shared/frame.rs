//! One task or command as bytes in a ring slot.
//!
//! | offset | what |
//! |---|---|
//! | 0 | u64 sequence number, written last |
//! | 8 | u64 run |
//! | 16 | u32 program |
//! | 20 | u8 kind, u8 collectives, u16 number of prerequisites |
//! | 24 | u16 tensors, u16 scalars, u16 length of the blob, u16 blocks |
//! | 32 | prerequisites, then scalars (u64 each), then the blob, then tensors (128 bytes each, at a multiple of 64) |
//!
//! A small task is one cache line. The reader copies the bytes out and decodes the copy.
//!
//! A slot has room for the largest task there is, with [`INLINE_PREREQUISITES`] besides. Where a task has more
//! prerequisites, frames of kind [`Kind::Wait`] with all of them go before it: a child works in order.

use crate::args::{Args, TENSOR_BYTES};
use comm_context::abi::TensorDesc;
use worker_errors::{ErrorCode, Failure};

pub(crate) const SLOT_BYTES: usize = TENSORS_AT + Args::MAX_TENSORS * TENSOR_BYTES;
pub(crate) const BODY_AT: usize = 32;
/// The prerequisites that fit into a slot beside any task.
pub(crate) const INLINE_PREREQUISITES: usize = 28;
/// Where the tensors of the largest task begin.
const TENSORS_AT: usize = BODY_AT + (INLINE_PREREQUISITES + Args::MAX_SCALARS) * 8;
/// The prerequisites of one frame that has nothing else.
pub(crate) const MOST_PREREQUISITES: usize = (SLOT_BYTES - BODY_AT) / 8;

const _: () = assert!(TENSORS_AT.is_multiple_of(64) && SLOT_BYTES.is_multiple_of(128));
const _: () = assert!(SLOT_BYTES <= u16::MAX as usize && Args::MAX_BLOCKS <= u16::MAX as u32);

/// The program of a frame that runs none.
const NO_PROGRAM: u32 = u32::MAX;

/// What a frame asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Run a program.
    Task = 1,
    /// Register a program under its number: blob is a [`Definition`](super::Definition). Another one under a known number
    /// takes its place.
    Register = 2,
    /// Join the base group if not done yet.
    Join = 3,
    /// Allocate a domain: scalars are id, size, own position; blob is the number of members, their ranks, then
    /// the name of the domain.
    AllocDomain = 4,
    /// Release a domain: scalar is its id.
    ReleaseDomain = 5,
    /// Stop.
    Shutdown = 6,
    /// Allocate memory on the chip: scalar is the size; the answer is the address.
    Malloc = 7,
    /// Free it: scalar is the address.
    Free = 8,
    /// Copy to the chip: scalars are address there, address in a heap, length.
    CopyIn = 9,
    /// Copy from the chip: the same scalars.
    CopyOut = 10,
    /// Nothing but wait for the prerequisites.
    Wait = 11,
    /// Make the collectives of some chips: scalars are id and three words of options; blob is the number of members, their
    /// ranks, then the name of the domain they are for.
    MakeCollectives = 12,
    /// Close them: scalars are their id and whether the run failed.
    CloseCollectives = 13,
    /// The memory of the next task's arguments, for its checks: blob is spans.
    Spans = 14,
}

impl Kind {
    /// Whether other children wait until this one has done its part.
    pub(crate) fn is_collective(self) -> bool {
        matches!(
            self,
            Self::Join
                | Self::AllocDomain
                | Self::ReleaseDomain
                | Self::MakeCollectives
                | Self::CloseCollectives
        )
    }

    /// What it does, for people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Task => "run a program",
            Self::Register => "register a program",
            Self::Join => "join the group",
            Self::AllocDomain => "allocate a domain",
            Self::ReleaseDomain => "release a domain",
            Self::Shutdown => "shut down",
            Self::Malloc => "allocate memory",
            Self::Free => "free memory",
            Self::CopyIn => "copy to the chip",
            Self::CopyOut => "copy from the chip",
            Self::MakeCollectives => "make collectives",
            Self::CloseCollectives => "close collectives",
            Self::Wait => "wait for other processes",
            Self::Spans => "prepare the checks of a task",
        }
    }

    /// By number, from 1 on.
    const ALL: [Self; 14] = [
        Self::Task,
        Self::Register,
        Self::Join,
        Self::AllocDomain,
        Self::ReleaseDomain,
        Self::Shutdown,
        Self::Malloc,
        Self::Free,
        Self::CopyIn,
        Self::CopyOut,
        Self::Wait,
        Self::MakeCollectives,
        Self::CloseCollectives,
        Self::Spans,
    ];
}

const _: () = {
    let mut index = 0;
    while index < Kind::ALL.len() {
        assert!(Kind::ALL[index] as usize == index + 1);
        index += 1;
    }
};

/// A task of another child that must be done first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prerequisite {
    pub(crate) child: u16,
    pub(crate) seq: u64,
}

const SEQ_BITS: u32 = 48;

impl Prerequisite {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.child) << SEQ_BITS | (self.seq & ((1 << SEQ_BITS) - 1))
    }

    pub(super) fn unpack(word: u64) -> Self {
        Self { child: (word >> SEQ_BITS) as u16, seq: word & ((1 << SEQ_BITS) - 1) }
    }
}

/// A frame to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: Kind,
    pub(crate) run: u64,
    pub(crate) program: u32,
    /// The collectives of the task's group; 0 for none.
    pub(crate) collectives: u8,
    /// On how many blocks a kernel runs; 1 for everything else.
    pub(crate) blocks: u32,
    pub(crate) prerequisites: &'a [Prerequisite],
    pub(crate) scalars: &'a [u64],
    pub(crate) blob: &'a [u8],
    pub(crate) tensors: &'a [TensorDesc],
}

impl<'a> Frame<'a> {
    pub(crate) fn new(kind: Kind, run: u64) -> Self {
        Self {
            kind,
            run,
            program: NO_PROGRAM,
            collectives: 0,
            blocks: 1,
            prerequisites: &[],
            scalars: &[],
            blob: &[],
            tensors: &[],
        }
    }

    /// Where the tensors begin, if there are any.
    fn tensors_at(&self) -> usize {
        self.words_end().next_multiple_of(64)
    }

    /// Where everything but the tensors ends.
    fn words_end(&self) -> usize {
        BODY_AT + (self.prerequisites.len() + self.scalars.len()) * 8 + self.blob.len()
    }

    /// How many bytes of a slot it takes.
    pub(crate) fn len(&self) -> usize {
        match self.tensors.len() {
            0 => self.words_end(),
            tensors => self.tensors_at() + tensors * TENSOR_BYTES,
        }
    }

    /// Whether it is no more than its head.
    #[inline]
    pub(crate) fn is_head_only(&self) -> bool {
        self.len() == BODY_AT
    }

    /// The words behind the sequence number, before the body.
    #[inline]
    pub(crate) fn head(&self) -> [u64; 3] {
        let what = u64::from(self.kind as u8) | u64::from(self.collectives) << 8;
        let (program, needs) = (u64::from(self.program), self.prerequisites.len() as u64);
        let (tensors, scalars) = (self.tensors.len() as u64, self.scalars.len() as u64);
        let counts = tensors | scalars << 16 | (self.blob.len() as u64) << 32 | u64::from(self.blocks) << 48;
        [self.run, program | what << 32 | needs << 48, counts].map(u64::to_le)
    }

    /// Writes what is behind the head through `put(offset, bytes)`; fails when it does not fit.
    pub(crate) fn write_body(&self, mut put: impl FnMut(usize, &[u8])) -> Result<(), Failure> {
        let (tensors_at, end) = (self.tensors_at(), self.len());
        if end > SLOT_BYTES {
            return Err(too_long(end));
        }
        let mut at = BODY_AT;
        for word in self.prerequisites.iter().map(|need| need.pack()) {
            put(at, &word.to_le_bytes());
            at += 8;
        }
        if !self.scalars.is_empty() {
            put(at, bytemuck::cast_slice(self.scalars));
            at += self.scalars.len() * 8;
        }
        if !self.blob.is_empty() {
            put(at, self.blob);
        }
        for (index, tensor) in self.tensors.iter().enumerate() {
            put(tensors_at + index * TENSOR_BYTES, tensor.as_bytes());
        }
        Ok(())
    }
}

#[cold]
fn too_long(bytes: usize) -> Failure {
    let text = format!(
        "a command of {bytes} bytes does not fit into a slot of {SLOT_BYTES}; use shorter names and paths"
    );
    Failure::new(ErrorCode::Invalid, text)
}

/// A frame that was read. Its vectors are reused for the next one.
#[derive(Debug, Default)]
pub(crate) struct ReceivedFrame {
    pub(crate) kind: Option<Kind>,
    pub(crate) run: u64,
    pub(crate) program: u32,
    pub(crate) collectives: u8,
    pub(crate) blocks: u32,
    pub(crate) prerequisites: Vec<Prerequisite>,
    pub(crate) scalars: Vec<u64>,
    pub(crate) blob: Vec<u8>,
    pub(crate) tensors: Vec<TensorDesc>,
}

/// What a frame has behind its head: how many of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    kind: Kind,
    needs: usize,
    scalars: usize,
    blob: usize,
    tensors: usize,
}

impl Body {
    fn of(kind: Kind, [_, what, counts]: [u64; 3]) -> Self {
        let short = |word: u64, at: u32| usize::from((word >> at) as u16);
        Self {
            kind,
            needs: short(what, 48),
            scalars: short(counts, 16),
            blob: short(counts, 32),
            tensors: short(counts, 0),
        }
    }

    fn blob_at(self) -> usize {
        BODY_AT + (self.needs + self.scalars) * 8
    }

    /// Where the frame ends; `None` when that is not inside a slot.
    pub(crate) fn end(self) -> Option<usize> {
        let end = self.blob_at() + self.blob;
        let end =
            if self.tensors == 0 { end } else { end.next_multiple_of(64) + self.tensors * TENSOR_BYTES };
        (end <= SLOT_BYTES).then_some(end)
    }
}

impl ReceivedFrame {
    /// Decodes a private copy of the head: total, whatever the words. Returns the body if there is one. Until that is
    /// [decoded](Self::decode_body), and in a malformed frame, the kind is `None`.
    #[inline]
    pub(crate) fn decode_head(&mut self, head: [u64; 3]) -> Option<Body> {
        let head = head.map(u64::from_le);
        let [run, what, counts] = head;
        self.kind = None;
        self.prerequisites.clear();
        self.scalars.clear();
        self.blob.clear();
        self.tensors.clear();
        (self.run, self.program) = (run, what as u32);
        self.collectives = (what >> 40) as u8;
        self.blocks = u32::from((counts >> 48) as u16);
        let kind = Kind::ALL.get(usize::from((what >> 32) as u8).wrapping_sub(1)).copied();
        let kind = kind.filter(|_| (1..=Args::MAX_BLOCKS).contains(&self.blocks));
        // Most tasks have no more than this.
        if what >> 48 == 0 && counts << 16 == 0 {
            self.kind = kind;
            return None;
        }
        Some(Body::of(kind?, head))
    }

    /// Decodes a private copy of the body, which begins where the head ends.
    pub(crate) fn decode_body(&mut self, body: Body, bytes: &[u8]) {
        if body.end().is_none_or(|end| end - BODY_AT > bytes.len()) {
            return;
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        for index in 0..body.needs + body.scalars {
            let value = word(index * 8);
            if index < body.needs {
                self.prerequisites.push(Prerequisite::unpack(value));
            } else {
                self.scalars.push(value);
            }
        }
        let blob_at = body.blob_at() - BODY_AT;
        self.blob.extend_from_slice(&bytes[blob_at..blob_at + body.blob]);
        let tensors_at = (body.blob_at() + body.blob).next_multiple_of(64) - BODY_AT;
        for index in 0..body.tensors {
            match TensorDesc::decode(&bytes[tensors_at + index * TENSOR_BYTES..]) {
                Ok(tensor) => self.tensors.push(tensor),
                Err(_) => return,
            }
        }
        self.kind = Some(body.kind);
    }
}

/// A slot as bytes, the way a child reads it.
#[cfg(any(test, fuzzing))]
pub(crate) mod as_bytes {
    use super::{BODY_AT, Body, Frame, Kind, ReceivedFrame};
    use worker_errors::Failure;

    fn head(bytes: &[u8; BODY_AT]) -> [u64; 3] {
        std::array::from_fn(|word| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 + word * 8 + byte])))
    }

    /// How many bytes of a slot a frame takes, by its head; `None` when that is more than a slot.
    pub(crate) fn used(bytes: &[u8; BODY_AT]) -> Option<usize> {
        Body::of(Kind::Task, head(bytes).map(u64::from_le)).end()
    }

    pub(crate) fn write(frame: &Frame<'_>, slot: &mut [u8]) -> Result<(), Failure> {
        slot[8..BODY_AT].copy_from_slice(bytemuck::cast_slice(&frame.head()));
        frame.write_body(|at, part| slot[at..at + part.len()].copy_from_slice(part))
    }

    pub(crate) fn decode(read: &mut ReceivedFrame, bytes: &[u8]) {
        read.kind = None;
        if let Some(start) = bytes.first_chunk()
            && let Some(body) = read.decode_head(head(start))
        {
            read.decode_body(body, &bytes[BODY_AT..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::as_bytes::{decode, used, write};
    use super::*;
    use comm_context::abi::{DType, DeviceAddr};

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = vec![0xee; SLOT_BYTES];
        write(frame, &mut bytes).unwrap();
        let head = bytes.first_chunk().unwrap();
        let used = used(head).unwrap();
        bytes.truncate(used);
        bytes
    }

    #[test]
    fn frames_survive_the_slot() {
        let tensor = TensorDesc::builder(DeviceAddr(0x1000), 64, DType::Float32, &[4, 4]).build().unwrap();
        let needs = [Prerequisite { child: 3, seq: 9 }, Prerequisite { child: 65535, seq: (1 << 48) - 1 }];
        for tensors in 0..8 {
            for scalars in [0, 1, 5] {
                let frame = Frame {
                    program: 7,
                    collectives: 200 + scalars as u8,
                    blocks: [1, 2, Args::MAX_BLOCKS][tensors % 3],
                    prerequisites: &needs[..scalars.min(2)],
                    scalars: &[u64::MAX; 5][..scalars],
                    blob: &[9; 11][..scalars],
                    tensors: &vec![tensor; tensors],
                    ..Frame::new(Kind::Task, 42)
                };
                let mut read = ReceivedFrame::default();
                decode(&mut read, &bytes_of(&frame));
                assert_eq!((read.kind, read.run, read.program), (Some(Kind::Task), 42, 7));
                assert_eq!((read.collectives, read.blocks), (frame.collectives, frame.blocks));
                assert_eq!(read.prerequisites, frame.prerequisites);
                assert_eq!(read.scalars, frame.scalars);
                assert_eq!(read.blob, frame.blob);
                assert_eq!(read.tensors, frame.tensors);
            }
        }
    }

    #[test]
    fn f35_a_command_that_does_not_fit_is_refused() {
        let blob = vec![0; SLOT_BYTES];
        let frame = Frame { blob: &blob, ..Frame::new(Kind::Register, 1) };
        let refused = frame.write_body(|_, _| panic!("nothing is written")).unwrap_err();
        let said = &refused.message;
        assert!(
            said.starts_with("a command of ") && said.contains(" bytes does not fit into a slot of "),
            "{said}"
        );
        assert!(said.ends_with("; use shorter names and paths"), "{said}");
    }

    #[test]
    fn f70_the_largest_task_and_the_longest_wait_fill_a_slot() {
        let tensor = TensorDesc::builder(DeviceAddr(0x1000), 64, DType::Float32, &[4, 4]).build().unwrap();
        let needs = vec![Prerequisite { child: 3, seq: 9 }; MOST_PREREQUISITES];
        let task = Frame {
            prerequisites: &needs[..INLINE_PREREQUISITES],
            scalars: &[7; Args::MAX_SCALARS],
            tensors: &[tensor; Args::MAX_TENSORS],
            ..Frame::new(Kind::Task, 1)
        };
        let wait = Frame { prerequisites: &needs, ..Frame::new(Kind::Wait, 1) };
        for frame in [task, wait] {
            let (bytes, mut read) = (bytes_of(&frame), ReceivedFrame::default());
            assert_eq!(bytes.len(), SLOT_BYTES);
            decode(&mut read, &bytes);
            assert_eq!((read.kind, &read.prerequisites[..]), (Some(frame.kind), frame.prerequisites));
            assert_eq!((&read.scalars[..], &read.tensors[..]), (frame.scalars, frame.tensors));
        }
    }

    #[test]
    fn f29_a_frame_with_no_blocks_or_too_many_is_malformed() {
        for (blocks, kind) in [(0, None), (1, Some(Kind::Task)), (Args::MAX_BLOCKS + 1, None)] {
            let mut read = ReceivedFrame::default();
            decode(&mut read, &bytes_of(&Frame { blocks, ..Frame::new(Kind::Task, 1) }));
            assert_eq!(read.kind, kind, "{blocks} blocks");
        }
    }

    #[test]
    fn a_small_task_is_one_cache_line() {
        let needs = [Prerequisite { child: 0, seq: 1 }; 2];
        let frame = Frame { prerequisites: &needs, scalars: &[1, 2], ..Frame::new(Kind::Task, 1) };
        assert_eq!(bytes_of(&frame).len(), 64);
    }

    #[test]
    fn f29_any_bytes_decode_to_a_frame_or_to_none() {
        let mut random = 1_u64;
        let mut read = ReceivedFrame::default();
        for round in 0..20_000 {
            let mut bytes = vec![0; round % (SLOT_BYTES + 1)];
            for byte in &mut bytes {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (random >> 56) as u8;
            }
            if let Some(counts) = bytes.get_mut(22..32) {
                // Mostly small counts, or nothing would ever fit; of blocks too.
                counts.iter_mut().skip(1).step_by(2).for_each(|byte| *byte = 0);
            }
            decode(&mut read, &bytes);
        }
    }
}
