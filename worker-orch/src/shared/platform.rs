//! What the rooms know of a platform, until chip-bootstrap hides all of it.

use chip_bootstrap::{Platform, comm_failure};
pub(crate) use rendezvous::{Prepared as ChipGroup, Ticket as GroupSpec};
use shared_memory::{Region, RegionError};
use std::path::Path;
use worker_errors::{ErrorCode, Failure};

/// Where a chip's own memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChipMemoryKind {
    /// In the host's memory, which the parent maps too.
    Host,
    /// On the device.
    Device,
}

pub(crate) fn chip_memory(platform: Platform) -> ChipMemoryKind {
    match platform {
        Platform::Sim => ChipMemoryKind::Host,
        Platform::A2a3 | Platform::A5 => ChipMemoryKind::Device,
    }
}

pub(crate) fn prepare_group(_: Platform, chips: u32) -> Result<ChipGroup, Failure> {
    comm_sim::prepare(chips).map_err(|error| comm_failure(&error))
}

/// The memory in which the chips' windows lie, where the parent maps it.
pub(crate) fn window_memory(kind: ChipMemoryKind, group: Option<&ChipGroup>) -> Option<&Region> {
    group.filter(|_| kind == ChipMemoryKind::Host).map(ChipGroup::region)
}

pub(crate) fn check_kernel(platform: Platform, path: &Path, symbol: &str) -> Result<(), Failure> {
    match chip_memory(platform) {
        ChipMemoryKind::Host => chip_bootstrap::check_kernel(path, symbol),
        ChipMemoryKind::Device => Ok(()),
    }
}

pub(crate) fn region_failure(error: &RegionError) -> Failure {
    let code = match error {
        RegionError::OutOfMemory { .. } => ErrorCode::OutOfMemory,
        RegionError::System { .. } => ErrorCode::System,
        _ => ErrorCode::Invalid,
    };
    Failure::new(code, error.to_string())
}
