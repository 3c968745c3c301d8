//! A child's process from bring-up to its end, by what it is.

use super::chip::{Checked, ChipExecutor};
use super::host::{SubExecutor, WorkerExecutor, inside_of};
use super::serve::{Ended, serve};
use crate::Worker;
use crate::shared::{ChildContext, ChipRole, LOST, NOT_UP, Role};
use bootstrap_channel::{PublishError, Success, Writer};
use child_process::PANIC_EXIT_CODE;
use chip_bootstrap::{BringUpPhase, Entry, bring_up_and_publish};
use comm_context::comm::{Membership, Timeout};
use deadline::Deadline;
use fault_points::fault_point;
use std::ffi::CString;
use std::mem::ManuallyDrop;
use worker_errors::Failure;

/// A child's `main`, however its process was started. The result is the exit code.
pub(crate) fn main(context: &ChildContext<'_>, role: Role<'_>) -> i32 {
    fault_point!("worker.child.begun");
    set_process_name(context, &role);
    match role {
        Role::Chip(chip) => chip_main(context, &chip),
        Role::SubWorker => sub_main(context),
        Role::Worker { worker, init_until, close_within } => {
            worker_main(context, worker, init_until, close_within)
        }
    }
}

/// What `ps -o comm` shows: `chipcomm:chip1`. The name has 15 bytes at most, so there is no space in it.
fn set_process_name(context: &ChildContext<'_>, role: &Role<'_>) {
    let kind = match role {
        Role::Chip(_) => "chip",
        Role::Worker { .. } => "wkr",
        Role::SubWorker => "sub",
    };
    // From a hundred chips on there is less room.
    let names = ["chipcomm:", "comm:"].map(|prefix| format!("{prefix}{kind}{}", context.number_of_kind));
    let name = names.into_iter().find(|name| name.len() < 16).unwrap_or_default();
    if let Ok(name) = CString::new(name) {
        // A name is a courtesy.
        let _ = nix::sys::prctl::set_name(&name);
    }
}

fn chip_main(context: &ChildContext<'_>, role: &ChipRole<'_>) -> i32 {
    let Ok(mut channel) = context.channels.writer(context.number) else { return NOT_UP };
    let entry = role.group.map(|group| Entry::Forked(group.clone()));
    let brought = bring_up_and_publish(role.platform, role.config, entry.as_ref(), role.within, &mut channel);
    let Ok(chip) = brought else { return NOT_UP };
    let me = Membership::new(context.number as u32, role.chips as u32).ok();
    // A panic, of a collective command or of the loop itself, ends the process and drops nothing: leaving the group
    // would wait for peers that wait for the end of this process, and devices for those that have their memory open.
    let checked = if role.config.is_guarded() { Checked::Yes } else { Checked::No };
    let executor = match ChipExecutor::new(chip, context, entry.zip(me), checked, role.trace) {
        Ok(executor) => executor,
        Err(failure) => return exit_code(context, Err(failure)),
    };
    let mut executor = ManuallyDrop::new(executor);
    fault_point!("worker.child.up");
    if serve(context.block, context.number, &mut *executor) == Ended::Panicked {
        return PANIC_EXIT_CODE;
    }
    fault_point!("worker.child.ending");
    exit_code(context, ManuallyDrop::into_inner(executor).tear_down())
}

fn sub_main(context: &ChildContext<'_>) -> i32 {
    let Ok(channel) = context.channels.writer(context.number) else { return NOT_UP };
    if publish_ready(channel).is_err() {
        return NOT_UP;
    }
    fault_point!("worker.child.up");
    serve(context.block, context.number, &mut SubExecutor::new(context));
    fault_point!("worker.child.ending");
    0
}

/// F07: the Worker is up, or has reported why not, before the one above has waited until `init_until`.
fn worker_main(
    context: &ChildContext<'_>,
    worker: &mut Worker,
    init_until: Deadline,
    close_within: Timeout,
) -> i32 {
    worker.shorten_limits(|own| inside_of(init_until.left(), own), |own| inside_of(close_within.get(), own));
    let Ok(mut channel) = context.channels.writer(context.number) else { return NOT_UP };
    channel.set_phase(BringUpPhase::Configuration as u32);
    if let Err(failure) = worker.init() {
        let _ = channel.publish_error(failure.root_cause().code, &failure.to_string());
        return NOT_UP;
    }
    if publish_ready(channel).is_err() {
        return NOT_UP;
    }
    fault_point!("worker.child.up");
    serve(context.block, context.number, &mut WorkerExecutor::new(worker, context));
    fault_point!("worker.child.ending");
    if let Some(loss) = worker.loss() {
        context.block.record_exit_failure(context.number, &loss);
        worker.write_trace();
        return LOST;
    }
    exit_code(context, worker.close())
}

/// Reports that a child without a chip is up.
fn publish_ready(mut channel: Writer<'_>) -> Result<(), PublishError> {
    channel.set_phase(BringUpPhase::Ready as u32);
    channel.publish_success(&Success::default())
}

/// The exit code of a child that has served. Why it is not 0 is recorded for the parent.
fn exit_code(context: &ChildContext<'_>, ended: Result<(), Failure>) -> i32 {
    match ended {
        Ok(()) => 0,
        Err(failure) => {
            context.block.record_exit_failure(context.number, &failure);
            1
        }
    }
}
