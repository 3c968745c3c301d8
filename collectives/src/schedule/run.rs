//! A plan under way on this rank.
//!
//! # Safety
//! Pointers come from four places. Input and output: the caller promised that both are valid for the whole tensor, and that they are the same
//! or apart; chunks of a [`Cut`] lie within it. Private rooms: in a buffer of this rank that has room for all of them. Rooms in
//! windows: in a half, which holds as many rooms as the plan has for any rank, by [`Sizes::new`]. That nobody writes a room while
//! another reads it was checked when the plan was made ([`check`](super::check)), and that no earlier or later step uses the half is what
//! the steps of the group say.
#![allow(unsafe_code)]

use super::code::{Instr, Place};
use super::{Passing, Plan, Plans};
use crate::element::{DType, Element, Op};
use crate::engine::{Blocked, Clock, Engine, Why};
use crate::error::{BadArgument, CollError};
use crate::group::Collectives;
use crate::moves::UpTo64;
use crate::plan::Setting;
use crate::request::mix;
use ccl_schedule::Cut;
use core::ptr;
use fault_points::fault_point;
use mailbox_atomics::{Halves, RECORD_WORDS, Use};

/// The kind of a plan in a record; no [`Kind`](crate::Kind) has this code.
pub(crate) const RECORD_KIND: u8 = 0x40;

/// Rooms begin at multiples of so many bytes: no two ranks use one cache line.
const ALIGN: usize = 128;
/// Tensors whose cut is remembered.
const REMEMBERED: usize = 16;

/// What a group keeps of its plans between calls.
pub(crate) struct Runner {
    plans: Plans,
    /// The stamps of all plans so far; the same on all ranks.
    base: u64,
    /// The last stamp seen of every rank.
    seen: Box<[u64]>,
    privates: Vec<u8>,
    /// How tensors of the last sizes are cut, the last one first.
    sizes: Vec<Sizes>,
}

impl Runner {
    pub(crate) fn new(nranks: usize) -> Self {
        let seen = vec![0; nranks].into();
        Self { plans: Plans::default(), base: 0, seen, privates: Vec::new(), sizes: Vec::new() }
    }
}

/// How a tensor goes through a plan: in pieces, each of which has a part of every chunk.
#[derive(Debug)]
struct Sizes {
    /// The plan, the elements, and the bytes of one.
    key: (u64, usize, usize),
    /// First element and length of every chunk.
    chunks: Box<[(usize, usize)]>,
    /// Elements of a chunk in one piece.
    block: usize,
    pieces: usize,
    /// Bytes from one room to the next.
    stride: usize,
}

impl Sizes {
    /// `None` when the rooms do not fit in a half.
    fn new(plan: &Plan, count: usize, size: usize, setting: &Setting) -> Option<Self> {
        let (half, table) = (setting.half, &setting.table);
        let cut = Cut { elems: count as u64, chunks: plan.inner.chunks, elem_bytes: size as u64 };
        let chunks: Box<[_]> =
            (0..cut.chunks).map(|chunk| (cut.start(chunk) as usize, cut.len(chunk) as usize)).collect();
        let (longest, rooms) = (chunks.iter().map(|chunk| chunk.1).max()?, plan.inner.rooms.max(1) as usize);
        let whole = (longest * size).next_multiple_of(ALIGN).saturating_mul(rooms);
        let in_pieces = setting.core_per_rank && whole > table.pieces_from as usize;
        let piece = if in_pieces { (table.piece as usize).min(half) } else { half };
        // Small pieces of many rooms would be more waits than bytes.
        let room = (piece / rooms).max(4096).min(half / rooms) / ALIGN * ALIGN;
        let block = (room / size).min(longest).max(usize::from(room > 0));
        let stride = (block * size).next_multiple_of(ALIGN);
        (room > 0).then(|| Self {
            key: (plan.inner.hash, count, size),
            pieces: longest.div_ceil(block).max(1),
            chunks,
            block,
            stride,
        })
    }

    /// Elements of a chunk in a piece.
    #[inline]
    fn len(&self, chunk: u32, piece: usize) -> usize {
        self.chunks[chunk as usize].1.saturating_sub(piece * self.block).min(self.block)
    }

    /// The first of them.
    #[inline]
    fn start(&self, chunk: u32, piece: usize) -> usize {
        self.chunks[chunk as usize].0 + piece * self.block
    }
}

/// The tensor of a call.
#[derive(Clone, Copy, Debug)]
struct Job {
    input: *const u8,
    output: *mut u8,
    count: usize,
    dtype: DType,
    op: Option<Op>,
}

/// The piece that is under way, and the private rooms.
struct Here<'a> {
    job: &'a Job,
    sizes: &'a Sizes,
    piece: usize,
    half: usize,
    privates: *mut u8,
}

/// The call, for waits.
struct Under {
    number: u64,
    chain: u32,
    note: u16,
    clock: Clock,
}

/// What a record says of a plan: every byte may be another process's.
pub(crate) fn describe(words: &[u64]) -> String {
    let (head, count, hash) = (words[1], words[2], words[4]);
    let name = [words[5].to_le_bytes(), words[6].to_le_bytes()].concat();
    let name: String =
        name.iter().filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect();
    let dtype = DType::from_code((head >> 8) as u8).map_or("?", DType::name);
    let op = Op::from_code((head >> 16) as u8).map_or(String::new(), |op| format!(" {op}"));
    format!("plan {hash:016x} of the schedule {name} {dtype}{op} × {count}")
}

impl Engine<'_> {
    fn begin_plan(&mut self, plan: &Plan, job: &Job) -> (u64, u32) {
        let op = job.op.map_or(0xff, |op| op as u64);
        let head = u64::from(RECORD_KIND) | (job.dtype as u64) << 8 | op << 16;
        let chain = mix(u64::from(self.chain()), head);
        let chain = mix(mix(chain, job.count as u64), plan.inner.hash) as u32;
        let [first, second] = plan.inner.short_name;
        let record: [u64; RECORD_WORDS] =
            [u64::from(chain), head, job.count as u64, self.step, plan.inner.hash, first, second];
        self.begin_on(chain, record)
    }

    fn run_plan(&mut self, plan: &Plan, job: &Job) -> Result<(), CollError> {
        let key = (plan.inner.hash, job.count, job.dtype.size());
        // Out of the engine, so that the call can use both.
        let mut all = core::mem::take(&mut self.runner.sizes);
        let known = match all.iter().position(|sizes| sizes.key == key) {
            Some(at) => Ok(at),
            None => self.new_sizes(plan, key, &mut all),
        };
        let ran = known.and_then(|at| {
            all.swap(0, at);
            self.pieces(plan, job, &all[0]).map_err(|error| self.give_up(error))
        });
        self.runner.sizes = all;
        ran
    }

    /// Cuts a tensor of a size that is not known, and makes room for it.
    #[cold]
    fn new_sizes(
        &mut self,
        plan: &Plan,
        key: (u64, usize, usize),
        all: &mut Vec<Sizes>,
    ) -> Result<usize, CollError> {
        let sizes = Sizes::new(plan, key.1, key.2, &self.setting).ok_or_else(|| BadArgument::PlanRooms {
            name: plan.name().to_owned(),
            rooms: plan.inner.rooms,
            most: self.memory.layout.half / ALIGN,
        })?;
        let privates = plan.inner.codes[self.me].privates as usize * sizes.stride;
        if self.runner.privates.len() < privates {
            self.runner.privates.resize(privates, 0);
        }
        all.truncate(REMEMBERED - 1);
        all.push(sizes);
        Ok(all.len() - 1)
    }

    fn pieces(&mut self, plan: &Plan, job: &Job, sizes: &Sizes) -> Result<(), CollError> {
        let (number, chain) = self.begin_plan(plan, job);
        let privates = self.runner.privates.as_mut_ptr();
        let mut under = Under { number, chain, note: self.note(), clock: Clock::default() };
        for piece in 0..sizes.pieces {
            let (step, half) = (self.step + 1, Halves::of(self.piece));
            self.wait_free(self.halves.last_use(half), number, &mut under.clock)?;
            let used = Use { step, readers: self.progress.others(), acknowledged: false, hash: chain };
            self.halves.set(half, used);
            self.piece_of(plan, &Here { job, sizes, piece, half, privates }, &mut under)?;
            fault_point!("coll.read");
            self.progress.finish(step);
            (self.step, self.piece) = (step, self.piece + 1);
            self.runner.base += u64::from(plan.inner.publishes);
        }
        if self.setting.core_per_rank {
            self.progress.prepare_stamp();
            let bytes = plan.inner.codes[self.me].rooms as usize * sizes.stride;
            if bytes <= self.setting.table.prefetch as usize {
                mailbox_atomics::prefetch_to_write(self.memory.half(self.me, Halves::of(self.piece)), bytes);
            }
        }
        self.progress.notify();
        fault_point!("coll.done");
        Ok(())
    }

    #[inline]
    fn piece_of(&mut self, plan: &Plan, here: &Here<'_>, under: &mut Under) -> Result<(), CollError> {
        let Here { job, sizes, piece, .. } = *here;
        let code = &plan.inner.codes[self.me];
        let (size, base) = (job.dtype.size(), self.runner.base);
        let fold = job.op.and_then(|op| self.kernels.fold(job.dtype, op));
        let mut stamp = base;
        for instr in &code.instrs {
            match *instr {
                Instr::Publish => {
                    stamp += 1;
                    self.progress.publish_stamp(stamp, under.chain, under.note);
                    fault_point!("coll.published");
                }
                Instr::Wait { rank, stamp } => {
                    self.wait_for_stamp(usize::from(rank), base + u64::from(stamp), under)?;
                    fault_point!("coll.observed");
                }
                Instr::Copy { from, to, chunk } => {
                    let len = sizes.len(chunk, piece);
                    let (from, to) = (self.at(here, from), self.at(here, to));
                    if len > 0 && !ptr::eq(from, to) {
                        self.notify_before(len * size);
                        // SAFETY: see the head of the file: both have `len` elements of the chunk, and are apart.
                        unsafe { self.copy_chunk(job.dtype, from, to, len) };
                    }
                }
                Instr::Fold { first, count, to, targets, chunk } => {
                    let len = sizes.len(chunk, piece);
                    if len == 0 {
                        continue;
                    }
                    let Some(fold) = fold else { continue };
                    let mut sources = UpTo64::new();
                    for source in code.sources(first, count) {
                        sources.push(self.at(here, *source).cast_const());
                    }
                    self.notify_before(len * size);
                    let to = to.map(|to| self.at(here, to));
                    // SAFETY: as above; a target is a source element for element, or apart from it.
                    unsafe { fold(sources.get(), &to[..usize::from(targets)], len) };
                }
            }
        }
        Ok(())
    }

    /// Others need not sleep while this rank moves many bytes.
    #[inline]
    fn notify_before(&mut self, bytes: usize) {
        if bytes >= self.setting.table.notify_first as usize {
            self.progress.notify();
        }
    }

    /// Where a place is, in a piece.
    #[inline]
    fn at(&self, here: &Here<'_>, place: Place) -> *mut u8 {
        let Here { job, sizes, piece, half, .. } = *here;
        let size = job.dtype.size();
        match place {
            Place::Input(chunk) => job.input.wrapping_add(sizes.start(chunk, piece) * size).cast_mut(),
            Place::Output(chunk) => job.output.wrapping_add(sizes.start(chunk, piece) * size),
            Place::Private(room) => here.privates.wrapping_add(room as usize * sizes.stride),
            Place::Window { rank, room } => {
                self.memory.half(usize::from(rank), half).wrapping_add(room as usize * sizes.stride)
            }
        }
    }

    /// # Safety
    /// Both are valid for so many elements, and apart. No other process writes the source meanwhile.
    #[inline]
    unsafe fn copy_chunk(&self, dtype: DType, from: *const u8, to: *mut u8, len: usize) {
        if dtype == DType::Bool {
            for at in 0..len {
                // SAFETY: the caller's promise. A byte of another process is made a `bool`.
                unsafe { *to.add(at) = u8::from(*from.add(at) != 0) };
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.copier.copy(from, to, len * dtype.size()) };
        }
    }

    /// Waits for a stamp of a rank, which must be in the same call.
    #[inline]
    fn wait_for_stamp(&mut self, rank: usize, stamp: u64, under: &mut Under) -> Result<(), CollError> {
        while self.runner.seen[rank] < stamp {
            let found = self.progress.stamp(rank);
            if found.stamp < stamp {
                let (word, tag) = self.progress.stamp_word(rank);
                let blocked = Blocked { word, tag, at_least: stamp, rank, why: Why::Step(under.number) };
                self.wait(&blocked, &mut under.clock)?;
                continue;
            }
            // A later label is of a call that the rank makes after this one.
            if found.hash != under.chain && !self.makes_the_same(rank, under.number) {
                return Err(self.mismatch(rank, under.number));
            }
            self.runner.seen[rank] = found.stamp;
            self.seen_on[rank] = found.note;
            self.progress.came_to(rank, self.step + 1);
        }
        Ok(())
    }
}

impl Collectives<'_> {
    /// The plan of a schedule of the library for this group; made once, and kept.
    ///
    /// ```
    /// # use collectives::{Collectives, Op, Options, Passing};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("plan-{}", std::process::id()));
    /// // What each of three ranks does.
    /// let rank = |group: &Collectives<'_>| -> Result<(), Error> {
    ///     let ring = group.plan("ring_accumulate", Passing::Reference)?;
    ///     let mut sums = vec![group.rank() as f32; 1000];
    ///     group.run_plan(&ring, &mut sums, Some(Op::Sum))?;
    ///     assert_eq!(sums, [3.0; 1000]);
    ///     // A name that there is none of is refused before a peer knows of it.
    ///     assert!(group.plan("rings", Passing::Reference).is_err());
    ///     Ok(())
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 3)?, Timeout::DEFAULT)?;
    /// #     let group = Collectives::new(&comm, Options::new())?;
    /// #     rank(&group)?;
    /// #     Ok(group.close()?)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..3).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn plan(&self, name: &str, passing: Passing) -> Result<Plan, CollError> {
        let ranks = self.nranks() as u32;
        Ok(self.enter()?.runner.plans.get(name, ranks, passing)?)
    }

    /// Runs a plan on a tensor in place: every rank passes the whole tensor, of which its goal says which chunks count at the start and
    /// at the end. All other chunks are not defined afterwards.
    pub fn run_plan<T: Element>(
        &self,
        plan: &Plan,
        tensor: &mut [T],
        op: Option<Op>,
    ) -> Result<(), CollError> {
        let at = tensor.as_mut_ptr();
        let job = Job {
            input: at.cast_const().cast(),
            output: at.cast(),
            count: tensor.len(),
            dtype: T::DTYPE,
            op,
        };
        self.run_job(plan, &job)
    }

    /// The same from one tensor to another.
    pub fn run_plan_into<T: Element>(
        &self,
        plan: &Plan,
        input: &[T],
        output: &mut [T],
        op: Option<Op>,
    ) -> Result<(), CollError> {
        let (have, need) = (output.len(), input.len());
        if have != need {
            return Err(BadArgument::Length { what: "output", have, need }.into());
        }
        let output = output.as_mut_ptr().cast();
        self.run_job(plan, &Job { input: input.as_ptr().cast(), output, count: need, dtype: T::DTYPE, op })
    }

    /// The same in raw parts.
    ///
    /// # Safety
    /// Input and output are valid for `count` elements, and the same or apart; nobody else writes them, or reads the output, meanwhile.
    pub unsafe fn run_plan_raw(
        &self,
        plan: &Plan,
        input: *const u8,
        output: *mut u8,
        count: usize,
        dtype: DType,
        op: Option<Op>,
    ) -> Result<(), CollError> {
        let bytes = count.checked_mul(dtype.size()).filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or(BadArgument::TooManyBytes { count, dtype, blocks: 1 })?;
        let (from, to) = (input.addr(), output.addr());
        match () {
            () if bytes > 0 && input.is_null() => return Err(BadArgument::Null { what: "input" }.into()),
            () if bytes > 0 && output.is_null() => return Err(BadArgument::Null { what: "output" }.into()),
            () if from != to && from.abs_diff(to) < bytes => return Err(BadArgument::Overlap.into()),
            () => {}
        }
        self.run_job(plan, &Job { input, output, count, dtype, op })
    }

    fn run_job(&self, plan: &Plan, job: &Job) -> Result<(), CollError> {
        let name = || plan.name().to_owned();
        if plan.ranks() != self.nranks() {
            let (ranks, nranks) = (plan.ranks(), self.nranks());
            return Err(BadArgument::PlanRanks { name: name(), ranks, nranks }.into());
        }
        match job.op {
            Some(op) if !op.applies_to(job.dtype) => {
                return Err(BadArgument::Operation { op, dtype: job.dtype }.into());
            }
            Some(op) if plan.combines() && plan.allows(op) => {}
            None if !plan.combines() => {}
            None => return Err(BadArgument::PlanOperation { name: name() }.into()),
            Some(_) if !plan.combines() => return Err(BadArgument::PlanMoves { name: name() }.into()),
            Some(_) => return Err(BadArgument::PlanAverage { name: name() }.into()),
        }
        if let Some(device) = self.device() {
            device?;
            let why = "the devices' engine has its own schedules; make the call itself".to_owned();
            return Err(CollError::Unsupported { call: format!("plan {}", plan.name()), why });
        }
        let mut engine = self.enter()?;
        engine.check()?;
        if !engine.queue.is_empty() {
            engine.wait_for_all()?;
        }
        engine.run_plan(plan, job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    #[test]
    fn pieces_cover_every_chunk_and_rooms_fit_in_a_half() {
        for (name, ranks) in
            [("direct_one_shot", 2), ("direct_two_shot", 7), ("ring_accumulate", 5), ("all_to_all", 4)]
        {
            let plan = Plan::named(name, ranks, Passing::Value { slots: 2 }).unwrap();
            for count in [0, 1, 5, 1000, 300_001, 4 << 20] {
                for (size, half, cores) in [(1, 256 << 10, false), (8, 1 << 20, true)] {
                    let setting = Setting::new(ranks as usize, half, cores, Table::default());
                    let sizes = Sizes::new(&plan, count, size, &setting).unwrap();
                    assert!(sizes.stride * plan.inner.rooms as usize <= half, "{sizes:?}");
                    for chunk in 0..plan.chunks() {
                        let len: usize = (0..sizes.pieces).map(|piece| sizes.len(chunk, piece)).sum();
                        assert_eq!(len, sizes.chunks[chunk as usize].1, "{name} {count}");
                        assert!(sizes.block * size <= sizes.stride);
                    }
                }
            }
        }
        let plan = Plan::named("direct_two_shot", 16, Passing::Reference).unwrap();
        let setting = Setting::new(16, 1024, true, Table::default());
        assert!(Sizes::new(&plan, 1000, 4, &setting).is_none(), "16 rooms of 128 bytes do not fit in 1024");
    }

    #[test]
    fn a_plan_is_described_from_its_record() {
        let plan = Plan::named("direct_one_shot", 2, Passing::Reference).unwrap();
        let [first, second] = plan.inner.short_name;
        let head = u64::from(RECORD_KIND) | (DType::F32 as u64) << 8 | (Op::Sum as u64) << 16;
        let text = describe(&[0, head, 1024, 0, plan.hash(), first, second]);
        assert_eq!(text, format!("plan {:016x} of the schedule direct_one_shot f32 sum × 1024", plan.hash()));
        assert!(describe(&[0, 0xffff_ffff, 1, 0, 0, u64::MAX, 7]).contains("of the schedule  ?"));
    }
}
