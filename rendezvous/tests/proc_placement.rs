//! Ranks that the scheduler has put on one core.
#![allow(missing_docs)]

mod support;

use comm_context::comm::Phase;
use mailbox_atomics::{AllowedCores, current_core, move_this_thread_to};
use rendezvous::Group;
use serial_test::serial;
use support::{all_fine, join, path, rank, secs};

/// How often the ranks are put on one core.
const TIMES: usize = 20;

/// Barriers until the ranks must have parted: a few milliseconds if they have not, long before the scheduler's
/// own balancing.
const BARRIERS: usize = 300;

/// Puts all ranks on core `core`, lets them meet, and counts how often the higher one ended on another.
fn parted(group: &Group, core: usize, allowed: AllowedCores) -> Result<usize, String> {
    let meet = || group.barrier_within(Phase::Barrier, secs(30)).map_err(|error| error.to_string());
    let mut parted = 0;
    for _ in 0..TIMES {
        move_this_thread_to(core).map_err(|errno| errno.to_string())?;
        for _ in 0..BARRIERS {
            meet()?;
        }
        parted += usize::from(current_core() != Some(core));
        if AllowedCores::of_this_process() != allowed {
            return Err("the rank may run on other cores than before".to_owned());
        }
        // A rank moves once in some milliseconds only.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(parted)
}

#[test]
#[serial]
fn f71_ranks_on_one_core_part_and_are_not_bound() {
    let allowed = AllowedCores::of_this_process();
    let cores: Vec<usize> = allowed.iter().collect();
    let (true, Some(first)) = (cores.len() > 1, cores.first().copied()) else {
        println!("not run: this process may use one core only");
        return;
    };
    let (_folder, path) = path();
    let ranks = (0..2).map(|me| {
        let path = path.clone();
        rank(move || {
            let group = join(&path, me, 2, secs(30)).map_err(|error| error.to_string())?;
            let parted = parted(&group, first, allowed)?;
            // Other programs may use the other core at most of these times; ranks that do not move part once or twice.
            if me == 1 && parted < TIMES / 5 {
                return Err(format!("rank 1 left rank 0's core {parted} times of {TIMES}"));
            }
            Ok(())
        })
    });
    all_fine(ranks.collect());
}

#[test]
#[serial]
fn f71_ranks_bound_to_one_core_stay_there() {
    let first = AllowedCores::of_this_process().iter().next().unwrap();
    let (_folder, path) = path();
    let ranks = (0..2).map(|me| {
        let path = path.clone();
        rank(move || {
            let mut only = nix::sched::CpuSet::new();
            let bound = only
                .set(first)
                .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &only));
            bound.map_err(|errno| errno.to_string())?;
            let group = join(&path, me, 2, secs(30)).map_err(|error| error.to_string())?;
            if group.has_core_per_rank() {
                return Err("two ranks on one core have a core each".to_owned());
            }
            for _ in 0..BARRIERS {
                group.barrier_within(Phase::Barrier, secs(30)).map_err(|error| error.to_string())?;
            }
            let allowed = AllowedCores::of_this_process();
            if allowed.iter().eq([first]) { Ok(()) } else { Err(format!("bound to {allowed:?}")) }
        })
    });
    all_fine(ranks.collect());
}
