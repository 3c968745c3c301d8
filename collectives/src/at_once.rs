//! Calls of one step, from their first instruction to their last: barriers, and all-reduces that are staged in one piece.
//!
//! They do what a [`Call`](crate::call::Call) does for them, in the same order and with the same words, so that ranks need not agree on
//! which of the two they use. A `Call` can be left at every step and taken up again, and serves all kinds; small calls take as long as
//! their instructions, and here they have less than half of them.
//!
//! # Safety
//! As in [`moves`](crate::moves): the pointers of the request are the caller's, who promised their lengths; halves lie in windows, and a
//! piece that is smaller than `window_min` of the [`Table`](crate::Table) fits in them; nobody writes what a rank has published before this one
//! has finished the step.
#![allow(unsafe_code)]

use crate::engine::{Clock, Engine};
use crate::error::CollError;
use crate::layout::INLINE;
use crate::memory::take_over;
use crate::moves::UpTo64;
use crate::request::{Kind, Request};
use core::mem::MaybeUninit;
use core::ptr;
use fault_points::fault_point;
use mailbox_atomics::{Halves, INLINE_WORDS, Use};

impl Engine<'_> {
    /// Whether a call that was checked is one of these.
    #[inline]
    pub(crate) fn takes_one_step(&self, request: &Request) -> bool {
        let nranks = self.nranks();
        let bytes = request.count * request.dtype.size();
        let fits = bytes <= self.setting.at_once;
        nranks > 1
            && match request.kind {
                Kind::Barrier => true,
                Kind::AllReduce => fits,
                _ => false,
            }
    }

    /// Runs such a call. Only where no started call is under way.
    #[inline]
    pub(crate) fn run_at_once(&mut self, request: &Request) -> Result<(), CollError> {
        match self.one_step(request) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.give_up(error)),
        }
    }

    fn one_step(&mut self, request: &Request) -> Result<(), CollError> {
        let (number, chain) = self.begin(request);
        let (step, half, others) = (self.step + 1, Halves::of(self.piece), self.progress.others());
        let nranks = self.nranks();
        let bytes = if request.kind == Kind::Barrier { 0 } else { request.count * request.dtype.size() };
        let inline = bytes <= INLINE;
        let used = Use { step, readers: others, acknowledged: false, hash: chain };
        let mut clock = Clock::default();
        self.wait_free(self.progress.line_use(step), number, &mut clock)?;
        let mut payload = [0; INLINE_WORDS];
        if !inline {
            self.wait_free(self.halves.last_use(half), number, &mut clock)?;
            fault_point!("coll.staging");
            // SAFETY: see the head of the file; a window is apart from the caller's memory, and a pool from the halves.
            unsafe { self.copier.copy(request.input, self.memory.half(self.me, half), bytes) };
            self.halves.set(half, used);
        } else if bytes > 0 {
            // SAFETY: at most 48 bytes, which the input has and the payload has room for.
            unsafe { ptr::copy_nonoverlapping(request.input, payload.as_mut_ptr().cast(), bytes) };
        }
        fault_point!("coll.staged");
        let words = if inline { bytes.div_ceil(8) } else { 0 };
        let note = self.note();
        self.progress.publish(step, chain, note, &payload[..words], used);
        fault_point!("coll.published");
        let mut missing = others;
        while missing != 0 {
            // The last rank first: where ranks come in order, one wait covers all.
            let rank = 63 - missing.leading_zeros() as usize;
            match self.observe(rank, step, number, chain)? {
                None => missing &= !(1 << rank),
                Some(blocked) => {
                    if !inline && nranks == 2 && bytes <= self.setting.table.ask_polling as usize {
                        self.poll_asking(&blocked, self.memory.staged(rank, half, 0..bytes), bytes);
                    }
                    self.wait(&blocked, &mut clock)?;
                }
            }
        }
        fault_point!("coll.observed");
        if bytes >= self.setting.table.notify_first as usize {
            self.progress.notify();
        }
        if bytes > 0 {
            self.fold_all(request, step, half, inline);
        }
        fault_point!("coll.read");
        self.progress.finish(step);
        self.step = step;
        self.piece += u64::from(!inline);
        self.prepare_next(if inline { 0 } else { bytes });
        self.progress.notify();
        fault_point!("coll.done");
        Ok(())
    }

    /// Combines what all ranks gave in a step: in its line, or in a half.
    #[inline]
    fn fold_all(&self, request: &Request, step: u64, half: usize, inline: bool) {
        let Some(fold) = request.op.and_then(|op| self.kernels.fold(request.dtype, op)) else { return };
        let mut copies = [const { MaybeUninit::<[u64; INLINE_WORDS]>::uninit() }; 64];
        let mut sources = UpTo64::new();
        for (rank, copy) in copies.iter_mut().enumerate().take(self.nranks()) {
            sources.push(if rank == self.me {
                request.input
            } else if inline {
                let copy = copy.write([0; INLINE_WORDS]);
                self.progress.payload(rank, step, copy);
                copy.as_ptr().cast()
            } else {
                self.memory.staged(rank, half, 0..request.count * request.dtype.size())
            });
        }
        // SAFETY: see the head of the file. A payload holds what its rank put there, at most 48 bytes of which all are copied.
        unsafe { fold(sources.get(), &[request.output], request.count) };
        if !inline && self.nranks() == 2 {
            let (theirs, bytes) = (self.memory.half(1 - self.me, half), request.count * request.dtype.size());
            // SAFETY: what that rank staged in this step, for this rank only.
            unsafe { take_over(theirs, bytes, self.setting.take_over) };
        }
    }
}
