//! The all-reduce of tensors that all lie in windows: no byte is staged.
//!
//! # Safety
//! Every rank reduces its own slice of all tensors and writes it to all of them, between two steps. Before the first every rank has said
//! where its tensor lies, which is checked here, and does not touch it until the second.
#![allow(unsafe_code)]

use crate::call::Call;
use crate::engine::Engine;
use crate::error::CollError;
use crate::fold_ahead::{Ask, fold_ahead};
use crate::moves::UpTo64;
use mailbox_atomics::prefetch_to_write;

/// In slices of up to so many bytes, which the caches of a core hold, lines of the others' tensors are asked for ahead: 64 KiB to 1 MiB
/// take a tenth less where processors share no cache. In longer ones that takes longer.
const AHEAD_MOST: usize = 512 << 10;

impl Call {
    /// Reduces this rank's slice of all windows, and writes it to all windows.
    pub(crate) fn take_windows(&mut self, engine: &mut Engine<'_>) -> Result<(), CollError> {
        let (nranks, size) = (engine.nranks(), self.size());
        let own = self.slice(self.request.count, engine.me, nranks);
        let bytes = self.request.count * size;
        let (mut sources, mut targets) = (UpTo64::new(), UpTo64::new());
        for rank in 0..nranks {
            let of = |side: usize| {
                let place = engine.memory.in_pool_of(rank, self.places.get()[rank][side] - 1, bytes);
                place.map(|at| at.wrapping_add(own.start * size)).ok_or_else(|| self.malformed(engine, rank))
            };
            sources.push(of(0)?.cast_const());
            targets.push(of(1)?);
        }
        let Some(fold) = self.fold else { return Ok(()) };
        if own.len() * size > AHEAD_MOST {
            // SAFETY: whole tensors of that many bytes lie there (checked); their ranks are in this call and use them for nothing else.
            unsafe { fold(sources.get(), targets.get(), own.len()) };
            return Ok(());
        }
        let mut others = UpTo64::new();
        for (_, target) in targets.get().iter().enumerate().filter(|(rank, _)| *rank != engine.me) {
            others.push(target.cast_const());
        }
        let ask: (usize, Ask) = (engine.setting.table.ask_ahead as usize, prefetch_to_write);
        // SAFETY: as above.
        unsafe { fold_ahead(fold, &mut sources, &mut targets, &mut others, ask, (own.len(), size)) };
        Ok(())
    }
}
