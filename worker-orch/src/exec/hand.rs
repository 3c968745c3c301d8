//! The hand's side: from descriptors and a handover to a hand like any other.

use super::handover::{ChipOrders, Handover};
use super::spawn::{BODY_AT, LABEL, MOST};
use super::{MARK, NOT_ATTACHED};
use crate::board::Board;
use crate::life::{ChipPost, NOT_UP, Post, chip_main, sub_main};
use crate::memory::region_failure;
use crate::program::{Functions, Programs, TaskFn};
use bootstrap_channel::{ChannelSet, Nonce};
use chip_bootstrap::{BringUpPhase, ChipConfig, ChipGroup};
use fault_points::{fault_child, fault_point};
use mailbox_atomics::WordU64;
use shared_memory::Region;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// The descriptors that are still to be used, in order.
type Descriptors = std::vec::IntoIter<OwnedFd>;

/// The life of a hand, from first to last; the result is the process's exit code.
pub(super) fn live(descriptors: Vec<OwnedFd>, functions: &[(&str, TaskFn)]) -> i32 {
    fault_point!("worker.exec.begun");
    let mut descriptors = descriptors.into_iter();
    let (handover, channels) = match introduce(&mut descriptors) {
        Ok(known) => known,
        Err(failure) => {
            // There is no channel yet on which the parent could be told.
            eprintln!("{MARK}: {failure}");
            return NOT_ATTACHED;
        }
    };
    fault_child!(handover.number as u32);
    fault_point!("worker.exec.introduced");
    if let Ok(channel) = channels.writer(handover.number) {
        channel.set_phase(BringUpPhase::Configuration as u32);
    }
    match Shared::attach(&handover, descriptors) {
        Ok(shared) => serve(&handover, &channels, &shared, functions),
        Err(failure) => {
            if let Ok(mut channel) = channels.writer(handover.number) {
                let failure = failure.in_phase("attach").in_process(std::process::id());
                let _ = channel.publish_error(failure.root_cause().code, &failure.to_string());
            }
            NOT_UP
        }
    }
}

/// The handover, and the channel on which everything later can be told.
fn introduce(descriptors: &mut Descriptors) -> Result<(Handover, ChannelSet), Failure> {
    let memory = Region::attach(next(descriptors)?, LABEL, MOST).map_err(|error| region_failure(&error))?;
    let len = memory.words::<WordU64>(0).map_err(|error| region_failure(&error))?.load();
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(MOST).min(MOST - BODY_AT)];
    memory.read(BODY_AT, &mut bytes).map_err(|error| region_failure(&error))?;
    let handover = Handover::decode(&bytes).ok_or_else(nonsense)?;
    let nonce = NonZeroU64::new(handover.nonce).ok_or_else(nonsense)?;
    let channels = ChannelSet::attach(next(descriptors)?, handover.hands, Nonce::new(nonce))
        .map_err(|error| Failure::new(ErrorCode::Protocol, error.to_string()))?;
    Ok((handover, channels))
}

/// The memory that the hand shares with its parent.
struct Shared {
    board: Board,
    regions: Vec<Arc<Region>>,
    chip: Option<ChipShare>,
}

/// What a chip has of it besides.
struct ChipShare {
    config: ChipConfig,
    group: Option<ChipGroup>,
}

impl Shared {
    fn attach(handover: &Handover, mut descriptors: Descriptors) -> Result<Self, Failure> {
        let board = Board::attach(next(&mut descriptors)?, handover.hands);
        let board = board.map_err(|error| region_failure(&error))?;
        let group = match handover.chip.as_ref().and_then(|chip| chip.group) {
            Some(spec) => Some(ChipGroup::attach(next(&mut descriptors)?, &spec)?),
            None => None,
        };
        let mut regions = Vec::with_capacity(handover.ranges.len());
        for range in &handover.ranges {
            let at = NonNull::without_provenance(range.at);
            let region = Region::attach_at(next(&mut descriptors)?, "chipcomm-heap", range.len, at);
            regions.push(Arc::new(region.map_err(|error| region_failure(&error))?));
        }
        let share = |chip: &ChipOrders| Some(ChipShare { config: chip.config(&regions)?, group });
        let chip = handover.chip.as_ref().map(|chip| share(chip).ok_or_else(nonsense)).transpose()?;
        Ok(Self { board, regions, chip })
    }
}

fn serve(handover: &Handover, channels: &ChannelSet, shared: &Shared, functions: &[(&str, TaskFn)]) -> i32 {
    let programs = Programs::of_hand(handover.programs.clone(), Functions::by_name(functions));
    let heaps = &shared.regions[..handover.heaps];
    let post = Post { number: handover.number, channels, board: &shared.board, programs: &programs, heaps };
    match (&handover.chip, &shared.chip) {
        (Some(orders), Some(share)) => {
            let (platform, chips, within) = (orders.platform, orders.chips, orders.within);
            let group = share.group.as_ref();
            chip_main(&post, &ChipPost { platform, config: &share.config, chips, group, within })
        }
        _ => sub_main(&post),
    }
}

fn next(descriptors: &mut Descriptors) -> Result<OwnedFd, Failure> {
    descriptors.next().ok_or_else(nonsense)
}

/// The parent is the same program: only a bug, or a stranger who sets the variable, brings a hand here.
fn nonsense() -> Failure {
    Failure::new(ErrorCode::Protocol, "what was handed over to this hand makes no sense")
}
