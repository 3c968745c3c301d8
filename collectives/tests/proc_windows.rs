//! Tensors in windows: in place and out of place, on all ranks and on some, and as input of every call that reads them where they stand.
#![allow(missing_docs)]

mod support;

use collectives::{CollError, Collectives, Op};
use support::{elements, in_groups, options, reduced, same_bits};

const RANKS: [usize; 4] = [2, 3, 4, 9];
/// Elements of f32: below the window's threshold, at it, in one piece, in several.
const COUNTS: [usize; 5] = [100, 2048, 2049, 60_000, 400_003];

fn text(error: CollError) -> String {
    error.to_string()
}

fn in_all(body: impl Fn(&Collectives<'_>, u64, usize) -> Result<(), String>) {
    for nranks in RANKS {
        in_groups(nranks, options().pool(8 << 20), |group| {
            for (seed, count) in COUNTS.into_iter().enumerate().take(if nranks > 4 { 4 } else { 5 }) {
                for round in 0..2 {
                    body(group, seed as u64 * 10 + round, count)?;
                }
            }
            Ok(())
        });
    }
}

// CO-1, CO-2
#[test]
fn an_all_reduce_of_tensors_gives_the_same_bits_as_a_staged_one() {
    in_all(|group, seed, count| {
        let all: Vec<Vec<f32>> = (0..group.nranks()).map(|rank| elements(seed, rank, count)).collect();
        let wanted = reduced(Op::Sum, &all);
        let mut tensor = group.alloc::<f32>(count).map_err(text)?;
        tensor.as_mut_slice().map_err(text)?.copy_from_slice(&all[group.rank()]);
        group.all_reduce(&mut tensor, Op::Sum).map_err(text)?;
        same_bits("in place", tensor.as_slice().map_err(text)?, &wanted)?;
        // Out of place, from tensor to tensor.
        let (mut input, mut output) = (group.alloc::<f32>(count).map_err(text)?, tensor);
        input.as_mut_slice().map_err(text)?.copy_from_slice(&all[group.rank()]);
        group.all_reduce_into(&input, &mut output, Op::Max).map_err(text)?;
        same_bits("out of place", output.as_slice().map_err(text)?, &reduced(Op::Max, &all))?;
        same_bits("input", input.as_slice().map_err(text)?, &all[group.rank()])
    });
}

// CO-2
#[test]
fn tensors_on_some_ranks_and_slices_on_others_agree() {
    in_all(|group, seed, count| {
        let (me, nranks) = (group.rank(), group.nranks());
        let all: Vec<Vec<f32>> = (0..nranks).map(|rank| elements(seed, rank, count)).collect();
        let wanted = reduced(Op::Sum, &all);
        // Back to back, so that a half that is freed too early would be overwritten.
        for turn in 0..4 {
            let mut copy = all[me].clone();
            let mut tensor = group.alloc::<f32>(count).map_err(text)?;
            tensor.as_mut_slice().map_err(text)?.copy_from_slice(&copy);
            if (me + turn) % 2 == 0 {
                group.all_reduce(&mut copy, Op::Sum).map_err(text)?;
                same_bits("slice", &copy, &wanted)?;
            } else {
                group.all_reduce(&mut tensor, Op::Sum).map_err(text)?;
                same_bits("tensor", tensor.as_slice().map_err(text)?, &wanted)?;
            }
        }
        Ok(())
    });
}

/// A rank that only learns in the first step that it has to stage does so one step later than the others, and its half is read one
/// step longer. A root that runs ahead would overwrite it.
// CO-2
#[test]
fn a_half_that_was_staged_late_is_not_written_while_others_read_it() {
    in_groups(4, options().pool(8 << 20), |group| {
        let me = group.rank();
        for turn in 0..250_u64 {
            let (count, late) = (20_000 + 7 * turn as usize, turn as usize % 4);
            let all: Vec<Vec<f32>> = (0..4).map(|rank| elements(turn, rank, count)).collect();
            let wanted = reduced(Op::Sum, &all);
            let mut tensor = group.alloc::<f32>(count).map_err(text)?;
            tensor.as_mut_slice().map_err(text)?.copy_from_slice(&all[me]);
            let mut copy = all[me].clone();
            if me == late {
                group.all_reduce(&mut tensor, Op::Sum).map_err(text)?;
                tensor.copy_out(&mut copy);
            } else {
                group.all_reduce(&mut copy, Op::Sum).map_err(text)?;
            }
            // The root waits for nobody.
            for _ in 0..4 {
                group.broadcast(&mut vec![turn; 4000], late).map_err(text)?;
            }
            same_bits(&format!("turn {turn}"), &copy, &wanted)?;
        }
        Ok(())
    });
}

/// Started, with tensors on some ranks: the others learn in the first step that they have to stage one step later. And by reference: a
/// started call is over when everybody has read, and not before.
// CO-2, CO-7
#[test]
fn started_calls_of_tensors_on_some_ranks_give_the_same_bits() {
    in_all(|group, seed, count| {
        let (me, nranks) = (group.rank(), group.nranks());
        let all: Vec<Vec<f32>> = (0..nranks).map(|rank| elements(seed, rank, count)).collect();
        let wanted = reduced(Op::Sum, &all);
        for turn in 0..3 {
            let tensor = || -> Result<_, String> {
                let mut tensor = group.alloc::<f32>(count).map_err(text)?;
                tensor.as_mut_slice().map_err(text)?.copy_from_slice(&all[me]);
                Ok(tensor)
            };
            let (mut sums, mut input, mut slice) = (tensor()?, tensor()?, all[me].clone());
            let mut gathered = vec![9.0; count * nranks];
            let has_tensor = (me + turn) % 3 != 0;
            group
                .scope(|calls| {
                    if has_tensor {
                        let _ = calls.start_all_reduce(&mut sums, Op::Sum)?;
                    } else {
                        let _ = calls.start_all_reduce(&mut slice, Op::Sum)?;
                    }
                    calls.start_all_gather(&input, &mut gathered).map(drop)
                })
                .and_then(|inside| inside)
                .map_err(text)?;
            // Whoever still reads it gets something wrong.
            input.as_mut_slice().map_err(text)?.fill(8.0);
            same_bits(
                "all_reduce",
                if has_tensor { sums.as_slice().map_err(text)? } else { &slice },
                &wanted,
            )?;
            same_bits("all_gather", &gathered, &all.concat())?;
        }
        Ok(())
    });
}

// CO-1
#[test]
fn input_in_a_window_is_read_where_it_stands() {
    in_all(|group, seed, count| {
        let (me, nranks) = (group.rank(), group.nranks());
        let root = seed as usize % nranks;
        let all: Vec<Vec<f32>> = (0..nranks).map(|rank| elements(seed, rank, count)).collect();
        let mut tensor = group.alloc::<f32>(count).map_err(text)?;
        let mut set = |values: &[f32]| -> Result<(), String> {
            tensor.as_mut_slice().map_err(text)?.copy_from_slice(values);
            Ok(())
        };
        set(&all[me])?;
        let mut gathered = vec![9.0; count * nranks];
        // Some by reference and some staged, in one call.
        if me % 3 == 2 {
            group.all_gather(&all[me], &mut gathered).map_err(text)?;
        } else {
            group.all_gather(&tensor, &mut gathered).map_err(text)?;
        }
        same_bits("all_gather", &gathered, &all.concat())?;

        // The tensor may be overwritten as soon as the call returns.
        tensor.as_mut_slice().map_err(text)?.fill(7.0);
        let mut gathered = vec![9.0; count * nranks];
        tensor.as_mut_slice().map_err(text)?.copy_from_slice(&all[me]);
        group.gather(&tensor, (me == root).then_some(&mut gathered[..]), root).map_err(text)?;
        tensor.as_mut_slice().map_err(text)?.fill(8.0);
        if me == root {
            same_bits("gather", &gathered, &all.concat())?;
        }

        tensor.as_mut_slice().map_err(text)?.copy_from_slice(&all[me]);
        group.broadcast(&mut tensor, root).map_err(text)?;
        same_bits("broadcast", tensor.as_slice().map_err(text)?, &all[root])?;

        tensor.as_mut_slice().map_err(text)?.copy_from_slice(&all[me]);
        let mut sums = vec![9.0; count];
        group.reduce(&tensor, (me == root).then_some(&mut sums[..]), Op::Sum, root).map_err(text)?;
        tensor.as_mut_slice().map_err(text)?.fill(8.0);
        if me == root {
            same_bits("reduce", &sums, &reduced(Op::Sum, &all))?;
        }
        drop(tensor);

        let block = count / nranks;
        let blocks: Vec<Vec<f32>> = (0..nranks).map(|rank| elements(seed, rank, block * nranks)).collect();
        let mut tensor = group.alloc::<f32>(block * nranks).map_err(text)?;
        tensor.as_mut_slice().map_err(text)?.copy_from_slice(&blocks[me]);
        let mut part = vec![9.0; block];
        group.reduce_scatter(&tensor, &mut part, Op::Sum).map_err(text)?;
        same_bits("reduce_scatter", &part, &reduced(Op::Sum, &blocks)[me * block..][..block])?;
        let mut exchanged = vec![9.0; block * nranks];
        group.all_to_all(&tensor, &mut exchanged).map_err(text)?;
        let wanted: Vec<f32> = blocks.iter().flat_map(|from| from[me * block..][..block].to_vec()).collect();
        same_bits("all_to_all", &exchanged, &wanted)?;
        let input = (me == root).then_some(&tensor);
        group.scatter(input, &mut part, root).map_err(text)?;
        tensor.as_mut_slice().map_err(text)?.fill(8.0);
        same_bits("scatter", &part, &blocks[root][me * block..][..block])
    });
}

#[test]
fn a_pool_that_is_full_says_need_and_have() {
    in_groups(1, options().pool(1 << 16), |group| {
        let mut one = group.alloc::<u64>(1000).map_err(text)?;
        one.as_mut_slice().map_err(text)?.fill(7);
        let full = group.alloc::<u64>(8000).map(drop).unwrap_err().to_string();
        if !full.contains("64000 bytes") || !full.contains("57472 of 65536") {
            return Err(full);
        }
        drop(one);
        let all = group.alloc::<u64>(8192).map_err(text)?;
        if all.as_slice().map_err(text)?.iter().any(|element| *element != 0) {
            return Err("a new tensor is not zero".to_owned());
        }
        let none = group.alloc::<u64>(usize::MAX).map(drop).unwrap_err();
        matches!(none, CollError::PoolFull { .. }).then_some(()).ok_or(none.to_string())
    });
}
