//! What a child learns of a task's memory, in a Worker whose tasks are checked.

use super::Orchestrator;
use crate::args::{Access, Args};
use crate::heap::{Guards, Heap};
use crate::shared::{Argument, Frame, Kind, Span, encode_spans};
use std::ops::Range;
use worker_errors::Failure;

impl<'w> Orchestrator<'w> {
    /// Has the tasks checked if `heap` has guards.
    pub(in crate::parent) fn check_tasks(&mut self, heap: &'w Heap) {
        self.checked = (heap.guards() == Guards::With).then_some(heap);
    }

    /// Tells child `to` the memory of its next task. `group` are the members of the group that the task is of.
    pub(super) fn send_spans(
        &mut self,
        to: usize,
        args: &Args,
        group: &[(usize, Args)],
    ) -> Result<(), Failure> {
        let Some(heap) = self.checked else { return Ok(()) };
        // A Worker of the next level runs no program on the tensors itself.
        if to < self.next_level && self.children.ranks().is_empty() {
            return Ok(());
        }
        let others = group.iter().filter(|(member, _)| *member != to).flat_map(|(_, args)| args.ranges());
        let others: Vec<Range<u64>> = others.map(|(range, _)| range).collect();
        let blob = encode_spans(&spans(heap, args, &others));
        self.send_frame(to, &Frame { blob: &blob, ..Frame::new(Kind::Spans, self.run) }).map(drop)
    }
}

fn spans(heap: &Heap, args: &Args, others: &[Range<u64>]) -> Vec<Span> {
    let tensors = args.ranges().enumerate().map(|(index, (bytes, access))| {
        // An output that another member of the group touches too is not to be filled by one of them.
        let shared = others.iter().any(|other| other.start < bytes.end && bytes.start < other.end);
        let access = if shared && access == Access::Output { Access::OutputExisting } else { access };
        let buffer = heap.piece_at(bytes.start).filter(|buffer| bytes.end <= buffer.end);
        Span { argument: Argument::Tensor(index as u8), access, bytes, buffer }
    });
    let scalars = args.scalars().iter().enumerate().filter_map(|(index, value)| {
        let (argument, access) = (Argument::Scalar(index as u8), Access::NoDependency);
        let buffer = heap.piece_at(*value)?;
        Some(Span { argument, access, bytes: *value..value + 1, buffer: Some(buffer) })
    });
    tensors.chain(scalars).collect()
}
