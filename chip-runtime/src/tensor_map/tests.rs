//! Against a look at all that was entered.

use super::*;
use comm_context::abi::{DType, DeviceAddr, TensorDesc};
use std::collections::BTreeSet;

fn desc(shape: &[u32], strides: &[u32], start: u64) -> TensorDesc {
    let desc = TensorDesc::builder(DeviceAddr(4096), 1 << 24, DType::Float32, shape);
    desc.strides(strides).start_offset(start).build().unwrap()
}

fn view(shape: &[u32], strides: &[u32], start: u64) -> Extent {
    Extent::of(&desc(shape, strides, start), 4).unwrap()
}

fn conflicts(map: &mut TensorMap<u32>, extent: &Extent, kind: Use) -> Vec<u32> {
    let mut found = BTreeSet::new();
    map.conflicts(
        extent,
        kind,
        |_| false,
        |task| {
            found.insert(task);
        },
    );
    found.into_iter().collect()
}

#[test]
fn reads_come_after_writes_and_writes_after_both() {
    let mut map = TensorMap::new();
    let (all, low, high) = (view(&[100], &[1], 0), view(&[50], &[1], 0), view(&[50], &[1], 50));
    map.enter(&all, Use::Write, 1, |_| false);
    assert_eq!(conflicts(&mut map, &low, Use::Read), [1]);
    map.enter(&low, Use::Read, 2, |_| false);
    assert_eq!(conflicts(&mut map, &low, Use::Read), [1]);
    assert_eq!(conflicts(&mut map, &low, Use::Write), [1, 2]);
    assert_eq!(conflicts(&mut map, &high, Use::Write), [1]);
    map.enter(&low, Use::Write, 3, |_| false);
    // The reader is behind the writer now.
    assert_eq!(conflicts(&mut map, &low, Use::Write), [1, 3]);
    assert_eq!(conflicts(&mut map, &all, Use::Write), [1, 3]);
}

#[test]
fn columns_of_a_matrix_are_apart_and_a_view_over_a_row_end_is_not_a_box() {
    let (left, right) = (view(&[8, 5], &[10, 1], 0), view(&[8, 5], &[10, 1], 5));
    assert!(!left.overlaps(&right) && !right.overlaps(&left) && left.overlaps(&left));
    // One column in common, from either side.
    let shared = view(&[8, 5], &[10, 1], 4);
    assert!(left.overlaps(&shared) && shared.overlaps(&left));
    // Ten columns from the middle of a row on: they run over its end.
    assert!(left.overlaps(&view(&[4, 10], &[10, 1], 5)));
    // Other strides: only the ranges count.
    assert!(left.overlaps(&view(&[4, 5], &[20, 1], 5)));
    assert!(!view(&[2, 2], &[10, 1], 0).overlaps(&view(&[2, 2], &[10, 1], 20)));
}

#[test]
fn what_ended_is_dropped() {
    let mut map = TensorMap::new();
    for task in 0..100_000u32 {
        let extent = view(&[4], &[1], u64::from(task % 60_000));
        map.enter(&extent, Use::Read, task, |other| other + 100 < task);
    }
    assert!(map.accesses <= 2 * FEW, "{}", map.accesses);
    let all = view(&[60_000], &[1], 0);
    let mut found = Vec::new();
    map.conflicts(&all, Use::Write, |task| task < 99_990, |task| found.push(task));
    assert_eq!(found, (99_990..100_000).collect::<Vec<_>>());
    assert!(map.ranges.len() <= 4 * FEW, "{}", map.ranges.len());
    map.clear();
    assert_eq!(map.accesses, 0);
    // Those that were in use stay once more.
    map.clear();
    assert_eq!((map.ranges.len(), map.ranges.is_empty()), (0, true));
}

#[test]
fn the_nodes_of_ranges_that_are_used_again_stay() {
    let mut map = TensorMap::new();
    for round in 0..10 {
        for at in 0..50 {
            let extent = view(&[4], &[1], 4 * at);
            assert_eq!(conflicts(&mut map, &extent, Use::Write), Vec::<u32>::new(), "{round}");
            map.enter(&extent, Use::Write, 7, |_| false);
            assert_eq!(conflicts(&mut map, &extent, Use::Read), [7]);
        }
        map.clear();
        assert_eq!((map.accesses, map.ranges.len(), map.spare.len()), (0, 50, 0));
    }
}

#[test]
fn ranges_that_are_used_once_do_not_stay_though_each_drops_the_one_before() {
    let mut map = TensorMap::new();
    for task in 0..6000u32 {
        // A range, and columns of a matrix, that grow to one side.
        for extent in [view(&[1 + task], &[1], 0), view(&[2, 1 + task], &[100_000, 1], 0)] {
            map.conflicts(&extent, Use::Write, |other| other < task, |other| assert_eq!(other, task));
            map.enter(&extent, Use::Write, task, |other| other < task);
        }
    }
    let boxes = boxes(&mut map);
    assert!(map.ranges.len() <= 4 * FEW && boxes <= 4 * FEW, "{} {boxes}", map.ranges.len());
}

/// How many boxes the map knows.
fn boxes(map: &mut TensorMap<u32>) -> usize {
    let mut all = 0;
    map.boxes.overlapping(0, u64::MAX, |grids| all += grids.iter().map(Boxes::len).sum::<usize>());
    all
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }

    /// A view of one to three dimensions of the first elements of the buffer: ranges, boxes of a few grids, and views that
    /// run over the ends of rows.
    fn view(&mut self) -> TensorDesc {
        let grids: [&[u32]; 6] = [&[1], &[2], &[40, 1], &[20, 1], &[40, 2], &[200, 20, 2]];
        let strides = grids[self.below(6) as usize];
        let shape: Vec<u32> = strides
            .iter()
            .enumerate()
            .map(|(dim, stride)| {
                let row = if dim == 0 { 800 } else { strides[dim - 1] };
                let most = 1 << self.below(u64::from(row / stride).ilog2() as u64 + 1);
                1 + self.below(most) as u32
            })
            .collect();
        let start = self.below(800) & if self.below(4) == 0 { !0 } else { !1 };
        desc(&shape, strides, start)
    }
}

/// The elements of a view.
fn elements(desc: &TensorDesc) -> BTreeSet<u64> {
    let mut all = vec![desc.start_offset];
    for (len, stride) in desc.shape().unwrap().iter().zip(&desc.strides) {
        let along = |start: u64| (0..*len).map(move |step| start + u64::from(step * stride));
        all = all.into_iter().flat_map(along).collect();
    }
    all.into_iter().collect()
}

#[test]
fn random_views_are_found_as_by_looking_at_all() {
    let mut random = Random(7);
    let mut map = TensorMap::new();
    let mut all: Vec<(Extent, u32)> = Vec::new();
    let (mut met, mut apart) = (0, 0);
    for task in 0..1500u32 {
        let desc = random.view();
        let extent = Extent::of(&desc, 4).unwrap();
        let wanted: Vec<u32> =
            all.iter().filter(|(other, _)| other.overlaps(&extent)).map(|(_, task)| *task).collect();
        assert_eq!(conflicts(&mut map, &extent, Use::Write), wanted, "{desc:?}");
        met += wanted.len();
        apart += all.len() - wanted.len();
        // Readers only: nothing is covered.
        map.enter(&extent, Use::Read, task, |_| false);
        all.push((extent, task));
    }
    assert!(met > 100_000 && apart > 100_000, "{met} {apart}");
}

/// Two views with an element in common conflict, whatever they are; two boxes of one grid without one do not.
#[test]
fn views_conflict_where_they_have_an_element_in_common() {
    let mut random = Random(11);
    let mut exact = 0;
    for _ in 0..4000 {
        let (one, other) = (random.view(), random.view());
        let [a, b] = [&one, &other].map(|desc| Extent::of(desc, 4).unwrap());
        let overlap = a.overlaps(&b);
        let common = elements(&one).intersection(&elements(&other)).next().is_some();
        assert!(overlap || !common, "{one:?} {other:?}");
        let is_exact = match (a.place, b.place) {
            (Some((grid, _)), Some((other, _))) => grid == other,
            _ => false,
        };
        // A view of whole rows needs no box.
        let rows = |desc: &TensorDesc| {
            *desc.shape().unwrap() == [desc.shapes[0], 40] && desc.start_offset.is_multiple_of(40)
        };
        let same = one.strides == other.strides && one.strides[..2] == [40, 1];
        if is_exact || (same && rows(&one) && b.place.is_some()) {
            exact += 1;
            assert_eq!(overlap, common, "{one:?} {other:?}");
        }
    }
    assert!(exact > 200, "{exact}");
}

/// What a task comes after, it comes after by way of others too: a write that covers an access stands for it.
#[test]
fn random_reads_and_writes_are_ordered_as_by_looking_at_all() {
    for seed in 0..10 {
        let mut random = Random(seed);
        let mut map = TensorMap::new();
        let mut all: Vec<(Extent, Use)> = Vec::new();
        let mut before: Vec<BTreeSet<u32>> = Vec::new();
        // A few views, so that some are the same.
        let views: Vec<Extent> = (0..60).map(|_| Extent::of(&random.view(), 4).unwrap()).collect();
        for task in 0..600u32 {
            let extent = views[random.below(60) as usize];
            let kind = if random.below(2) == 0 { Use::Read } else { Use::Write };
            let ended = |other: u32| other + 150 < task;
            let mut after = BTreeSet::new();
            map.conflicts(&extent, kind, ended, |other| {
                let (known, used) = &all[other as usize];
                assert!(known.overlaps(&extent) && (kind, *used) != (Use::Read, Use::Read) && !ended(other));
                after.insert(other);
            });
            let inherited: Vec<u32> =
                after.iter().flat_map(|other| before[*other as usize].iter().copied()).collect();
            after.extend(inherited);
            for (other, (known, used)) in (0..).zip(&all) {
                let conflict = known.overlaps(&extent) && (kind, *used) != (Use::Read, Use::Read);
                assert!(!conflict || ended(other) || after.contains(&other), "{task} {other}");
            }
            map.enter(&extent, kind, task, ended);
            all.push((extent, kind));
            before.push(after);
        }
    }
}

/// Columns, rows' parts, tiles and cubes, entered in any order: a look visits few others.
#[test]
fn a_box_is_found_in_few_steps() {
    let spread = |at: u32| u64::from(at * 6151 % 10_000);
    let columns = |at: u32| view(&[50, 1], &[10_000, 1], u64::from(at));
    let shuffled = |at: u32| view(&[50, 1], &[10_000, 1], spread(at));
    let halves = |at: u32| view(&[1, 10], &[20, 1], 20 * u64::from(at) + 10);
    let tiles = |at: u32| view(&[2, 3], &[300, 1], spread(at) / 100 * 600 + spread(at) % 100 * 3);
    let cubes = |at: u32| {
        let (z, y, x) = (spread(at) / 400, spread(at) / 20 % 20, spread(at) % 20);
        view(&[2, 2, 2], &[1600, 40, 1], z * 3200 + y * 80 + x * 2)
    };
    let cases: [&dyn Fn(u32) -> Extent; 5] = [&columns, &shuffled, &halves, &tiles, &cubes];
    for (case, at) in cases.into_iter().enumerate() {
        let mut map = TensorMap::new();
        for task in 0..10_000 {
            assert_eq!(conflicts(&mut map, &at(task), Use::Write), Vec::<u32>::new(), "case {case}");
            map.enter(&at(task), Use::Write, task, |_| false);
        }
        let mut steps = 0;
        for task in (0..10_000).step_by(37) {
            assert_eq!(conflicts(&mut map, &at(task), Use::Write), [task], "case {case}");
            map.boxes.overlapping(0, u64::MAX, |grids| steps = steps.max(grids[0].steps(&at(task))));
        }

        assert!(steps < 64, "case {case}: {steps}");
    }
}
