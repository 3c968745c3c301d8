//! A child that was started by exec: from descriptors and a launch spec to a child like any other.

use super::roles::main;
use crate::program::TaskFn;
use crate::shared::{
    CHILD_VARIABLE, ChildContext, ChipLaunch, ChipRole, ControlBlock, Functions, LaunchSpec, NOT_ATTACHED,
    NOT_UP, Role,
};
use bootstrap_channel::{ChannelSet, Nonce};
use chip_bootstrap::{BringUpPhase, ChipConfig, ChipGroup, region_failure};
use fault_points::{fault_child, fault_point};
use shared_memory::Region;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// The descriptors that are still to be used, in order.
type Descriptors = std::vec::IntoIter<OwnedFd>;

/// The `main` of a child that was started by exec. The result is the exit code.
pub(crate) fn main_after_exec(descriptors: Vec<OwnedFd>, functions: &[(&str, TaskFn)]) -> i32 {
    fault_point!("worker.exec.begun");
    let mut descriptors = descriptors.into_iter();
    let (spec, channels) = match load(&mut descriptors) {
        Ok(loaded) => loaded,
        Err(failure) => {
            // There is no channel yet to report it on.
            eprintln!("{CHILD_VARIABLE}: {failure}");
            return NOT_ATTACHED;
        }
    };
    fault_child!(spec.number as u32);
    fault_point!("worker.exec.loaded");
    if let Ok(channel) = channels.writer(spec.number) {
        channel.set_phase(BringUpPhase::Configuration as u32);
    }
    match Attached::new(&spec, descriptors) {
        Ok(attached) => serve(&spec, &channels, &attached, functions),
        Err(failure) => {
            if let Ok(mut channel) = channels.writer(spec.number) {
                let failure = failure.in_phase("attach").in_process(std::process::id());
                let _ = channel.publish_error(failure.root_cause().code, &failure.to_string());
            }
            NOT_UP
        }
    }
}

/// The launch spec, and the channel on which everything later is reported.
fn load(descriptors: &mut Descriptors) -> Result<(LaunchSpec, ChannelSet), Failure> {
    let spec = LaunchSpec::load(next(descriptors)?).map_err(|error| region_failure(&error))?;
    let spec = spec.ok_or_else(malformed)?;
    let nonce = NonZeroU64::new(spec.nonce).ok_or_else(malformed)?;
    let channels = ChannelSet::attach(next(descriptors)?, spec.children, Nonce::new(nonce))
        .map_err(|error| Failure::new(ErrorCode::Protocol, error.to_string()))?;
    Ok((spec, channels))
}

/// The memory that the child shares with its parent.
struct Attached {
    block: Arc<ControlBlock>,
    regions: Vec<Arc<Region>>,
    chip: Option<AttachedChip>,
}

/// What a chip has of it besides.
struct AttachedChip {
    config: ChipConfig,
    group: Option<ChipGroup>,
}

impl Attached {
    fn new(spec: &LaunchSpec, mut descriptors: Descriptors) -> Result<Self, Failure> {
        let block = ControlBlock::attach(next(&mut descriptors)?, spec.children);
        let block = block.map(Arc::new).map_err(|error| region_failure(&error))?;
        let group = match spec.chip.as_ref().and_then(|chip| chip.group) {
            Some(group) => {
                let count = group.descriptors().ok_or_else(malformed)?;
                let fds: Result<_, Failure> = (0..count).map(|_| next(&mut descriptors)).collect();
                Some(ChipGroup::attach(fds?, &group)?)
            }
            None => None,
        };
        let mut regions = Vec::with_capacity(spec.ranges.len());
        for range in &spec.ranges {
            let at = NonNull::without_provenance(range.at);
            let region = Region::attach_at(next(&mut descriptors)?, "chipcomm-heap", range.len, at);
            regions.push(Arc::new(region.map_err(|error| region_failure(&error))?));
        }
        let attach = |chip: &ChipLaunch| Some(AttachedChip { config: chip.config(&regions)?, group });
        let chip = spec.chip.as_ref().map(|chip| attach(chip).ok_or_else(malformed)).transpose()?;
        Ok(Self { block, regions, chip })
    }
}

fn serve(spec: &LaunchSpec, channels: &ChannelSet, attached: &Attached, functions: &[(&str, TaskFn)]) -> i32 {
    let context = ChildContext {
        number: spec.number,
        number_of_kind: spec.number_of_kind,
        channels,
        block: &attached.block,
        programs: &spec.programs,
        functions: Functions::Named(functions),
        heaps: &attached.regions[..spec.heaps],
    };
    let role = match (&spec.chip, &attached.chip) {
        (Some(launch), Some(chip)) => Role::Chip(ChipRole {
            platform: launch.platform,
            config: &chip.config,
            chips: launch.chips,
            group: chip.group.as_ref(),
            within: launch.within,
            // Closures, and so graphs, are there after a fork only.
            trace: None,
        }),
        _ => Role::SubWorker,
    };
    main(&context, role)
}

fn next(descriptors: &mut Descriptors) -> Result<OwnedFd, Failure> {
    descriptors.next().ok_or_else(malformed)
}

/// The parent is the same program: only a bug, or somebody else who sets the variable, gets here.
fn malformed() -> Failure {
    Failure::new(ErrorCode::Protocol, "malformed launch spec")
}
