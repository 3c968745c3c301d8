//! What the children are doing, in words.

use super::Children;
use crate::shared::{Activity, Kind, ReceivedFrame, SLOT_BYTES};
use deadline::monotonic_ns;
use std::fmt::Write;
use std::time::Duration;

impl Children {
    /// What `child` is doing: `in `sum.so`, its task 3 of 7, for 2.1s: waits for signals[2] of rank 1: has 3, wants 4`.
    pub(super) fn activity(&self, child: usize) -> String {
        let (words, sent) = (self.block.child(child), self.handles[child].ring.sent());
        match words.activity() {
            Activity::Idle => format!("idle, {} of {sent} tasks done", words.done()),
            Activity::Task { seq, since_ns, need } => {
                let since = Duration::from_nanos(monotonic_ns().saturating_sub(since_ns));
                let what = self.frame_words(child, seq);
                match need {
                    Some(need) => {
                        let other = usize::from(need.child);
                        let name = self.handles.get(other).map_or("?", |handle| &handle.name);
                        let awaited = self.frame_words(other, need.seq);
                        format!(
                            "before {what}, its task {seq} of {sent}: waits for {awaited}, task {} of {name}, \
                             for {since:.1?}",
                            need.seq
                        )
                    }
                    None => {
                        let awaited = self.awaited(child).map(|awaited| format!(": waits for {awaited}"));
                        let awaited = awaited.unwrap_or_default();
                        format!("in {what}, its task {seq} of {sent}, for {since:.1?}{awaited}")
                    }
                }
            }
        }
    }

    /// What frame `seq` of `child` is, from its slot, which the parent wrote.
    pub(super) fn frame_words(&self, child: usize, seq: u64) -> String {
        let known = self.handles.get(child).is_some_and(|handle| {
            // Later frames use the slot again.
            seq <= handle.ring.sent() && self.block.slot_number(child, seq).holds(seq)
        });
        if !known {
            return "a task".to_owned();
        }
        let (mut slot, mut frame) = (vec![0; SLOT_BYTES], ReceivedFrame::default());
        self.block.read_frame(child, seq, &mut slot, &mut frame);
        match frame.kind {
            Some(Kind::Task) => self.program_words(frame.program),
            Some(command) => format!("the command to {}", command.words()),
            None => "a task".to_owned(),
        }
    }

    /// The name of a program, quoted.
    pub(super) fn program_words(&self, program: u32) -> String {
        self.programs.get(program as usize).map_or("a command".to_owned(), |name| format!("`{name}`"))
    }

    /// One line for each child: what it is working on, and since when.
    pub(super) fn table(&self) -> String {
        let mut table = String::new();
        for (child, handle) in self.handles.iter().enumerate() {
            let _ = writeln!(table, "  {:<12} pid {:<8} {}", handle.name, handle.pid(), self.activity(child));
        }
        table
    }
}
