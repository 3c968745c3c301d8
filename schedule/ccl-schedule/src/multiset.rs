//! Contributions of a tile: exact multisets of ranks, or for many ranks sums of random field elements.

use crate::untimed::Algebra;
use std::collections::HashMap;

/// A multiset of ranks in 32 bits: empty, one circular run of ranks, or a number in the table of other sets.
///
/// Rings, meshes and hierarchies build only circular runs, so a proof of a ring costs a few instructions per
/// message; trees and broken schedules use the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Set(u32);

const RUN: u32 = 1 << 30;
const TABLE: u32 = 1 << 31;
const HALF: u32 = 15;

/// Ranks `start .. start + len`, each `times` times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Piece {
    start: u32,
    len: u32,
    times: u32,
}

pub(crate) struct Multisets {
    ranks: u32,
    table: Vec<Box<[Piece]>>,
    known: HashMap<Box<[Piece]>, u32>,
}

/// The most ranks for which sets are kept exactly.
pub const EXACT_RANKS: u32 = 4096;

impl Multisets {
    pub(crate) fn new(ranks: u32) -> Self {
        assert!(ranks <= EXACT_RANKS, "a run must fit {HALF} bits per end");
        Multisets { ranks, table: Vec::new(), known: HashMap::new() }
    }

    /// A circular run; the full circle starts at 0.
    pub(crate) fn run(&self, start: u32, len: u32) -> Set {
        let start = if len == self.ranks { 0 } else { start };
        Set(RUN | start << HALF | len)
    }

    fn as_run(set: Set) -> Option<(u32, u32)> {
        (set.0 & RUN != 0).then_some(((set.0 & (RUN - 1)) >> HALF, set.0 & ((1 << HALF) - 1)))
    }

    #[inline]
    fn joined(&self, (a, la): (u32, u32), (b, lb): (u32, u32)) -> Option<Set> {
        if la + lb > self.ranks {
            return None;
        }
        let end = a + la;
        let end = if end >= self.ranks { end - self.ranks } else { end };
        (end == b).then(|| self.run(a, la + lb))
    }

    fn pieces(&self, set: Set) -> Vec<Piece> {
        if set == Self::EMPTY {
            return Vec::new();
        }
        let Some((start, len)) = Self::as_run(set) else {
            return self.table[(set.0 & !TABLE) as usize].to_vec();
        };
        let first = len.min(self.ranks - start);
        let mut pieces = vec![Piece { start, len: first, times: 1 }];
        if first < len {
            pieces.insert(0, Piece { start: 0, len: len - first, times: 1 });
        }
        pieces
    }

    /// Merges two sorted lists of disjoint pieces by their edges.
    fn merge(a: &[Piece], b: &[Piece]) -> Vec<Piece> {
        let mut edges: Vec<(u32, i64)> = a
            .iter()
            .chain(b)
            .flat_map(|p| [(p.start, i64::from(p.times)), (p.start + p.len, -i64::from(p.times))])
            .collect();
        edges.sort_unstable();
        let (mut out, mut times, mut from): (Vec<Piece>, i64, u32) = (Vec::new(), 0, 0);
        for (at, change) in edges {
            if at > from && times > 0 {
                match out.last_mut() {
                    Some(p) if p.start + p.len == from && i64::from(p.times) == times => p.len += at - from,
                    _ => out.push(Piece { start: from, len: at - from, times: times as u32 }),
                }
            }
            times += change;
            from = at;
        }
        out
    }

    fn intern(&mut self, pieces: Vec<Piece>) -> Set {
        match *pieces.as_slice() {
            [] => return Self::EMPTY,
            [Piece { start, len, times: 1 }] => return self.run(start, len),
            [Piece { start: 0, len, times: 1 }, Piece { start, len: tail, times: 1 }]
                if start + tail == self.ranks =>
            {
                return self.run(start, len + tail);
            }
            _ => {}
        }
        let pieces = pieces.into_boxed_slice();
        if let Some(&id) = self.known.get(&pieces) {
            return Set(TABLE | id);
        }
        let id = self.table.len() as u32;
        self.table.push(pieces.clone());
        self.known.insert(pieces, id);
        Set(TABLE | id)
    }

    /// Which ranks are missing from `set` and which are counted too often, compared with `wanted`.
    pub(crate) fn difference(&self, set: Set, wanted: Set) -> (Vec<u32>, Vec<(u32, u32)>) {
        let mut times = vec![0u32; self.ranks as usize];
        for p in self.pieces(set) {
            times[p.start as usize..][..p.len as usize].iter_mut().for_each(|t| *t += p.times);
        }
        let mut want = vec![0u32; self.ranks as usize];
        for p in self.pieces(wanted) {
            want[p.start as usize..][..p.len as usize].iter_mut().for_each(|t| *t += p.times);
        }
        let missing = (0..self.ranks).filter(|&r| times[r as usize] < want[r as usize]).collect();
        let extra = (0..self.ranks)
            .filter(|&r| times[r as usize] > want[r as usize])
            .map(|r| (r, times[r as usize]))
            .collect();
        (missing, extra)
    }
}

impl Algebra for Multisets {
    type Value = Set;
    const EMPTY: Set = Set(0);

    fn initial(&mut self, rank: u32, _chunk: u32) -> Set {
        self.run(rank, 1)
    }

    #[inline]
    fn add(&mut self, a: Set, b: Set) -> Set {
        if let (Some(x), Some(y)) = (Self::as_run(a), Self::as_run(b))
            && let Some(set) = self.joined(x, y).or_else(|| self.joined(y, x))
        {
            return set;
        }
        let pieces = Self::merge(&self.pieces(a), &self.pieces(b));
        self.intern(pieces)
    }
}

/// 2^61 − 1.
const PRIME: u64 = (1 << 61) - 1;

/// One random element of GF(2^61 − 1) per rank and chunk, for two seeds; a tile holds the sums.
pub(crate) struct Fingerprints {
    seeds: [u64; 2],
}

impl Fingerprints {
    pub(crate) fn new() -> Self {
        Fingerprints { seeds: [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03] }
    }

    pub(crate) fn plus(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
        [0, 1].map(|i| {
            let sum = a[i] + b[i];
            if sum >= PRIME { sum - PRIME } else { sum }
        })
    }

    pub(crate) fn element(&self, rank: u32, chunk: u32) -> [u64; 2] {
        self.seeds.map(|seed| {
            // splitmix64 of the pair, then reduced into the field.
            let mut x = seed ^ (u64::from(rank) << 32 | u64::from(chunk)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (x ^ (x >> 31)) % PRIME
        })
    }
}

impl Algebra for Fingerprints {
    type Value = [u64; 2];
    const EMPTY: [u64; 2] = [0, 0];
    fn initial(&mut self, rank: u32, chunk: u32) -> [u64; 2] {
        self.element(rank, chunk)
    }
    fn add(&mut self, a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
        Self::plus(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_around_the_circle_and_the_full_circle_is_unique() {
        let mut sets = Multisets::new(5);
        let (a, b) = (sets.run(3, 2), sets.run(0, 1));
        let joined = sets.add(a, b);
        assert_eq!(joined, sets.run(3, 3));
        let rest = sets.run(1, 2);
        assert_eq!(sets.add(joined, rest), sets.run(0, 5));
        assert_eq!(sets.add(rest, joined), sets.run(0, 5));
    }

    #[test]
    fn other_sets_are_exact_and_one_number_each() {
        let mut sets = Multisets::new(8);
        let (a, b, c) = (sets.run(0, 1), sets.run(2, 1), sets.run(1, 1));
        let (ab, ba) = (sets.add(a, b), sets.add(b, a));
        assert_eq!(ab, ba);
        assert_eq!(sets.add(ab, c), sets.run(0, 3));
        let twice = sets.add(a, a);
        let full = sets.run(0, 8);
        let (missing, extra) = sets.difference(twice, full);
        assert_eq!((missing, extra), (vec![1, 2, 3, 4, 5, 6, 7], vec![(0, 2)]));
    }

    /// The chance of 2^-100 rests on elements that have nothing to do with each other.
    #[test]
    fn sc_2_fingerprints_of_ranks_and_chunks_differ_under_both_seeds() {
        let prints = Fingerprints::new();
        let pairs = (0..256).flat_map(|rank| (0..16).map(move |chunk| (rank, chunk)));
        let mut elements: Vec<u64> = pairs
            .flat_map(|(rank, chunk)| prints.element(rank, chunk))
            .inspect(|x| assert!(*x < PRIME))
            .collect();
        let all = elements.len();
        elements.sort_unstable();
        elements.dedup();
        assert_eq!(elements.len(), all);
    }
}
