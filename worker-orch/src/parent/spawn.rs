//! Children as new processes of this program.

use super::bring_up::{Memory, Plan};
use super::bring_up_error::limit_hint;
use crate::shared::{CHILD_VARIABLE, ChipLaunch, LaunchSpec, SharedRange};
use child_process::Child;
use chip_bootstrap::{ChipGroup, region_failure};
use fault_points::fault_point;
use std::os::fd::BorrowedFd;
use worker_errors::{ErrorCode, Failure};

/// Starts the children with these numbers. Those that were started are killed when one cannot be.
pub(super) fn spawn_all(
    plan: &Plan<'_>,
    memory: &Memory,
    numbers: &[usize],
) -> Result<Vec<(String, Child)>, Failure> {
    let mut processes = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let name = &memory.names[number];
        let mut regions = memory.heaps.clone();
        let group = memory.group.as_ref().filter(|_| number < plan.chips.len());
        let chip = plan.chips.get(number).map(|config| {
            let (chips, group) = (plan.chips.len(), group.map(ChipGroup::spec));
            ChipLaunch::new(plan.platform, plan.init_within, chips, group, config, &mut regions)
        });
        let spec = LaunchSpec {
            number,
            number_of_kind: plan.number_of_kind(number),
            children: memory.names.len(),
            nonce: memory.channels.nonce().get(),
            ranges: regions.iter().map(|region| SharedRange::of(region)).collect(),
            heaps: memory.heaps.len(),
            programs: plan.programs.definitions().to_vec(),
            chip,
        };
        let stored = spec.store().map_err(|error| region_failure(&error).in_phase("init"))?;
        let descriptors: Vec<BorrowedFd<'_>> = [stored.fd(), memory.channels.fd(), memory.block.fd()]
            .into_iter()
            .chain(group.into_iter().flat_map(ChipGroup::fds))
            .chain(regions.iter().map(|region| region.fd()))
            .collect();
        let child = Child::respawn(CHILD_VARIABLE, &descriptors).map_err(|error| {
            let text = format!(
                "{name} could not be started: posix_spawn of /proc/self/exe: {error}; {}",
                limit_hint(&error)
            );
            Failure::new(ErrorCode::System, text).in_phase("init")
        })?;
        processes.push((name.clone(), child));
        fault_point!("worker.init.child-started");
    }
    Ok(processes)
}
