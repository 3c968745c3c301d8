//! Measures contestants in turns.

use crate::pin::Plan;
use crate::raw::{Forked, SharedLines, fork, futex_wait, futex_wake};
use crate::stats::Samples;
use core::sync::atomic::Ordering;
use std::io;
use std::time::Instant;

/// Something to measure: what each process does for a number of rounds.
pub struct Contestant<'a> {
    /// How many rounds make one batch.
    pub rounds: u64,
    /// Plays as process `me` for so many rounds. It is called in every process; process 0 is the
    /// caller's own.
    pub play: &'a mut dyn FnMut(usize, u64),
}

/// Measures contestants in turns, `batches` batches each, in `processes` processes, each on a core
/// of its own where there are enough.
///
/// Returns for each contestant the nanoseconds that a round took, one sample a batch, as process 0
/// measures it. Before a batch come some rounds that are not counted, in which the processes wake
/// up and warm their caches. A temporary load on the machine affects all contestants alike.
pub fn alternate(
    processes: usize,
    batches: usize,
    contestants: &mut [Contestant<'_>],
) -> io::Result<Vec<Samples>> {
    let plan = Plan::for_processes(processes)?;
    let gate = Gate { lines: SharedLines::new(2)?, processes: processes as u32 };
    let mut others: Vec<Forked> = Vec::new();
    for me in 1..processes {
        others.push(fork(|| match plan.pin(me) {
            Ok(()) => {
                play(me, batches, contestants, &gate);
                0
            }
            Err(_) => 1,
        })?);
    }
    plan.pin(0)?;
    let samples = play(0, batches, contestants, &gate);
    if others.into_iter().all(Forked::wait) {
        Ok(samples)
    } else {
        Err(io::Error::other("a process of the benchmark failed"))
    }
}

fn play(me: usize, batches: usize, contestants: &mut [Contestant<'_>], gate: &Gate) -> Vec<Samples> {
    let mut samples = vec![Vec::with_capacity(batches); contestants.len()];
    for _ in 0..batches {
        for (samples, contestant) in samples.iter_mut().zip(contestants.iter_mut()) {
            gate.pass();
            (contestant.play)(me, contestant.rounds.div_ceil(8));
            let started = Instant::now();
            (contestant.play)(me, contestant.rounds);
            samples.push(started.elapsed().as_nanos() as f64 / contestant.rounds as f64);
        }
    }
    samples.into_iter().map(Samples::from_iter).collect()
}

/// Lets all processes pass when the last has arrived. A waiting process sleeps, so that it uses no
/// processor meanwhile.
struct Gate {
    lines: SharedLines,
    processes: u32,
}

impl Gate {
    fn pass(&self) {
        let (arrived, opened) = (self.lines.word(0), self.lines.word(1));
        let before = opened.load(Ordering::Acquire);
        // Acquire and release: what each process did before it arrived is visible to all.
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.processes {
            arrived.store(0, Ordering::Release);
            opened.store(before.wrapping_add(1), Ordering::Release);
            futex_wake(opened, i32::MAX);
        } else {
            while opened.load(Ordering::Acquire) == before {
                futex_wait(opened, before);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BK-1
    #[test]
    fn contestants_take_turns_and_every_process_plays() {
        let lines = SharedLines::new(2).unwrap();
        let (running, played) = (lines.word(0), lines.word(1));
        let mut turns = Vec::new();
        let mut order = std::sync::Mutex::new(&mut turns);
        let turn = |name: u32, me: usize| {
            // No other contestant is running.
            let other = running.load(Ordering::Acquire) / 100;
            assert!(other == 0 || other == name, "{name} beside {other}");
            running.store(name * 100, Ordering::Release);
            played.fetch_add(1, Ordering::AcqRel);
            running.store(0, Ordering::Release);
            if me == 0 {
                order.lock().unwrap().push(name);
            }
        };
        let (mut one, mut two) = (|me: usize, _: u64| turn(1, me), |me: usize, _: u64| turn(2, me));
        let samples = alternate(
            3,
            2,
            &mut [Contestant { rounds: 1, play: &mut one }, Contestant { rounds: 1, play: &mut two }],
        )
        .unwrap();
        assert_eq!(samples.iter().map(Samples::count).collect::<Vec<_>>(), [2, 2]);
        // Two batches, each with its rounds before it, of two contestants in three processes.
        assert_eq!(played.load(Ordering::Acquire), 2 * 2 * 2 * 3);
        assert_eq!(*order.get_mut().unwrap(), &[1, 1, 2, 2, 1, 1, 2, 2]);
    }

    /// BK-3
    #[test]
    fn a_contestant_that_panics_leaves_no_process() {
        let pid = SharedLines::new(1).unwrap();
        let mut play = |me: usize, _: u64| {
            if me == 1 {
                pid.word(0).store(std::process::id(), Ordering::Release);
                loop {
                    std::thread::sleep(std::time::Duration::from_secs(60));
                }
            }
            while pid.word(0).load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            panic!("on purpose");
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            alternate(2, 1, &mut [Contestant { rounds: 1, play: &mut play }])
        }));
        assert!(ended.is_err());
        assert!(!std::path::Path::new(&format!("/proc/{}", pid.word(0).load(Ordering::Acquire))).exists());
    }
}
