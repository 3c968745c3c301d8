//! The lives of hands' processes, from bring-up to their end, however they were started.

use crate::board::Board;
use crate::execute::{ChipExecutor, SubExecutor, WorkerExecutor, inside_of};
use crate::program::Programs;
use crate::serve::{Served, note_parting, serve};
use crate::worker::Worker;
use bootstrap_channel::{ChannelSet, Success};
use child_process::PANIC_EXIT_CODE;
use chip_bootstrap::{BringUpPhase, ChipConfig, ChipGroup, Entry, Platform, bring_up_and_publish};
use comm_context::comm::{Membership, Timeout};
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::sync::Arc;
use worker_errors::Failure;

/// What a hand ends with when it could not be brought up; the reason is on its channel.
pub(crate) const NOT_UP: i32 = 3;

/// What every hand works with.
pub(crate) struct Post<'a> {
    pub(crate) number: usize,
    pub(crate) channels: &'a ChannelSet,
    pub(crate) board: &'a Board,
    pub(crate) programs: &'a Programs,
    pub(crate) heaps: &'a [Arc<Region>],
}

/// What a chip's hand works with besides.
pub(crate) struct ChipPost<'a> {
    pub(crate) platform: Platform,
    pub(crate) config: &'a ChipConfig,
    /// How many chips the Worker has.
    pub(crate) chips: usize,
    pub(crate) group: Option<&'a ChipGroup>,
    pub(crate) within: Timeout,
}

/// The life of a chip's process.
pub(crate) fn chip_main(post: &Post<'_>, chip: &ChipPost<'_>) -> i32 {
    fault_point!("worker.hand.begun");
    let Ok(mut channel) = post.channels.writer(post.number) else { return NOT_UP };
    let entry = chip.group.map(|group| Entry::Forked(group.clone()));
    let brought = bring_up_and_publish(chip.platform, chip.config, entry.as_ref(), chip.within, &mut channel);
    let Ok(up) = brought else { return NOT_UP };
    let me = Membership::new(post.number as u32, chip.chips as u32).ok();
    fault_point!("worker.hand.up");
    let mut executor = ChipExecutor::new(up, post.programs, post.heaps.to_vec(), entry.zip(me));
    if serve(post.board, post.number, &mut executor) == Served::Panicked {
        return PANIC_EXIT_CODE;
    }
    fault_point!("worker.hand.going");
    part(post, executor.chip.tear_down().map_err(|error| Failure::from(error).in_phase("teardown")))
}

/// The life of a sub-worker's process.
pub(crate) fn sub_main(post: &Post<'_>) -> i32 {
    fault_point!("worker.hand.begun");
    let Ok(mut channel) = post.channels.writer(post.number) else { return NOT_UP };
    channel.set_phase(BringUpPhase::Ready as u32);
    if channel.publish_success(&Success::default()).is_err() {
        return NOT_UP;
    }
    fault_point!("worker.hand.up");
    serve(post.board, post.number, &mut SubExecutor::new(post.programs, post.heaps.to_vec()));
    fault_point!("worker.hand.going");
    0
}

/// The life of the process of a Worker of the next level.
///
/// F07: it is up, or gone, or says why not, before the one above it has waited until `init_until` or for `close_within`.
pub(crate) fn worker_main(
    post: &Post<'_>,
    child: &mut Worker,
    init_until: Deadline,
    close_within: Timeout,
) -> i32 {
    child.init_within = inside_of(init_until.left(), child.init_within);
    child.settings.close_within = inside_of(close_within.get(), child.settings.close_within);
    fault_point!("worker.hand.begun");
    let Ok(mut channel) = post.channels.writer(post.number) else { return NOT_UP };
    channel.set_phase(BringUpPhase::Configuration as u32);
    if let Err(failure) = child.init() {
        let _ = channel.publish_error(failure.root_cause().code, &failure.to_string());
        return NOT_UP;
    }
    channel.set_phase(BringUpPhase::Ready as u32);
    if channel.publish_success(&Success::default()).is_err() {
        return NOT_UP;
    }
    fault_point!("worker.hand.up");
    serve(
        post.board,
        post.number,
        &mut WorkerExecutor::new(child, post.board, post.programs, post.heaps.to_vec()),
    );
    fault_point!("worker.hand.going");
    part(post, child.close())
}

/// The exit code of a hand that has served, and word of why it is not 0.
fn part(post: &Post<'_>, ended: Result<(), Failure>) -> i32 {
    match ended {
        Ok(()) => 0,
        Err(failure) => {
            note_parting(post.board, post.number, &failure);
            1
        }
    }
}
