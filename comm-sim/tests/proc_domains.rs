//! Domains, again and again, from many threads at once and in a forked copy of a rank.
//!
//! # Safety
//! Forks; the copy of a rank uses the communicator only.
#![allow(unsafe_code, missing_docs)]

mod support;

use comm_context::abi::{CommContext, PlacedContext};
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec};
use comm_sim::SimComm;
use mailbox_atomics::{AllowedCores, usable_cores};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serial_test::serial;
use support::{Entry, Texts, descriptors, in_processes, mappings, rendezvous_path, secs};

fn cycle(comm: &dyn Communicator, id: u64, rank: u32) -> Result<u64, String> {
    let spec =
        DomainSpec { id: AllocationId(id), ranks: &[0, 1], domain_rank: rank, window_size: 4096 << (id % 4) };
    let text = |error: CommError| format!("domain {id}: {error}");
    let window = comm.alloc_domain(&spec, secs(60)).map_err(text)?;
    let mut first = [1; 8];
    comm.read(window.base, &mut first).map_err(text)?;
    // CS-1: also where the memory was used before.
    if first != [0; 8] {
        return Err(format!("domain {id} is not zero at first"));
    }
    comm.write(window.base, &[0xff; 4096]).map_err(text)?;
    comm.release_domain(spec.id, secs(60)).map_err(text)?;
    Ok(window.base.0 + window.size as u64)
}

#[test]
#[serial]
fn cs_4_thousands_of_cycles_need_no_more_than_the_first() {
    let prepared = SimComm::prepare_group(2).unwrap();
    let entry = Entry::Forked(&prepared);
    in_processes(2, entry, |rank| {
        let comm = entry.open(rank, 2, secs(60)).map_err(|error| error.to_string())?;
        let mut first = None;
        for round in 0..4000 {
            let end = cycle(comm.as_ref(), round % 8, rank)?;
            if round >= 8 {
                let now = (end, descriptors(), mappings());
                let then = *first.get_or_insert(now);
                // The first wait that is long enough to check whether the peer lives opens one descriptor for it.
                if (now.0, now.2) != (then.0, then.2) || now.1 > then.1 + 1 {
                    return Err(format!(
                        "end, descriptors, mappings: {then:?}, after {round} cycles {now:?}"
                    ));
                }
            }
        }
        comm.barrier(secs(60)).and_then(|()| comm.destroy(secs(60))).map_err(|error| error.to_string())
    });
}

/// Kernels of more ranks than this yield where they would spin.
// F71
#[test]
#[serial]
fn the_context_says_how_many_cores_the_ranks_have_between_them() {
    let cores = AllowedCores::of_this_process();
    let first = cores.iter().next().unwrap();
    for bound in [false, true] {
        let prepared = SimComm::prepare_group(2).unwrap();
        let entry = Entry::Forked(&prepared);
        in_processes(2, entry, |rank| {
            if bound {
                let mut only = CpuSet::new();
                only.set(first).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only)).unwrap();
            }
            let text = |error: CommError| error.to_string();
            let comm = entry.open(rank, 2, secs(60)).map_err(text)?;
            let ranks = [0, 1];
            let spec =
                DomainSpec { id: AllocationId(1), ranks: &ranks, domain_rank: rank, window_size: 4096 };
            for window in [comm.alloc_windows(4096, secs(60)), comm.alloc_domain(&spec, secs(60))] {
                let at = window.map_err(text)?.context.0 as *const u8;
                // SAFETY: the context is in this process's memory, and nobody writes to it.
                let bytes = unsafe { std::slice::from_raw_parts(at, size_of::<PlacedContext>()) };
                let placed = PlacedContext::decode(bytes).map_err(|error| error.to_string())?;
                // With quotas, where this machine has them.
                let wanted = if bound { 1 } else { usable_cores() as u64 };
                if placed.tail.cores != wanted {
                    return Err(format!("{} cores, not {wanted}", placed.tail.cores));
                }
            }
            comm.destroy(secs(60)).map_err(text)
        });
    }
}

#[test]
#[serial]
fn a_hundred_threads_of_each_rank_allocate_domains_in_different_orders() {
    // CS-7: a thread waits for its own peers only, so that no order of other threads can block it.
    let (_folder, path) = rendezvous_path();
    let entry = Entry::Path(&path);
    in_processes(2, entry, |rank| {
        let comm = entry.open(rank, 2, secs(60)).map_err(|error| error.to_string())?;
        let comm = comm.as_ref();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..100)
                // The other rank starts its threads in reverse.
                .map(|at| if rank == 0 { at } else { 99 - at })
                .map(|at| scope.spawn(move || (0..5).try_for_each(|_| cycle(comm, 100 + at, rank).map(drop))))
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a panic".to_owned())?)
        })?;
        comm.barrier(secs(60)).map_err(|error| error.to_string())
    });
}

#[test]
#[serial]
fn cs_5_forked_ranks_and_their_parent_have_every_window_at_one_address() {
    let prepared = SimComm::prepare_group(3).unwrap();
    let entry = Entry::Forked(&prepared);
    let texts = Texts::new(3, 32);
    in_processes(3, entry, |rank| {
        let text = |error: CommError| error.to_string();
        let comm = entry.open(rank, 3, secs(60)).map_err(text)?;
        let window = comm.alloc_windows(4096, secs(60)).map_err(text)?;
        comm.write(window.base, &window.base.0.to_le_bytes()).map_err(text)?;
        texts.write(rank as usize, &window.base.0.to_string());
        comm.barrier(secs(60)).map_err(text)?;
        let mut bytes = [0; size_of::<CommContext>()];
        comm.read(window.context, &mut bytes).map_err(text)?;
        let context = CommContext::decode(&bytes).map_err(|error| error.to_string())?;
        for peer in 0..3 {
            let at = context.window_in(peer).map_err(|error| error.to_string())?;
            let mut bytes = [0; 8];
            comm.read(at, &mut bytes).map_err(text)?;
            let theirs = u64::from_le_bytes(bytes);
            if theirs != at.0 {
                return Err(format!("rank {peer} has its window at {theirs:#x}, this rank has it at {at}"));
            }
        }
        comm.barrier(secs(60)).map_err(text)
    });
    for rank in 0..3 {
        let base: u64 = texts.read(rank).parse().unwrap();
        let offset = base as usize - prepared.region().base().as_ptr() as usize;
        let mut bytes = [0; 8];
        prepared.region().read(offset, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), base);
    }
}

#[test]
#[serial]
fn f61_a_forked_copy_of_a_rank_destroys_nothing_of_its_parents() {
    // As an exit handler does that a forked process inherited.
    let (_folder, path) = rendezvous_path();
    let entry = Entry::Path(&path);
    in_processes(2, entry, |rank| {
        let text = |error: CommError| error.to_string();
        let comm = entry.open(rank, 2, secs(20)).map_err(text)?;
        let ranks = &[0, 1];
        let spec = DomainSpec { id: AllocationId(1), ranks, domain_rank: rank, window_size: 4096 };
        let window = comm.alloc_domain(&spec, secs(20)).map_err(text)?;
        comm.write(window.base, &[7; 4096]).map_err(text)?;
        comm.barrier(secs(20)).map_err(text)?;
        if rank == 0 {
            // SAFETY: the copy calls the communicator and ends.
            let copy = unsafe { libc::fork() };
            if copy == 0 {
                let released = comm.release_domain(spec.id, secs(2));
                let refused = released.is_err_and(|error| {
                    error.to_string().ends_with(
                        ", and this process is a forked copy of it; create a communicator in this process",
                    )
                });
                let destroyed = comm.destroy(secs(2)).is_ok();
                // SAFETY: ends the copy without running what it inherited.
                unsafe { libc::_exit(i32::from(!(refused && destroyed))) }
            }
            let mut status = 0;
            // SAFETY: `status` is a live local.
            unsafe { libc::waitpid(copy, &raw mut status, 0) };
            if status != 0 {
                return Err(format!("the copy ended with {status:#x}"));
            }
            // The other rank waits for this one, and would notice that it has left.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        comm.barrier(secs(20)).map_err(text)?;
        let mut bytes = [0; 4096];
        comm.read(window.base, &mut bytes).map_err(text)?;
        if bytes != [7; 4096] {
            return Err("the window was freed".to_owned());
        }
        comm.release_domain(spec.id, secs(20)).and_then(|()| comm.destroy(secs(20))).map_err(text)
    });
}
