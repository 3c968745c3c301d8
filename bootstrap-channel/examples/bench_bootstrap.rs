//! How long n chip processes take to start, report and end, beside processes that only start and end,
//! and the cost of a parent that waits for silent chips: `cargo xtask bench bootstrap`.
//!
//! # Safety
//! Forks from a program that has one thread.
#![allow(unsafe_code)]

use bench_support::{Bench, Figure, Samples, fork_and_wait, processor_time};
use bootstrap_channel::{ChannelSet, GatherError, Success};
use child_process::Child;
use deadline::{Deadline, Death};
use mailbox_atomics::{Wait, WaitError};
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
    let case = "waiting for 16 silent chips";
    if bench.wants(case) {
        let time = Duration::from_millis(bench.amount(3_000) as u64);
        let value = share_of_a_core(16, time)?;
        bench.print(&Figure { case, value, unit: "%", limit: "1 % of a core", limit_value: Some(1.0) });
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
    let children = (0..chips).map(fork).collect::<Result<Vec<Child>>>()?;
    // Not watched: these chips end as soon as they have reported.
    set.gather(&Wait::until(deadline)).map_err(Error::other)?;
    for child in &children {
        child.reap(deadline);
    }
    Ok(started.elapsed())
}

/// The processor time of a parent that waits for `time`, in percent.
fn share_of_a_core(chips: usize, time: Duration) -> Result<f64> {
    let set = ChannelSet::create(chips).map_err(Error::other)?;
    let idle = || {
        std::thread::sleep(Duration::from_secs(60));
        0
    };
    // SAFETY: this program has one thread; the body only sleeps.
    let fork = |_| unsafe { Child::fork(&[], idle) };
    let children = (0..chips).map(fork).collect::<Result<Vec<Child>>>()?;
    let watch = || {
        children
            .iter()
            .zip(0..)
            .find_map(|(child, peer)| child.watch().death().map(|how| Death { peer, pid: child.pid(), how }))
    };
    let wait = Wait::until(Deadline::after(time).map_err(Error::other)?).watching(&watch);
    let before = processor_time();
    match set.gather(&wait) {
        Err(GatherError::NoReply { cause: WaitError::TimedOut { .. }, .. }) => {}
        other => return Err(Error::other(format!("nobody should have replied: {other:?}"))),
    }
    Ok(100.0 * (processor_time() - before).as_secs_f64() / time.as_secs_f64())
}
