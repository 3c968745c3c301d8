//! What a call costs through C, beside the same call in Rust: `cargo xtask bench c_entry`. One rank, so that nothing but the call
//! itself is measured.
//!
//! # Safety
//! Calls functions of the C API, with buffers that live.
#![allow(unsafe_code)]

#[path = "../src/open.rs"]
mod open;

use bench_support::{Bench, Contestant, Figure, alternate};
use collectives::{Collectives, Op, Options};
use comm_context::comm::{Communicator, Membership, Timeout};
use comm_sim::SimComm;
use core::ffi::c_void;
use std::cell::RefCell;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

comm_context::export_c_api!(crate::open::open);
collectives::export_coll_c_api!();

const ROUNDS: u64 = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bench = Bench::from_args("c_entry");
    let folder = tempfile::tempdir()?;
    // Made in the process that plays: a group does not survive a fork.
    let rust = RefCell::new(None);
    let c = RefCell::new(None);
    let (entered, shared) = (RefCell::new(None), RefCell::new(None));
    let mut values = ([1.0_f32; 1], [1.0_f32; 1]);
    let mut contestants: [Contestant<'_>; 4] = [
        Contestant {
            rounds: ROUNDS,
            play: &mut |_, rounds| {
                let mut made = rust.borrow_mut();
                let group: &Collectives<'static> = made.get_or_insert_with(|| in_rust(&folder));
                for _ in 0..rounds {
                    group.all_reduce(&mut values.0, Op::Sum).expect("one rank");
                }
            },
        },
        Contestant {
            rounds: ROUNDS,
            play: &mut |_, rounds| {
                let mut made = c.borrow_mut();
                let group: *mut c_void = *made.get_or_insert_with(|| in_c(&folder, "c"));
                let at: *mut c_void = values.1.as_mut_ptr().cast();
                for _ in 0..rounds {
                    // SAFETY: a live buffer of one element, in place.
                    assert_eq!(unsafe { coll_c_api::comm_coll_all_reduce(group, at, at, 1, 0, 0) }, 0);
                }
            },
        },
        // A call that does nothing but enter and leave, from the thread that made the group, and from another one.
        Contestant {
            rounds: ROUNDS,
            play: &mut |_, rounds| {
                enter(*entered.borrow_mut().get_or_insert_with(|| in_c(&folder, "own")), rounds)
            },
        },
        Contestant {
            rounds: ROUNDS,
            play: &mut |_, rounds| {
                enter(*shared.borrow_mut().get_or_insert_with(|| used_elsewhere(&folder)), rounds)
            },
        },
    ];
    let samples = alternate(1, bench.amount(200), &mut contestants)?;
    bench.print(&Figure {
        case: "all_reduce of one f32, 1 rank, through C",
        value: samples[1].median(),
        unit: "ns",
        limit: "the same in Rust",
        limit_value: Some(samples[0].median()),
    });
    bench.print(&Figure {
        case: "comm_coll_rank, by the thread that made it",
        value: samples[2].median(),
        unit: "ns",
        limit: "used by two threads in turn",
        limit_value: Some(samples[3].median()),
    });
    Ok(())
}

/// Calls that only enter and leave.
fn enter(group: *mut c_void, rounds: u64) {
    let mut rank = -1;
    for _ in 0..rounds {
        // SAFETY: a live number.
        assert_eq!(unsafe { coll_c_api::comm_coll_rank(group, &raw mut rank) }, 0);
    }
    assert_eq!(rank, 0);
}

/// A group that another thread has used too.
fn used_elsewhere(folder: &tempfile::TempDir) -> *mut c_void {
    let group = in_c(folder, "shared") as usize;
    std::thread::scope(|scope| scope.spawn(|| enter(group as *mut c_void, 1)).join().expect("a thread"));
    group as *mut c_void
}

fn in_rust(folder: &tempfile::TempDir) -> Collectives<'static> {
    let me = Membership::new(0, 1).expect("one rank");
    let comm =
        SimComm::rendezvous(&folder.path().join("rust"), me, Timeout::DEFAULT).expect("a communicator");
    let comm: Box<dyn Communicator> = Box::new(comm);
    Collectives::new(std::sync::Arc::new(comm), Options::new()).expect("a group")
}

fn in_c(folder: &tempfile::TempDir, name: &str) -> *mut c_void {
    let path = CString::new(folder.path().join(name).as_os_str().as_bytes()).expect("a path");
    // SAFETY: a live C string; the stream is not used.
    let comm = unsafe { c_api::comm_init(0, 1, core::ptr::null_mut(), path.as_ptr()) };
    coll_c_api::comm_coll_create(comm)
}
