//! What the machine can do, through bare atomics and system calls.

use crate::raw::{Forked, SharedLines, fork, futex_wait, futex_wake};
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::io;
use std::time::{Duration, Instant};

/// How soon a spinning player checks again after its first check failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Eager,
    Patient,
}

/// Two processes that send a number back and forth, each spinning until it arrives.
///
/// Which of the two games is faster depends on the machine, and a limit has to be the best that is
/// known: measure both.
#[derive(Debug)]
pub struct SpinPingPong {
    lines: SharedLines,
    pace: Pace,
}

impl SpinPingPong {
    /// A game whose players check again at once: the textbook loop.
    pub fn new() -> io::Result<Self> {
        Ok(Self { lines: SharedLines::new(2)?, pace: Pace::Eager })
    }

    /// A game whose players read the clock after a first failed check. On the one machine
    /// where it was compared, a virtual one, it took between as long as the textbook loop and a
    /// third less, from run to run. Presumably the other side's store competes with fewer loads of its
    /// line; that was not investigated.
    pub fn patient() -> io::Result<Self> {
        Ok(Self { lines: SharedLines::new(2)?, pace: Pace::Patient })
    }

    /// Plays `rounds` rounds as process `me`, 0 or 1; any other returns at once. `played` is how many this
    /// process has played.
    pub fn play(&self, me: usize, rounds: u64, played: &mut u32) {
        let (ping, pong) = (self.lines.word(0), self.lines.word(1));
        for _ in 0..rounds {
            *played = played.wrapping_add(1);
            match me {
                0 => {
                    publish(ping, *played);
                    self.observe(pong, *played);
                }
                1 => {
                    self.observe(ping, *played);
                    publish(pong, *played);
                }
                _ => return,
            }
        }
    }

    #[inline]
    fn observe(&self, word: &AtomicU32, number: u32) {
        let mut first = self.pace == Pace::Patient;
        while word.load(Ordering::Acquire) != number {
            if first {
                std::hint::black_box(Instant::now());
                first = false;
            } else {
                core::hint::spin_loop();
            }
        }
    }
}

/// Stores, then fences. The sequentially consistent fence is not needed, but it was as fast as a plain
/// store or faster, by up to a fifth, in nearly all runs where both were measured.
#[inline]
fn publish(word: &AtomicU32, number: u32) {
    word.store(number, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// The same, each sleeping in a futex until it is woken.
#[derive(Debug)]
pub struct FutexPingPong {
    lines: SharedLines,
}

impl FutexPingPong {
    /// A new game.
    pub fn new() -> io::Result<Self> {
        Ok(Self { lines: SharedLines::new(2)? })
    }

    /// Plays `rounds` rounds as process `me`, 0 or 1; any other returns at once. `played` is how many this
    /// process has played.
    pub fn play(&self, me: usize, rounds: u64, played: &mut u32) {
        for _ in 0..rounds {
            *played = played.wrapping_add(1);
            match me {
                0 => {
                    self.send(0, *played);
                    self.receive(1, *played);
                }
                1 => {
                    self.receive(0, *played);
                    self.send(1, *played);
                }
                _ => return,
            }
        }
    }

    fn send(&self, line: usize, number: u32) {
        self.lines.word(line).store(number, Ordering::Release);
        futex_wake(self.lines.word(line), 1);
    }

    fn receive(&self, line: usize, number: u32) {
        let word = self.lines.word(line);
        loop {
            match word.load(Ordering::Acquire) {
                found if found == number => return,
                found => futex_wait(word, found),
            }
        }
    }
}

/// How long it takes to start `count` processes that end at once, and to see all of them end.
pub fn fork_and_wait(count: usize) -> io::Result<Duration> {
    let started = Instant::now();
    let children = (0..count).map(|_| fork(|| 0)).collect::<io::Result<Vec<Forked>>>()?;
    if children.into_iter().all(Forked::wait) {
        Ok(started.elapsed())
    } else {
        Err(io::Error::other("a process that only ends has failed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contestant, alternate};

    #[test]
    fn all_games_end_with_a_third_process() {
        let (eager, patient) = (SpinPingPong::new().unwrap(), SpinPingPong::patient().unwrap());
        let futex = FutexPingPong::new().unwrap();
        let mut played = [0; 3];
        let [one, two, three] = &mut played;
        let samples = alternate(
            3,
            3,
            &mut [
                Contestant { rounds: 50, play: &mut |me, rounds| eager.play(me, rounds, one) },
                Contestant { rounds: 50, play: &mut |me, rounds| patient.play(me, rounds, two) },
                Contestant { rounds: 50, play: &mut |me, rounds| futex.play(me, rounds, three) },
            ],
        )
        .unwrap();
        assert!(samples.iter().all(|game| game.median() > 0.0));
        assert_eq!(played, [3 * (50 + 7); 3]);
    }

    #[test]
    fn processes_that_only_end_are_counted_in_time() {
        assert!(fork_and_wait(4).unwrap() > Duration::ZERO);
    }
}
