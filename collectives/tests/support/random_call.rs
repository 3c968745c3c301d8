//! One random call, the same on all ranks of a group: its buffers, in a window or not, in place or not, and what must come out.
//!
//! # Safety
//! Makes calls in raw parts. A [`Made`] owns every buffer of its request, and lives until the call is over.
#![allow(dead_code, unreachable_pub, unsafe_code)]

use super::support::{Number, Random, elements, reduced};
use crate::with_type;
use collectives::{CollError, Collectives, DType, Kind, Op, Request, Shared, Ticket};
use std::ptr::NonNull;

/// A collective, or a message from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Call(Kind),
    Message { to: usize, tag: u32 },
}

/// One call, the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub group: usize,
    what: What,
    dtype: DType,
    op: Op,
    /// Elements of the whole, or of a block; at most so many where every rank has a count of its own.
    count: usize,
    /// Or who sends.
    root: usize,
    seed: u64,
}

impl Step {
    /// Of at most `most` bytes on a rank, mostly far less.
    pub fn new(random: &mut Random, sizes: &[usize], most: usize) -> Self {
        let group = random.below(sizes.len());
        let nranks = sizes[group];
        let root = random.below(nranks);
        let kind = random.below(Kind::ALL.len() + 3);
        let what = match Kind::ALL.get(kind) {
            Some(kind) => What::Call(*kind),
            None if nranks == 1 => What::Call(Kind::Barrier),
            None => {
                let to = (root + 1 + random.below(nranks - 1)) % nranks;
                What::Message { to, tag: random.below(3) as u32 }
            }
        };
        let dtype = DType::ALL[random.below(DType::ALL.len())];
        let ops: Vec<Op> = Op::ALL.iter().copied().filter(|op| op.applies_to(dtype)).collect();
        let op = ops[random.below(ops.len())];
        let limit = match random.below(64) {
            0..30 => 64,
            30..50 => 1200,
            50..62 => 16_000,
            _ => most,
        };
        let blocks = match what {
            What::Call(Kind::AllReduce | Kind::Reduce | Kind::Broadcast) | What::Message { .. } => 1,
            _ => nranks,
        };
        let count = random.below(limit.min(most) + 1) / dtype.size() / blocks;
        Self { group, what, dtype, op, count, root, seed: random.next() >> 8 }
    }

    /// Whether `rank` has a part in it.
    pub fn is_for(&self, rank: usize) -> bool {
        match self.what {
            What::Call(_) => true,
            What::Message { to, .. } => rank == self.root || rank == to,
        }
    }

    /// A count for each rank.
    fn counts(&self, nranks: usize, row: u64) -> Vec<usize> {
        let mut random = Random::new(self.seed ^ (row + 1) << 32);
        (0..nranks).map(|_| random.below(self.count + 1)).collect()
    }
}

/// What one rank gives and expects.
struct Part {
    input: Vec<u8>,
    wanted: Vec<u8>,
    counts: Vec<usize>,
    receive: Vec<usize>,
}

fn bytes<T: Number>(elements: &[T]) -> Vec<u8> {
    elements.iter().flat_map(|one| one.bits().to_le_bytes().into_iter().take(size_of::<T>())).collect()
}

impl Part {
    fn new<T: Number>(step: &Step, me: usize, nranks: usize) -> Self {
        let Step { what, op, count, root, seed, .. } = *step;
        let of_all = |counts: &dyn Fn(usize) -> usize| -> Vec<Vec<T>> {
            (0..nranks).map(|rank| elements(seed, rank, counts(rank))).collect()
        };
        let equal = |blocks: usize| of_all(&|_| count * blocks);
        let block = |of: &[T]| of[me * count..][..count].to_vec();
        let at_root = |wanted: Vec<T>| if me == root { wanted } else { Vec::new() };
        let (mut counts, mut receive) = (Vec::new(), Vec::new());
        let (input, wanted) = match what {
            What::Message { .. } => {
                let sent = elements::<T>(seed, root, count);
                if me == root { (sent, Vec::new()) } else { (Vec::new(), sent) }
            }
            What::Call(Kind::Barrier) => (Vec::new(), Vec::new()),
            What::Call(kind @ (Kind::AllReduce | Kind::Reduce)) => {
                let all = equal(1);
                let wanted =
                    if kind == Kind::AllReduce || me == root { reduced(op, &all) } else { Vec::new() };
                (all[me].clone(), wanted)
            }
            What::Call(Kind::AllGather) => (elements(seed, me, count), equal(1).concat()),
            What::Call(Kind::Gather) => (elements(seed, me, count), at_root(equal(1).concat())),
            What::Call(Kind::Broadcast) => (elements(seed, me, count), elements(seed, root, count)),
            What::Call(Kind::Scatter) => {
                let all = elements(seed, root, count * nranks);
                (at_root(all.clone()), block(&all))
            }
            What::Call(Kind::ReduceScatter) => {
                let all = equal(nranks);
                (all[me].clone(), block(&reduced(op, &all)))
            }
            What::Call(Kind::AllToAll) => {
                let all = equal(nranks);
                (all[me].clone(), all.iter().flat_map(|from| block(from)).collect())
            }
            What::Call(Kind::AllGatherV) => {
                counts = step.counts(nranks, 0);
                let all = of_all(&|rank| counts[rank]);
                (all[me].clone(), all.concat())
            }
            What::Call(Kind::ReduceScatterV) => {
                counts = step.counts(nranks, 0);
                let all = of_all(&|_| counts.iter().sum());
                let before: usize = counts[..me].iter().sum();
                (all[me].clone(), reduced(op, &all)[before..][..counts[me]].to_vec())
            }
            What::Call(Kind::AllToAllV) => {
                let rows: Vec<Vec<usize>> = (0..nranks).map(|row| step.counts(nranks, row as u64)).collect();
                let all = of_all(&|rank| rows[rank].iter().sum());
                let wanted = all
                    .iter()
                    .zip(&rows)
                    .flat_map(|(from, row)| from[row[..me].iter().sum()..][..row[me]].to_vec());
                let wanted = wanted.collect();
                receive = rows.iter().map(|row| row[me]).collect();
                counts.clone_from(&rows[me]);
                (all[me].clone(), wanted)
            }
        };
        Self { input: bytes(&input), wanted: bytes(&wanted), counts, receive }
    }
}

/// Bytes of this process, or of its window.
enum Memory<'g, 'c> {
    Own(Vec<u64>),
    Window(&'g Collectives<'c>, NonNull<u8>),
}

impl<'g, 'c> Memory<'g, 'c> {
    fn new(group: &'g Collectives<'c>, bytes: usize, window: bool) -> Self {
        // Where the pool is full, other memory does: the place may differ between ranks.
        match window.then(|| group.alloc_raw(bytes)) {
            Some(Ok(at)) => Self::Window(group, at),
            _ => Self::Own(vec![0; bytes.div_ceil(8)]),
        }
    }

    fn at(&mut self) -> *mut u8 {
        match self {
            Self::Own(words) => words.as_mut_ptr().cast(),
            Self::Window(_, at) => at.as_ptr(),
        }
    }

    fn is_window(&self) -> bool {
        matches!(self, Self::Window(..))
    }
}

impl Drop for Memory<'_, '_> {
    fn drop(&mut self) {
        if let Self::Window(group, at) = self {
            // SAFETY: the call is over, or its group has failed, and then the memory is not given to anybody else.
            let _ = unsafe { group.free_raw(*at) };
        }
    }
}

/// A call with its buffers, as one rank makes it.
pub struct Made<'g, 'c> {
    pub step: Step,
    group: &'g Collectives<'c>,
    part: Part,
    request: Request,
    /// One where the call is in place.
    _memory: Vec<Memory<'g, 'c>>,
    in_place: bool,
}

impl<'g, 'c> Made<'g, 'c> {
    /// `own` says what may differ between ranks: the place, and whether it is the same for input and output.
    pub fn new(step: Step, group: &'g Collectives<'c>, own: &mut Random) -> Self {
        let (me, nranks) = (group.rank(), group.nranks());
        let part = with_type!(step.dtype, T => Part::new::<T>(&step, me, nranks));
        let (size, own_block) = (step.dtype.size(), me * step.count * step.dtype.size());
        let kind = match step.what {
            What::Call(kind) => kind,
            What::Message { .. } => Kind::Barrier,
        };
        let is_root = me == step.root;
        // Where input and output begin, in one buffer.
        let offsets = match kind {
            Kind::AllReduce | Kind::Broadcast => Some((0, 0)),
            Kind::Reduce if is_root => Some((0, 0)),
            Kind::AllGather => Some((own_block, 0)),
            Kind::Gather if is_root => Some((own_block, 0)),
            Kind::AllGatherV => Some((part.counts[..me].iter().sum::<usize>() * size, 0)),
            Kind::Scatter if is_root => Some((0, own_block)),
            Kind::ReduceScatter => Some((0, own_block)),
            Kind::ReduceScatterV => Some((0, part.counts[..me].iter().sum::<usize>() * size)),
            _ => None,
        };
        let offsets = offsets.filter(|_| kind == Kind::Broadcast || own.below(2) == 0);
        let (give, take) = (part.input.len(), part.wanted.len());
        let (memory, input, output) = match offsets {
            Some((from, to)) => {
                let mut one = Memory::new(group, give.max(take), own.below(2) == 0);
                let at = one.at();
                (vec![one], at.wrapping_add(from), at.wrapping_add(to))
            }
            None => {
                let mut two = [give, take].map(|bytes| Memory::new(group, bytes, own.below(3) > 0));
                let [input, output] = two.each_mut().map(Memory::at);
                (Vec::from(two), input, output)
            }
        };
        // SAFETY: the memory has room for both, and nobody else knows of it.
        unsafe {
            output.write_bytes(0x5a, take);
            input.copy_from_nonoverlapping(part.input.as_ptr(), give);
        }
        let reduces =
            matches!(kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter | Kind::ReduceScatterV);
        let rooted = matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter);
        let shared = match (memory.iter().all(Memory::is_window), memory[0].is_window()) {
            (true, _) if kind == Kind::AllReduce => Shared::Both,
            (_, true) => Shared::Input,
            _ => Shared::Nothing,
        };
        let list = |counts: &Vec<usize>| if counts.is_empty() { std::ptr::null() } else { counts.as_ptr() };
        let request = Request {
            kind,
            dtype: step.dtype,
            op: reduces.then_some(step.op),
            root: if rooted { step.root as u32 } else { 0 },
            count: if part.counts.is_empty() { step.count } else { 0 },
            counts: list(&part.counts),
            receive_counts: list(&part.receive),
            input,
            output,
            shared: if own.below(4) == 0 { Shared::Nothing } else { shared },
        };
        Self { step, group, part, request, _memory: memory, in_place: offsets.is_some() }
    }

    fn named<T>(&self, result: Result<T, CollError>) -> Result<T, String> {
        result.map_err(|error| format!("{:?}: {error}", self.step))
    }

    pub fn start(&self) -> Result<Ticket, String> {
        let Request { input, output, .. } = self.request;
        let Step { count, dtype, root, .. } = self.step;
        // SAFETY: the buffers are as long as the request says, and live as long as `self`; so do those of a message.
        self.named(unsafe {
            match self.step.what {
                What::Call(_) => self.group.start_raw(self.request),
                What::Message { to, tag } if self.group.rank() == root => {
                    self.group.start_send_raw(input, count, dtype, to, tag)
                }
                What::Message { tag, .. } => self.group.start_recv_raw(output, count, dtype, root, tag),
            }
        })
    }

    /// Makes the call, and looks at the result.
    pub fn run(self) -> Result<(), String> {
        match self.step.what {
            What::Message { .. } => {
                let ticket = self.start()?;
                self.finish(ticket)
            }
            What::Call(_) => {
                // SAFETY: as in `start`.
                self.named(unsafe { self.group.run_raw(self.request) })?;
                self.check()
            }
        }
    }

    pub fn test(&self, ticket: Ticket) -> Result<bool, String> {
        self.named(self.group.test_raw(ticket))
    }

    /// Waits for the call, and looks at the result.
    pub fn finish(self, ticket: Ticket) -> Result<(), String> {
        self.named(self.group.wait_raw(ticket))?;
        self.check()
    }

    /// The call is over: the result is right, the input is as it was, and both may be overwritten.
    fn check(&self) -> Result<(), String> {
        let Request { input, output, .. } = self.request;
        let (give, take) = (&self.part.input, &self.part.wanted);
        let given = if self.in_place { Vec::new() } else { copy_of(input, give.len()) };
        let taken = copy_of(output, take.len());
        // SAFETY: the buffers are ours again. Whoever still reads them now gets something wrong.
        unsafe {
            input.cast_mut().write_bytes(0xa5, give.len());
            output.write_bytes(0xa5, take.len());
        }
        self.compare("output", &taken, take)?;
        if self.in_place { Ok(()) } else { self.compare("input", &given, give) }
    }

    fn compare(&self, what: &str, got: &[u8], wanted: &[u8]) -> Result<(), String> {
        let Some(at) = got.iter().zip(wanted).position(|(got, wanted)| got != wanted) else { return Ok(()) };
        let (size, of) = (self.step.dtype.size(), wanted.len());
        let Request { shared, .. } = self.request;
        let place = if self.in_place { "in place" } else { "out of place" };
        let line = |bytes: &[u8]| bytes[at / size * size..][..size].to_vec();
        Err(format!(
            "{:?}, rank {}, {place}, {shared:?} shared: {what} differs at element {} of {}: {:x?}, not {:x?}",
            self.step,
            self.group.rank(),
            at / size,
            of / size,
            line(got),
            line(wanted),
        ))
    }
}

fn copy_of(at: *const u8, len: usize) -> Vec<u8> {
    let mut copy = vec![0; len];
    // SAFETY: a buffer of a call that is over, of so many bytes.
    unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(at, len) };
    copy
}
