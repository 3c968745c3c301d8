//! Too little memory is an error that says need and have, on every rank, and the communicator stays usable (F22, F28).
#![allow(missing_docs)]

mod support;

use comm_context::comm::{AddressSpace, AllocationId, CommError, Communicator, DomainSpec, Membership};
use comm_sim::SimComm;
use fault_points::{Action, Plan};
use nix::sys::resource::{Resource, setrlimit};
use serial_test::serial;
use std::path::PathBuf;
use support::{Entry, in_processes, rendezvous_path, secs};

const MIB: usize = 1 << 20;

/// A control group with a memory limit, removed when dropped.
struct MemoryGroup {
    folder: PathBuf,
    procs: &'static str,
}

impl MemoryGroup {
    /// `None`, with the reason printed, where this process may not make one.
    fn new(limit: usize) -> Option<Self> {
        let name = format!("comm-sim-test-{}", std::process::id());
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "tasks"),
            ("/sys/fs/cgroup", "memory.max", "cgroup.procs"),
        ];
        for (root, file, procs) in versions {
            let group = Self { folder: PathBuf::from(root).join(&name), procs };
            let made = std::fs::create_dir(&group.folder)
                .and_then(|()| std::fs::write(group.folder.join(file), limit.to_string()));
            match made {
                Ok(()) => return Some(group),
                Err(error) => println!("no memory group at {}: {error}", group.folder.display()),
            }
        }
        None
    }

    fn enter(&self) {
        std::fs::write(self.folder.join(self.procs), std::process::id().to_string()).unwrap();
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Rank 1 has too little memory for the large window. Both ranks get an error, and then use smaller windows.
fn rank_1_fails_and_both_go_on(entry: Entry<'_>, rank: u32, large: usize) -> Result<(), String> {
    let text = |error: CommError| error.to_string();
    let comm = entry.open(rank, 2, secs(30)).map_err(text)?;
    for _ in 0..3 {
        let result = comm.alloc_windows(large, secs(30));
        match (rank, result) {
            (0, Err(CommError::PeerFailed { rank: 1, message, .. })) if message.contains("need") => {}
            (1, Err(CommError::OutOfMemory { need, have: Some(have), .. }))
                if need >= large as u64 && have < need => {}
            (_, other) => return Err(format!("{other:?}")),
        }
        comm.barrier(secs(30)).map_err(text)?;
    }
    let spec = DomainSpec { id: AllocationId(3), ranks: &[0, 1], domain_rank: rank, window_size: large };
    let result = comm.alloc_domain(&spec, secs(30));
    if !matches!(result, Err(CommError::PeerFailed { rank: 1, .. } | CommError::OutOfMemory { .. })) {
        return Err(format!("{result:?}"));
    }
    let window = comm.alloc_windows(MIB, secs(30)).map_err(text)?;
    comm.write(window.base, &vec![1; MIB]).map_err(text)?;
    comm.barrier(secs(30)).map_err(text)?;
    comm.destroy(secs(30)).map_err(text)
}

#[test]
#[serial]
fn f22_f28_a_control_groups_limit_is_an_error_on_every_rank_and_not_a_signal() {
    // CS-2, CS-3
    let Some(limited) = MemoryGroup::new(64 * MIB) else {
        println!("not run: this process may not make a control group");
        return;
    };
    let prepared = SimComm::prepare_group(2).unwrap();
    let (_folder, path) = rendezvous_path();
    for entry in [Entry::Forked(&prepared), Entry::Path(&path)] {
        in_processes(2, entry, |rank| {
            if rank == 1 {
                limited.enter();
            }
            rank_1_fails_and_both_go_on(entry, rank, 256 * MIB)
        });
    }
}

#[test]
#[serial]
fn f22_the_small_window_that_exceeds_the_limit_is_an_error() {
    // CS-2
    let Some(limited) = MemoryGroup::new(48 * MIB) else {
        println!("not run: this process may not make a control group");
        return;
    };
    let (_folder, path) = rendezvous_path();
    in_processes(1, Entry::Path(&path), |_| {
        limited.enter();
        let comm = SimComm::rendezvous(&path, Membership::new(0, 1).unwrap(), secs(30)).unwrap();
        let domain =
            |id| DomainSpec { id: AllocationId(id), ranks: &[0], domain_rank: 0, window_size: MIB / 2 };
        let refused =
            (0..1000).find_map(|id| comm.alloc_domain(&domain(id), secs(30)).err().map(|e| (id, e)));
        let Some((made, CommError::OutOfMemory { need, have: Some(have), .. })) = refused else {
            return Err(format!("{refused:?}"));
        };
        if have >= need || made < 20 {
            return Err(format!("after {made} windows: need {need}, have {have}"));
        }
        // What is released can be allocated again.
        comm.release_domain(AllocationId(0), secs(30)).unwrap();
        comm.release_domain(AllocationId(1), secs(30)).unwrap();
        comm.alloc_domain(&domain(5000), secs(30)).map(drop).map_err(|error| error.to_string())
    });
}

/// Expects the error of a rank that wants more than its limit leaves.
fn limit_named(result: Result<(), CommError>, words: &[&str]) -> Result<(), String> {
    match result {
        Err(CommError::OutOfMemory { need, have: Some(have), what }) if have < need => {
            if words.iter().all(|word| what.contains(word)) { Ok(()) } else { Err(what) }
        }
        other => Err(format!("{other:?}")),
    }
}

#[test]
#[serial]
fn f22_ranks_work_within_the_limits_of_their_processes() {
    // CS-9: they take the addresses that they may have, and say so when these are used up.
    for limit in [Resource::RLIMIT_FSIZE, Resource::RLIMIT_AS] {
        let (_folder, path) = rendezvous_path();
        in_processes(2, Entry::Path(&path), |rank| {
            // One rank alone is enough to limit both.
            if rank == 1 {
                setrlimit(limit, 1 << 30, 1 << 30).unwrap();
            }
            let text = |error: CommError| format!("{limit:?}: {error}");
            let comm =
                SimComm::rendezvous(&path, Membership::new(rank, 2).unwrap(), secs(30)).map_err(text)?;
            limit_named(
                comm.alloc_windows(2 << 30, secs(30)).map(drop),
                &["addresses", "CHIPCOMM_WINDOW_SPACE"],
            )?;
            let window = comm.alloc_windows(32 * MIB, secs(30)).map_err(text)?;
            comm.write(window.base, &[1; 4096]).map_err(text)?;
            comm.barrier(secs(30)).map_err(text)
        });
    }
}

#[test]
#[serial]
fn f75_addresses_that_were_asked_for_and_do_not_fit_name_the_limit() {
    // CS-2, CS-9
    in_processes(1, Entry::Path(std::path::Path::new("/")), |_| {
        setrlimit(Resource::RLIMIT_AS, 4 << 30, 4 << 30).unwrap();
        let space = |bytes| Some(AddressSpace::new(bytes).unwrap());
        let words = ["ulimit -v", "CHIPCOMM_WINDOW_SPACE", "8589934592 bytes of addresses for each rank"];
        limit_named(SimComm::prepare_group_with(2, space(8 << 30)).map(drop), &words)?;
        let prepared = SimComm::prepare_group_with(2, space(1 << 30)).map_err(|error| error.to_string())?;
        let extents = prepared.region().len();
        if extents > (2 << 30) + 16 * MIB { Err(format!("{extents} bytes of addresses")) } else { Ok(()) }
    });
}

#[test]
#[serial]
fn f51_ranks_that_reserve_at_once_do_not_take_more_than_there_is() {
    // CS-10: each alone finds enough. Two of four fit into the limit.
    let Some(limited) = MemoryGroup::new(512 * MIB) else {
        println!("not run: this process may not make a control group");
        return;
    };
    let prepared = SimComm::prepare_group(4).unwrap();
    let entry = Entry::Forked(&prepared);
    in_processes(4, entry, |rank| {
        limited.enter();
        let text = |error: CommError| error.to_string();
        let comm = entry.open(rank, 4, secs(60)).map_err(text)?;
        for _ in 0..3 {
            comm.barrier(secs(60)).map_err(text)?;
            match comm.alloc_windows(200 * MIB, secs(60)) {
                Err(CommError::PeerFailed { .. } | CommError::OutOfMemory { .. }) => {}
                other => return Err(format!("{other:?}")),
            }
        }
        comm.barrier(secs(60)).map_err(text)?;
        comm.alloc_windows(32 * MIB, secs(60)).map_err(text)?;
        comm.barrier(secs(60)).map_err(text)
    });
}

#[test]
#[serial]
fn f28_a_reservation_that_the_kernel_refuses_is_undone_on_all() {
    // CS-3: no rank has addresses for two such windows.
    const WINDOW: usize = 3 << 19;
    let prepared = SimComm::prepare_group_with(2, Some("2M".parse().unwrap())).unwrap();
    let entry = Entry::Forked(&prepared);
    in_processes(2, entry, |rank| {
        let text = |error: CommError| error.to_string();
        fault_points::arm(Plan::one("region.reserve", 1, 1, Action::Error(28)));
        let comm = entry.open(rank, 2, secs(30)).map_err(text)?;
        let result = comm.alloc_windows(WINDOW, secs(30));
        match (rank, &result) {
            (0, Err(CommError::PeerFailed { rank: 1, .. })) | (1, Err(CommError::OutOfMemory { .. })) => {}
            _ => return Err(format!("{result:?}")),
        }
        comm.alloc_windows(WINDOW, secs(30)).map_err(text)?;
        comm.barrier(secs(30)).map_err(text)?;
        comm.destroy(secs(30)).map_err(text)
    });
}
