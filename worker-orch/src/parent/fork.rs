//! Children as copies of this process.
//!
//! # Safety
//! Forks. What runs in a child between the fork and its end is the plan's `child_main`, the registered
//! functions, and kernels; it takes no lock that another thread of the parent may have held: it does not
//! print through the standard library, does not log, and uses only memory of the thread that forked.
#![allow(unsafe_code)]

use super::bring_up::{Memory, Plan};
use super::bring_up_error::limit_hint;
use crate::shared::{ChildContext, ChipRole, Functions, Role};
use child_process::Child;
use chip_bootstrap::ChipGroup;
use deadline::Deadline;
use fault_points::{fault_child, fault_point};
use shared_memory::Region;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// Forks the children with these numbers. Those that were forked are killed when one cannot be.
pub(super) fn fork_all(
    plan: &mut Plan<'_>,
    memory: &Memory,
    init_until: Deadline,
    numbers: &[usize],
) -> Result<Vec<(String, Child)>, Failure> {
    let (chips, workers) = (plan.chips.len(), plan.workers.len());
    let mut processes = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let name = &memory.names[number];
        let mut keep: Vec<BorrowedFd<'_>> = Vec::new();
        let heaps_below: Vec<Arc<Region>>;
        if number < chips {
            keep.extend(memory.group.iter().flat_map(ChipGroup::fds));
        } else if number < chips + workers {
            heaps_below = plan.workers[number - chips].1.own_heaps();
            // Those above too: that Worker may start its own children by exec.
            keep.extend(heaps_below.iter().chain(&memory.heaps).map(|heap| heap.fd()));
        }
        let context = ChildContext {
            number,
            number_of_kind: plan.number_of_kind(number),
            channels: &memory.channels,
            block: &memory.block,
            programs: plan.programs.definitions(),
            functions: Functions::Inherited(plan.programs.functions()),
            heaps: &memory.heaps,
        };
        let role = match number {
            chip if chip < chips => Role::Chip(ChipRole {
                platform: plan.platform,
                config: &plan.chips[chip],
                chips,
                group: memory.group.as_ref(),
                within: plan.init_within,
                trace: memory.chip_traces.get(chip),
            }),
            below if below < chips + workers => Role::Worker {
                worker: &mut plan.workers[below - chips].1,
                init_until,
                close_within: plan.close_within,
            },
            _ => Role::SubWorker,
        };
        let child_main = plan.child_main;
        let body = || {
            fault_child!(number as u32);
            child_main(&context, role)
        };
        // SAFETY: see the head of this file. Values with closed descriptors (the parent's other children) are
        // not touched by the body, and the child ends without running destructors.
        let child = unsafe { Child::fork(&keep, body) }.map_err(|error| {
            let text = format!("{name} could not be started: fork: {error}; {}", limit_hint(&error));
            Failure::new(ErrorCode::System, text).in_phase("init")
        })?;
        processes.push((name.clone(), child));
        fault_point!("worker.init.child-started");
    }
    Ok(processes)
}
