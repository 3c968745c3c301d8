//! Collectives that were started: their logs are replayed as far as the host's clock has come.

use super::{DistError, Tensor};
use crate::memory::Memory;
use crate::oplog::OpLog;
use crate::sim::{Outcome, SimulationError};
use crate::units::Ps;

/// A collective that was started; [`ProcessGroup::wait`](super::ProcessGroup::wait) gives its outcome.
#[must_use = "a collective that was started must be waited for"]
pub struct Work {
    pub(super) outcome: Outcome,
    pub(super) finish: Ps,
}

impl Work {
    /// When the last rank is done, on the clock of the group.
    pub fn finish(&self) -> Ps {
        self.finish
    }
}

/// A collective whose data the host has not seen yet.
pub(super) struct Pending {
    /// When each rank begins it.
    pub(super) starts: Vec<Ps>,
    pub(super) log: OpLog<'static>,
    /// What the ranks end with, computed without time.
    pub(super) end: Memory,
}

/// Replays what has happened to a tensor before `now`. Where several collectives are under way, a shard is what the last one
/// that its rank has begun made of it.
pub(super) fn replay(tensor: &mut Tensor, ranks: u32, now: Ps) -> Result<(), DistError> {
    let mut pending = std::mem::take(&mut tensor.pending);
    let mut ended = 0;
    for Pending { starts, log, end } in &mut pending {
        // What starts at this moment counts: at the end of a collective nothing is left.
        let memory = log.replay_until(now + 1).map_err(SimulationError::from)?;
        for rank in (0..ranks).filter(|&rank| starts[rank as usize] <= now) {
            tensor.shard_mut(rank).copy_from_slice(memory.tensor(rank));
        }
        if log.is_done() {
            let memory = log.replay_until(now + 1).map_err(SimulationError::from)?;
            if let Some(rank) = (0..ranks).find(|&rank| memory.tensor(rank) != end.tensor(rank)) {
                return Err(SimulationError::ReplayDiffers { rank }.into());
            }
            ended += 1;
        }
    }
    pending.drain(..ended);
    tensor.pending = pending;
    Ok(())
}
