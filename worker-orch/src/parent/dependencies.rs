//! Which tasks a new task has to wait for, from the memory that they touch.

use crate::args::Access;
use crate::shared::Prerequisite;
use std::collections::BTreeMap;
use std::ops::Range;

/// Above this many segments those of finished tasks are dropped.
const MANY: usize = 1024;

/// For every byte that tasks of this run touched: who wrote it last, and who has read it since.
///
/// A node is one task, or all tasks of a group. First [`needs`](Self::needs) says what each of them has to
/// wait for, then [`enter`](Self::enter) enters all of them at once. So no member of a group hides from
/// another what was there before the group.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// By start; apart from each other.
    segments: BTreeMap<u64, Segment>,
    /// Nodes entered so far.
    nodes: u64,
    /// Grows when a clean-up freed little, so that clean-ups stay rare.
    clean_at: usize,
}

/// What one task of a node does with one range of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    pub(super) task: Prerequisite,
    pub(super) range: Range<u64>,
    pub(super) access: Access,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    /// The node that wrote it last.
    node: u64,
    /// A task of that node; `None` before the first.
    writer: Option<Prerequisite>,
    /// The other tasks of that node that write it. No allocation for the one writer that most bytes have.
    joint_writers: Vec<Prerequisite>,
    /// Who has read it since, and who of that node reads it.
    readers: Vec<Prerequisite>,
}

impl Segment {
    fn written_by(&mut self, node: u64, task: Prerequisite) {
        if self.node == node {
            self.joint_writers.push(task);
            return;
        }
        self.node = node;
        self.writer = Some(task);
        self.joint_writers.clear();
        self.readers.clear();
    }

    fn read_by(&mut self, task: Prerequisite) {
        // Of one child only the last reader matters: a child works in order.
        match self.readers.iter_mut().find(|reader| reader.child == task.child) {
            Some(reader) => reader.seq = task.seq,
            None => self.readers.push(task),
        }
    }
}

impl Tracker {
    /// Adds to `needs` the tasks that one with this access to `range` has to wait for.
    pub(super) fn needs(&self, range: &Range<u64>, access: Access, needs: &mut Vec<Prerequisite>) {
        if orders_nothing(range, access) {
            return;
        }
        let reaching_in = self.segments.range(..range.start).next_back();
        let reaching_in = reaching_in.filter(|(_, segment)| segment.end > range.start);
        for (_, segment) in reaching_in.into_iter().chain(self.segments.range(range.clone())) {
            needs.extend(segment.writer);
            needs.extend(&segment.joint_writers);
            if access != Access::Input {
                needs.extend(&segment.readers);
            }
        }
    }

    /// Enters the tasks of one node with all that they touch.
    pub(super) fn enter(&mut self, node: impl Iterator<Item = Touch> + Clone) {
        self.nodes += 1;
        // Writers first: they replace the readers from before the node, and must not replace those in it.
        for touch in node.clone().filter(|touch| touch.access != Access::Input) {
            self.write(touch);
        }
        for touch in node.filter(|touch| touch.access == Access::Input) {
            self.read(touch);
        }
    }

    fn write(&mut self, Touch { task, range, access }: Touch) {
        if orders_nothing(&range, access) {
            return;
        }
        let node = self.nodes;
        // The same bytes as before are the common case.
        if let Some(segment) = self.segments.get_mut(&range.start)
            && segment.end == range.end
        {
            segment.written_by(node, task);
            return;
        }
        self.split_at(range.start);
        self.split_at(range.end);
        if self.segments.range(range.clone()).any(|(_, segment)| segment.node == node) {
            self.fill_gaps(&range);
            self.segments.range_mut(range).for_each(|(_, segment)| segment.written_by(node, task));
            return;
        }
        let covered: Vec<u64> = self.segments.range(range.clone()).map(|(start, _)| *start).collect();
        covered.iter().for_each(|start| drop(self.segments.remove(start)));
        let written = Segment { end: range.end, node, writer: Some(task), ..Segment::default() };
        self.segments.insert(range.start, written);
    }

    fn read(&mut self, Touch { task, range, access }: Touch) {
        if orders_nothing(&range, access) {
            return;
        }
        self.split_at(range.start);
        self.split_at(range.end);
        self.fill_gaps(&range);
        self.segments.range_mut(range).for_each(|(_, segment)| segment.read_by(task));
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

    /// Makes segments of the bytes of `range` that nobody has touched. Its ends are borders.
    fn fill_gaps(&mut self, range: &Range<u64>) {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (start, segment) in self.segments.range(range.clone()) {
            if at < *start {
                gaps.push(at..*start);
            }
            at = segment.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            self.segments.insert(gap.start, Segment { end: gap.end, ..Segment::default() });
        }
    }

    /// Drops tasks that nobody has to wait for any more, as `is_met` says, and segments without any other.
    /// Cheap while there is little to drop.
    pub(super) fn tidy(&mut self, is_met: impl Fn(Prerequisite) -> bool) {
        if self.segments.len() < self.clean_at.max(MANY) {
            return;
        }
        self.segments.retain(|_, segment| {
            segment.writer = segment.writer.filter(|writer| !is_met(*writer));
            segment.joint_writers.retain(|writer| !is_met(*writer));
            segment.readers.retain(|reader| !is_met(*reader));
            segment.writer.is_some() || !segment.joint_writers.is_empty() || !segment.readers.is_empty()
        });
        self.clean_at = self.segments.len() * 2;
    }
}

fn orders_nothing(range: &Range<u64>, access: Access) -> bool {
    range.is_empty() || access == Access::NoDependency
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

    /// Enters one task that touches one range, and returns what it has to wait for.
    fn enter(
        tracker: &mut Tracker,
        range: Range<u64>,
        access: Access,
        who: Prerequisite,
    ) -> Vec<Prerequisite> {
        let mut needs = Vec::new();
        tracker.needs(&range, access, &mut needs);
        tracker.enter([Touch { task: who, range, access }].into_iter());
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

    /// F63: what the members of a group touch is entered after the needs of all of them were taken.
    #[test]
    fn f63_a_group_is_one_node() {
        let mut tracker = Tracker::default();
        assert_eq!(enter(&mut tracker, 0..10, Access::Output, task(0, 1)), []);
        let touch = |child, range, access| Touch { task: task(child, 1), range, access };
        let group = [
            touch(1, 0..10, Access::InOut),
            touch(2, 0..10, Access::Input),
            touch(3, 5..15, Access::OutputExisting),
        ];
        let mut needs = Vec::new();
        for touch in &group {
            needs.clear();
            tracker.needs(&touch.range, touch.access, &mut needs);
            assert_eq!(needs, [task(0, 1)], "{touch:?}");
        }
        tracker.enter(group.iter().cloned());
        assert_eq!(enter(&mut tracker, 0..5, Access::Input, task(4, 1)), [task(1, 1)]);
        assert_eq!(enter(&mut tracker, 5..10, Access::Input, task(5, 1)), [task(3, 1), task(1, 1)]);
        assert_eq!(enter(&mut tracker, 10..15, Access::Input, task(6, 1)), [task(3, 1)]);
        let all = [task(6, 1), task(5, 1), task(4, 1), task(3, 1), task(2, 1), task(1, 1)];
        assert_eq!(enter(&mut tracker, 0..15, Access::Output, task(7, 1)), all);
    }

    /// The same with one entry for each byte, which is simple enough to be right.
    #[derive(Clone, Default)]
    struct Byte {
        writers: Vec<Prerequisite>,
        readers: Vec<Prerequisite>,
    }

    struct Table(Vec<Byte>);

    impl Table {
        fn bytes(&mut self, touch: &Touch) -> &mut [Byte] {
            &mut self.0[touch.range.start as usize..touch.range.end as usize]
        }

        fn needs(&mut self, touch: &Touch) -> Vec<Prerequisite> {
            let writes = touch.access != Access::Input;
            let needed = |byte: &Byte| [&byte.writers[..], if writes { &byte.readers } else { &[] }].concat();
            self.bytes(touch).iter().flat_map(needed).collect()
        }

        fn enter(&mut self, node: &[Touch]) {
            let (reads, writes): (Vec<_>, Vec<_>) =
                node.iter().partition(|touch| touch.access == Access::Input);
            for touch in &writes {
                self.bytes(touch).fill(Byte::default());
            }
            for touch in &writes {
                self.bytes(touch).iter_mut().for_each(|byte| byte.writers.push(touch.task));
            }
            for touch in &reads {
                self.bytes(touch).iter_mut().for_each(|byte| byte.readers.push(touch.task));
            }
        }
    }

    #[test]
    fn any_mix_of_tasks_and_groups_gives_the_same_as_a_table_of_bytes() {
        const BYTES: u64 = 40;
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..300 {
            let mut tracker = Tracker::default();
            let mut table = Table(vec![Byte::default(); BYTES as usize]);
            for seq in 1..40 {
                // Some of the children, each once, with up to three ranges.
                let members: Vec<u16> = (0..4).filter(|_| next(2) == 0).collect();
                let mut node = Vec::new();
                for child in members {
                    for _ in 0..next(4) {
                        let start = next(BYTES);
                        let range = start..start + next(BYTES + 1 - start);
                        let access = [Access::Input, Access::Output, Access::InOut][next(3) as usize];
                        node.push(Touch { task: task(child, seq), range, access });
                    }
                }
                for touch in &node {
                    let (mut found, mut wanted) = (Vec::new(), table.needs(touch));
                    tracker.needs(&touch.range, touch.access, &mut found);
                    condense(&mut found, |_| false);
                    condense(&mut wanted, |_| false);
                    assert_eq!(found, wanted, "{touch:?} of {node:?}");
                }
                tracker.enter(node.iter().cloned());
                table.enter(&node);
                let apart = tracker.segments.iter().zip(tracker.segments.keys().skip(1));
                assert!(apart.into_iter().all(|((_, segment), next)| segment.end <= *next));
            }
        }
    }

    #[test]
    fn finished_tasks_are_dropped_and_failed_ones_stay() {
        let mut tracker = Tracker::default();
        // F64: child 1 has failed, so that none of its tasks is ever met.
        assert_eq!(enter(&mut tracker, 0..8, Access::Output, task(1, 1)), []);
        for seq in 1..100_000 {
            enter(&mut tracker, seq * 8..seq * 8 + 8, Access::Output, task(0, seq));
            tracker.tidy(|need| need.child != 1 && need.seq + 64 < seq);
        }
        assert!(tracker.segments.len() < 2 * MANY, "{}", tracker.segments.len());
        assert_eq!(enter(&mut tracker, 4..5, Access::Input, task(0, 100_000)), [task(1, 1)]);
    }
}
