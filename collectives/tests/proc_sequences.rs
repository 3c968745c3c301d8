//! Random sequences of different calls on overlapping groups, called and started, with random delays: every result is compared.
//!
//! # Safety
//! Makes calls in raw parts; every buffer lives until its call was waited for.
#![allow(missing_docs, unsafe_code)]

mod support;

use collectives::{CollError, Collectives, DType, Element, Kind, Op, Options, Request, Shared, Ticket};
use comm_context::comm::Communicator;
use comm_sim::SimComm;
use std::time::Duration;
use support::{Random, elements, in_comms, options, reduced, same_bits};

const NRANKS: usize = 4;
/// Overlapping, in several orders.
const GROUPS: [&[u32]; 5] = [&[0, 1, 2, 3], &[0, 1], &[1, 3, 2], &[3, 0], &[2, 1, 0, 3]];

fn text(error: CollError) -> String {
    error.to_string()
}

/// One call, the same on every rank.
#[derive(Clone, Copy, Debug)]
struct Step {
    group: usize,
    kind: Kind,
    op: Op,
    count: usize,
    root: usize,
    seed: u64,
}

fn step(random: &mut Random, most: usize) -> Step {
    let kinds: Vec<Kind> = Kind::ALL
        .iter()
        .copied()
        .filter(|kind| !matches!(kind, Kind::AllGatherV | Kind::ReduceScatterV | Kind::AllToAllV))
        .collect();
    let group = random.below(GROUPS.len());
    let limit = [8, 60, 3000, most][random.below(4)];
    Step {
        group,
        kind: kinds[random.below(kinds.len())],
        op: [Op::Sum, Op::Max, Op::BitXor][random.below(3)],
        count: random.below(limit + 1),
        root: random.below(GROUPS[group].len()),
        seed: random.next() >> 8,
    }
}

/// A call with its buffers, as one rank makes it.
struct Made {
    step: Step,
    input: Vec<i64>,
    output: Vec<i64>,
    wanted: Vec<i64>,
}

impl Made {
    fn new(step: Step, me: usize, nranks: usize) -> Self {
        let Step { kind, op, count, root, seed, .. } = step;
        let blocks = match kind {
            Kind::ReduceScatter | Kind::AllToAll => nranks,
            Kind::Scatter => nranks,
            _ => 1,
        };
        let all: Vec<Vec<i64>> = (0..nranks).map(|rank| elements(seed, rank, count * blocks)).collect();
        let block = |of: &[i64]| of[me * count..][..count].to_vec();
        let wanted = match kind {
            Kind::Barrier => Vec::new(),
            Kind::AllReduce => reduced(op, &all),
            Kind::AllGather => all.concat(),
            Kind::ReduceScatter => block(&reduced(op, &all)),
            Kind::Broadcast => all[root].clone(),
            Kind::Reduce if me == root => reduced(op, &all),
            Kind::Gather if me == root => all.concat(),
            Kind::AllToAll => all.iter().flat_map(|from| block(from)).collect(),
            Kind::Scatter => block(&all[root]),
            _ => Vec::new(),
        };
        let output = match kind {
            // In place.
            Kind::Broadcast => all[me].clone(),
            _ => vec![-1; wanted.len()],
        };
        Self { step, input: all[me].clone(), output, wanted }
    }

    fn request(&mut self) -> Request {
        let Step { kind, op, count, root, .. } = self.step;
        let reduces = matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce);
        let rooted = matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter);
        let output = self.output.as_mut_ptr().cast::<u8>();
        let input = if kind == Kind::Broadcast { output.cast_const() } else { self.input.as_ptr().cast() };
        Request {
            kind,
            dtype: DType::I64,
            op: reduces.then_some(op),
            root: if rooted { root as u32 } else { 0 },
            count,
            input,
            output,
            shared: Shared::Nothing,
            ..Request::BARRIER
        }
    }
}

const _: () = assert!(<i64 as Element>::DTYPE as u8 == DType::I64 as u8);

/// Sleeps or spins now and then, differently on every rank.
fn delay(random: &mut Random) {
    match random.below(24) {
        0 => std::thread::sleep(Duration::from_micros(random.below(300) as u64)),
        1 | 2 => (0..random.below(3000)).for_each(|_| std::hint::spin_loop()),
        3 => std::thread::yield_now(),
        _ => {}
    }
}

fn sequence(comm: &SimComm, seed: u64, steps: usize, most: usize) -> Result<(), String> {
    let me = comm.rank();
    let mut own = Random::new(seed ^ u64::from(me + 1) << 40);
    let mut groups = Vec::new();
    for ranks in GROUPS {
        let thread = own.below(6) == 0;
        let options: Options = if thread { options().progress_thread() } else { options() };
        let group =
            ranks.contains(&me).then(|| Collectives::over(comm, ranks, options)).transpose().map_err(text)?;
        groups.push(group);
    }
    let mut random = Random::new(seed);
    let mut under_way: Vec<(Ticket, Made)> = Vec::new();
    let finish = |(ticket, made): (Ticket, Made)| -> Result<(), String> {
        let group = groups[made.step.group].as_ref().ok_or("no group")?;
        group.wait_raw(ticket).map_err(|error| format!("seed {seed}, {:?}: {error}", made.step))?;
        same_bits(&format!("seed {seed}, started {:?}", made.step), &made.output, &made.wanted)
    };
    for _ in 0..steps {
        let step = step(&mut random, most);
        let Some(group) = &groups[step.group] else { continue };
        delay(&mut own);
        let mut made = Made::new(step, group.rank(), group.nranks());
        let request = made.request();
        if own.below(3) == 0 {
            // SAFETY: the vectors are as long as the request says, and move with `made` while their memory stays.
            let ticket = unsafe { group.start_raw(request) }
                .map_err(|error| format!("seed {seed}, {step:?}: {error}"))?;
            under_way.push((ticket, made));
        } else {
            // SAFETY: as above.
            unsafe { group.run_raw(request) }.map_err(|error| format!("seed {seed}, {step:?}: {error}"))?;
            same_bits(&format!("seed {seed}, {step:?}"), &made.output, &made.wanted)?;
        }
        while under_way.len() > own.below(7) {
            finish(under_way.swap_remove(own.below(under_way.len())))?;
        }
        if own.below(5) == 0
            && let Some((ticket, made)) = under_way.last()
        {
            groups[made.step.group].as_ref().ok_or("no group")?.test_raw(*ticket).map_err(text)?;
        }
    }
    while let Some(one) = under_way.pop() {
        finish(one)?;
    }
    groups.into_iter().flatten().try_for_each(Collectives::close).map_err(text)
}

// CO-1, CO-7
#[test]
fn random_sequences_on_overlapping_groups_give_what_was_asked_for() {
    for seed in 0..6 {
        in_comms(NRANKS, |comm| sequence(comm, seed, 400, 60_000));
    }
}

/// `cargo test --release -p collectives --test proc_sequences -- --ignored --nocapture`; `SEED=1007` runs one of them.
// CO-1, CO-7
#[test]
#[ignore = "takes an hour"]
fn a_hundred_sequences_of_ten_thousand_calls_give_what_was_asked_for() {
    let only = std::env::var("SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    for seed in (1000..1100).filter(|seed| only.is_none_or(|only| only == *seed)) {
        let started = std::time::Instant::now();
        in_comms(NRANKS, |comm| sequence(comm, seed, 10_000, 20_000));
        eprintln!("seed {seed}: 10000 calls in {:.1?}", started.elapsed());
    }
}
