//! The same bits as a plain loop in the order of the ranks, whatever the type, operation, size, number of ranks and place.
#![allow(missing_docs)]

mod support;

use collectives::{CollError, Collectives, DType, Element, Op, WindowTensor};
use support::{Number, Random, elements, in_groups, options, reduced, same_bits};

fn text(error: CollError) -> String {
    error.to_string()
}

/// Where a rank's data lies, for all ranks or for some.
#[derive(Clone, Copy, Debug)]
enum Place {
    Slice,
    Tensor,
    Mixed,
}

impl Place {
    fn is_tensor(self, seed: u64, rank: usize) -> bool {
        match self {
            Self::Slice => false,
            Self::Tensor => true,
            Self::Mixed => (seed as usize + rank).is_multiple_of(2),
        }
    }
}

/// Bytes of the cases.
#[derive(Clone, Copy)]
struct Sizes {
    most: usize,
    /// One in so many may be large.
    thinned: usize,
    /// One in so many takes several pieces: more than 1 MiB, up to 2 MiB.
    several_pieces: usize,
}

impl Sizes {
    fn bytes(self, random: &mut Random) -> usize {
        if random.below(self.several_pieces) == 0 {
            return (1 << 20) + random.below(1 << 20);
        }
        // Small ones mostly: every threshold has both its sides.
        let limit = match random.below(8) {
            // The reference takes most of the time, and by far the most of it for large ones.
            _ if random.below(self.thinned) > 0 => 600,
            0..4 => 64,
            4..6 => 1200,
            6 => 20_000,
            _ => self.most,
        };
        random.below(limit.min(self.most) + 1)
    }
}

/// Elements that a call reads or writes.
enum Memory<'g, T: Element> {
    Slice(Vec<T>),
    Tensor(WindowTensor<'g, T>),
}

impl<'g, T: Number> Memory<'g, T> {
    fn new(group: &'g Collectives<'_>, is_tensor: bool, values: &[T]) -> Result<Self, String> {
        if !is_tensor {
            return Ok(Self::Slice(values.to_vec()));
        }
        let mut tensor = group.alloc::<T>(values.len()).map_err(text)?;
        tensor.as_mut_slice().map_err(text)?.copy_from_slice(values);
        Ok(Self::Tensor(tensor))
    }

    fn values(&self) -> Result<&[T], String> {
        match self {
            Self::Slice(values) => Ok(values),
            Self::Tensor(tensor) => tensor.as_slice().map_err(text),
        }
    }
}

/// Calls `$body` with `$name` as a slice or as a tensor.
macro_rules! with_memory {
    ($memory:expr, $name:ident => $body:expr) => {
        match $memory {
            Memory::Slice($name) => $body,
            Memory::Tensor($name) => $body,
        }
    };
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
    let count = sizes.bytes(random) / size_of::<T>().max(nranks / 8);
    let place = [Place::Slice, Place::Tensor, Place::Mixed][random.below(3)];
    let is_tensor = place.is_tensor(seed, me);
    let what = format!("seed {seed}: {} {op} × {count}, {nranks} ranks, {place:?}", T::DTYPE);
    match random.below(5) {
        0 => {
            let block = count / nranks;
            let all: Vec<Vec<T>> = (0..nranks).map(|rank| elements(seed, rank, block * nranks)).collect();
            let input = Memory::new(group, is_tensor, &all[me])?;
            let mut part = vec![T::from_bits(0); block];
            with_memory!(&input, input => group.reduce_scatter(input, &mut part, op)).map_err(text)?;
            same_bits(&format!("reduce_scatter {what}"), &part, &reduced(op, &all)[me * block..][..block])
        }
        1 => {
            let root = random.below(nranks);
            let all: Vec<Vec<T>> = (0..nranks).map(|rank| elements(seed, rank, count)).collect();
            let input = Memory::new(group, is_tensor, &all[me])?;
            let mut output = vec![T::from_bits(0); count];
            let to = (me == root).then_some(&mut output[..]);
            with_memory!(&input, input => group.reduce(input, to, op, root)).map_err(text)?;
            if me == root {
                same_bits(&format!("reduce {what}"), &output, &reduced(op, &all))
            } else {
                Ok(())
            }
        }
        in_place => {
            let all: Vec<Vec<T>> = (0..nranks).map(|rank| elements(seed, rank, count)).collect();
            let wanted = reduced(op, &all);
            let mut output = Memory::new(group, is_tensor, &all[me])?;
            if in_place != 2 {
                with_memory!(&mut output, both => group.all_reduce(both, op)).map_err(text)?;
                return same_bits(&format!("all_reduce {what}"), output.values()?, &wanted);
            }
            // Input and output each have their place.
            let what = format!("all_reduce_into {what}");
            let input = Memory::new(group, place.is_tensor(seed / 2, me), &all[me])?;
            with_memory!(&mut output, output => {
                with_memory!(&input, input => group.all_reduce_into(input, output, op))
            })
            .map_err(text)?;
            same_bits(&what, output.values()?, &wanted)?;
            same_bits(&format!("input of {what}"), input.values()?, &all[me])
        }
    }
}

/// Runs `cases` random cases.
fn random_cases(nranks: usize, first: u64, cases: u64, sizes: Sizes) {
    in_groups(nranks, options().pool(8 << 20), |group| {
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
        random_cases(
            nranks,
            1000 * nranks as u64,
            cases,
            Sizes { most, thinned: 1, several_pieces: if nranks < 5 { 40 } else { 500 } },
        );
    }
}

/// A million cases: `cargo test --release -p collectives --test proc_same_bits -- --ignored --nocapture`, which ends with their
/// number. `PART=3/20` runs the third of twenty parts of them.
// CO-2
#[test]
#[ignore = "takes some minutes"]
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
            // With more ranks the same bytes of each are more work for the reference.
            let several_pieces = if nranks < 5 { 50 } else { 500 };
            let sizes = Sizes { most: 100_000, thinned: 8, several_pieces };
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
