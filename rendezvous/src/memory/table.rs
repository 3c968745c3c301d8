//! The ranks of a group as a table for users.

use super::Memory;
use comm_context::comm::Phase;
use deadline::monotonic_ns;
use std::fmt::Write;
use std::time::Duration;

impl Memory {
    /// One line for each rank: process, phase, since when.
    pub(crate) fn table(&self) -> String {
        let now = monotonic_ns();
        let mut table = String::new();
        for rank in 0..self.layout.nranks() {
            let block = self.rank_block(rank);
            let phase = Phase::from_code(block.phase.load()).map_or("?", Phase::name);
            let _ = match self.pid(rank) {
                None => writeln!(table, "  rank {rank:>2}  not joined yet"),
                Some(pid) => {
                    let since = Duration::from_nanos(now.saturating_sub(block.since_ns.load()));
                    writeln!(table, "  rank {rank:>2}  pid {pid:<8} {phase:<15} for {since:.1?}")
                }
            };
        }
        table
    }
}
