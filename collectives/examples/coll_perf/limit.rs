//! A two-shot all-reduce of two processes with nothing around it.
//!
//! # Safety
//! Two tensors in shared memory, of which each process writes its own between rounds, and its half of both inside a round; the two spins
//! of a round keep these apart.
#![allow(unsafe_code)]

use crate::args::Mode;
use crate::data;
use bench_support::{Contestant, SpinPingPong, alternate};
use shared_memory::{Region, RegionError};
use std::sync::atomic::{AtomicU64, Ordering};

struct Limit {
    region: Region,
    len: usize,
}

/// Rounds that a process has played.
struct Player(u64);

const FLAGS: usize = 256;

impl Limit {
    fn new(bytes: usize) -> Result<Self, RegionError> {
        let len = bytes / 4;
        let each = bytes.next_multiple_of(4096);
        Ok(Self { region: Region::create("limit", 4096 + 2 * each)?, len })
    }

    fn tensor(&self, of: usize) -> *mut f32 {
        let each = (4 * self.len).next_multiple_of(4096);
        // SAFETY: inside the region.
        unsafe { self.region.base().as_ptr().add(4096 + of * each).cast() }
    }

    fn meet(&self, me: usize, player: &mut Player) {
        player.0 += 1;
        let [mine, theirs] = [me, 1 - me].map(|at| self.region.words::<AtomicU64>(at * FLAGS));
        if let (Ok(mine), Ok(theirs)) = (mine, theirs) {
            mine.store(player.0, Ordering::Release);
            while theirs.load(Ordering::Acquire) < player.0 {
                std::hint::spin_loop();
            }
        }
    }

    fn play(&self, me: usize, rounds: u64, player: &mut Player, mode: Mode) {
        for round in 0..rounds {
            if mode == Mode::Dirty {
                // SAFETY: this process's tensor; the other one does not touch it before the first spin and after the second.
                data::write(unsafe { std::slice::from_raw_parts_mut(self.tensor(me), self.len) }, round);
            }
            self.meet(me, player);
            let half = (self.len / 2).next_multiple_of(32).min(self.len);
            let (start, end) = if me == 0 { (0, half) } else { (half, self.len) };
            // SAFETY: this process's half of both tensors.
            unsafe { add_both(self.tensor(0).add(start), self.tensor(1).add(start), end - start) };
            self.meet(me, player);
            if mode == Mode::Dirty {
                // SAFETY: as above.
                data::read(unsafe { std::slice::from_raw_parts(self.tensor(me), self.len) });
            }
        }
    }
}

/// Microseconds of a call without a library, on two cores: no deadline, no peer that may die, no place to look up.
pub(crate) fn measure(bytes: usize, mode: Mode) -> Result<f64, Box<dyn std::error::Error>> {
    let limit = Limit::new(bytes)?;
    let mut player = Player(0);
    let rounds = (2_000_000 / (200 + bytes as u64 / 4)).clamp(2, 2000);
    let mut contestants = [
        Contestant { rounds, play: &mut |me, rounds| limit.play(me, rounds, &mut player, mode) },
        Contestant {
            rounds,
            play: &mut |me, rounds| {
                for round in 0..if mode == Mode::Dirty { rounds } else { 0 } {
                    // SAFETY: this process's tensor, which the other one touches inside a round only.
                    let own = unsafe { std::slice::from_raw_parts_mut(limit.tensor(me), limit.len) };
                    data::write(own, round);
                    data::read(own);
                }
            },
        },
    ];
    let samples = alternate(2, 5, &mut contestants)?;
    Ok((samples[0].median() - samples[1].median()).max(0.0) / 1e3)
}

/// Microseconds of a bare spin round trip between two cores.
pub(crate) fn round_trip() -> Result<f64, Box<dyn std::error::Error>> {
    let spin = SpinPingPong::new()?;
    let mut played = 0;
    let play = &mut |me: usize, rounds: u64| spin.play(me, rounds, &mut played);
    Ok(alternate(2, 20, &mut [Contestant { rounds: 500, play }])?[0].median() / 1e3)
}

/// Adds two ranges into both, with the widest registers of this processor, as the calls do.
///
/// # Safety
/// Both are valid for `len` elements, and apart.
unsafe fn add_both(one: *mut f32, two: *mut f32, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx512f") {
        // SAFETY: the caller's promise; the processor was asked.
        return unsafe { add_both_avx512(one, two, len) };
    }
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { add_both_avx2(one, two, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { add_blocks(one, two, len) }
}

/// # Safety
/// As [`add_both`], on a processor with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn add_both_avx512(one: *mut f32, two: *mut f32, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { add_blocks(one, two, len) }
}

/// # Safety
/// As [`add_both`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn add_both_avx2(one: *mut f32, two: *mut f32, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { add_blocks(one, two, len) }
}

/// # Safety
/// As [`add_both`].
#[inline(always)]
unsafe fn add_blocks(one: *mut f32, two: *mut f32, len: usize) {
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
            two.add(at).cast::<[f32; 64]>().write(sums);
            at += 64;
        }
        while at < len {
            let sum = one.add(at).read() + two.add(at).read();
            one.add(at).write(sum);
            two.add(at).write(sum);
            at += 1;
        }
    }
}
