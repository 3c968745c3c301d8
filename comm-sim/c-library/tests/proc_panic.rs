//! Panics, wrong arguments and fault plans behind the C API. The symbols of `comm.h` are part of this program, so that faults can be
//! injected behind them.
//!
//! # Safety
//! Calls functions of the C API. The children have one thread.
#![allow(unsafe_code, missing_docs)]

#[path = "../src/open.rs"]
mod open;
#[path = "../../tests/support/mod.rs"]
mod support;

use collectives::capi::CommCollOptions;
use comm_context::comm::CommError;
use deadline::HowDied;
use fault_points::{Action, PLAN_VARIABLE, Plan};
use serial_test::serial;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use support::{Entry, far, in_processes, rendezvous_path, secs};
use worker_errors::ErrorCode;

comm_context::export_c_api!(crate::open::open);
collectives::export_coll_c_api!();

fn init(path: &Path, rank: i32, nranks: i32) -> *mut c_void {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a live C string; the stream is not used.
    unsafe { c_api::comm_init(rank, nranks, std::ptr::null_mut(), path.as_ptr()) }
}

fn last_error() -> String {
    // SAFETY: the text belongs to this thread and stays until its next call.
    unsafe { CStr::from_ptr(c_api::comm_last_error()) }.to_string_lossy().into_owned()
}

#[test]
#[serial]
fn cl_2_a_panic_becomes_an_error_code_and_the_peer_gets_an_error() {
    let (_folder, path) = rendezvous_path();
    let entry = Entry::Path(&path);
    in_processes(2, entry, |rank| {
        if rank == 0 {
            let comm = entry.open(0, 2, secs(30)).map_err(|error| error.to_string())?;
            return match comm.alloc_windows(4096, secs(30)) {
                Err(CommError::PeerLeft { rank: 1, .. } | CommError::PeerDied { rank: 1, .. }) => Ok(()),
                other => Err(format!("{other:?}")),
            };
        }
        fault_points::arm(Plan::one("comm-sim.reserve", 1, 1, Action::Panic));
        let handle = init(&path, 1, 2);
        let mut context = 0;
        // SAFETY: the handle is what comm_init returned; the out pointer is a live local.
        let code = unsafe { c_api::comm_alloc_windows(handle, 4096, &mut context) };
        let text = last_error();
        if code != ErrorCode::Internal.as_i32()
            || !text.contains(
                "the library panicked, which is a bug of it: see standard error above, and please report it",
            )
        {
            return Err(format!("{code}: {text}"));
        }
        match c_api::comm_destroy(handle) {
            0 => Ok(()),
            code => Err(format!("comm_destroy returned {code}: {}", last_error())),
        }
    });
}

// CL-1, CO-10
#[test]
#[serial]
fn cl_1_null_stale_handles_and_options_of_another_version_are_refused() {
    let (_folder, path) = rendezvous_path();
    in_processes(1, Entry::Path(&path), |_| {
        let refused = |code: i32, part: &str| {
            let text = last_error();
            let right = code == ErrorCode::Invalid.as_i32() && text.contains(part);
            right.then_some(()).ok_or(format!("{code}: {text}"))
        };
        let handle = init(&path, 0, 1);
        // SAFETY: NULL is refused.
        let null = unsafe { c_api::comm_alloc_windows(handle, 4096, std::ptr::null_mut()) };
        refused(null, "device_ctx_out is NULL")?;
        let group = coll_c_api::comm_coll_create(handle);
        refused(coll_c_api::comm_coll_wait(group, 1), "comm_coll_wait: ")?;
        let options = CommCollOptions { size: 8, flags: 0, pool_bytes: 0, timeout_ms: 0 };
        // SAFETY: one rank, and a struct that has more bytes than it says.
        let none = unsafe { coll_c_api::comm_coll_create_over(handle, &0, 1, &options) };
        if !none.is_null() || !last_error().contains("options->size is 8") {
            return Err(last_error());
        }
        if (coll_c_api::comm_coll_destroy(group), c_api::comm_destroy(handle)) != (0, 0) {
            return Err(last_error());
        }
        // The next communicator has another number.
        let next = init(&path, 0, 1);
        refused(c_api::comm_barrier(handle), "comm_barrier: ")?;
        (c_api::comm_destroy(next) == 0).then_some(()).ok_or_else(last_error)
    });
}

// CO-11
#[test]
#[serial]
fn a_panic_in_a_collective_breaks_the_group_and_the_peer_gets_an_error() {
    let (_folder, path) = rendezvous_path();
    in_processes(2, Entry::Path(&path), |rank| {
        let handle = init(&path, rank as i32, 2);
        let group = coll_c_api::comm_coll_create(handle);
        if rank == 1 {
            fault_points::arm(Plan::one("coll.staging", 1, 1, Action::Panic));
        }
        let mut values = [1.0_f32; 100];
        let at: *mut c_void = values.as_mut_ptr().cast();
        // SAFETY: a live buffer of that many elements, in place.
        let code = unsafe { coll_c_api::comm_coll_all_reduce(group, at, at, 100, 0, 0) };
        let text = last_error();
        let expected = if rank == 1 {
            (ErrorCode::Internal, "panicked")
        } else {
            (ErrorCode::PeerLeft, "rank 1 has given up on this group; see its own error")
        };
        if code != expected.0.as_i32() || !text.contains(expected.1) {
            return Err(format!("{code}: {text}"));
        }
        // SAFETY: no buffers.
        let later = unsafe { coll_c_api::comm_coll_barrier(group) };
        if later == 0 || !last_error().contains("failed before") {
            return Err(format!("{later}: {}", last_error()));
        }
        match (coll_c_api::comm_coll_destroy(group), c_api::comm_destroy(handle)) {
            (0, 0) => Ok(()),
            codes => Err(format!("{codes:?}: {}", last_error())),
        }
    });
}

#[test]
#[serial]
fn a_malformed_fault_plan_ends_the_process_and_a_valid_one_is_followed() {
    let (_folder, path) = rendezvous_path();
    for (plan, code) in [("kill everything", 2), ("rendezvous.path_checked@0=exit:7", 7)] {
        let child = Entry::Path(&path).fork(|| {
            // SAFETY: the process has one thread.
            unsafe { std::env::set_var(PLAN_VARIABLE, plan) };
            // The parent may have passed a point already, in another test.
            fault_points::ask_environment_again();
            init(&path, 0, 1);
            0
        });
        assert_eq!(child.reap(far()), Some(HowDied::Exited(code)), "{plan}");
    }
}
