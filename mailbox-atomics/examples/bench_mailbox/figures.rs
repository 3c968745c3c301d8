//! What is measured, and against what.

use bench_support::{
    Bench, Contestant, Figure, FutexPingPong, Samples, SpinPingPong, alternate, processor_time,
};
use child_process::{Child, ProcessWatch};
use deadline::{Deadline, Death, Watch};
use mailbox_atomics::{Barrier, Listener, ParkFlag, Place, SpinBudget, Wait, WordU32, WordU64};
use shared_memory::Region;
use std::io::{Error, Result};
use std::time::{Duration, Instant};

const SPIN: &str = "bare spin ping-pong";
const FUTEX: &str = "bare futex ping-pong";

pub(crate) fn run(bench: &Bench) -> Result<()> {
    if bench.wants("spin round trip") {
        spin_round_trip(bench)?;
    }
    if bench.wants("parked round trip") {
        parked_round_trip(bench)?;
    }
    for parties in [2, 4, 8, 16] {
        if bench.wants(&format!("barrier of {parties}")) {
            barrier(bench, parties)?;
        }
    }
    if bench.wants("parked waiter") {
        parked_waiter(bench)?;
    }
    Ok(())
}

/// Publish to observe and back, both sides spinning.
fn spin_round_trip(bench: &Bench) -> Result<()> {
    let (mail, [eager, patient]) = (PingPong::new()?, bare_spin()?);
    // Before the processes are pinned: the budget counts the cores that it finds.
    let budget = SpinBudget::for_parties(2);
    let wait = Wait::until(far()?).spinning(&budget);
    let (mut sent, mut played, mut played2) = (0, 0, 0);
    let samples = alternate(
        2,
        bench.amount(400),
        &mut [
            Contestant { rounds: 2_000, play: &mut |me, rounds| mail.play(me, rounds, &mut sent, &wait) },
            Contestant { rounds: 2_000, play: &mut |me, rounds| eager.play(me, rounds, &mut played) },
            Contestant { rounds: 2_000, play: &mut |me, rounds| patient.play(me, rounds, &mut played2) },
        ],
    )?;
    bench.print(&round_trip("spin round trip", &samples[0], SPIN, faster(&samples[1..])));
    Ok(())
}

/// The same, both sides parked in the kernel and watching each other's process.
fn parked_round_trip(bench: &Bench) -> Result<()> {
    let (mail, bare) = (PingPong::new()?, FutexPingPong::new()?);
    let watch = watch(std::process::id() as i32)?;
    let wait = Wait::until(far()?).watching(&watch);
    let (mut sent, mut played) = (0, 0);
    let samples = alternate(
        2,
        bench.amount(200),
        &mut [
            Contestant { rounds: 200, play: &mut |me, rounds| mail.play(me, rounds, &mut sent, &wait) },
            Contestant { rounds: 200, play: &mut |me, rounds| bare.play(me, rounds, &mut played) },
        ],
    )?;
    bench.print(&round_trip("parked round trip", &samples[0], FUTEX, samples[1].median()));
    Ok(())
}

/// One barrier as a party sees it. Every one is timed, so that reading the clock is part of each figure.
fn barrier(bench: &Bench, parties: usize) -> Result<()> {
    let region = Region::create("bench", parties * size_of::<Place>()).map_err(Error::other)?;
    let places = region.word_slice::<Place>(0, parties).map_err(Error::other)?;
    let [eager, patient] = bare_spin()?;
    let budget = SpinBudget::for_parties(parties);
    let wait = Wait::until(far()?).spinning(&budget);
    let (mut times, mut played, mut played2) = (Vec::new(), 0, 0);
    let mut arrive = |me: usize, rounds: u64| {
        let barrier = Barrier::new(places, me);
        for _ in 0..rounds {
            let started = Instant::now();
            barrier.wait(&wait).expect("all parties arrive");
            times.push(started.elapsed().as_nanos() as f64);
        }
    };
    let samples = alternate(
        parties,
        bench.amount(50),
        &mut [
            Contestant { rounds: 2_000 / parties as u64, play: &mut arrive },
            Contestant { rounds: 2_000, play: &mut |me, rounds| eager.play(me, rounds, &mut played) },
            Contestant { rounds: 2_000, play: &mut |me, rounds| patient.play(me, rounds, &mut played2) },
        ],
    )?;
    let times: Samples = times.into_iter().collect();
    for (name, value) in [("median", times.median()), ("p99", times.p99())] {
        let case = format!("barrier of {parties}, {name}");
        let limit_value = Some(faster(&samples[1..]));
        bench.print(&Figure { case: &case, value, unit: "ns", limit: SPIN, limit_value });
    }
    Ok(())
}

/// The processor time of a waiter that spins its budget, parks, and watches a process until its deadline.
fn parked_waiter(bench: &Bench) -> Result<()> {
    let region = Region::create("bench", 4096).map_err(Error::other)?;
    let word = region.words::<WordU64>(0).map_err(Error::other)?;
    let flag = region.words::<WordU32>(128).map_err(Error::other)?;
    let used = region.words::<WordU64>(256).map_err(Error::other)?;
    let time = Duration::from_millis(bench.amount(3_000) as u64);
    let parent = std::process::id() as i32;
    let body = || {
        let (Ok(watch), Ok(deadline)) = (watch(parent), Deadline::after(time)) else { return 1 };
        let budget = SpinBudget::for_parties(2);
        let wait = Wait::until(deadline).watching(&watch).spinning(&budget);
        let before = processor_time();
        let ended = wait.on(word, Some(&mut ParkFlag::new(flag)), |value| (value > 0).then_some(()));
        used.store((processor_time() - before).as_nanos() as u64);
        i32::from(ended.is_ok())
    };
    // SAFETY: this program has one thread, and the body touches shared memory and system calls only.
    let child = unsafe { Child::fork(&[], body) }?;
    if child.reap(far()?) != Some(deadline::HowDied::Exited(0)) {
        return Err(Error::other("the parked waiter failed"));
    }
    let share = 100.0 * used.load() as f64 / time.as_nanos() as f64;
    bench.print(&Figure {
        case: "parked waiter",
        value: share,
        unit: "%",
        limit: "1 % of a core",
        limit_value: Some(1.0),
    });
    Ok(())
}

/// Two words and their listeners' flags, on cache lines of their own.
struct PingPong {
    region: Region,
}

impl PingPong {
    fn new() -> Result<Self> {
        Ok(Self { region: Region::create("bench", 4096).map_err(Error::other)? })
    }

    fn play(&self, me: usize, rounds: u64, sent: &mut u64, wait: &Wait<'_>) {
        let side = |line: usize| {
            let word = self.region.words::<WordU64>(line * 256).expect("inside");
            let flag = self.region.words::<WordU32>(line * 256 + 128).expect("inside");
            (word, flag)
        };
        // A flag belongs to the waiter, a word to the writer.
        let ((ping, ping_flag), (pong, pong_flag)) = (side(0), side(1));
        let (sends, awaits) = if me == 0 { ((ping, ping_flag), pong) } else { ((pong, pong_flag), ping) };
        let mut parked = ParkFlag::new(if me == 0 { pong_flag } else { ping_flag });
        for _ in 0..rounds {
            *sent += 1;
            let number = *sent;
            let send = || sends.0.store_and_notify(number, [Listener::new(sends.1)]);
            if me == 0 {
                send();
            }
            let arrived = |found: u64| (found == number).then_some(());
            wait.on(awaits, Some(&mut parked), arrived).expect("the other side sends");
            if me == 1 {
                send();
            }
        }
    }
}

/// The limit of everything that spins, at both paces.
fn bare_spin() -> Result<[SpinPingPong; 2]> {
    Ok([SpinPingPong::new()?, SpinPingPong::patient()?])
}

fn faster(games: &[Samples]) -> f64 {
    games.iter().map(Samples::median).fold(f64::INFINITY, f64::min)
}

fn round_trip<'a>(case: &'a str, ours: &Samples, limit: &'a str, bare: f64) -> Figure<'a> {
    Figure { case, value: ours.median(), unit: "ns", limit, limit_value: Some(bare) }
}

fn far() -> Result<Deadline> {
    Deadline::after(Duration::from_secs(600)).map_err(Error::other)
}

fn watch(pid: i32) -> Result<impl Watch> {
    let process = ProcessWatch::of_process(pid)?;
    Ok(move || process.death().map(|how| Death { peer: 0, pid, how }))
}
