//! How the bytes of a call move: into the staging area, out of it, and from window to window.
//!
//! # Safety
//! Pointers come from three places. Those of the request: the caller of the group promised that they are valid for what the call reads and
//! writes, and [`Request::check`] that no sum of offsets overflows. Halves: inside windows, and [`Plan`](crate::plan::Plan) keeps every
//! piece within a half. Pools of other ranks: checked where they are used ([`Memory::in_pool_of`](crate::memory::Memory::in_pool_of)). That nobody writes
//! what is read here is what the steps of the protocol say: a half or a tensor is read only after its rank published the step, and
//! written again only when this rank has finished it.
#![allow(unsafe_code)]

use crate::call::{Call, Place};
use crate::element::DType;
use crate::engine::Engine;
use crate::error::CollError;
use crate::fold_ahead::fold_ahead;
use crate::layout::{self, in_generation};
use crate::memory::take_over;
use crate::plan::{Shape, slice};
use crate::request::{CallText, Kind, Request, Shared};
use core::mem::MaybeUninit;
use core::ptr;
use mailbox_atomics::{Halves, INLINE_WORDS};
use std::ops::Range;

/// Up to 64 values, one for each rank, of which as many are initialized as there are.
pub(crate) struct UpTo64<T> {
    all: [MaybeUninit<T>; 64],
    len: usize,
}

impl<T: Copy> UpTo64<T> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { all: [const { MaybeUninit::uninit() }; 64], len: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        self.all[self.len] = MaybeUninit::new(value);
        self.len += 1;
    }

    #[inline]
    pub(crate) fn get(&self) -> &[T] {
        // SAFETY: the first `len` are initialized.
        unsafe { core::slice::from_raw_parts(self.all.as_ptr().cast(), self.len) }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.all.as_mut_ptr().cast(), self.len) }
    }
}

/// Element `rank` of a list of counts; 0 where there is none.
pub(crate) fn count_at(counts: *const usize, rank: usize) -> usize {
    // SAFETY: a list that is not null has one count for each rank: the caller's promise.
    if counts.is_null() { 0 } else { unsafe { counts.add(rank).read() } }
}

/// The largest count of a list.
pub(crate) fn largest_count(request: &Request, nranks: usize) -> usize {
    (0..nranks).map(|rank| count_at(request.counts, rank)).max().unwrap_or(0)
}

/// Where this rank's input and output lie, if all of them in its pool.
#[inline]
pub(crate) fn own_places(engine: &Engine<'_>, request: &Request) -> [Place; 2] {
    let (nranks, root) = (engine.nranks(), engine.me == request.root as usize);
    let elements = match request.kind {
        Kind::AllReduce | Kind::Reduce => request.count,
        Kind::Broadcast if root => request.count,
        Kind::AllGather | Kind::Gather => request.count,
        Kind::AllGatherV => count_at(request.counts, engine.me),
        Kind::ReduceScatter | Kind::AllToAll => request.count * nranks,
        Kind::ReduceScatterV => (0..nranks).map(|rank| count_at(request.counts, rank)).sum(),
        Kind::Scatter if root => request.count * nranks,
        Kind::Broadcast | Kind::Scatter | Kind::Barrier | Kind::AllToAllV => return [0; 2],
    };
    let bytes = elements * request.dtype.size();
    let place = |at: *const u8| engine.memory.pool_offset(at, bytes).map_or(0, |offset| offset as u64 + 1);
    match (request.shared, request.kind) {
        (Shared::Nothing, _) => [0; 2],
        (Shared::Both, Kind::AllReduce) => [place(request.input), place(request.output)],
        _ => [place(request.input), 0],
    }
}

impl Call {
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.request.dtype.size()
    }

    /// Copies `elements` from shared memory, or from the caller's own, to the caller's output.
    ///
    /// # Safety
    /// Both are valid for so many elements, and apart.
    #[inline]
    unsafe fn copy_out(&self, from: *const u8, to: *mut u8, elements: usize) {
        if self.request.dtype == DType::Bool {
            for at in 0..elements {
                // SAFETY: the caller's promise. A byte of another process is made a `bool`.
                unsafe { *to.add(at) = u8::from(*from.add(at) != 0) };
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.copier.copy(from, to, elements * self.size()) };
        }
    }

    /// Copies `elements` of the caller's input to shared memory.
    ///
    /// # Safety
    /// Both are valid for so many elements, and apart.
    #[inline]
    unsafe fn copy_in(&self, from: *const u8, to: *mut u8, elements: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.copier.copy(from, to, elements * self.size()) };
    }

    /// The caller's input from element `at` on.
    #[inline]
    fn input(&self, at: usize) -> *const u8 {
        self.request.input.wrapping_add(at * self.size())
    }

    /// The caller's output from element `at` on.
    #[inline]
    fn output(&self, at: usize) -> *mut u8 {
        self.request.output.wrapping_add(at * self.size())
    }

    /// The elements of piece `piece` of a block of `count`.
    #[inline]
    fn elements(&self, piece: u64, count: usize) -> Range<usize> {
        let start = (piece as usize).saturating_mul(self.plan.block).min(count);
        start..(start + self.plan.block).min(count)
    }

    /// Elements of the block of `rank`.
    #[inline]
    fn count_of(&self, rank: usize) -> usize {
        if self.request.counts.is_null() { self.request.count } else { count_at(self.request.counts, rank) }
    }

    /// Where the block of `rank` starts in a buffer that holds all ranks' blocks.
    #[inline]
    fn start_of(&self, rank: usize) -> usize {
        if self.request.counts.is_null() {
            rank * self.request.count
        } else {
            (0..rank).map(|rank| count_at(self.request.counts, rank)).sum()
        }
    }

    /// The half that holds `piece`, of rank `rank`.
    #[inline]
    fn half(&self, engine: &Engine<'_>, rank: usize, piece: u64) -> *mut u8 {
        engine.memory.half(rank, Halves::of(self.first_piece + piece))
    }

    /// Bytes of that half, to read them.
    #[inline]
    fn staged(&self, engine: &Engine<'_>, rank: usize, piece: u64, bytes: Range<usize>) -> *const u8 {
        engine.memory.staged(rank, Halves::of(self.first_piece + piece), bytes)
    }

    /// Whether each rank's block is cut, and not the whole: a piece then holds a part of every block.
    #[inline]
    fn has_blocks(&self) -> bool {
        matches!(
            self.request.kind,
            Kind::ReduceScatter | Kind::ReduceScatterV | Kind::AllToAll | Kind::Scatter
        )
    }

    /// With one rank there is nothing but a copy.
    pub(crate) fn copy_alone(&mut self) {
        let elements = match self.request.kind {
            Kind::Barrier => 0,
            Kind::AllToAllV => count_at(self.request.counts, 0),
            _ => self.count_of(0),
        };
        if elements == 0 {
            return;
        }
        // SAFETY: input and output are valid for so many elements; they are the same, or apart.
        unsafe {
            match self.fold {
                // Also of one rank: NaNs and logical values come out as they do of several.
                Some(fold) => fold(&[self.request.input], &[self.request.output], elements),
                None if ptr::eq(self.request.input, self.request.output) => {}
                None => self.copy_out(self.request.input, self.request.output, elements),
            }
        }
    }

    /// Packs this rank's part into the payload of a step. Returns how many words that are.
    #[inline]
    pub(crate) fn pack(&self, engine: &Engine<'_>, payload: &mut [u64; INLINE_WORDS]) -> usize {
        let elements = match self.request.kind {
            Kind::Barrier => 0,
            Kind::AllGatherV => count_at(self.request.counts, engine.me),
            _ if self.has_blocks() => self.request.count * engine.nranks(),
            _ => self.request.count,
        };
        let bytes = elements * self.size();
        if bytes == 0 {
            return 0;
        }
        debug_assert!(bytes <= layout::INLINE);
        // SAFETY: the plan put at most 48 bytes inline, which the input has and the payload has room for.
        unsafe { ptr::copy_nonoverlapping(self.request.input, payload.as_mut_ptr().cast(), bytes) };
        bytes.div_ceil(8)
    }

    /// Takes the payloads of a step.
    #[inline]
    pub(crate) fn take_inline(&mut self, engine: &mut Engine<'_>, step: u64) {
        let (nranks, me, root) = (engine.nranks(), engine.me, self.request.root as usize);
        let count = self.count_of(me);
        let mut copies = [const { MaybeUninit::<[u64; INLINE_WORDS]>::uninit() }; 64];
        // The bytes that `rank` gave, from element `at` on.
        let mut of = |rank: usize, at: usize| -> *const u8 {
            if rank == me {
                return self.input(at);
            }
            let copy = copies[rank].write([0; INLINE_WORDS]);
            engine.progress.payload(rank, step, copy);
            copy.as_ptr().cast::<u8>().wrapping_add(at * self.size())
        };
        // SAFETY: the payloads hold what the plan put there, at most 48 bytes of which all are copied; input and output are the
        // caller's, who promised their lengths.
        unsafe {
            match self.request.kind {
                Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce => {
                    if self.request.kind == Kind::Reduce && me != root {
                        return;
                    }
                    let at = if self.has_blocks() { me * count } else { 0 };
                    let mut sources = UpTo64::new();
                    (0..nranks).for_each(|rank| sources.push(of(rank, at)));
                    if let Some(fold) = self.fold {
                        fold(sources.get(), &[self.request.output], count);
                    }
                }
                Kind::Broadcast if me != root => self.copy_out(of(root, 0), self.output(0), count),
                Kind::AllGather | Kind::AllGatherV => {
                    for rank in 0..nranks {
                        self.copy_own(of(rank, 0), self.output(self.start_of(rank)), self.count_of(rank));
                    }
                }
                Kind::Gather if me == root => {
                    for rank in 0..nranks {
                        self.copy_own(of(rank, 0), self.output(rank * count), count);
                    }
                }
                Kind::AllToAll => {
                    for rank in 0..nranks {
                        self.copy_own(of(rank, me * count), self.output(rank * count), count);
                    }
                }
                Kind::Scatter => self.copy_own(of(root, me * count), self.output(0), count),
                _ => {}
            }
        }
    }

    /// [`copy_out`](Self::copy_out), unless it is there already.
    ///
    /// # Safety
    /// Both are valid for so many elements, and apart or the same.
    #[inline]
    unsafe fn copy_own(&self, from: *const u8, to: *mut u8, elements: usize) {
        if !ptr::eq(from, to) {
            // SAFETY: the caller's promise.
            unsafe { self.copy_out(from, to, elements) };
        }
    }

    /// Fills a half with piece `piece`.
    #[inline]
    pub(crate) fn fill(&mut self, engine: &mut Engine<'_>, piece: u64, half: usize) {
        let (me, nranks) = (engine.me, engine.nranks());
        let to = engine.memory.half(me, half);
        // SAFETY: the piece fits in the half by its plan; the input has the elements by the caller's promise; a window is apart from
        // the caller's memory, and a pool from the halves.
        unsafe {
            match (self.plan.shape, self.request.kind) {
                (Shape::Matrix, _) if piece == 0 => {
                    for rank in 0..nranks {
                        let count = count_at(self.request.counts, rank) as u64;
                        to.cast::<u64>().add(rank).write(count);
                    }
                }
                (Shape::Matrix, _) => {
                    for rank in (0..nranks).filter(|rank| *rank != me) {
                        let part = self.elements(piece - 1, count_at(self.request.counts, rank));
                        let at = to.add(rank * self.plan.block * self.size());
                        self.copy_in(self.input(self.start_of(rank) + part.start), at, part.len());
                    }
                }
                (Shape::Slices, kind) => {
                    let part = self.elements(piece, self.request.count);
                    // Its own slice it reduces from where it stands. A root of a reduction that stages by reference comes here
                    // for the slices' results only.
                    if kind == Kind::Reduce && self.own_places[0] != 0 {
                        return;
                    }
                    let own = self.slice(part.len(), me, nranks);
                    let from = self.input(part.start);
                    self.copy_in(from, to, own.start);
                    let rest = own.end * self.size();
                    self.copy_in(from.add(rest), to.add(rest), part.len() - own.end);
                }
                _ if self.has_blocks() => {
                    for rank in (0..nranks).filter(|rank| *rank != me) {
                        let part = self.elements(piece, self.count_of(rank));
                        let at = to.add(rank * self.plan.block * self.size());
                        self.copy_in(self.input(self.start_of(rank) + part.start), at, part.len());
                    }
                }
                _ => {
                    let part = self.elements(piece, self.count_of(me));
                    self.copy_in(self.input(part.start), to, part.len());
                }
            }
        }
    }

    #[inline]
    pub(crate) fn slice(&self, count: usize, at: usize, of: usize) -> Range<usize> {
        slice(count, at, of, layout::SLICE_ALIGN / self.size())
    }

    /// Where the elements of `rank` stand for this rank to read: `at` of its input, if that lies in its window, else `staged` of the
    /// half that holds `piece`.
    #[inline]
    fn source(
        &self,
        engine: &Engine<'_>,
        rank: usize,
        piece: u64,
        at: Range<usize>,
        staged: usize,
    ) -> Result<*const u8, CollError> {
        // For an all-reduce that is staged, a place says nothing: the data was staged.
        let place = if self.plan.places == 1 { self.places.get()[rank][0] } else { 0 };
        match place {
            1.. => {
                let offset = (place - 1).checked_add((at.start * self.size()) as u64);
                let found =
                    offset.and_then(|offset| engine.memory.in_pool_of(rank, offset, at.len() * self.size()));
                found.map(<*mut u8>::cast_const).ok_or_else(|| self.malformed(engine, rank))
            }
            0 => {
                let staged = staged * self.size();
                Ok(self.staged(engine, rank, piece, staged..staged + at.len() * self.size()))
            }
        }
    }

    #[cold]
    pub(crate) fn malformed(&self, engine: &Engine<'_>, rank: usize) -> CollError {
        let what = "a place outside its pool";
        CollError::Malformed { rank, call: engine.describe(self.number), what }
    }

    /// Takes a piece that was staged whole.
    #[inline]
    pub(crate) fn take_whole(&mut self, engine: &mut Engine<'_>, piece: u64) -> Result<(), CollError> {
        let (me, nranks, root) = (engine.me, engine.nranks(), self.request.root as usize);
        let kind = self.request.kind;
        // The others in turn, starting behind this rank, so that not all read the same one first.
        let others = (1..nranks).map(|by| (me + by) % nranks);
        // SAFETY: see the head of the file.
        unsafe {
            match kind {
                Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter | Kind::ReduceScatterV => {
                    if kind == Kind::Reduce && me != root {
                        return Ok(());
                    }
                    let part = self.elements(piece, self.count_of(me));
                    let (start, staged) =
                        if self.has_blocks() { (self.start_of(me), me * self.plan.block) } else { (0, 0) };
                    let mut sources = UpTo64::new();
                    for rank in 0..nranks {
                        let at = start + part.start..start + part.end;
                        sources.push(if rank == me {
                            self.input(at.start)
                        } else {
                            self.source(engine, rank, piece, at, staged)?
                        });
                    }
                    let mut output = UpTo64::new();
                    output.push(self.output(part.start));
                    let ahead = nranks == 2 && part.len() * self.size() >= engine.setting.ask_from;
                    match self.fold {
                        Some(fold) if ahead => {
                            let mut theirs = UpTo64::new();
                            theirs.push(sources.get()[1 - me]);
                            let extent = (part.len(), self.size());
                            fold_ahead(
                                fold,
                                &mut sources,
                                &mut output,
                                &mut theirs,
                                engine.setting.ask,
                                extent,
                            );
                        }
                        Some(fold) => fold(sources.get(), output.get(), part.len()),
                        None => {}
                    }
                }
                Kind::Broadcast if me != root => {
                    let part = self.elements(piece, self.request.count);
                    let from = self.source(engine, root, piece, part.clone(), 0)?;
                    self.copy_out(from, self.output(part.start), part.len());
                }
                Kind::AllGather | Kind::AllGatherV => {
                    let own = self.elements(piece, self.count_of(me));
                    self.copy_own(
                        self.input(own.start),
                        self.output(self.start_of(me) + own.start),
                        own.len(),
                    );
                    for rank in others {
                        let part = self.elements(piece, self.count_of(rank));
                        let from = self.source(engine, rank, piece, part.clone(), 0)?;
                        self.copy_out(from, self.output(self.start_of(rank) + part.start), part.len());
                    }
                }
                Kind::Gather if me == root => {
                    let (count, part) = (self.request.count, self.elements(piece, self.request.count));
                    self.copy_own(self.input(part.start), self.output(me * count + part.start), part.len());
                    for rank in others {
                        let from = self.source(engine, rank, piece, part.clone(), 0)?;
                        self.copy_out(from, self.output(rank * count + part.start), part.len());
                    }
                }
                Kind::AllToAll => {
                    let (count, part) = (self.request.count, self.elements(piece, self.request.count));
                    let mine = me * count + part.start..me * count + part.end;
                    self.copy_own(self.input(mine.start), self.output(mine.start), part.len());
                    for rank in others {
                        let from = self.source(engine, rank, piece, mine.clone(), me * self.plan.block)?;
                        self.copy_out(from, self.output(rank * count + part.start), part.len());
                    }
                }
                Kind::Scatter => {
                    let (count, part) = (self.request.count, self.elements(piece, self.request.count));
                    let mine = me * count + part.start..me * count + part.end;
                    let from = if me == root {
                        self.input(mine.start)
                    } else {
                        self.source(engine, root, piece, mine, me * self.plan.block)?
                    };
                    self.copy_own(from, self.output(part.start), part.len());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes over the lines of a piece that one rank staged for this one only.
    #[inline]
    pub(crate) fn take_over(&self, engine: &Engine<'_>, piece: u64, from: u64) {
        let peer = 1 - engine.me.min(1);
        let by_reference = self.plan.places == 1 && self.places.get()[peer][0] != 0;
        if engine.nranks() != 2 || from == 0 || by_reference {
            return;
        }
        let (first, of) =
            if self.has_blocks() { (engine.me * self.plan.block, engine.me) } else { (0, peer) };
        let theirs = self.half(engine, peer, piece).wrapping_add(first * self.size());
        let bytes = self.elements(piece, self.count_of(of)).len() * self.size();
        // SAFETY: what the other of two ranks staged in the step that this one has read, and not finished yet.
        unsafe { take_over(theirs, bytes, engine.setting.take_over) };
    }

    /// Reduces this rank's slice of a piece, for all to collect.
    pub(crate) fn reduce_slice(&mut self, engine: &mut Engine<'_>, piece: u64) -> Result<(), CollError> {
        let (me, nranks) = (engine.me, engine.nranks());
        let part = self.elements(piece, self.request.count);
        let own = self.slice(part.len(), me, nranks);
        let mut sources = UpTo64::new();
        for rank in 0..nranks {
            let at = part.start + own.start..part.start + own.end;
            sources.push(if rank == me {
                self.input(at.start)
            } else {
                self.source(engine, rank, piece, at, own.start)?
            });
        }
        let result = self.half(engine, me, piece).wrapping_add(own.start * self.size());
        let output = self.output(part.start + own.start);
        let root = me == self.request.root as usize;
        // SAFETY: see the head of the file. Its own slice of its own half nobody reads before the next step.
        unsafe {
            if let Some(fold) = self.fold {
                match self.request.kind {
                    Kind::Reduce if root => fold(sources.get(), &[output], own.len()),
                    Kind::Reduce => fold(sources.get(), &[result], own.len()),
                    _ => fold(sources.get(), &[output, result], own.len()),
                }
            }
        }
        Ok(())
    }

    /// Collects the slices that the others reduced.
    pub(crate) fn collect_slices(&mut self, engine: &mut Engine<'_>, piece: u64) {
        let (me, nranks) = (engine.me, engine.nranks());
        if self.request.kind == Kind::Reduce && me != self.request.root as usize {
            return;
        }
        let part = self.elements(piece, self.request.count);
        for rank in (1..nranks).map(|by| (me + by) % nranks) {
            let slice = self.slice(part.len(), rank, nranks);
            let bytes = slice.start * self.size()..slice.end * self.size();
            let from = self.staged(engine, rank, piece, bytes);
            // SAFETY: see the head of the file.
            unsafe { self.copy_out(from, self.output(part.start + slice.start), slice.len()) };
        }
    }

    /// Compares what the others send with what this rank expects, and returns how many pieces the largest block takes.
    pub(crate) fn take_counts(&mut self, engine: &mut Engine<'_>) -> Result<u64, CollError> {
        let (me, nranks) = (engine.me, engine.nranks());
        let mut most = 0;
        for rank in 0..nranks {
            for to in 0..nranks {
                let count = if rank == me {
                    count_at(self.request.counts, to) as u64
                } else {
                    // SAFETY: a row of counts is what every rank staged as its first piece.
                    unsafe { self.half(engine, rank, 0).cast::<u64>().add(to).read() }
                };
                most = most.max(count);
                let expected = count_at(self.request.receive_counts, rank) as u64;
                if to == me && count != expected {
                    let text = |count| {
                        CallText::plain(format!(
                            "{count} {} in all_to_all_v, call {}",
                            self.request.dtype,
                            in_generation(self.number)
                        ))
                    };
                    return Err(CollError::Transfer {
                        from: rank,
                        to: me,
                        sent: text(count),
                        expected: text(expected),
                    });
                }
            }
        }
        Ok(most.div_ceil(self.plan.block as u64))
    }

    /// Takes a piece of an exchange with a count for each pair.
    pub(crate) fn take_matrix(&mut self, engine: &mut Engine<'_>, at: u64) {
        let (me, nranks) = (engine.me, engine.nranks());
        let mut start = 0;
        for rank in 0..nranks {
            let count = count_at(self.request.receive_counts, rank);
            let part = self.elements(at - 1, count);
            let from = if rank == me {
                self.input(self.start_of(me) + part.start)
            } else {
                self.half(engine, rank, at).wrapping_add(me * self.plan.block * self.size()).cast_const()
            };
            // SAFETY: see the head of the file. The counts were compared, so this is what the other rank staged.
            unsafe { self.copy_own(from, self.output(start + part.start), part.len()) };
            start += count;
        }
    }
}
