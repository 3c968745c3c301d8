//! How long an all-reduce takes, staged and from window to window, beside what the memory allows. `cargo xtask bench coll`.
//!
//! All figures are of f32 sums in *dirty* mode: the caller writes its input before and reads its output after every call, and the time of
//! those loops alone is subtracted. The limit does the same with bare atomics and no library: each of two processes reduces one half of
//! both tensors and writes it to both, between two spins.

mod dirty;
mod limit;
mod rank;

use bench_support::{Bench, Contestant, Figure, SpinPingPong, alternate};
use limit::Limit;
use rank::Rank;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SIZES: [usize; 14] = [
    4,
    32,
    64,
    256,
    1 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    32 << 20,
];

fn main() -> Outcome {
    let bench = Bench::from_args("coll");
    for bytes in SIZES {
        two_ranks(&bench, bytes)?;
    }
    for ranks in [4, 8, 16, 64] {
        for bytes in [4, 1 << 10, 64 << 10, 1 << 20] {
            many_ranks(&bench, ranks, bytes)?;
        }
    }
    Ok(())
}

/// A size as people write it.
fn readable(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn two_ranks(bench: &Bench, bytes: usize) -> Outcome {
    let size = readable(bytes);
    let (staged, window) =
        (format!("all_reduce staged {size}, 2 ranks"), format!("all_reduce window {size}, 2 ranks"));
    if !bench.wants(&staged) && !bench.wants(&window) {
        return Ok(());
    }
    let limit = Limit::new(bytes)?;
    let spin = SpinPingPong::new()?;
    let mut rank = Rank::new(2, bytes)?;
    let mut in_limit = limit.player();
    let mut played = 0;
    let mut plain = vec![0.0_f32; bytes / 4];
    // About a millisecond each, so that most batches end before the scheduler has another idea.
    let rounds = (1_000_000 / (200 + bytes as u64 / 8)).clamp(2, 2000);
    let rank = std::cell::RefCell::new(&mut rank);
    let mut contestants: [Contestant<'_>; 5] = [
        Contestant { rounds, play: &mut |me, rounds| limit.play(me, rounds, &mut in_limit) },
        Contestant { rounds, play: &mut |me, rounds| rank.borrow_mut().staged(me, rounds) },
        Contestant { rounds, play: &mut |me, rounds| rank.borrow_mut().window(me, rounds) },
        Contestant { rounds, play: &mut |_, rounds| dirty::alone(&mut plain, rounds) },
        Contestant { rounds: 500, play: &mut |me, rounds| spin.play(me, rounds, &mut played) },
    ];
    let batches = bench.amount(if bytes > 4 << 20 { 20 } else { 60 });
    let samples = alternate(2, batches, &mut contestants)?;
    let [bare, staged_ns, window_ns, alone, spin] = [0, 1, 2, 3, 4].map(|at| samples[at].median());
    let less = |ns: f64| (ns - alone).max(0.0) / 1e3;
    for (case, ns) in [(&staged, staged_ns), (&window, window_ns)] {
        let bare = less(bare);
        bench.print(&Figure {
            case,
            value: less(ns),
            unit: "us",
            limit: "bare two-shot",
            limit_value: Some(bare),
        });
    }
    if bytes == 4 {
        let case = "round trip of this run";
        bench.print(&Figure {
            case,
            value: spin / 1e3,
            unit: "us",
            limit: "bare spin",
            limit_value: Some(spin / 1e3),
        });
    }
    Ok(())
}

fn many_ranks(bench: &Bench, ranks: usize, bytes: usize) -> Outcome {
    let size = readable(bytes);
    let cases = ["staged", "window"].map(|place| format!("all_reduce {place} {size}, {ranks} ranks"));
    if !cases.iter().any(|case| bench.wants(case)) {
        return Ok(());
    }
    let mut rank = Rank::new(ranks, bytes)?;
    let barrier = Rank::new(ranks, 4)?;
    let mut barrier = barrier;
    let rank = std::cell::RefCell::new(&mut rank);
    let rounds = (20_000_000 / (ranks * (2_000 + bytes))) as u64;
    let rounds = rounds.clamp(3, 200);
    let mut contestants: [Contestant<'_>; 3] = [
        Contestant { rounds, play: &mut |me, rounds| rank.borrow_mut().staged(me, rounds) },
        Contestant { rounds, play: &mut |me, rounds| rank.borrow_mut().window(me, rounds) },
        Contestant { rounds, play: &mut |me, rounds| barrier.barriers(me, rounds) },
    ];
    let samples = alternate(ranks, bench.amount(10), &mut contestants)?;
    for (at, case) in cases.iter().enumerate() {
        let limit_value = Some(samples[2].median() / 1e3);
        let value = samples[at].median() / 1e3;
        bench.print(&Figure { case, value, unit: "us", limit: "barrier of the group", limit_value });
    }
    Ok(())
}
