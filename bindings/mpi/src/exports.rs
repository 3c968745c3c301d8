//! What the C half calls (`c/core.h`).
//!
//! # Safety
//! Exported under C names that nothing else in the library has. Groups are pointers that `chipcomm_mpi_open` made and
//! `chipcomm_mpi_close` takes back; the C half keeps each with the communicator that it belongs to, and MPI forbids two
//! threads to be in collectives of one communicator at a time. Buffers and lists are those of an MPI call, valid for what it reads
//! and writes until it returns. A panic ends the process, since no frame of C can be unwound.
#![allow(unsafe_code, unreachable_pub)]

use crate::host;
use crate::open::Group;
use collectives::{CollError, DType, Kind, Op, Request, Shared, Ticket};
use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A collective call, as the C half makes it.
#[repr(C)]
pub struct CoreCall {
    kind: u8,
    dtype: u8,
    /// 255: none.
    op: u8,
    root: u32,
    count: usize,
    counts: *const usize,
    receive_counts: *const usize,
    input: *const c_void,
    output: *mut c_void,
}

/// A message of bytes. The other rank has one of as many.
#[repr(C)]
pub struct CoreMessage {
    at: *mut c_void,
    bytes: usize,
    rank: u32,
    /// 1: to that rank; 0: from it.
    sends: u32,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn keep(error: &dyn std::fmt::Display) {
    let text = error.to_string().replace('\0', " ");
    LAST.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
}

fn result(done: Result<(), CollError>) -> c_int {
    done.map_or_else(
        |error| {
            keep(&error);
            1
        },
        |()| 0,
    )
}

/// What this process has in common with those on the same host.
#[unsafe(no_mangle)]
pub extern "C" fn chipcomm_mpi_host() -> u64 {
    host::identity()
}

/// Makes a group: collective among `nranks` ranks that pass the same path. NULL on failure.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chipcomm_mpi_open(path: *const c_char, rank: u32, nranks: u32) -> *mut Group {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    match Group::open(Path::new(OsStr::from_bytes(path.to_bytes())), rank, nranks) {
        Ok(group) => Box::into_raw(Box::new(group)),
        Err(error) => {
            keep(&error);
            core::ptr::null_mut()
        }
    }
}

/// Ends a group. Waits for nobody.
///
/// # Safety
/// `group` comes from `chipcomm_mpi_open` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chipcomm_mpi_close(group: *mut Group) {
    // SAFETY: the caller's promise.
    unsafe { Box::from_raw(group) }.close();
}

/// Makes a call. 0, or 1 with the reason in `chipcomm_mpi_error`.
///
/// # Safety
/// See the head of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chipcomm_mpi_call(group: *const Group, call: *const CoreCall) -> c_int {
    // SAFETY: see the head of the file.
    let (group, call) = unsafe { (&*group, &*call) };
    let (Some(kind), Some(dtype)) = (Kind::from_code(call.kind), DType::from_code(call.dtype)) else {
        keep(&"no such call");
        return 1;
    };
    let request = Request {
        kind,
        dtype,
        op: Op::from_code(call.op),
        root: call.root,
        count: call.count,
        counts: call.counts,
        receive_counts: call.receive_counts,
        input: call.input.cast(),
        output: call.output.cast(),
        shared: Shared::Nothing,
    };
    // SAFETY: see the head of the file.
    result(unsafe { group.coll.run_raw(request) })
}

/// Sends and receives messages, all at the same time, and waits for all.
///
/// # Safety
/// See the head of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chipcomm_mpi_messages(
    group: *const Group,
    messages: *const CoreMessage,
    count: usize,
) -> c_int {
    // SAFETY: see the head of the file; a list of none may be NULL.
    let (group, messages) =
        unsafe { (&*group, if count == 0 { &[][..] } else { core::slice::from_raw_parts(messages, count) }) };
    let start = |one: &CoreMessage| -> Result<Ticket, CollError> {
        let (at, rank) = (one.at.cast::<u8>(), one.rank as usize);
        // SAFETY: see the head of the file; all are waited for below, or the group is broken and starts nothing more.
        unsafe {
            match one.sends {
                0 => group.coll.start_recv_raw(at, one.bytes, DType::U8, rank, 0),
                _ => group.coll.start_send_raw(at, one.bytes, DType::U8, rank, 0),
            }
        }
    };
    let started: Vec<_> = messages.iter().map(start).collect();
    // Every one is waited for, also after a failure; the first counts.
    let wait = |ticket: Result<Ticket, CollError>| ticket.and_then(|ticket| group.coll.wait_raw(ticket));
    let mut failures =
        started.into_iter().filter_map(|ticket| wait(ticket).err()).collect::<Vec<_>>().into_iter();
    result(failures.next().map_or(Ok(()), Err))
}

/// Has every wait call `hook` now and then.
#[unsafe(no_mangle)]
pub extern "C" fn chipcomm_mpi_set_hook(hook: extern "C" fn()) {
    static HOOK: std::sync::OnceLock<extern "C" fn()> = std::sync::OnceLock::new();
    let _ = HOOK.set(hook);
    // SAFETY: the C half's hook calls MPI_Iprobe by its other name, which uses no group.
    unsafe {
        collectives::set_wait_hook(|| {
            if let Some(hook) = HOOK.get() {
                hook();
            }
        })
    };
}

/// Why the last call of this thread failed, until its next.
#[unsafe(no_mangle)]
pub extern "C" fn chipcomm_mpi_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
