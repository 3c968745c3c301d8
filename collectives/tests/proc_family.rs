//! Every call of the family, with 1 to 64 ranks, at sizes on both sides of every threshold. Started ones are in `proc_started`, and in the
//! random sequences of `proc_sequences`.
#![allow(missing_docs)]

mod support;

use collectives::{CollError, Collectives, Op};
use comm_context::comm::Communicator;
use support::{Random, elements, in_comms, in_groups, options, reduced, same_bits};

/// Elements of f32: inline, one piece, several pieces, and what is just beyond.
const COUNTS: [usize; 8] = [0, 1, 12, 13, 300, 2100, 20_000, 300_001];

fn counts(nranks: usize) -> &'static [usize] {
    match nranks {
        1..=4 => &COUNTS,
        5..=16 => &COUNTS[..7],
        _ => &COUNTS[..6],
    }
}

fn text(error: CollError) -> String {
    error.to_string()
}

fn inputs(seed: u64, nranks: usize, count: usize) -> Vec<Vec<f32>> {
    (0..nranks).map(|rank| elements(seed, rank, count)).collect()
}

/// Every call once, for one size.
fn family(group: &Collectives<'_>, seed: u64, count: usize) -> Result<(), String> {
    let (me, nranks) = (group.rank(), group.nranks());
    let root = seed as usize % nranks;
    let all = inputs(seed, nranks, count);
    let mine = &all[me];
    let wanted = reduced(Op::Sum, &all);
    let of = |call: &str| format!("{call} × {count}, {nranks} ranks, seed {seed}");

    group.barrier().map_err(text)?;
    let mut sums = mine.clone();
    group.all_reduce(&mut sums, Op::Sum).map_err(text)?;
    same_bits(&of("all_reduce"), &sums, &wanted)?;
    let mut sums = vec![9.0; count];
    group.all_reduce_into(mine, &mut sums, Op::Sum).map_err(text)?;
    same_bits(&of("all_reduce_into"), &sums, &wanted)?;

    let mut gathered = vec![9.0; count * nranks];
    group.all_gather(mine, &mut gathered).map_err(text)?;
    same_bits(&of("all_gather"), &gathered, &all.concat())?;

    let mut copy = if me == root { mine.clone() } else { vec![9.0; count] };
    group.broadcast(&mut copy, root).map_err(text)?;
    same_bits(&of("broadcast"), &copy, &all[root])?;

    let mut sums = vec![9.0; count];
    let output = (me == root).then_some(&mut sums[..]);
    group.reduce(mine, output, Op::Sum, root).map_err(text)?;
    same_bits(&of("reduce"), &sums, if me == root { &wanted } else { &sums })?;

    let mut gathered = vec![9.0; count * nranks];
    let output = (me == root).then_some(&mut gathered[..]);
    group.gather(mine, output, root).map_err(text)?;
    if me == root {
        same_bits(&of("gather"), &gathered, &all.concat())?;
    }

    // Blocks for everybody.
    let block = count / nranks + count % 3;
    let blocks = inputs(seed + 1, nranks, block * nranks);
    let mut part = vec![9.0; block];
    group.reduce_scatter(&blocks[me], &mut part, Op::Sum).map_err(text)?;
    same_bits(&of("reduce_scatter"), &part, &reduced(Op::Sum, &blocks)[me * block..][..block])?;

    let mut exchanged = vec![9.0; block * nranks];
    group.all_to_all(&blocks[me], &mut exchanged).map_err(text)?;
    let wanted: Vec<f32> = blocks.iter().flat_map(|from| from[me * block..][..block].to_vec()).collect();
    same_bits(&of("all_to_all"), &exchanged, &wanted)?;

    let mut part = vec![9.0; block];
    group.scatter((me == root).then_some(&blocks[me]), &mut part, root).map_err(text)?;
    same_bits(&of("scatter"), &part, &blocks[root][me * block..][..block])
}

/// The calls with a count for each rank.
fn unequal(group: &Collectives<'_>, seed: u64, most: usize) -> Result<(), String> {
    let (me, nranks) = (group.rank(), group.nranks());
    let mut random = Random::new(seed);
    let counts: Vec<usize> = (0..nranks).map(|_| random.below(most + 1)).collect();
    let sum = counts.iter().sum();
    let all: Vec<Vec<f32>> =
        counts.iter().enumerate().map(|(rank, count)| elements(seed, rank, *count)).collect();
    let mut gathered = vec![9.0; sum];
    group.all_gather_v(&all[me], &mut gathered, &counts).map_err(text)?;
    same_bits("all_gather_v", &gathered, &all.concat())?;

    let whole = inputs(seed + 1, nranks, sum);
    let start: usize = counts[..me].iter().sum();
    let mut part = vec![9.0; counts[me]];
    group.reduce_scatter_v(&whole[me], &mut part, &counts, Op::Sum).map_err(text)?;
    same_bits("reduce_scatter_v", &part, &reduced(Op::Sum, &whole)[start..][..counts[me]])?;

    let matrix: Vec<Vec<usize>> =
        (0..nranks).map(|_| (0..nranks).map(|_| random.below(most + 1)).collect()).collect();
    let rows: Vec<Vec<f32>> =
        (0..nranks).map(|rank| elements(seed + 2, rank, matrix[rank].iter().sum())).collect();
    let receive: Vec<usize> = matrix.iter().map(|row| row[me]).collect();
    let mut exchanged = vec![9.0; receive.iter().sum()];
    group.all_to_all_v(&rows[me], &matrix[me], &mut exchanged, &receive).map_err(text)?;
    let wanted: Vec<f32> = (0..nranks)
        .flat_map(|rank| {
            let start: usize = matrix[rank][..me].iter().sum();
            rows[rank][start..][..matrix[rank][me]].to_vec()
        })
        .collect();
    same_bits("all_to_all_v", &exchanged, &wanted)
}

fn check(nranks: usize) {
    in_groups(nranks, options(), |group| {
        for (at, count) in counts(nranks).iter().enumerate() {
            for round in 0..3 {
                family(group, (at * 10 + round) as u64, *count)?;
                unequal(group, (at * 10 + round) as u64, *count / nranks.min(8))?;
            }
        }
        Ok(())
    });
}

macro_rules! family_of {
    ($($name:ident: $nranks:literal;)+) => { $(
        // CO-1
        #[test]
        fn $name() {
            check($nranks);
        }
    )+ };
}

family_of! {
    one_rank_makes_every_call: 1;
    two_ranks_make_every_call: 2;
    three_ranks_make_every_call: 3;
    four_ranks_make_every_call: 4;
    eight_ranks_make_every_call: 8;
    sixteen_ranks_make_every_call: 16;
    sixty_four_ranks_make_every_call: 64;
}

/// The hash of these two lists was the same once, and the pair waited for each other to its deadline.
// CO-1
#[test]
fn a_rank_may_be_in_a_group_alone_and_in_one_of_two() {
    in_comms(3, |comm| {
        let lists: [&[u32]; 4] = [&[1], &[1, 2], &[2], &[2, 1]];
        let made = lists.iter().map(|ranks| {
            let is_member = ranks.contains(&comm.rank());
            is_member.then(|| Collectives::over(comm, ranks, options())).transpose().map_err(text)
        });
        for group in made.collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
            let mut all = vec![9; group.nranks()];
            group.all_gather(&[comm.rank()], &mut all).map_err(text)?;
            assert_eq!(all, group.members());
            group.close().map_err(text)?;
        }
        Ok(())
    });
}
