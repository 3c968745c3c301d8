//! What a call takes with nothing around it: no deadline, no peer that may die, no place to look up.
//!
//! Two processes on two cores combine their tensors in the better of two ways. In place, each reduces a half of both and writes it to
//! both, between two spins. Or each copies its tensor beside a flag, spins for the other's, and adds it: one step, which is what takes
//! longest as long as tensors are small.
//!
//! # Safety
//! Tensors and slots in shared memory. In place, each process writes its own tensor between rounds, and its half of both inside a round;
//! the two spins of a round keep these apart. In an exchange each writes its own tensor and slots only, and a slot again when the
//! other has published a later step, before which it has read this one.
#![allow(unsafe_code)]

use crate::args::Mode;
use crate::data;
use bench_support::{Contestant, SpinPingPong, alternate};
use mailbox_atomics::prefetch_to_write;
use shared_memory::{Region, RegionError};
use std::sync::atomic::{AtomicU64, Ordering};

struct Limit {
    region: Region,
    len: usize,
}

/// Rounds that a process has played.
struct Player(u64);

/// From one word of a process to the other's.
const FLAGS: usize = 256;
const PAGE: usize = 4096;
/// Up to so many bytes an exchange may be the better way.
const EXCHANGE_MOST: usize = 64 << 10;
/// Up to so many bytes a tensor fits in the cache line of its flag.
const IN_LINE: usize = 56;
/// Up to so many bytes it pays to take the lines of the next slot back early.
const PREPARED_MOST: usize = 16 << 10;

impl Limit {
    fn new(bytes: usize) -> Result<Self, RegionError> {
        let limit = Self { region: Region::create("limit", PAGE + 6 * room(bytes))?, len: bytes / 4 };
        Ok(limit)
    }

    fn part(&self, part: usize) -> *mut u8 {
        // SAFETY: inside the region, which has six parts.
        unsafe { self.region.base().as_ptr().add(PAGE + part * room(4 * self.len)) }
    }

    fn tensor(&self, of: usize) -> *mut f32 {
        self.part(of).cast()
    }

    /// The flag of a process's slot for a step, and the tensor behind it.
    fn slot(&self, of: usize, step: u64) -> (&AtomicU64, *mut f32) {
        let at = self.part(2 + 2 * of + (step & 1) as usize);
        let behind = if 4 * self.len <= IN_LINE { 8 } else { 64 };
        // SAFETY: a word at the start of a part, which nothing reads or writes but as an atomic.
        (unsafe { AtomicU64::from_ptr(at.cast()) }, at.wrapping_add(behind).cast())
    }

    fn meet(&self, me: usize, player: &mut Player) {
        player.0 += 1;
        let [mine, theirs] = [me, 1 - me].map(|at| self.region.words::<AtomicU64>(at * FLAGS));
        if let (Ok(mine), Ok(theirs)) = (mine, theirs) {
            // Release, Acquire: the halves of both tensors.
            mine.store(player.0, Ordering::Release);
            while theirs.load(Ordering::Acquire) < player.0 {
                std::hint::spin_loop();
            }
        }
    }

    fn in_place(&self, me: usize, player: &mut Player) {
        self.meet(me, player);
        let half = (self.len / 2).next_multiple_of(32).min(self.len);
        let (start, end) = if me == 0 { (0, half) } else { (half, self.len) };
        let [one, two] = [0, 1].map(|of| self.tensor(of).wrapping_add(start));
        // SAFETY: this process's half of both tensors.
        unsafe { add(one, two, end - start, Into::Both) };
        self.meet(me, player);
    }

    fn exchange(&self, me: usize, player: &mut Player) {
        player.0 += 1;
        let step = player.0;
        let ((mine, own), (theirs, other)) = (self.slot(me, step), self.slot(1 - me, step));
        // SAFETY: a tensor and a slot of this process, which are apart.
        unsafe { std::ptr::copy_nonoverlapping(self.tensor(me), own, self.len) };
        // Release, Acquire: what stands behind the flag.
        mine.store(step, Ordering::Release);
        while theirs.load(Ordering::Acquire) < step {
            std::hint::spin_loop();
        }
        // SAFETY: this process's tensor, and what the other has published.
        unsafe { add(self.tensor(me), other, self.len, Into::First) };
        if 4 * self.len <= PREPARED_MOST {
            let (next, _) = self.slot(me, step + 1);
            prefetch_to_write(std::ptr::from_ref(next).cast(), 64 + 4 * self.len);
        }
    }

    fn play(&self, me: usize, rounds: u64, mode: Mode, call: &mut dyn FnMut()) {
        for round in 0..rounds {
            if mode == Mode::Dirty {
                // SAFETY: this process's tensor, which the other one touches inside a call only.
                data::write(unsafe { std::slice::from_raw_parts_mut(self.tensor(me), self.len) }, round);
            }
            call();
            if mode == Mode::Dirty {
                // SAFETY: as above.
                data::read(unsafe { std::slice::from_raw_parts(self.tensor(me), self.len) });
            }
        }
    }
}

/// Bytes of a part: a tensor, or a slot with its flag.
fn room(bytes: usize) -> usize {
    (64 + bytes).next_multiple_of(PAGE)
}

/// Microseconds of a call in the better of the two ways.
pub(crate) fn measure(bytes: usize, mode: Mode) -> Result<f64, Box<dyn std::error::Error>> {
    let limit = Limit::new(bytes)?;
    let (mut barriers, mut steps) = (Player(0), Player(0));
    let rounds = (2_000_000 / (200 + bytes as u64 / 4)).clamp(2, 2000);
    let mut alone = |me: usize, rounds| {
        limit.play(me, if mode == Mode::Dirty { rounds } else { 0 }, mode, &mut || {});
    };
    let mut in_place = |me: usize, rounds| {
        limit.play(me, rounds, mode, &mut || limit.in_place(me, &mut barriers));
    };
    let mut exchange = |me: usize, rounds| {
        limit.play(me, rounds, mode, &mut || limit.exchange(me, &mut steps));
    };
    let mut contestants =
        vec![Contestant { rounds, play: &mut alone }, Contestant { rounds, play: &mut in_place }];
    if bytes <= EXCHANGE_MOST {
        contestants.push(Contestant { rounds, play: &mut exchange });
    }
    let samples = alternate(2, 5, &mut contestants)?;
    let best = samples[1..].iter().map(bench_support::Samples::median).fold(f64::INFINITY, f64::min);
    Ok((best - samples[0].median()).max(0.0) / 1e3)
}

/// Microseconds of a bare spin round trip between two cores.
pub(crate) fn round_trip() -> Result<f64, Box<dyn std::error::Error>> {
    let spin = SpinPingPong::new()?;
    let mut played = 0;
    let play = &mut |me: usize, rounds: u64| spin.play(me, rounds, &mut played);
    Ok(alternate(2, 20, &mut [Contestant { rounds: 500, play }])?[0].median() / 1e3)
}

/// Where a sum goes.
#[derive(Clone, Copy)]
enum Into {
    First,
    Both,
}

/// Adds two ranges, with the widest registers of this processor, as the calls do.
///
/// # Safety
/// Both are valid for `len` elements, and apart.
unsafe fn add(one: *mut f32, two: *mut f32, len: usize, into: Into) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx512f") {
        // SAFETY: the caller's promise; the processor was asked.
        return unsafe { add_avx512(one, two, len, into) };
    }
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { add_avx2(one, two, len, into) };
    }
    // SAFETY: the caller's promise.
    unsafe { add_blocks(one, two, len, into) }
}

/// # Safety
/// As [`add`], on a processor with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn add_avx512(one: *mut f32, two: *mut f32, len: usize, into: Into) {
    // SAFETY: the caller's promise.
    unsafe { add_blocks(one, two, len, into) }
}

/// # Safety
/// As [`add`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn add_avx2(one: *mut f32, two: *mut f32, len: usize, into: Into) {
    // SAFETY: the caller's promise.
    unsafe { add_blocks(one, two, len, into) }
}

/// # Safety
/// As [`add`].
#[inline(always)]
unsafe fn add_blocks(one: *mut f32, two: *mut f32, len: usize, into: Into) {
    let mut at = 0;
    // SAFETY: within `len`.
    unsafe {
        while at + 64 <= len {
            let mut sums: [f32; 64] = one.add(at).cast::<[f32; 64]>().read();
            let others: [f32; 64] = two.add(at).cast::<[f32; 64]>().read();
            for lane in 0..64 {
                sums[lane] += others[lane];
            }
            one.add(at).cast::<[f32; 64]>().write(sums);
            if let Into::Both = into {
                two.add(at).cast::<[f32; 64]>().write(sums);
            }
            at += 64;
        }
        while at < len {
            let sum = one.add(at).read() + two.add(at).read();
            one.add(at).write(sum);
            if let Into::Both = into {
                two.add(at).write(sum);
            }
            at += 1;
        }
    }
}
