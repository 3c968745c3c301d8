//! Which tasks a new task has to wait for, from the memory that they touch.

use crate::args::Access;
use crate::shared::Prerequisite;
use std::collections::BTreeMap;
use std::ops::Range;

/// Above this many segments those of finished tasks are dropped.
const MANY: usize = 1024;

/// For every byte that tasks of this run touched: who wrote it last, and who has read it since.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// By start; apart from each other.
    segments: BTreeMap<u64, Segment>,
    /// Grows when a clean-up freed little, so that clean-ups stay rare.
    clean_at: usize,
}

#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    writer: Option<Prerequisite>,
    readers: Vec<Prerequisite>,
}

impl Tracker {
    /// Enters `task`, which touches `range`, and adds to `needs` the tasks that it has to wait for.
    pub(super) fn enter(
        &mut self,
        range: Range<u64>,
        access: Access,
        task: Prerequisite,
        needs: &mut Vec<Prerequisite>,
    ) {
        if range.is_empty() || access == Access::NoDependency {
            return;
        }
        self.split_at(range.start);
        self.split_at(range.end);
        if access == Access::Input {
            self.read(range, task, needs);
            return;
        }
        let covered: Vec<u64> = self.segments.range(range.clone()).map(|(start, _)| *start).collect();
        for segment in covered.into_iter().filter_map(|start| self.segments.remove(&start)) {
            needs.extend(segment.writer);
            needs.extend(segment.readers);
        }
        let written = Segment { end: range.end, writer: Some(task), readers: Vec::new() };
        self.segments.insert(range.start, written);
    }

    fn read(&mut self, range: Range<u64>, task: Prerequisite, needs: &mut Vec<Prerequisite>) {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (start, segment) in self.segments.range_mut(range.clone()) {
            if at < *start {
                gaps.push(at..*start);
            }
            at = segment.end;
            needs.extend(segment.writer);
            // Of one child only the last reader matters: a child works in order.
            match segment.readers.iter_mut().find(|reader| reader.child == task.child) {
                Some(reader) => reader.seq = task.seq,
                None => segment.readers.push(task),
            }
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            self.segments.insert(gap.start, Segment { end: gap.end, writer: None, readers: vec![task] });
        }
    }

    /// Makes `at` a border between segments.
    fn split_at(&mut self, at: u64) {
        if let Some((_, segment)) = self.segments.range_mut(..at).next_back()
            && segment.end > at
        {
            let upper = segment.clone();
            segment.end = at;
            self.segments.insert(at, upper);
        }
    }

    /// Drops segments whose tasks are all finished, as `is_done` says. Cheap while there is little to drop.
    pub(super) fn tidy(&mut self, is_done: impl Fn(Prerequisite) -> bool) {
        if self.segments.len() < self.clean_at.max(MANY) {
            return;
        }
        self.segments.retain(|_, segment| {
            segment.writer = segment.writer.filter(|writer| !is_done(*writer));
            segment.readers.retain(|reader| !is_done(*reader));
            segment.writer.is_some() || !segment.readers.is_empty()
        });
        self.clean_at = self.segments.len() * 2;
    }
}

/// Leaves for every child the last task only, and none that `is_met`.
pub(super) fn condense(needs: &mut Vec<Prerequisite>, is_met: impl Fn(Prerequisite) -> bool) {
    needs.retain(|need| !is_met(*need));
    needs.sort_unstable_by(|a, b| b.cmp(a));
    needs.dedup_by_key(|need| need.child);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(child: u16, seq: u64) -> Prerequisite {
        Prerequisite { child, seq }
    }

    fn enter(
        tracker: &mut Tracker,
        range: Range<u64>,
        access: Access,
        who: Prerequisite,
    ) -> Vec<Prerequisite> {
        let mut needs = Vec::new();
        tracker.enter(range, access, who, &mut needs);
        condense(&mut needs, |_| false);
        needs
    }

    #[test]
    fn read_after_write_write_after_read_and_write_after_write_wait() {
        let mut tracker = Tracker::default();
        assert_eq!(enter(&mut tracker, 0..100, Access::Output, task(0, 1)), []);
        assert_eq!(enter(&mut tracker, 50..60, Access::Input, task(1, 1)), [task(0, 1)]);
        assert_eq!(enter(&mut tracker, 90..200, Access::Input, task(2, 1)), [task(0, 1)]);
        assert_eq!(
            enter(&mut tracker, 55..95, Access::InOut, task(3, 1)),
            [task(2, 1), task(1, 1), task(0, 1)]
        );
        assert_eq!(enter(&mut tracker, 60..61, Access::OutputExisting, task(4, 1)), [task(3, 1)]);
        assert_eq!(enter(&mut tracker, 150..160, Access::Output, task(5, 1)), [task(2, 1)]);
        assert_eq!(enter(&mut tracker, 0..10, Access::Input, task(6, 1)), [task(0, 1)]);
    }

    #[test]
    fn independent_ranges_readers_of_one_range_and_no_dependency_do_not_wait() {
        let mut tracker = Tracker::default();
        assert_eq!(enter(&mut tracker, 0..10, Access::Output, task(0, 1)), []);
        assert_eq!(enter(&mut tracker, 10..20, Access::Output, task(1, 1)), []);
        assert_eq!(enter(&mut tracker, 0..20, Access::NoDependency, task(2, 1)), []);
        assert_eq!(enter(&mut tracker, 30..40, Access::Input, task(3, 1)), []);
        assert_eq!(enter(&mut tracker, 30..40, Access::Input, task(4, 1)), []);
        assert_eq!(enter(&mut tracker, 5..5, Access::InOut, task(5, 1)), []);
    }

    /// Compared with a table of bytes, which is simple enough to be right.
    #[test]
    fn any_mix_of_ranges_gives_the_same_as_a_table_of_bytes() {
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let mut tracker = Tracker::default();
            let mut table = vec![(None::<Prerequisite>, Vec::<Prerequisite>::new()); 40];
            for seq in 1..60 {
                let start = next(40);
                let range = start..start + next(41 - start);
                let who = task(next(4) as u16, seq);
                let access = [Access::Input, Access::Output, Access::InOut][next(3) as usize];
                let mut wanted = Vec::new();
                for (writer, readers) in &mut table[range.start as usize..range.end as usize] {
                    wanted.extend(*writer);
                    if access == Access::Input {
                        readers.push(who);
                    } else {
                        wanted.append(readers);
                        *writer = Some(who);
                    }
                }
                condense(&mut wanted, |_| false);
                assert_eq!(enter(&mut tracker, range, access, who), wanted);
            }
        }
    }

    #[test]
    fn finished_tasks_are_dropped() {
        let mut tracker = Tracker::default();
        for seq in 0..100_000 {
            enter(&mut tracker, seq * 8..seq * 8 + 8, Access::Output, task(0, seq));
            tracker.tidy(|need| need.seq + 64 < seq);
        }
        assert!(tracker.segments.len() < 2 * MANY, "{}", tracker.segments.len());
    }
}
