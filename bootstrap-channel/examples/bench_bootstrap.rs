//! How long n chip processes take to start, report and end, beside processes that only start and end:
//! `cargo xtask bench bootstrap`.
//!
//! # Safety
//! Forks from a program that has one thread.
#![allow(unsafe_code)]

use bench_kit::{Bench, Figure, Samples, fork_and_wait};
use bootstrap_channel::{ChannelSet, Success};
use mailbox_atomics::{Child, Deadline, Wait};
use std::io::{Error, Result};
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let bench = Bench::from_args("bootstrap");
    for chips in [1, 2, 4, 8, 16] {
        let case = format!("{chips} chips report and end");
        if !bench.wants(&case) {
            continue;
        }
        let mut times = (Vec::new(), Vec::new());
        for _ in 0..bench.amount(100) {
            times.0.push(micros(report_and_end(chips)?));
            times.1.push(micros(fork_and_wait(chips)?));
        }
        let (ours, bare): (Samples, Samples) = (times.0.into_iter().collect(), times.1.into_iter().collect());
        bench.print(&Figure {
            case: &case,
            value: ours.median(),
            unit: "us",
            limit: "fork and wait",
            limit_value: Some(bare.median()),
        });
    }
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1_000.0
}

/// Mailboxes, processes, a full reply from each, and their end.
fn report_and_end(chips: usize) -> Result<Duration> {
    let started = Instant::now();
    let deadline = Deadline::after(Duration::from_secs(60)).map_err(Error::other)?;
    let set = ChannelSet::create(chips).map_err(Error::other)?;
    let ready = Success { device_ctx: 8, window_base: 64, window_size: 64, buffers: vec![64; 376] };
    let report = |chip: usize| {
        let published = set.writer(chip).is_ok_and(|mut writer| writer.publish_success(&ready).is_ok());
        i32::from(!published)
    };
    // SAFETY: this program has one thread; the body writes to shared memory only.
    let fork = |chip: usize| unsafe { Child::fork(&[], || report(chip)) };
    let children = (0..chips).map(fork).collect::<nix::Result<Vec<Child>>>()?;
    // Nobody is watched: these chips end as soon as they have reported.
    set.gather(&Wait::until(deadline)).map_err(Error::other)?;
    for child in &children {
        child.reap(deadline);
    }
    Ok(started.elapsed())
}
