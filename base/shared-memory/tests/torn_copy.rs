//! One thread keeps changing two equal halves in shared memory; another copies them, checks the
//! copy and then uses it.
//!
//! SM-5: what passed the check still passes it when it is used. With a plain copy the compiler
//! reads the shared bytes once for the check and once more for the use.

use shared_memory::Region;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Waits between two changes: most of the time the memory holds equal halves.
const PAUSE: u32 = 16;

#[derive(Debug, Default)]
struct Counts {
    copies: u64,
    /// Copies that held half of a change. The check refuses them, as it must.
    torn: u64,
    /// Copies that passed the check and did not hold equal halves when they were used.
    bad: u64,
}

fn has_equal_halves(bytes: &[u8]) -> bool {
    let (one, two) = bytes.split_at(bytes.len() / 2);
    one == two
}

/// Copies and checks: the shape of every decoder of shared bytes.
#[inline(always)]
fn checked_copy<const LEN: usize>(region: &Region) -> Option<[u8; LEN]> {
    let mut copy = [0; LEN];
    region.read(0, &mut copy).unwrap();
    has_equal_halves(&copy).then_some(copy)
}

fn experiment<const LEN: usize>(copies: u64) -> Counts {
    let region = Region::create("torn copy", LEN + 8).unwrap();
    let published = region.words::<AtomicU64>(LEN).unwrap();
    let done = AtomicBool::new(false);
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while !done.load(Ordering::Acquire) {
                value = value.wrapping_add(1);
                region.write(0, &[value; LEN]).unwrap();
                (0..PAUSE).for_each(|_| std::hint::spin_loop());
            }
        });
        for _ in 0..copies {
            counts.copies += 1;
            // As in every decoder, an acquire load of a word comes first. The compiler moves no
            // later load before it.
            black_box(published.load(Ordering::Acquire));
            match checked_copy::<LEN>(&region) {
                None => counts.torn += 1,
                Some(copy) => counts.bad += u64::from(!has_equal_halves(black_box(&copy))),
            }
        }
        done.store(true, Ordering::Release);
    });
    counts
}

/// Copied word by word.
const SHORT: usize = 256;
/// Copied by the string instruction where there is one.
const LONG: usize = 1024;

#[test]
fn f49_checked_bytes_cannot_change_after_the_check() {
    let copies = if cfg!(miri) {
        20
    } else if cfg!(tsan) {
        20_000
    } else {
        200_000
    };
    for counts in [experiment::<SHORT>(copies), experiment::<LONG>(copies)] {
        assert_eq!(counts.bad, 0, "{counts:?}");
    }
}

#[test]
#[ignore = "takes a minute; prints how many copies were torn"]
fn f49_a_hundred_million_checked_copies() {
    for (len, run) in [(SHORT, experiment::<SHORT> as fn(u64) -> Counts), (LONG, experiment::<LONG>)] {
        let started = Instant::now();
        let counts = run(50_000_000);
        println!("{len} bytes: {counts:?} in {:?}", started.elapsed());
        assert_eq!(counts.bad, 0, "{counts:?}");
    }
}
