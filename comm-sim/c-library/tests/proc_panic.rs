//! A panic inside the library stays inside it, and a fault plan that cannot be read is no plan (CS-6).
//!
//! # Safety
//! Declares and calls functions of the C API, which this program links through the crate; the children have one thread.
#![allow(unsafe_code, missing_docs)]

mod kit;

use comm_context::comm::{CommCode, CommError};
use deadline::HowDied;
use fault_points::{Action, PLAN_VARIABLE, Plan};
use kit::{Way, far, in_processes, meeting_place, secs};
use serial_test::serial;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// The crate is linked for its C symbols too.
use comm_sim as _;

unsafe extern "C" {
    fn comm_init(rank: c_int, nranks: c_int, stream: *mut c_void, path: *const c_char) -> *mut c_void;
    fn comm_alloc_windows(handle: *mut c_void, size: usize, context_out: *mut u64) -> c_int;
    fn comm_destroy(handle: *mut c_void) -> c_int;
    fn comm_last_error() -> *const c_char;
}

fn init(path: &Path, rank: i32, nranks: i32) -> *mut c_void {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a live C string; the stream is not used.
    unsafe { comm_init(rank, nranks, std::ptr::null_mut(), path.as_ptr()) }
}

fn last_error() -> String {
    // SAFETY: the text is this thread's and stays until its next call.
    unsafe { CStr::from_ptr(comm_last_error()) }.to_string_lossy().into_owned()
}

#[test]
#[serial]
fn cs_6_a_panic_does_not_cross_into_c_and_the_peer_is_told() {
    let (_folder, path) = meeting_place();
    let way = Way::Met(&path);
    in_processes(2, way, |rank| {
        if rank == 0 {
            let comm = way.open(0, 2, secs(30)).map_err(|error| error.to_string())?;
            return match comm.alloc_windows(4096, secs(30)) {
                Err(CommError::PeerLeft { rank: 1, .. } | CommError::PeerDied { rank: 1, .. }) => Ok(()),
                other => Err(format!("{other:?}")),
            };
        }
        fault_points::arm(Plan::one("comm-sim.reserve", 1, 1, Action::Panic));
        let handle = init(&path, 1, 2);
        let mut context = 0;
        // SAFETY: the handle is what comm_init returned; the out pointer is a live local.
        let code = unsafe { comm_alloc_windows(handle, 4096, &mut context) };
        let told = last_error();
        if code != CommCode::Internal as c_int || !told.contains("a bug in the library: it panicked") {
            return Err(format!("{code}: {told}"));
        }
        // SAFETY: as above.
        match unsafe { comm_destroy(handle) } {
            0 => Ok(()),
            code => Err(format!("comm_destroy gave {code}: {}", last_error())),
        }
    });
}

#[test]
#[serial]
fn a_fault_plan_that_makes_no_sense_ends_the_process_and_one_that_does_is_followed() {
    let (_folder, path) = meeting_place();
    for (plan, code) in [("kill everything", 2), ("rendezvous.path_checked@0=exit:7", 7)] {
        let child = Way::Met(&path).fork(|| {
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
