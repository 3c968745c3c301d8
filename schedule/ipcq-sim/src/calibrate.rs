//! Measures a machine, for [`Fabric::Memory`](crate::config::Fabric::Memory).
//!
//! Two threads do what two ranks of a group do: each writes its input, copies it to where the other reads, meets the other, and
//! adds or copies what the other has staged; then it reads its output, as a program would. Large data goes in pieces through
//! two halves, as it does in a group. The copies, sums and signals are timed by themselves. Threads see the same caches as
//! processes do.

use crate::config::{Host, Level, Passing};
use crate::units::{Decimal, Rate};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The sizes that are measured.
pub const SIZES: [u64; 10] =
    [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20];
/// From so many bytes on, data goes in pieces.
const PIECES_FROM: usize = 1 << 20;
/// Bytes of a piece.
const PIECE: usize = 256 << 10;
/// How long one size is measured.
const EACH: Duration = Duration::from_millis(250);
/// The most nanoseconds of a signal that a topology may have.
const MOST_SIGNAL: f64 = 1e6;
/// Polls before a thread lets others have its core.
const POLLS: u32 = 2000;

/// Nanoseconds of one call's parts.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    stage: f64,
    take: f64,
    fold: f64,
}

/// A counter of one thread, in a line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicU64);

#[derive(Default)]
struct Signals([Counter; 2]);

impl Signals {
    /// Announces step `step` of `me`, and waits for the other's.
    fn meet(&self, me: usize, step: u64) {
        self.announce(me, step);
        self.wait(1 - me, step);
    }

    fn announce(&self, me: usize, step: u64) {
        // Release: what this thread has written is there.
        self.0[me].0.store(step, Ordering::Release);
    }

    fn wait(&self, other: usize, step: u64) {
        let mut polls = 0_u32;
        // Acquire: pairs with the release of the other thread.
        while self.0[other].0.load(Ordering::Acquire) < step {
            polls += 1;
            if polls.is_multiple_of(POLLS) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Measures this machine; `report` receives the share that is done.
pub fn calibrate(mut report: impl FnMut(f64)) -> Host {
    let signal = signal(EACH);
    let mut levels = Vec::new();
    for (at, bytes) in SIZES.into_iter().enumerate() {
        report(at as f64 / SIZES.len() as f64);
        let times = measure(bytes as usize / 4, EACH);
        let rate = |ns: f64| Rate::gbps(decimal(bytes as f64 / ns.max(0.001))).unwrap_or(Rate::whole(1));
        levels.push(Level {
            bytes,
            stage: rate(times.stage),
            take: rate(times.take),
            fold: rate(times.fold),
        });
    }
    report(1.0);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    Host::new(cores, decimal(signal).ns(), Passing::Staged, &levels)
        .unwrap_or_else(|| unreachable!("the sizes are in order"))
}

/// A host as the text of a topology.
pub fn yaml(host: &Host) -> String {
    let mut text = format!(
        "# Measured by ipcq calibrate.\nfabric: memory\nhost:\n  cores: {}\n  signal_ns: {}.{:03}\n  levels:\n",
        host.cores,
        host.signal / 1000,
        host.signal % 1000
    );
    for level in host.levels() {
        let [stage, take, fold] = [level.stage, level.take, level.fold].map(|rate| rate.micro() as f64 / 1e6);
        let _ = writeln!(
            text,
            "    - {{ bytes: {}, stage_gbps: {stage:.3}, take_gbps: {take:.3}, fold_gbps: {fold:.3} }}",
            level.bytes
        );
    }
    text
}

/// At least a thousandth, with three digits.
fn decimal(value: f64) -> Decimal {
    Decimal::parse(&format!("{:.3}", value.clamp(0.001, 1e9))).unwrap_or(Decimal::whole(1))
}

/// The mean without the twentieth that is the slowest: those were interrupted.
fn usual(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.truncate(values.len() - values.len() / 20);
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Runs `body` as both threads and returns what each has measured.
fn both<T: Send>(body: impl Fn(usize) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| body(1));
        let one = body(0);
        // A panic there is a panic here.
        [one, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
    })
}

/// Nanoseconds from a store until the other thread has seen it: those of the batch that nothing interrupted.
fn signal(within: Duration) -> f64 {
    const ROUNDS: u64 = 50;
    let started = Instant::now();
    let batches = (0..500).take_while(|batch| *batch == 0 || started.elapsed() < within).map(|_| {
        let signals = Signals::default();
        let [ns, _] = both(|me| {
            signals.meet(me, 1);
            let started = Instant::now();
            for round in 2..2 + ROUNDS {
                if me == 0 {
                    signals.meet(0, round);
                } else {
                    signals.wait(0, round);
                    signals.announce(1, round);
                }
            }
            started.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
        });
        ns
    });
    batches.reduce(f64::min).unwrap_or(0.0).min(MOST_SIGNAL)
}

/// One thread's memory.
struct Own {
    input: Vec<f32>,
    output: Vec<f32>,
    piece: u64,
    step: u64,
}

fn measure(len: usize, within: Duration) -> Times {
    let each = if 4 * len > PIECES_FROM { PIECE / 4 } else { len };
    let halves: [[RwLock<Vec<f32>>; 2]; 2] =
        std::array::from_fn(|_| std::array::from_fn(|_| RwLock::new(vec![0.0; each])));
    let signals = Signals::default();
    let own = || RwLock::new(Own { input: vec![1.0; len], output: vec![0.0; len], piece: 0, step: 0 });
    let owns = [own(), own()];
    let run = |rounds: usize| {
        both(|me| {
            let mut own = owns[me].write().unwrap_or_else(PoisonError::into_inner);
            (0..rounds).map(|round| one(me, &mut own, &halves, &signals, round)).collect::<Vec<_>>()
        })
    };
    let started = Instant::now();
    run(4);
    let rounds = (4.0 * within.as_secs_f64() / started.elapsed().as_secs_f64()) as usize;
    let [one, other] = run(rounds.clamp(9, 4000));
    // The slower of the two counts: they meet after every part.
    let part = |pick: fn(&Times) -> f64| {
        let slower = one.iter().zip(&other).map(|(one, other)| pick(one).max(pick(other)));
        usual(slower.filter(|ns| *ns > 0.0).collect())
    };
    Times { stage: part(|t| t.stage), take: part(|t| t.take), fold: part(|t| t.fold) }
}

/// One call of one thread: folds in even rounds, and takes in odd ones.
fn one(
    me: usize,
    own: &mut Own,
    halves: &[[RwLock<Vec<f32>>; 2]; 2],
    signals: &Signals,
    round: usize,
) -> Times {
    let mut times = Times::default();
    own.input.fill(round as f32);
    let each = halves[0][0].read().unwrap_or_else(PoisonError::into_inner).len();
    for (input, output) in own.input.chunks(each).zip(own.output.chunks_mut(each)) {
        let half = (own.piece % 2) as usize;
        own.piece += 1;
        own.step += 1;
        {
            let mut staged = halves[me][half].write().unwrap_or_else(PoisonError::into_inner);
            let started = Instant::now();
            staged[..input.len()].copy_from_slice(input);
            times.stage += started.elapsed().as_nanos() as f64;
        }
        signals.meet(me, own.step);
        let theirs = halves[1 - me][half].read().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        if round.is_multiple_of(2) {
            add(output, input, &theirs[..input.len()]);
            times.fold += started.elapsed().as_nanos() as f64;
        } else {
            output.copy_from_slice(&theirs[..input.len()]);
            times.take += started.elapsed().as_nanos() as f64;
        }
    }
    std::hint::black_box(own.output.iter().step_by(16).sum::<f32>());
    times
}

fn add(output: &mut [f32], one: &[f32], two: &[f32]) {
    for ((sum, one), two) in output.iter_mut().zip(one).zip(two) {
        *sum = one + two;
    }
    std::hint::black_box(output);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Fabric, TopologyFile};
    use std::path::Path;

    #[test]
    fn what_is_written_is_read_again() {
        let level =
            |bytes| Level { bytes, stage: Rate::whole(20), take: Rate::whole(7), fold: Rate::whole(5) };
        let host = Host::new(2, 123_456, Passing::Staged, &[level(4096), level(1 << 20)]).unwrap();
        let topology = TopologyFile::parse(&yaml(&host), Path::new("host.yaml")).unwrap().topology().unwrap();
        assert_eq!((topology.fabric, topology.host), (Fabric::Memory, host));
    }

    #[test]
    fn parts_of_a_call_are_measured() {
        let times = measure(1000, Duration::from_millis(1));
        assert!(times.stage > 0.0 && times.take > 0.0 && times.fold > 0.0, "{times:?}");
        assert!(signal(Duration::from_millis(1)) > 0.0);
    }
}
