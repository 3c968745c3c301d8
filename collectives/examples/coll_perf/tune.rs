//! Finds the table that suits this machine, and writes it.
//!
//! An entry at which one way gives way to another is tuned by both ways over sizes around it, and becomes the size
//! where the other is better from then on. An entry that is a size of pieces becomes the best of a few.

use crate::args::Args;
use crate::out::{self, note, say};
use crate::predict;
use crate::trial::{Times, Trial, table};
use crate::{Outcome, table as tables};
use collectives::{Kind, Table};
use std::path::Path;

/// How an entry is tuned.
struct Entry {
    name: &'static str,
    kind: Kind,
    window: bool,
    how: How,
}

enum How {
    /// Up to the entry one way, which the first value forces; beyond it the other, which the second forces.
    UpTo(u32, u32, [usize; 2]),
    /// The same, but the entry is where the other begins.
    From(u32, u32, [usize; 2]),
    /// The best of these, for calls of so many bytes.
    Best(&'static [u32], usize),
}

fn entries(ranks: u32) -> Vec<Entry> {
    const ANY: u32 = u32::MAX;
    const PIECES: &[u32] = &[64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
    const ASKED: &[u32] = &[256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10];
    const ROOTED: &[u32] = &[16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10];
    let entry = |name, kind, window, how| Entry { name, kind, window, how };
    let mut entries = vec![
        entry(predict::one_shot_entry(ranks), Kind::AllReduce, false, How::UpTo(ANY, 0, [1 << 10, 16 << 20])),
        entry("window_min", Kind::AllReduce, true, How::From(256 << 10, 64, [256, 128 << 10])),
        entry("by_reference_min", Kind::AllGather, true, How::From(ANY, 64, [1 << 10, 1 << 20])),
        entry("piece", Kind::AllReduce, false, How::Best(PIECES, 8 << 20)),
        entry("rooted_piece", Kind::Broadcast, false, How::Best(ROOTED, 1 << 20)),
    ];
    if ranks == 2 {
        entries.push(entry("strings_from", Kind::AllReduce, false, How::From(ANY, 1, [4 << 10, 256 << 10])));
        entries.push(entry("take_over", Kind::AllReduce, false, How::UpTo(ANY, 0, [1 << 10, 1 << 20])));
        entries.push(entry("ask_from", Kind::AllReduce, false, How::From(ANY, 64, [16 << 10, 1 << 20])));
        entries.push(entry("ask_ahead", Kind::AllReduce, true, How::Best(ASKED, 256 << 10)));
        entries.push(entry("ask_polling", Kind::AllReduce, false, How::UpTo(64 << 10, 0, [64, 4 << 10])));
    } else if ranks > 2 {
        entries.push(entry("reduce_reads", Kind::Reduce, false, How::UpTo(ANY, 0, [1 << 10, 1 << 20])));
    }
    entries
}

/// Tunes all entries and writes the table; with `--predict`, the choice of the algorithm is the prediction's, and the rest the default.
pub(crate) fn write(args: &Args, file: &Path) -> Outcome<()> {
    // A file that cannot be written is found before the first minute, not after the last.
    let opened = std::fs::File::options().create(true).append(true).open(file);
    opened.map_err(|error| format!("{}: {error}", file.display()))?;
    let mut tuned = Table::default();
    let entries = entries(args.ranks);
    let count = if args.predict { 1 } else { entries.len() };
    for (at, entry) in entries.iter().take(count).enumerate() {
        note(format_args!("{} of {count}: {} …", at + 1, entry.name));
        let value = value(args, entry)?;
        note(format_args!(
            "{}: {value}, default {}",
            entry.name,
            Table::default().get(entry.name).unwrap_or(0)
        ));
        tuned = tuned.with(entry.name, value)?;
    }
    let how = if args.predict { "predicted" } else { "measured" };
    let head = format!("# Written by coll_perf --tune: {how} for {} ranks on this machine.\n", args.ranks);
    out::write(file, &format!("{head}{tuned}"))?;
    say(format_args!("written to {}; {} names it to groups\n", file.display(), Table::VARIABLE))
}

fn value(args: &Args, entry: &Entry) -> Outcome<u32> {
    let measure = |args: &Args, value: u32| {
        let table = table(&[(entry.name, value)])?;
        let trial = Trial { kind: entry.kind, window: entry.window, table, schedule: None };
        trial.measure(args)
    };
    let between = |one: u32, other: u32, [from, to]: [usize; 2]| {
        let args = Args { from, to, factor: 2, ..args.clone() };
        let [ones, others] =
            if args.predict { predict::both(&args)? } else { [measure(&args, one)?, measure(&args, other)?] };
        Ok::<_, Box<dyn std::error::Error>>((split(&ones, &others), ones))
    };
    // Limits of reads count what all others have staged.
    let per_call = if entry.name.ends_with("_reads") { args.ranks as usize - 1 } else { 1 };
    Ok(match entry.how {
        How::UpTo(one, other, sizes) => match between(one, other, sizes)? {
            (0, _) => 0,
            (at, times) if at == times.len() => one,
            (at, times) => (times[at - 1].0 * per_call) as u32,
        },
        How::From(one, other, sizes) => match between(one, other, sizes)? {
            (at, times) if at == times.len() => one,
            (at, times) => times[at].0 as u32,
        },
        How::Best(values, size) => {
            let args = Args { from: size, to: size, ..args.clone() };
            let mut best = (f64::INFINITY, values[0]);
            for value in values {
                let time = measure(&args, *value)?.first().map_or(f64::INFINITY, |(_, time)| *time);
                note(format_args!("  {}: {time:.1} us", tables::readable(*value as usize)));
                best = if time < best.0 { (time, *value) } else { best };
            }
            best.1
        }
    })
}

/// How many of the sizes are better done the first way: where the times of all sizes together, each in units of the better way,
/// are the least.
fn split(ones: &Times, others: &Times) -> usize {
    let pairs: Vec<(f64, f64)> =
        ones.iter().zip(others).map(|((_, one), (_, other))| (*one, *other)).collect();
    let cost = |at: usize| -> f64 {
        let taken = |(index, (one, other)): (usize, &(f64, f64))| {
            (if index < at { *one } else { *other }) / one.min(*other).max(1e-9)
        };
        pairs.iter().enumerate().map(taken).sum()
    };
    (0..=pairs.len()).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(0)
}
