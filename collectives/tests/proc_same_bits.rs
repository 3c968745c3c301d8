//! The same bits as a plain loop in the order of the ranks, whatever the type, operation, size, number of ranks and place.
#![allow(missing_docs)]

mod support;

use collectives::{CollError, Collectives, DType, Op};
use support::{Number, Random, elements, in_groups, options, reduced, same_bits};

fn text(error: CollError) -> String {
    error.to_string()
}

/// Where a rank's data lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    Slice,
    Tensor,
    Mixed,
}

/// Bytes of the cases.
#[derive(Clone, Copy)]
struct Sizes {
    most: usize,
    /// One in so many may be large.
    thinned: usize,
}

/// One random case: the same on every rank.
fn case<T: Number>(
    group: &Collectives<'_>,
    seed: u64,
    random: &mut Random,
    sizes: Sizes,
) -> Result<(), String> {
    let (me, nranks) = (group.rank(), group.nranks());
    let ops: Vec<Op> = Op::ALL.iter().copied().filter(|op| op.applies_to(T::DTYPE)).collect();
    let op = ops[random.below(ops.len())];
    // Small ones mostly: every threshold has both its sides.
    let limit = match random.below(8) {
        // The reference takes most of the time, and by far the most of it for large ones.
        _ if random.below(sizes.thinned) > 0 => 600,
        0..4 => 64,
        4..6 => 1200,
        6 => 20_000,
        _ => sizes.most,
    };
    let count = random.below(limit.min(sizes.most) + 1) / size_of::<T>().max(nranks / 8);
    let place = [Place::Slice, Place::Tensor, Place::Mixed][random.below(3)];
    let all: Vec<Vec<T>> = (0..nranks).map(|rank| elements(seed, rank, count)).collect();
    let what = format!("seed {seed}: {} {op} × {count}, {nranks} ranks, {place:?}", T::DTYPE);
    let mine = &all[me];
    match random.below(4) {
        0 => {
            let block = count / nranks;
            let whole: Vec<Vec<T>> = all.iter().map(|of| of[..block * nranks].to_vec()).collect();
            let mut part = vec![T::from_bits(0); block];
            group.reduce_scatter(&whole[me], &mut part, op).map_err(text)?;
            same_bits(&format!("reduce_scatter {what}"), &part, &reduced(op, &whole)[me * block..][..block])
        }
        1 => {
            let root = random.below(nranks);
            let mut output = vec![T::from_bits(0); count];
            group.reduce(mine, (me == root).then_some(&mut output[..]), op, root).map_err(text)?;
            if me == root {
                same_bits(&format!("reduce {what}"), &output, &reduced(op, &all))
            } else {
                Ok(())
            }
        }
        _ => {
            let tensor = match place {
                Place::Slice => false,
                Place::Tensor => true,
                Place::Mixed => (seed as usize + me).is_multiple_of(2),
            };
            let what = format!("all_reduce {what}");
            if tensor {
                let mut values = group.alloc::<T>(count).map_err(text)?;
                values.as_mut_slice().map_err(text)?.copy_from_slice(mine);
                group.all_reduce(&mut values, op).map_err(text)?;
                same_bits(&what, values.as_slice().map_err(text)?, &reduced(op, &all))
            } else {
                let mut values = mine.clone();
                group.all_reduce(&mut values, op).map_err(text)?;
                same_bits(&what, &values, &reduced(op, &all))
            }
        }
    }
}

/// Runs `cases` random cases.
fn random_cases(nranks: usize, first: u64, cases: u64, sizes: Sizes) {
    in_groups(nranks, options().pool(4 << 20), |group| {
        for seed in first..first + cases {
            let mut random = Random::new(seed);
            let dtype = DType::ALL[random.below(DType::ALL.len())];
            with_type!(dtype, T => case::<T>(group, seed, &mut random, sizes))?;
        }
        Ok(())
    });
}

// CO-2
#[test]
fn random_reductions_give_the_bits_of_a_loop_in_rank_order() {
    for (nranks, cases, most) in [
        (2, 400, 300_000),
        (3, 300, 300_000),
        (4, 200, 100_000),
        (8, 120, 40_000),
        (16, 60, 20_000),
        (64, 12, 5_000),
    ] {
        random_cases(nranks, 1000 * nranks as u64, cases, Sizes { most, thinned: 1 });
    }
}

/// A million cases: `cargo test --release -p collectives --test proc_same_bits -- --ignored --nocapture`, which ends with their
/// number. `PART=3/20` runs the third of twenty parts of them.
// CO-2
#[test]
#[ignore = "takes ten minutes"]
fn a_million_random_reductions_give_the_bits_of_a_loop_in_rank_order() {
    let (part, parts) = part();
    let of_ranks = |nranks| match nranks {
        2 => 400_000,
        3 => 250_000,
        4 => 200_000,
        5 => 50_000,
        8 => 60_000,
        16 => 30_000,
        _ => 10_000,
    };
    let mut all = 0;
    for nranks in [2, 3, 4, 5, 8, 16, 64] {
        let (cases, started) = (of_ranks(nranks) / parts, std::time::Instant::now());
        let first = (1 << 32) + part * cases;
        for from in (first..first + cases).step_by(5000) {
            let sizes = Sizes { most: 100_000, thinned: 8 };
            random_cases(nranks, from, 5000.min(first + cases - from), sizes);
        }
        eprintln!("{cases} cases of {nranks} ranks in {:.1?}", started.elapsed());
        all += cases;
    }
    eprintln!("{all} cases, every element of every rank compared: the same bits");
}

/// Which part of how many to run.
fn part() -> (u64, u64) {
    let Ok(text) = std::env::var("PART") else { return (0, 1) };
    let (part, parts) = text.split_once('/').expect("PART=3/20");
    let (part, parts) = (part.parse::<u64>().unwrap(), parts.parse().unwrap());
    assert!(1 <= part && part <= parts, "PART={text}");
    (part - 1, parts)
}

/// Every type with every operation at a size of each algorithm.
// CO-2
#[test]
fn every_type_and_operation_gives_the_bits_of_a_loop_in_rank_order() {
    fn all<T: Number>(group: &Collectives<'_>, count: usize) -> Result<(), String> {
        let ranks: Vec<Vec<T>> =
            (0..group.nranks()).map(|rank| elements(count as u64, rank, count)).collect();
        for op in Op::ALL.iter().copied().filter(|op| op.applies_to(T::DTYPE)) {
            let mut values = ranks[group.rank()].clone();
            group.all_reduce(&mut values, op).map_err(text)?;
            same_bits(&format!("{} {op} × {count}", T::DTYPE), &values, &reduced(op, &ranks))?;
        }
        Ok(())
    }
    for nranks in [1, 2, 5] {
        in_groups(nranks, options(), |group| {
            for count in [5, 100, 5000, 20_000] {
                for dtype in DType::ALL.iter().copied() {
                    with_type!(dtype, T => all::<T>(group, count))?;
                }
            }
            Ok(())
        });
    }
}
