//! The collective calls, each run to its end or started.
//!
//! # Safety
//! As in the parent module.
#![allow(unsafe_code)]

use super::error::EntryError;
use super::groups::{Entered, Started};
use super::with_group;
use crate::element::{DType, Op};
use crate::request::{Kind, Request, Shared};
use comm_context::capi::Out;
use core::ffi::{c_int, c_void};
use core::ptr;

/// When a call ends: before it returns, or when its request, which goes to this address, is waited for.
#[derive(Clone, Copy, Debug)]
pub enum When {
    Now,
    Started(*mut u64),
}

#[inline]
fn dtype(code: c_int) -> Result<DType, EntryError> {
    u8::try_from(code).ok().and_then(DType::from_code).ok_or(EntryError::DType(code))
}

#[inline]
fn op(code: c_int) -> Result<Op, EntryError> {
    u8::try_from(code).ok().and_then(Op::from_code).ok_or(EntryError::Op(code))
}

#[inline]
fn rank(group: &Entered, what: &'static str, given: c_int) -> Result<u32, EntryError> {
    let nranks = group.coll.nranks();
    let valid = u32::try_from(given).ok().filter(|rank| (*rank as usize) < nranks);
    valid.ok_or(EntryError::Rank { what, given, nranks })
}

/// Runs or starts a request. Memory of the pool is shared where it stands.
///
/// # Safety
/// As [`run_raw`](crate::Collectives::run_raw) and, started, [`start_raw`](crate::Collectives::start_raw).
#[inline(always)]
unsafe fn make(group: &mut Entered, when: When, request: Request) -> Result<(), EntryError> {
    let request = Request { shared: Shared::Both, ..request };
    match when {
        // SAFETY: the caller's promise.
        When::Now => Ok(unsafe { group.coll.run_raw(request) }?),
        // SAFETY: the caller's promise.
        When::Started(out) => unsafe { start(group, out, request) },
    }
}

/// # Safety
/// As [`make`]. Lists of counts are copied, so only the buffers must stay.
#[cold]
unsafe fn start(group: &mut Entered, out: *mut u64, mut request: Request) -> Result<(), EntryError> {
    let out = Out::new(out, "request_out")?;
    let copy = |list: *const usize| -> Box<[usize]> {
        let count = if list.is_null() { 0 } else { group.coll.nranks() };
        // SAFETY: a list that is not NULL has a count for each rank.
        (0..count).map(|at| unsafe { list.add(at).read() }).collect()
    };
    let counts = [copy(request.counts), copy(request.receive_counts)];
    let list = |copied: &[usize], given: *const usize| if given.is_null() { given } else { copied.as_ptr() };
    (request.counts, request.receive_counts) =
        (list(&counts[0], request.counts), list(&counts[1], request.receive_counts));
    // SAFETY: the caller's promise; the lists stay until the call is over, with its ticket.
    let ticket = unsafe { group.coll.start_raw(request) }?;
    keep(group, out, ticket, counts);
    Ok(())
}

fn keep(group: &mut Entered, out: Out<u64>, ticket: crate::Ticket, counts: [Box<[usize]>; 2]) {
    let number = ticket.number();
    group.keep(Started { number, ticket, _counts: counts });
    out.set(number);
}

pub fn barrier(group: u64, when: When) -> c_int {
    with_group("comm_coll_barrier", group, |group| {
        // SAFETY: a barrier has no buffers.
        unsafe { make(group, when, Request::BARRIER) }
    })
}

pub unsafe fn all_reduce(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    kind: c_int,
    with: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_all_reduce", group, |group| {
        let request =
            Request { op: Some(op(with)?), ..buffers(Kind::AllReduce, input, output, count, kind)? };
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, request) }
    })
}

/// A request with its buffers.
#[inline]
fn buffers(
    kind: Kind,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    code: c_int,
) -> Result<Request, EntryError> {
    let (input, output) = (input.cast(), output.cast());
    Ok(Request { kind, dtype: dtype(code)?, count, input, output, ..Request::BARRIER })
}

/// The same with a count for each rank.
fn listed(
    kind: Kind,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    code: c_int,
) -> Result<Request, EntryError> {
    Ok(Request { counts, ..buffers(kind, input, output, 0, code)? })
}

pub unsafe fn all_gather(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    kind: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_all_gather", group, |group| {
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, buffers(Kind::AllGather, input, output, count, kind)?) }
    })
}

pub unsafe fn all_gather_v(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    kind: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_all_gather_v", group, |group| {
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, listed(Kind::AllGatherV, input, output, counts, kind)?) }
    })
}

pub unsafe fn reduce_scatter(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    kind: c_int,
    with: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_reduce_scatter", group, |group| {
        let request = buffers(Kind::ReduceScatter, input, output, count, kind)?;
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, Request { op: Some(op(with)?), ..request }) }
    })
}

pub unsafe fn reduce_scatter_v(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    kind: c_int,
    with: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_reduce_scatter_v", group, |group| {
        let request = listed(Kind::ReduceScatterV, input, output, counts, kind)?;
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, Request { op: Some(op(with)?), ..request }) }
    })
}

pub unsafe fn broadcast(
    group: u64,
    buffer: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_broadcast", group, |group| {
        let root = rank(group, "root", root)?;
        let request = buffers(Kind::Broadcast, buffer, buffer, count, kind)?;
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, Request { root, ..request }) }
    })
}

#[expect(clippy::too_many_arguments, reason = "the C API has that many")]
pub unsafe fn reduce(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    kind: c_int,
    with: c_int,
    root: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_reduce", group, |group| {
        let root = rank(group, "root", root)?;
        let output = if group.coll.rank() == root as usize { output } else { ptr::null_mut() };
        let request = buffers(Kind::Reduce, input, output, count, kind)?;
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, Request { op: Some(op(with)?), root, ..request }) }
    })
}

pub unsafe fn all_to_all(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    kind: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_all_to_all", group, |group| {
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, buffers(Kind::AllToAll, input, output, count, kind)?) }
    })
}

pub unsafe fn all_to_all_v(
    group: u64,
    input: *const c_void,
    send_counts: *const usize,
    output: *mut c_void,
    receive_counts: *const usize,
    kind: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_all_to_all_v", group, |group| {
        let request = listed(Kind::AllToAllV, input, output, send_counts, kind)?;
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, Request { receive_counts, ..request }) }
    })
}

pub unsafe fn gather(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_gather", group, |group| {
        let root = rank(group, "root", root)?;
        let output = if group.coll.rank() == root as usize { output } else { ptr::null_mut() };
        let request = buffers(Kind::Gather, input, output, count, kind)?;
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, Request { root, ..request }) }
    })
}

pub unsafe fn scatter(
    group: u64,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    when: When,
) -> c_int {
    with_group("comm_coll_scatter", group, |group| {
        let root = rank(group, "root", root)?;
        let input = if group.coll.rank() == root as usize { input } else { ptr::null() };
        let request = buffers(Kind::Scatter, input, output, count, kind)?;
        // SAFETY: the caller keeps to comm_coll.h.
        unsafe { make(group, when, Request { root, ..request }) }
    })
}

pub unsafe fn send(
    group: u64,
    buffer: *const c_void,
    count: usize,
    kind: c_int,
    to: c_int,
    tag: u32,
    when: When,
) -> c_int {
    with_group("comm_coll_send", group, |group| {
        let (dtype, to) = (dtype(kind)?, rank(group, "to", to)? as usize);
        let out = request_out(when)?;
        // SAFETY: the caller keeps to comm_coll.h.
        let ticket = unsafe { group.coll.start_send_raw(buffer.cast(), count, dtype, to, tag) }?;
        finish(group, out, ticket)
    })
}

pub unsafe fn recv(
    group: u64,
    buffer: *mut c_void,
    count: usize,
    kind: c_int,
    from: c_int,
    tag: u32,
    when: When,
) -> c_int {
    with_group("comm_coll_recv", group, |group| {
        let (dtype, from) = (dtype(kind)?, rank(group, "from", from)? as usize);
        let out = request_out(when)?;
        // SAFETY: the caller keeps to comm_coll.h.
        let ticket = unsafe { group.coll.start_recv_raw(buffer.cast(), count, dtype, from, tag) }?;
        finish(group, out, ticket)
    })
}

/// Where the request of a message goes, if it is started.
fn request_out(when: When) -> Result<Option<Out<u64>>, EntryError> {
    match when {
        When::Now => Ok(None),
        When::Started(out) => Ok(Some(Out::new(out, "request_out")?)),
    }
}

fn finish(group: &mut Entered, out: Option<Out<u64>>, ticket: crate::Ticket) -> Result<(), EntryError> {
    match out {
        None => Ok(group.coll.wait_raw(ticket)?),
        Some(out) => {
            keep(group, out, ticket, Default::default());
            Ok(())
        }
    }
}
