//! Messages between two ranks, piece by piece through the place that the pair has in the shared memory.
//!
//! # Safety
//! Views words of shared memory as atomics, and copies its bytes with `shared_memory`.
#![allow(unsafe_code)]

use crate::comm::{LOOK_UP, Member, PAIR_BYTES};
use crate::gate::{Refusal, ensure};
use cann_sim::{futex_wait, futex_wake};
use comm_hccl::sys::*;
use shared_memory::{copy_from_shared, copy_to_shared};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

impl Member {
    fn pair(&self, from: u32, to: u32) -> (&AtomicU32, *mut u8) {
        let at = self.pair_place(from, to);
        // SAFETY: inside the shared memory, which is mapped while the member lives, at a multiple of 64.
        (unsafe { AtomicU32::from_ptr(at as *mut u32) }, (at + 64) as *mut u8)
    }

    /// Waits until the word of a pair is 0, or is not.
    fn await_place(&self, word: &AtomicU32, full: bool) -> Result<u32, Refusal> {
        let deadline = Self::exec_deadline();
        loop {
            // Before the word: a rank that sent or took and then left has changed the word by now.
            let members = self.check_members();
            // Acquire: pairs with the Release below, which publishes the bytes, or that they were taken.
            let value = word.load(Acquire);
            if (value != 0) == full {
                return Ok(value);
            }
            members?;
            ensure(Instant::now() < deadline, HCCL_E_TIMEOUT, "the other rank did not come in time")?;
            futex_wait(word, value, LOOK_UP);
        }
    }

    /// Sends bytes to a rank: `load` gives those from an offset on.
    pub(crate) fn send(
        &self,
        to: u32,
        len: usize,
        load: impl Fn(usize, usize) -> Result<Vec<u8>, Refusal>,
    ) -> Result<(), Refusal> {
        let (word, place) = self.pair(self.rank, to);
        for offset in (0..len).step_by(PAIR_BYTES) {
            let piece = load(offset, PAIR_BYTES.min(len - offset))?;
            self.await_place(word, false)?;
            // SAFETY: the place has room for so many bytes, and the other rank has taken the last ones.
            unsafe { copy_to_shared(&piece, place) };
            word.store(piece.len() as u32, Release);
            futex_wake(word);
        }
        // A message is received before the sender's stream goes on.
        self.await_place(word, false).map(drop)
    }

    /// Receives bytes from a rank.
    pub(crate) fn receive(
        &self,
        from: u32,
        len: usize,
        mut save: impl FnMut(usize, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (word, place) = self.pair(from, self.rank);
        for offset in (0..len).step_by(PAIR_BYTES) {
            let mut piece = vec![0; PAIR_BYTES.min(len - offset)];
            let sent = self.await_place(word, true)? as usize;
            ensure(sent == piece.len(), HCCL_E_PARA, "the other rank sends another length")?;
            // SAFETY: as above, and the other rank has written them.
            unsafe { copy_from_shared(place, &mut piece) };
            word.store(0, Release);
            futex_wake(word);
            save(offset, &piece)?;
        }
        Ok(())
    }
}
