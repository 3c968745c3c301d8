//! The parent's side: what each hand is told, and its process.

use super::MARK;
use super::handover::{ChipOrders, Handover, SharedRange};
use crate::board::Board;
use crate::memory::region_failure;
use crate::worker::Worker;
use bootstrap_channel::ChannelSet;
use child_process::Child;
use chip_bootstrap::ChipGroup;
use fault_points::fault_point;
use mailbox_atomics::WordU64;
use shared_memory::{Region, RegionError};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// Addresses for a handover; memory is reserved for what it takes.
pub(super) const MOST: usize = 16 << 20;
/// After the word with its length.
pub(super) const BODY_AT: usize = 8;
pub(super) const LABEL: &str = "chipcomm-handover";

/// Starts all hands. Whoever was started is killed when one cannot be.
pub(crate) fn spawn_all(
    worker: &Worker,
    names: &[String],
    channels: &ChannelSet,
    board: &Board,
    group: Option<&ChipGroup>,
    heaps: &[Arc<Region>],
) -> Result<Vec<(String, Child)>, Failure> {
    let mut children = Vec::with_capacity(names.len());
    for (number, name) in names.iter().enumerate() {
        let mut regions = heaps.to_vec();
        let group = group.filter(|_| number < worker.chips.len());
        let chip = worker.chips.get(number).map(|config| {
            let (platform, within) = (worker.settings.platform, worker.init_within);
            let spec = group.map(ChipGroup::spec);
            ChipOrders::new(platform, within, worker.chips.len(), spec, config, &mut regions)
        });
        let handover = Handover {
            number,
            hands: names.len(),
            nonce: channels.nonce().get(),
            ranges: regions.iter().map(|region| SharedRange::of(region)).collect(),
            heaps: heaps.len(),
            programs: worker.programs.iter().cloned().collect(),
            chip,
        };
        let memory = write(&handover).map_err(|error| region_failure(&error).in_phase("init"))?;
        let descriptors: Vec<BorrowedFd<'_>> = [memory.fd(), channels.fd(), board.fd()]
            .into_iter()
            .chain(group.map(|group| group.region().fd()))
            .chain(regions.iter().map(|region| region.fd()))
            .collect();
        let child = Child::respawn(MARK, &descriptors).map_err(|errno| {
            let text = format!(
                "{name} could not be started: posix_spawn of /proc/self/exe: {errno}; see ulimit -u, ulimit -n and the machine's memory"
            );
            Failure::new(ErrorCode::System, text).in_phase("init")
        })?;
        children.push((name.clone(), child));
        fault_point!("worker.init.hand-started");
    }
    Ok(children)
}

fn write(handover: &Handover) -> Result<Region, RegionError> {
    let bytes = handover.encode();
    let region = Region::create_sparse(LABEL, MOST)?;
    region.reserve(0..BODY_AT.saturating_add(bytes.len()))?;
    region.write(BODY_AT, &bytes)?;
    region.words::<WordU64>(0)?.store(bytes.len() as u64);
    Ok(region)
}
