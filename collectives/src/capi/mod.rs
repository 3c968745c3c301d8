//! The C API of `comm_coll.h`: the calls of [`Collectives`] on groups that C callers name by number.
//!
//! A C library exports it with [`export_coll_c_api!`](crate::export_coll_c_api), beside
//! [`comm_context::export_c_api!`]. A call costs a few nanoseconds more than the same call in Rust: the group is found in a table, and the
//! thread that made it enters without a locked instruction until another thread uses it too.
//!
//! # Contract
//! - **CO-10** No argument of a C caller crashes the process: NULL, a stale handle or request, a number that stands for nothing, a
//!   second thread are errors with a text. Pointers that are not NULL are the caller's promise.
//! - **CO-11** No panic crosses into the caller. It breaks the group and becomes `COMM_E_INTERNAL`.
//!
//! # Safety
//! Passes on the pointers of a C caller, who promises by `comm_coll.h` that they are valid for what the call reads and writes.
#![allow(unsafe_code, missing_docs, clippy::missing_safety_doc)]

mod calls;
mod constants;
mod error;
mod export;
mod groups;

pub use calls::*;

use crate::group::Collectives;
use crate::options::Options;
use comm_context::capi::{self as base, Out, guarded};
use comm_context::comm::Timeout;
use constants::COMM_COLL_PROGRESS_THREAD;
use core::any::Any;
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use error::EntryError;
use groups::{Entered, Reserved};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// `CommCollOptions`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommCollOptions {
    pub size: u32,
    pub flags: u32,
    pub pool_bytes: u64,
    pub timeout_ms: u64,
}

/// Runs a call on a group. A panic breaks the group.
#[inline]
fn with_group(call: &str, handle: u64, body: impl FnOnce(&mut Entered) -> Result<(), EntryError>) -> c_int {
    // Nothing in it can panic.
    let mut group = match Entered::new(handle) {
        Ok(group) => group,
        Err(refusal) => return refused(call, None, refusal.on(handle)),
    };
    match catch_unwind(AssertUnwindSafe(|| body(&mut group))) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => refused(call, Some(&group), error),
        Err(panic) => panicked(call, &group, panic),
    }
}

#[cold]
fn refused(call: &str, group: Option<&Entered>, error: EntryError) -> c_int {
    guarded(call, || group.map(rank_of), || Err(error))
}

#[cold]
fn panicked(call: &str, group: &Entered, panic: Box<dyn Any + Send>) -> c_int {
    guarded::<EntryError>(
        call,
        || Some(rank_of(group)),
        || {
            group.coll.break_after_panic();
            resume_unwind(panic)
        },
    )
}

/// The communicator's rank of the caller in a group, for people, and that in the group where it is another.
fn rank_of(group: &Entered) -> String {
    let (rank, in_group) = (group.coll.members()[group.coll.rank()], group.coll.rank());
    let same = rank as usize == in_group;
    if same { format!("rank {rank}") } else { format!("rank {rank} ({in_group} in its group)") }
}

/// The caller's rank in a communicator that it makes a group over, for people.
fn rank_in(comm: u64) -> Option<String> {
    base::shared(comm).ok().map(|comm| format!("rank {}", comm.rank()))
}

impl CommCollOptions {
    /// # Safety
    /// `options` is NULL or points at the struct of a caller.
    unsafe fn read(options: *const Self) -> Result<Options, EntryError> {
        let from_env = || Timeout::from_env(Timeout::ENV);
        if options.is_null() {
            return Ok(Options::new().timeout(from_env()?));
        }
        // SAFETY: not NULL, and the first field of every version of the struct.
        let size = unsafe { options.cast::<u32>().read_unaligned() };
        if size as usize != size_of::<Self>() {
            return Err(EntryError::Options { what: "size", given: size.into() });
        }
        // SAFETY: the caller says that it has that many bytes.
        let Self { flags, pool_bytes, timeout_ms, .. } = unsafe { options.read_unaligned() };
        if flags & !COMM_COLL_PROGRESS_THREAD != 0 {
            return Err(EntryError::Options { what: "flags", given: flags.into() });
        }
        let pool = usize::try_from(pool_bytes);
        let pool = pool.map_err(|_| EntryError::Options { what: "pool_bytes", given: pool_bytes })?;
        let within =
            if timeout_ms == 0 { from_env()? } else { Timeout::new(Duration::from_millis(timeout_ms))? };
        let made = Options::new().pool(pool).timeout(within);
        Ok(if flags == 0 { made } else { made.progress_thread() })
    }
}

/// Makes a group of all ranks.
pub fn create(comm: u64) -> u64 {
    let mut handle = 0;
    guarded::<EntryError>(
        "comm_coll_create",
        || rank_in(comm),
        || {
            let options = Options::new().timeout(Timeout::from_env(Timeout::ENV)?);
            let (slot, comm) = (Reserved::new()?, base::shared(comm)?);
            handle = slot.open(Collectives::new(comm, options)?);
            Ok(())
        },
    );
    handle
}

/// Makes a group of some ranks.
///
/// # Safety
/// `rank_ids` is NULL or has `rank_count` numbers; `options` is NULL or points at a struct.
pub unsafe fn create_over(
    comm: u64,
    rank_ids: *const u32,
    rank_count: usize,
    options: *const CommCollOptions,
) -> u64 {
    let mut handle = 0;
    guarded::<EntryError>(
        "comm_coll_create_over",
        || rank_in(comm),
        || {
            // SAFETY: the caller's promise.
            let options = unsafe { CommCollOptions::read(options) }?;
            let ranks = match (rank_ids.is_null(), rank_count) {
                (true, 0) => None,
                // SAFETY: the caller's promise.
                _ => Some(unsafe { base::ranks(rank_ids, rank_count) }?),
            };
            let (slot, comm) = (Reserved::new()?, base::shared(comm)?);
            handle = slot.open(match ranks {
                None => Collectives::new(comm, options)?,
                Some(ranks) => Collectives::over(comm, &ranks, options)?,
            });
            Ok(())
        },
    );
    handle
}

/// Splits a group.
///
/// # Safety
/// `out` is NULL or writable.
pub unsafe fn split(group: u64, color: c_int, key: i64, out: *mut u64) -> c_int {
    with_group("comm_coll_split", group, |group| {
        let out = Out::new(out, "coll_out")?;
        let color = match color {
            -1 => None,
            color => Some(u32::try_from(color).map_err(|_| EntryError::Color(color))?),
        };
        let slot = Reserved::new()?;
        out.set(group.coll.split(color, key)?.map_or(0, |made| slot.open(made)));
        Ok(())
    })
}

/// Finishes what was started, and closes the group.
pub fn destroy(group: u64) -> c_int {
    let who = Entered::new(group).ok().map(|group| rank_of(&group));
    guarded::<EntryError>(
        "comm_coll_destroy",
        || who,
        || {
            let entered = Entered::new(group).map_err(|refusal| refusal.on(group))?;
            let Some(group) = entered.remove() else { return Ok(()) };
            let finished = if group.started.is_empty() { Ok(()) } else { group.coll.finish_all() };
            let closed = group.coll.close();
            Ok(finished.and(closed)?)
        },
    )
}

/// # Safety
/// `out` is NULL or writable.
pub unsafe fn rank(group: u64, out: *mut c_int) -> c_int {
    with_group("comm_coll_rank", group, |group| {
        Out::new(out, "rank_out")?.set(group.coll.rank() as c_int);
        Ok(())
    })
}

/// # Safety
/// `out` is NULL or writable.
pub unsafe fn size(group: u64, out: *mut c_int) -> c_int {
    with_group("comm_coll_size", group, |group| {
        Out::new(out, "size_out")?.set(group.coll.nranks() as c_int);
        Ok(())
    })
}

/// Memory of the pool.
pub fn alloc(group: u64, bytes: usize) -> *mut c_void {
    let mut memory = core::ptr::null_mut();
    with_group("comm_coll_alloc", group, |group| {
        memory = group.coll.alloc_raw(bytes)?.as_ptr().cast();
        Ok(())
    });
    memory
}

/// Gives memory back to the pool.
///
/// # Safety
/// Nobody uses the memory any more.
pub unsafe fn free(group: u64, memory: *mut c_void) -> c_int {
    with_group("comm_coll_free", group, |group| {
        let Some(memory) = NonNull::new(memory.cast()) else { return Ok(()) };
        // SAFETY: the caller's promise.
        Ok(unsafe { group.coll.free_raw(memory) }?)
    })
}

/// Waits for a started call.
pub fn wait(group: u64, request: u64) -> c_int {
    with_group("comm_coll_wait", group, |group| {
        let at = position(group, request)?;
        let ticket = group.started[at].ticket;
        let waited = group.coll.wait_raw(ticket);
        // Over either way: the group works on nothing any more once it is broken.
        group.started.remove(at);
        Ok(waited?)
    })
}

/// Asks whether a started call is over.
///
/// # Safety
/// `done` is NULL or writable.
pub unsafe fn test(group: u64, request: u64, done: *mut c_int) -> c_int {
    with_group("comm_coll_test", group, |group| {
        let (out, at) = (Out::new(done, "done_out")?, position(group, request)?);
        let tested = group.coll.test_raw(group.started[at].ticket);
        if !matches!(tested, Ok(false)) {
            group.started.remove(at);
        }
        out.set(c_int::from(tested?));
        Ok(())
    })
}

fn position(group: &Entered, request: u64) -> Result<usize, EntryError> {
    group.started.iter().position(|one| one.number == request).ok_or(EntryError::Request(request))
}
