//! What the children have done and are doing, in numbers.

use super::Children;
use crate::metrics::{ChildMetrics, Metrics};
use std::time::Duration;

impl Children {
    pub(in crate::parent) fn metrics(&self) -> Metrics {
        let measured = self.block.parent().asks().measured();
        let of_child = |(number, handle): (usize, &super::ChildHandle)| {
            let words = self.block.child(number);
            // Claims of the child: no more than it was sent.
            let finished = words.done().min(handle.ring.sent());
            let times = Some(words.times()).filter(|_| measured);
            let (busy, waiting) = times
                .map(|(busy, waiting)| (Duration::from_nanos(busy), Duration::from_nanos(waiting)))
                .unzip();
            ChildMetrics {
                name: handle.name.clone(),
                pid: handle.pid(),
                finished,
                queued: handle.ring.sent() - finished,
                busy,
                waiting,
                bytes_to: handle.bytes_to,
                bytes_from: handle.bytes_from,
                activity: self.activity(number),
            }
        };
        let children = self.handles.iter().enumerate().map(of_child).collect();
        Metrics { runs_in_flight: self.flight.len(), children }
    }

    /// So many bytes were copied to a chip, and from it.
    pub(in crate::parent) fn count_bytes(&mut self, chip: usize, to: usize, from: usize) {
        let handle = &mut self.handles[chip];
        handle.bytes_to += to as u64;
        handle.bytes_from += from as u64;
    }
}
