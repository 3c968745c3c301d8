//! Time of a group's start, of a barrier and of allocating a domain, each compared with its limit and with MPI:
//! `cargo xtask bench comm`.
//!
//! # Safety
//! Forks; the children use the communicator only.
#![allow(unsafe_code)]

mod driver;
mod mpi;

use bench_support::{Bench, Contestant, Figure, Samples, SpinPingPong, alternate, fork_and_wait};
use child_process::Child;
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec, Timeout};
use comm_sim::{Prepared, SimComm};
use deadline::{Deadline, HowDied};
use mpi::{Mpi, Times};
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const WINDOW: usize = 65536;
/// Rounds that take some tenths of a millisecond: most batches then end within one time slice.
const SHORT: u64 = 300;
const FORKS: &str = "fork and wait of as many";
const SPIN: &str = "bare spin round trip";

fn main() -> Outcome {
    let bench = Bench::from_args("comm");
    let folder = tempfile::tempdir()?;
    let others = mpi::installed(folder.path());
    for ranks in [2, 4, 8, 16, 64] {
        init(&bench, &others, ranks)?;
    }
    for ranks in [2, 4, 8, 16] {
        barrier(&bench, &others, ranks)?;
    }
    for ranks in [2, 4] {
        domain(&bench, &others, ranks)?;
    }
    from_c(&bench, &others, folder.path())
}

fn median(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// From nothing to windows on every rank, and until the processes have ended, as `fork_and_wait` measures it too.
fn group_from_fork(ranks: usize) -> Result<Duration, Box<dyn std::error::Error>> {
    let started = Instant::now();
    let prepared = SimComm::prepare_group(ranks as u32)?;
    let keep: Vec<_> = prepared.fds().collect();
    let children: Result<Vec<Child>, _> = (0..ranks)
        .map(|rank| {
            let body = || {
                let up = SimComm::join(&prepared, rank as u32, Timeout::DEFAULT).and_then(|comm| {
                    comm.alloc_windows(WINDOW, Timeout::DEFAULT).map(|_| std::mem::forget(comm))
                });
                i32::from(up.is_err())
            };
            // SAFETY: the program has one thread, and the body uses the communicator only.
            unsafe { Child::fork(&keep, body) }
        })
        .collect();
    let end = Deadline::after(Duration::from_secs(60))?;
    let ok = children?.iter().all(|child| child.reap(end) == Some(HowDied::Exited(0)));
    if ok { Ok(started.elapsed()) } else { Err("a rank failed".into()) }
}

fn init(bench: &Bench, others: &[Mpi], ranks: usize) -> Outcome {
    let case = format!("init and windows, {ranks} ranks");
    if !bench.wants(&case) {
        return Ok(());
    }
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let (mut ours, mut forks) = (Vec::new(), Vec::new());
    let rounds = bench.amount(if ranks > 16 { 20 } else { 60 });
    for _ in 0..rounds {
        forks.push(us(fork_and_wait(ranks)?));
        ours.push(us(group_from_fork(ranks)?));
    }
    let value = median(&ours).unwrap_or(0.0);
    bench.print(&Figure { case: &case, value, unit: "us", limit: FORKS, limit_value: median(&forks) });
    // 64 ranks of MPI take minutes on a small machine.
    for other in others.iter().filter(|_| ranks <= 16) {
        let limit = format!("{}: MPI_Init and window", other.name);
        let times: Vec<f64> = (0..bench.amount(3))
            .filter_map(|_| other.run(ranks, &["init"]))
            .map(|t| t.median / 1e3)
            .collect();
        bench.print(&Figure { case: &case, value, unit: "us", limit: &limit, limit_value: median(&times) });
    }
    Ok(())
}

/// A rank of the group in each process of a benchmark. It joins in its first round.
struct Member<'a> {
    prepared: &'a Prepared,
    comm: Option<SimComm>,
    /// The time of each round in process 0, where it is wanted.
    rounds: Option<Vec<f64>>,
}

impl<'a> Member<'a> {
    fn new(prepared: &'a Prepared, rounds: Option<Vec<f64>>) -> Self {
        Self { prepared, comm: None, rounds }
    }

    fn play(&mut self, me: usize, rounds: u64, act: &dyn Fn(&SimComm, u32) -> Result<(), CommError>) {
        let prepared = self.prepared;
        let join =
            || SimComm::join(prepared, me as u32, Timeout::DEFAULT).unwrap_or_else(|error| panic!("{error}"));
        let comm = self.comm.get_or_insert_with(join);
        for round in 0..rounds {
            // In the first rounds of a batch the others are still on their way from the starting gate.
            let started = self.rounds.as_ref().filter(|_| round >= 10).map(|_| Instant::now());
            act(comm, me as u32).unwrap_or_else(|error| panic!("rank {me}: {error}"));
            if let (Some(times), Some(started)) = (&mut self.rounds, started) {
                times.push(started.elapsed().as_nanos() as f64);
            }
        }
    }
}

/// Times of the communicator, and of the bare spin in the same run.
struct Compared {
    /// Of averages of batches; the clock is not read between the rounds.
    median: f64,
    /// Of single rounds.
    p99: f64,
    /// The faster of the two spins.
    spin: f64,
}

fn compare_with_spin(
    ranks: usize,
    batches: usize,
    rounds: u64,
    act: &dyn Fn(&SimComm, u32) -> Result<(), CommError>,
) -> Result<Compared, Box<dyn std::error::Error>> {
    let prepared = [SimComm::prepare_group(ranks as u32)?, SimComm::prepare_group(ranks as u32)?];
    let (mut member, mut timed) =
        (Member::new(&prepared[0], None), Member::new(&prepared[1], Some(Vec::new())));
    let (eager, patient) = (SpinPingPong::new()?, SpinPingPong::patient()?);
    let (mut played, mut played_too) = (0, 0);
    let samples = {
        let mut ours = |me: usize, rounds: u64| member.play(me, rounds, act);
        let mut each = |me: usize, rounds: u64| timed.play(me, rounds, act);
        let mut one = |me: usize, rounds: u64| eager.play(me, rounds, &mut played);
        let mut two = |me: usize, rounds: u64| patient.play(me, rounds, &mut played_too);
        let mut games = [
            Contestant { rounds, play: &mut ours },
            Contestant { rounds, play: &mut each },
            Contestant { rounds: SHORT, play: &mut one },
            Contestant { rounds: SHORT, play: &mut two },
        ];
        alternate(ranks, batches, &mut games)?
    };
    Ok(Compared {
        median: samples[0].median(),
        p99: Samples::from_iter(timed.rounds.unwrap_or_default()).p99(),
        spin: samples[2].median().min(samples[3].median()),
    })
}

fn barrier(bench: &Bench, others: &[Mpi], ranks: usize) -> Outcome {
    let names = [format!("barrier median, {ranks} ranks"), format!("barrier p99, {ranks} ranks")];
    if !names.iter().any(|case| bench.wants(case)) {
        return Ok(());
    }
    let (batches, rounds) = if ranks == 2 { (100, SHORT) } else { (10, 500) };
    let act = |comm: &SimComm, _| comm.barrier(Timeout::DEFAULT);
    let mut theirs: Vec<Vec<Times>> = others.iter().map(|_| Vec::new()).collect();
    let (mut medians, mut p99s, mut spins) = (Vec::new(), Vec::new(), Vec::new());
    // In turns, so that a load that comes and goes affects all of them.
    for _ in 0..bench.amount(5) {
        let ours = compare_with_spin(ranks, bench.amount(batches), rounds, &act)?;
        medians.push(ours.median);
        p99s.push(ours.p99);
        spins.push(ours.spin);
        for (other, times) in others.iter().zip(&mut theirs) {
            times.extend(other.run(ranks, &["barrier", "5000"]));
        }
    }
    let [value, p99] = [&medians, &p99s].map(|all| median(all).unwrap_or(0.0));
    bench.print(&Figure { case: &names[0], value, unit: "ns", limit: SPIN, limit_value: median(&spins) });
    bench.print(&Figure {
        case: &names[1],
        value: p99,
        unit: "ns",
        limit: SPIN,
        limit_value: median(&spins),
    });
    for (other, times) in others.iter().zip(theirs) {
        let limit = format!("{}: MPI_Barrier", other.name);
        let of = |pick: fn(&Times) -> f64| median(&times.iter().map(pick).collect::<Vec<_>>());
        let rows = [(&names[0], value, of(|t| t.median)), (&names[1], p99, of(|t| t.p99))];
        for (case, value, limit_value) in rows {
            bench.print(&Figure { case, value, unit: "ns", limit: &limit, limit_value });
        }
    }
    Ok(())
}

/// Barriers of two ranks that a plain fork started, through the C library: nothing is pinned.
fn from_c(bench: &Bench, others: &[Mpi], folder: &std::path::Path) -> Outcome {
    let cases = [("comm", "barrier from C, 2 ranks"), ("coll", "barrier of a group from C, 2 ranks")];
    if !cases.iter().any(|(_, case)| bench.wants(case)) {
        return Ok(());
    }
    let Some(driver) = driver::Driver::build(folder) else { return Ok(()) };
    let mut ours = cases.map(|_| Vec::new());
    let mut theirs: Vec<Vec<f64>> = others.iter().map(|_| Vec::new()).collect();
    for _ in 0..bench.amount(10) {
        for ((of, _), times) in cases.iter().zip(&mut ours) {
            times.extend(driver.run(2, 20_000, of));
        }
        for (other, times) in others.iter().zip(&mut theirs) {
            times.extend(other.run(2, &["barrier", "20000"]).map(|times| times.median));
        }
    }
    for ((_, case), ours) in cases.iter().zip(&ours) {
        let worst = ours.iter().copied().max_by(f64::total_cmp);
        let (value, worst) = median(ours).zip(worst).ok_or_else(|| format!("{case}: no run succeeded"))?;
        for (other, times) in others.iter().zip(&theirs) {
            let limit = format!("{}: MPI_Barrier, unbound", other.name);
            let limit_value = median(times);
            for (case, value) in [((*case).to_owned(), value), (format!("{case}, worst run"), worst)] {
                bench.print(&Figure { case: &case, value, unit: "ns", limit: &limit, limit_value });
            }
        }
    }
    Ok(())
}

fn domain(bench: &Bench, others: &[Mpi], ranks: usize) -> Outcome {
    let case = format!("domain allocate and release, {ranks} ranks");
    if !bench.wants(&case) {
        return Ok(());
    }
    let members: Vec<u32> = (0..ranks as u32).collect();
    let act = |comm: &SimComm, rank| {
        let id = AllocationId(1);
        let spec = DomainSpec { id, ranks: &members, domain_rank: rank, window_size: WINDOW };
        comm.alloc_domain(&spec, Timeout::DEFAULT)?;
        comm.release_domain(id, Timeout::DEFAULT)
    };
    let Compared { median: value, spin, .. } = compare_with_spin(ranks, bench.amount(40), 20, &act)?;
    bench.print(&Figure { case: &case, value, unit: "ns", limit: SPIN, limit_value: Some(spin) });
    for other in others {
        let limit = format!("{}: window and free", other.name);
        let times: Vec<f64> = (0..bench.amount(3))
            .filter_map(|_| other.run(ranks, &["window", "20"]))
            .map(|t| t.median)
            .collect();
        bench.print(&Figure { case: &case, value, unit: "ns", limit: &limit, limit_value: median(&times) });
    }
    Ok(())
}
