//! Random sequences of different calls and messages on overlapping groups, called and started, of every type, staged and in windows,
//! with random delays: every result is compared.
#![allow(missing_docs)]

#[path = "support/random_call.rs"]
mod random_call;
mod support;

use collectives::{CollError, Collectives, Table, Ticket};
use comm_context::comm::Communicator;
use comm_sim::SimComm;
use deadline::Deadline;
use random_call::{Made, Step};
use std::time::Duration;
use support::{Random, in_comms, in_comms_by, options, secs};

fn text(error: CollError) -> String {
    error.to_string()
}

/// Overlapping groups in random orders, the whole first. One in eight of the others may have a single rank.
fn groups(random: &mut Random, nranks: usize) -> Vec<Vec<u32>> {
    let mut groups = vec![(0..nranks as u32).collect::<Vec<u32>>()];
    for _ in 0..4 {
        let mut ranks: Vec<u32> = (0..nranks as u32).collect();
        (1..nranks).for_each(|at| ranks.swap(at, random.below(at + 1)));
        let least = if random.below(8) == 0 { 1 } else { 2 };
        ranks.truncate(least + random.below(nranks + 1 - least));
        groups.push(ranks);
    }
    groups
}

/// The default, or one with which short calls take many pieces, windows and references.
fn table(random: &mut Random) -> Table {
    if random.below(3) == 0 {
        return Table::default();
    }
    let entries: [(&str, &[u32]); 13] = [
        ("window_min", &[64, 1024, 8192]),
        ("strings_from", &[1, 1024, u32::MAX]),
        ("take_over", &[0, 8192, u32::MAX]),
        ("ask_from", &[64, 8192, u32::MAX]),
        ("ask_ahead", &[64, 512, 4096]),
        ("ask_polling", &[0, 256, 8192]),
        ("by_reference_min", &[64, 1024, 32_768]),
        ("pieces_from", &[4096, 16_384]),
        ("piece", &[4096, 8192]),
        ("rooted_piece", &[4096, 8192]),
        ("pair_one_shot", &[0, 2048, u32::MAX]),
        ("one_shot_reads", &[0, 2048, u32::MAX]),
        ("reduce_reads", &[0, 2048, u32::MAX]),
    ];
    entries.into_iter().fold(Table::default(), |table, (name, values)| {
        table.with(name, values[random.below(values.len())]).unwrap()
    })
}

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
    let mut random = Random::new(seed);
    let (lists, table) = (groups(&mut random, comm.nranks() as usize), table(&mut random));
    let sizes: Vec<usize> = lists.iter().map(Vec::len).collect();
    let mut groups = Vec::new();
    for ranks in &lists {
        let thread = own.below(6) == 0;
        let options = options().timeout(secs(120)).table(table);
        let options = if thread { options.progress_thread() } else { options };
        let group =
            ranks.contains(&me).then(|| Collectives::over(comm, ranks, options)).transpose().map_err(text)?;
        groups.push(group);
    }
    let mut under_way = Vec::new();
    let next = || Step::new(&mut random, &sizes, most);
    let ran = calls(&groups, &mut own, &mut under_way, std::iter::repeat_with(next).take(steps));
    if ran.is_err() {
        // A group that still works on them may write to their buffers.
        std::mem::forget(under_way);
        return ran;
    }
    drop(under_way);
    groups.into_iter().flatten().try_for_each(Collectives::close).map_err(text)
}

/// Makes or starts one call after the other. Nothing is under way at the end, unless it failed.
fn calls<'g, 'c>(
    groups: &'g [Option<Collectives<'c>>],
    own: &mut Random,
    under_way: &mut Vec<(Ticket, Made<'g, 'c>)>,
    steps: impl Iterator<Item = Step>,
) -> Result<(), String> {
    for step in steps {
        let Some(group) = &groups[step.group] else { continue };
        if !step.is_for(group.rank()) {
            continue;
        }
        delay(own);
        let made = Made::new(step, group, own);
        if own.below(3) == 0 {
            let ticket = made.start()?;
            under_way.push((ticket, made));
        } else {
            made.run()?;
        }
        while under_way.len() > own.below(7) {
            let (ticket, made) = under_way.swap_remove(own.below(under_way.len()));
            made.finish(ticket)?;
        }
        if own.below(5) == 0
            && let Some((ticket, made)) = under_way.last()
        {
            made.test(*ticket)?;
        }
    }
    while let Some((ticket, made)) = under_way.pop() {
        made.finish(ticket)?;
    }
    Ok(())
}

/// From 2 to 8.
fn nranks(seed: u64) -> usize {
    2 + (seed % 7) as usize
}

fn named(seed: u64, ran: Result<(), String>) -> Result<(), String> {
    ran.map_err(|why| format!("seed {seed}: {why}"))
}

// CO-1, CO-2, CO-7
#[test]
fn random_sequences_on_overlapping_groups_give_what_was_asked_for() {
    for seed in 0..7 {
        in_comms(nranks(seed), |comm| named(seed, sequence(comm, seed, 400, 300_000)));
    }
}

/// `cargo test --release -p collectives --test proc_sequences -- --ignored --nocapture`; `SEEDS=1007` or `SEEDS=1000..1020` runs some.
// CO-1, CO-2, CO-7
#[test]
#[ignore = "takes some minutes"]
fn a_hundred_sequences_of_ten_thousand_calls_give_what_was_asked_for() {
    for seed in seeds() {
        let started = std::time::Instant::now();
        let end = || Deadline::after(Duration::from_secs(1800)).unwrap();
        in_comms_by(end, nranks(seed), |comm| named(seed, sequence(comm, seed, 10_000, 200_000)));
        eprintln!("seed {seed}: 10000 calls of {} ranks in {:.1?}", nranks(seed), started.elapsed());
    }
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SEEDS") else { return 1000..1100 };
    let number = |text: &str| text.parse::<u64>().expect("SEEDS=1007 or SEEDS=1000..1020");
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&text)..number(&text) + 1,
    }
}
