//! The C API of `comm.h` for any backend, except how a communicator is opened. What it promises is in
//! docs/ARCHITECTURE.md#c-api-of-a-backend.
//!
//! A backend calls [`export_c_api!`](crate::export_c_api) with the function that opens its communicator, and
//! exports all symbols of `comm.h`. Handles are numbers, never addresses: a stale or foreign one is found
//! missing in a table instead of being followed.
//!
//! # Safety
//! Reads and writes through pointers that a C caller passes. Each is checked for NULL first; that a pointer
//! which is not NULL is valid is the caller's part of `comm.h`.
#![allow(unsafe_code)]

mod handles;
mod report;

use crate::comm::{
    AllocationId, ArgumentError, CommError, Communicator, DomainSpec, Membership, PathProblem, SubsetView,
    Timeout,
};
use core::ffi::{c_char, c_int, c_void};
pub use handles::SharedComm;
use handles::{Handles, Shape, rank_of, with_handle};
pub use report::{CError, guarded, last_error};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a backend supplies: joins the group at a path. The stream is the caller's.
pub type Open = fn(Membership, *mut c_void, &Path, Timeout) -> Result<Box<dyn Communicator>, CommError>;

/// The open communicators of one library.
static HANDLES: Handles = Handles::new();

/// The communicator behind a handle, for a group over it. While it is held, `comm_destroy` is refused.
pub fn shared(handle: u64) -> Result<SharedComm, CommError> {
    Ok(HANDLES.get(handle)?.comm.clone())
}

fn timeout() -> Result<Timeout, CommError> {
    Ok(Timeout::from_env(Timeout::ENV)?)
}

/// A pointer to write a result to; written only when everything else has worked.
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses NULL. Anything else is, by the contract of the call, writable.
    pub fn new(at: *mut T, what: &'static str) -> Result<Self, CommError> {
        if at.is_null() { Err(ArgumentError::Null { what }.into()) } else { Ok(Self(at)) }
    }

    /// Writes the result.
    pub fn set(self, value: T) {
        // SAFETY: not NULL (checked in `new`), and by `comm.h` a pointer to a writable object of this type;
        // an unaligned one is written bytewise.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// Copies the list of ranks, so that nothing the caller does to it later matters.
///
/// # Safety
/// `ranks` is NULL or points at `count` readable numbers.
pub unsafe fn ranks(ranks: *const u32, count: usize) -> Result<Vec<u32>, CommError> {
    if count == 0 {
        return Err(ArgumentError::NoRanks.into());
    }
    if ranks.is_null() {
        return Err(ArgumentError::Null { what: "rank_ids" }.into());
    }
    if count > crate::abi::COMM_MAX_RANK_NUM {
        return Err(
            ArgumentError::TooManyRanks { count, nranks: crate::abi::COMM_MAX_RANK_NUM as u32 }.into()
        );
    }
    // SAFETY: not NULL, `count` is at most 64, and by contract there are that many numbers; read bytewise.
    Ok((0..count).map(|at| unsafe { ranks.add(at).read_unaligned() }).collect())
}

/// # Safety
/// `path` is NULL or a NUL-terminated string.
pub unsafe fn init(open: Open, rank: c_int, nranks: c_int, stream: *mut c_void, path: *const c_char) -> u64 {
    let mut handle = 0;
    let who = || Membership::from_c(rank, nranks).ok().map(|me| format!("rank {}", me.rank()));
    guarded::<CommError>("comm_init", who, || {
        let me = Membership::from_c(rank, nranks)?;
        if path.is_null() {
            return Err(ArgumentError::RootinfoPath { problem: PathProblem::Null }.into());
        }
        // SAFETY: not NULL, and NUL-terminated by the caller's contract.
        let path = Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        crate::comm::validate::rootinfo_path(path)?;
        let within = timeout()?;
        handle = HANDLES.add(open(me, stream, path, within)?, within);
        Ok(())
    });
    handle
}

/// # Safety
/// `context_out` is NULL or writable.
pub unsafe fn alloc_windows(handle: u64, size: usize, context_out: *mut u64) -> c_int {
    with_handle("comm_alloc_windows", handle, |comm, entry| {
        let out = Out::new(context_out, "device_ctx_out")?;
        out.set(comm.alloc_windows(size, entry.within)?.context.0);
        Ok(())
    })
}

/// # Safety
/// `base_out` is NULL or writable.
pub unsafe fn get_local_window_base(handle: u64, base_out: *mut u64) -> c_int {
    with_handle("comm_get_local_window_base", handle, |comm, _| {
        let out = Out::new(base_out, "base_out")?;
        out.set(comm.window()?.base.0);
        Ok(())
    })
}

/// # Safety
/// `size_out` is NULL or writable.
pub unsafe fn get_window_size(handle: u64, size_out: *mut usize) -> c_int {
    with_handle("comm_get_window_size", handle, |comm, _| {
        let out = Out::new(size_out, "size_out")?;
        out.set(comm.window()?.size);
        Ok(())
    })
}

/// # Safety
/// `rank_ids` is NULL or has `rank_count` numbers; `context_out` is NULL or writable.
pub unsafe fn derive_context(
    handle: u64,
    rank_ids: *const u32,
    rank_count: usize,
    domain_rank: u32,
    offset: usize,
    size: usize,
    context_out: *mut u64,
) -> c_int {
    with_handle("comm_derive_context", handle, |comm, _| {
        let out = Out::new(context_out, "device_ctx_out")?;
        // SAFETY: the caller's contract is passed on.
        let ranks = unsafe { ranks(rank_ids, rank_count) }?;
        out.set(comm.derive_context(&SubsetView { ranks: &ranks, domain_rank, offset, size })?.0);
        Ok(())
    })
}

/// # Safety
/// `rank_ids` is NULL or has `rank_count` numbers; the out pointers are NULL or writable.
#[expect(clippy::too_many_arguments, reason = "the C API has that many")]
pub unsafe fn alloc_domain_windows(
    handle: u64,
    id: u64,
    rank_ids: *const u32,
    rank_count: usize,
    domain_rank: u32,
    window_size: usize,
    context_out: *mut u64,
    base_out: *mut u64,
) -> c_int {
    with_handle("comm_alloc_domain_windows", handle, |comm, entry| {
        let context = Out::new(context_out, "device_ctx_out")?;
        let base = Out::new(base_out, "local_window_base_out")?;
        // SAFETY: the caller's contract is passed on.
        let ranks = unsafe { ranks(rank_ids, rank_count) }?;
        let spec = DomainSpec { id: AllocationId(id), ranks: &ranks, domain_rank, window_size };
        let window = comm.alloc_domain(&spec, entry.within)?;
        entry.allocated(id, Shape { count: rank_count, domain_rank });
        context.set(window.context.0);
        base.set(window.base.0);
        Ok(())
    })
}

/// The members are known from the allocation; count and position must be the same as there.
pub fn release_domain_windows(handle: u64, id: u64, rank_count: usize, domain_rank: u32) -> c_int {
    with_handle("comm_release_domain_windows", handle, |comm, entry| {
        if rank_count == 0 {
            return Err(ArgumentError::NoRanks.into());
        }
        if rank_count > comm.nranks() as usize {
            return Err(ArgumentError::TooManyRanks { count: rank_count, nranks: comm.nranks() }.into());
        }
        if domain_rank as usize >= rank_count {
            return Err(ArgumentError::DomainRank { domain_rank, count: rank_count }.into());
        }
        entry.released(id, Shape { count: rank_count, domain_rank })?;
        comm.release_domain(AllocationId(id), entry.within)
    })
}

/// Waits for every rank.
pub fn barrier(handle: u64) -> c_int {
    with_handle("comm_barrier", handle, |comm, entry| comm.barrier(entry.within))
}

/// Leaves the group and drops the handle.
pub fn destroy(handle: u64) -> c_int {
    let who = rank_of(handle);
    guarded::<CommError>(
        "comm_destroy",
        || who,
        || {
            let (comm, within) = HANDLES.remove(handle)?;
            comm.destroy(within)
        },
    )
}

/// Exports the C API of `comm.h` for the backend whose [`Open`](crate::capi::Open) function is given.
#[macro_export]
macro_rules! export_c_api {
    ($open:path) => {
        /// The symbols of `comm.h`.
        ///
        /// # Safety
        /// Exported under their C names, which no other Rust code of this library defines. Each passes its
        /// arguments on to the function of the same name, under the contract of `comm.h`.
        #[allow(
            unsafe_code,
            missing_docs,
            unreachable_pub,
            clippy::missing_safety_doc,
            clippy::too_many_arguments
        )]
        mod c_api {
            use core::ffi::{c_char, c_int, c_void};
            use $crate::capi;

            type Handle = *mut c_void;

            fn number(handle: Handle) -> u64 {
                handle as u64
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_init(
                rank: c_int,
                nranks: c_int,
                stream: *mut c_void,
                path: *const c_char,
            ) -> Handle {
                // SAFETY: the caller keeps to comm.h.
                (unsafe { capi::init($open, rank, nranks, stream, path) }) as Handle
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_alloc_windows(
                handle: Handle,
                size: usize,
                context_out: *mut u64,
            ) -> c_int {
                // SAFETY: the caller keeps to comm.h.
                unsafe { capi::alloc_windows(number(handle), size, context_out) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_get_local_window_base(handle: Handle, base_out: *mut u64) -> c_int {
                // SAFETY: the caller keeps to comm.h.
                unsafe { capi::get_local_window_base(number(handle), base_out) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_get_window_size(handle: Handle, size_out: *mut usize) -> c_int {
                // SAFETY: the caller keeps to comm.h.
                unsafe { capi::get_window_size(number(handle), size_out) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_derive_context(
                handle: Handle,
                rank_ids: *const u32,
                rank_count: usize,
                domain_rank: u32,
                window_offset: usize,
                window_size: usize,
                context_out: *mut u64,
            ) -> c_int {
                let (at, size) = (window_offset, window_size);
                // SAFETY: the caller keeps to comm.h.
                unsafe {
                    capi::derive_context(
                        number(handle),
                        rank_ids,
                        rank_count,
                        domain_rank,
                        at,
                        size,
                        context_out,
                    )
                }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_alloc_domain_windows(
                handle: Handle,
                id: u64,
                rank_ids: *const u32,
                count: usize,
                domain_rank: u32,
                size: usize,
                context_out: *mut u64,
                base_out: *mut u64,
            ) -> c_int {
                let handle = number(handle);
                // SAFETY: the caller keeps to comm.h.
                unsafe {
                    capi::alloc_domain_windows(
                        handle,
                        id,
                        rank_ids,
                        count,
                        domain_rank,
                        size,
                        context_out,
                        base_out,
                    )
                }
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn comm_release_domain_windows(
                handle: Handle,
                id: u64,
                count: usize,
                domain_rank: u32,
            ) -> c_int {
                capi::release_domain_windows(number(handle), id, count, domain_rank)
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn comm_barrier(handle: Handle) -> c_int {
                capi::barrier(number(handle))
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn comm_destroy(handle: Handle) -> c_int {
                capi::destroy(number(handle))
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn comm_last_error() -> *const c_char {
                capi::last_error()
            }
        }
    };
}
