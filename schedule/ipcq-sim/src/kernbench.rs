//! kernbench2's bench: rank r's slice holds r + 1, `all_reduce`, every shard compared with the sum.
//!
//! The bench's tolerance (rtol = atol = 0.1) is kept so that results can be compared with its own. From four
//! ranks on it misses a lost rank, so it is not a proof; `ccl-schedule` has one.

use crate::config::{Settings, Topology};
use crate::data;
use crate::dist::{BACKEND, DistError, ProcessGroup, ReduceOp, Tensor, init_process_group};
use crate::engine::Engine;
use crate::placement::{Placement, Policy};
use crate::sim::Outcome;

/// Failures that are listed one by one.
const LISTED: usize = 5;

/// The bench's result.
pub struct BenchRun {
    /// The entry that ran.
    pub entry: String,
    /// Ranks.
    pub ranks: u32,
    /// Ranks whose shard is within the tolerance.
    pub ok: u32,
    /// The first few that are not.
    pub failures: Vec<String>,
    /// The simulated run.
    pub outcome: Outcome,
}

impl BenchRun {
    /// The bench's last line.
    pub fn line(&self) -> String {
        line(&self.entry, self.ranks, self.ok, &self.failures)
    }
}

pub(crate) fn line(entry: &str, ranks: u32, ok: u32, failures: &[String]) -> String {
    let mut text: String = failures.iter().map(|failure| format!("{failure}\n")).collect();
    let result = if ok == ranks { format!("{ok} OK") } else { format!("{} of {ranks} FAILED", ranks - ok) };
    text.push_str(&format!(" {entry} (ws={ranks}): {result}"));
    text
}

/// Whether a value is within the bench's tolerance.
pub fn close(value: f32, want: f32) -> bool {
    (value - want).abs() <= 0.1 + 0.1 * want.abs()
}

/// Compares shards with what they should hold.
pub(crate) fn compare(
    ranks: u32,
    shard: impl Fn(u32) -> Vec<f32>,
    want: impl Fn(u32) -> f32,
) -> (u32, Vec<String>) {
    let (mut ok, mut failures) = (0, Vec::new());
    for rank in 0..ranks {
        match shard(rank).into_iter().find(|&value| !close(value, want(rank))) {
            None => ok += 1,
            Some(value) if failures.len() < LISTED => {
                failures.push(format!("[FAIL] rank {rank}: {value}, expected {}", want(rank)));
            }
            Some(_) => {}
        }
    }
    (ok, failures)
}

/// Refuses a number of ranks whose sum does not fit the format, before anything runs.
pub fn check_range(settings: &Settings, ranks: u32) -> Result<(), DistError> {
    let sum = u64::from(ranks) * (u64::from(ranks) + 1) / 2;
    let (dtype, largest) = (settings.dtype.name(), data::largest(settings.dtype));
    if sum as f64 > largest {
        return Err(DistError::Range { dtype, ranks, sum, largest });
    }
    Ok(())
}

/// The bench's host code, as the controller of all ranks runs it: fill, reduce, compare.
pub fn worker(
    _rank: u32,
    world_size: u32,
    group: &mut ProcessGroup,
    settings: &Settings,
) -> Result<BenchRun, DistError> {
    let placement = Placement::uniform(Policy::RowWise, &group.places(), world_size);
    let (rows, cols) = (u64::from(world_size), settings.n_elem);
    let slices = (0..world_size).flat_map(|rank| std::iter::repeat_n((rank + 1) as f32, cols as usize));
    let host: Vec<f32> = slices.collect();
    let mut tensor = Tensor::from_host(group, (rows, cols), settings.dtype, &placement, &host)?;
    let outcome = group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    let sum = (1..=u64::from(world_size)).sum::<u64>() as f32;
    let (ok, failures) = compare(world_size, |rank| tensor.values(rank), |_| sum);
    Ok(BenchRun { entry: settings.entry.clone(), ranks: world_size, ok, failures, outcome })
}

/// Runs the bench: makes the group, and runs [`worker`] on it.
pub fn run(topology: &Topology, settings: &Settings, engine: Engine) -> Result<BenchRun, DistError> {
    let mut group = init_process_group(BACKEND, topology, settings, engine)?;
    let world_size = group.get_world_size();
    check_range(settings, world_size)?;
    worker(group.get_rank(), world_size, &mut group, settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_bench() {
        assert_eq!(line("ring_allreduce_tcm", 256, 256, &[]), " ring_allreduce_tcm (ws=256): 256 OK");
        let (ok, failures) = compare(8, |rank| vec![if rank < 6 { 0.0 } else { 36.0 }], |_| 36.0);
        let text = line("x", 8, ok, &failures);
        assert_eq!(text.lines().count(), 6);
        assert!(text.starts_with("[FAIL] rank 0: 0, expected 36\n"));
        assert!(text.ends_with(" x (ws=8): 6 of 8 FAILED"));
    }

    #[test]
    fn the_tolerance_misses_a_lost_rank_from_four_ranks_on() {
        for ranks in 2..=64u32 {
            let sum = (ranks * (ranks + 1) / 2) as f32;
            assert_eq!(close(sum - 1.0, sum), ranks >= 4, "{ranks}");
        }
    }
}
