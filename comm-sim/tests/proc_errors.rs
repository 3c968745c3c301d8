//! What the errors of communicators say, each provoked by ranks of their own.
//!
//! # Safety
//! Forks; the children use the communicator only. One of them handles SIGINT.
#![allow(unsafe_code, missing_docs)]

mod support;

use comm_context::abi::DeviceAddr;
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec, Membership, Phase};
use comm_sim::SimComm;
use fault_points::{Action, Plan};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use rendezvous::{Group, Tag};
use serial_test::serial;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Entry, Texts, far, in_processes, millis, rendezvous_path, secs};

/// The calls of one rank that is alone in its group.
#[test]
#[serial]
fn what_a_rank_learns_about_its_own_calls() {
    let (_folder, path) = rendezvous_path();
    let comm = SimComm::rendezvous(&path, Membership::new(0, 1).unwrap(), secs(30)).unwrap();
    let spec = DomainSpec { id: AllocationId(5), ranks: &[0], domain_rank: 0, window_size: 4096 };
    let says = |result: Result<(), CommError>, text: &str| assert_eq!(result.unwrap_err().to_string(), text);
    says(
        comm.window().map(drop),
        "this communicator has no base window yet; call alloc_windows on every rank first",
    );
    comm.alloc_windows(4096, secs(30)).unwrap();
    says(
        comm.alloc_windows(4096, secs(30)).map(drop),
        "the base window is already allocated; use the one there is, or a domain for a further one",
    );
    says(
        comm.release_domain(AllocationId(5), secs(30)),
        "no domain 0x5 is allocated on this rank; pass the id of one that was allocated and not yet released",
    );
    comm.alloc_domain(&spec, secs(30)).unwrap();
    says(
        comm.alloc_domain(&spec, secs(30)).map(drop),
        "a domain 0x5 is already allocated on this rank; release it first, or choose another allocation id",
    );
    says(
        comm.read(DeviceAddr(1), &mut [0; 8]),
        "8 bytes at 0x1 are not inside one window of this communicator (or, to read, one of its contexts); take \
         addresses from windowsIn and stay within winSize",
    );
}

/// What rank 0 of two learns when rank 1 does something else. Both run to their end.
fn told(
    text: &str,
    zero: impl Fn(&dyn Communicator) -> Result<(), CommError>,
    one: impl Fn(Box<dyn Communicator>, &dyn Fn()),
) {
    let (_folder, path) = rendezvous_path();
    let entry = Entry::Path(&path);
    let said = Texts::new(1, 4096);
    in_processes(2, entry, |rank| {
        let comm = entry.open(rank, 2, secs(60)).map_err(|error| error.to_string())?;
        if rank == 1 {
            let end = far();
            one(comm, &|| {
                while said.read(0).is_empty() && !end.has_passed() {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            });
            return Ok(());
        }
        let error = zero(comm.as_ref()).err().ok_or("rank 0 succeeded")?;
        said.write(0, &error.to_string());
        Ok(())
    });
    let said = said.read(0);
    let mut rest = &said[..];
    for piece in text.split('*') {
        let at = rest.find(piece);
        assert!(at.is_some(), "{text:?} expected, not {said:?}");
        rest = &rest[at.unwrap() + piece.len()..];
    }
}

#[test]
#[serial]
fn what_a_rank_learns_about_its_peers() {
    let barrier = |comm: &dyn Communicator| comm.barrier(secs(60));
    told(
        "timed out in barrier after *s of 50ms; rank 1 had not arrived; see what they are doing, or allow more time \
         (CHIPCOMM_TIMEOUT_S, in seconds)*rank*0*pid",
        |comm| comm.barrier(millis(50)),
        |_comm, until_said| until_said(),
    );
    told(
        "this communicator failed before and can only be destroyed; the first cause: timed out in barrier",
        |comm| comm.barrier(millis(50)).or_else(|_| comm.barrier(secs(60))),
        |_comm, until_said| until_said(),
    );
    told(
        "rank 1 left the group while this rank was in barrier: it destroyed its communicator; let every rank make the \
         same collective calls before any of them destroys its communicator",
        barrier,
        |comm, _| drop(comm.destroy(secs(60))),
    );
    told(
        "rank 1 (pid *) exited with status 0 in barrier; look for the cause in its own output, then start the whole \
         group again",
        barrier,
        |comm, _| std::mem::forget(comm),
    );
    told(
        "ranks disagree on the size of the window: this one has *4096*, rank 1 has *8192*; pass the same on every rank",
        |comm| comm.alloc_windows(4096, secs(60)).map(drop),
        |comm, until_said| {
            let _ = comm.alloc_windows(8192, secs(60));
            until_said();
        },
    );
    told(
        "rank 1 failed in alloc_windows: not enough memory for *; ask for less or free some; the operation is undone on \
         every member, so fix that and call again",
        |comm| comm.alloc_windows(4096, secs(60)).map(drop),
        |comm, until_said| {
            fault_points::arm(Plan::one("region.reserve", 1, 1, Action::Error(28)));
            let _ = comm.alloc_windows(4096, secs(60));
            until_said();
        },
    );
}

/// A system that refuses: the call, what it was for, and what its error asks for.
#[test]
#[serial]
fn what_a_rank_learns_about_its_system() {
    for (errno, advice) in [
        (13, "check the owner and mode of what it touches, and whether a sandbox forbids the call"),
        (2, "check that the path exists"),
        (12, "free memory or raise the limit of the control group or of shared memory"),
        (38, "this kernel does not offer it; see the kernel versions that the documentation names"),
        (24, "raise the limit of open files (ulimit -n)"),
        (5, "see the manual page of the call for this error"),
    ] {
        let (_folder, path) = rendezvous_path();
        let entry = Entry::Path(&path);
        let said = Texts::new(1, 4096);
        in_processes(1, entry, |_| {
            fault_points::arm(Plan::one("rendezvous.bind", 0, 1, Action::Error(errno)));
            let error = entry.open(0, 1, secs(60)).err().ok_or("the rank has joined")?;
            said.write(0, &error.to_string());
            Ok(())
        });
        let said = said.read(0);
        assert!(
            said.starts_with("bind failed for ") && said.ends_with(&format!("; {advice}")),
            "{errno}: {said}"
        );
    }
}

/// Rank 1 is of another program, which sends what no communicator of this build sends.
// CS-2
#[test]
#[serial]
fn f29_what_a_peer_sends_that_makes_no_sense() {
    let far_away = [u64::MAX - 4095, 4096].map(u64::to_le_bytes).concat();
    for (message, expected) in [
        (&[1, 2, 3][..], "it sent a malformed message (all ranks must run the same build)"),
        (
            &far_away,
            "it reported a window at 0xfffffffffffff000, outside its own memory (all ranks must run the same build)",
        ),
    ] {
        let (_folder, path) = rendezvous_path();
        let said = Texts::new(1, 4096);
        in_processes(2, Entry::Path(&path), |rank| {
            let me = Membership::new(rank, 2).map_err(|error| error.to_string())?;
            if rank == 1 {
                let group =
                    Group::rendezvous(&path, me, 1 << 30, secs(60)).map_err(|error| error.to_string())?;
                let step = group.step(Phase::AllocWindows, secs(60)).map_err(|error| error.to_string())?;
                let sent =
                    group.exchange_results(&step, Tag { kind: 1, id: 0 }, &[0, 1], Ok(message.to_vec()));
                return sent.map(drop).map_err(|error| error.to_string());
            }
            let comm = SimComm::rendezvous(&path, me, secs(60)).map_err(|error| error.to_string())?;
            said.write(0, &comm.alloc_windows(4096, secs(60)).map(drop).unwrap_err().to_string());
            Ok(())
        });
        assert_eq!(
            said.read(0),
            format!(
                "rank 1 failed in alloc_windows: {expected}; the operation is undone on every member, so fix that and call again"
            )
        );
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: i32) {
    // Relaxed: nothing else is ordered by it.
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Ctrl-C in rank 0, whose program handles it.
#[test]
#[serial]
fn a_rank_that_is_interrupted_and_its_peer() {
    let (_folder, path) = rendezvous_path();
    let entry = Entry::Path(&path);
    let said = Texts::new(2, 4096);
    in_processes(2, entry, |rank| {
        let comm = entry.open(rank, 2, secs(60)).map_err(|error| error.to_string())?;
        if rank == 0 {
            let handler = SigAction::new(SigHandler::Handler(interrupt), SaFlags::empty(), SigSet::empty());
            // SAFETY: the handler stores one atomic.
            unsafe { sigaction(Signal::SIGINT, &handler) }.unwrap();
            // Relaxed: as above.
            mailbox_atomics::interrupt_waits(|| INTERRUPTED.load(Ordering::Relaxed));
            raise(Signal::SIGINT).unwrap();
        }
        // Rank 1 waits for what rank 0 does not begin.
        let waited =
            if rank == 0 { comm.alloc_windows(4096, secs(60)).map(drop) } else { comm.barrier(secs(60)) };
        said.write(rank as usize, &waited.unwrap_err().to_string());
        Ok(())
    });
    assert_eq!(
        [0, 1].map(|rank| said.read(rank)),
        [
            "aborted in alloc_windows: this process was interrupted; start the whole group again",
            "rank 0 left the group while this rank was in barrier: it gave up, because aborted in alloc_windows: this process was \
             interrupted; start the whole group again; see the error of rank 0",
        ]
    );
}
