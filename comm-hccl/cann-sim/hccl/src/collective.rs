//! Collectives, piece by piece through the staging memory.
//!
//! # Safety
//! The exported functions have the vendor's C interface. Buffers are checked against what the device can use;
//! staging memory is only touched between the barriers that give each piece one writer.
#![allow(unsafe_code)]

use crate::comm::{Member, PIECE, member, sibling};
use crate::gate::{Refusal, call, ensure};
use crate::reduce::{element_size, reduce};
use comm_hccl::sys::*;
use std::ffi::c_void;

impl Member {
    /// One exchange: every rank puts a piece in, and gives what all have put to `take`, rank by rank.
    fn exchange(
        &self,
        piece: &[u8],
        mut take: impl FnMut(u32, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let place = |rank: u32| (self.staging + rank as usize * PIECE) as *mut u8;
        // SAFETY: a piece is at most `PIECE` bytes, the staging memory holds one for every rank, and nobody
        // else writes to this rank's; readers of the previous exchange are past the barrier at its end.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), place(self.rank), piece.len()) };
        self.barrier()?;
        let mut copy = vec![0; piece.len()];
        for rank in 0..self.ranks {
            // SAFETY: as above; the owner wrote before the barrier and writes again only after the next.
            unsafe { std::ptr::copy_nonoverlapping(place(rank), copy.as_mut_ptr(), copy.len()) };
            take(rank, &copy)?;
        }
        self.barrier()
    }

    /// Reduces `len` bytes of every rank, piece by piece, and gives each piece to `store` with its offset.
    fn reduce_all(
        &self,
        send: *const c_void,
        len: usize,
        data_type: HcclDataType,
        op: HcclReduceOp,
        mut store: impl FnMut(usize, &[u8]),
    ) -> Result<(), Refusal> {
        for offset in (0..len).step_by(PIECE) {
            let piece = load(send, offset, PIECE.min(len - offset));
            let mut sum: Option<Vec<u8>> = None;
            self.exchange(&piece, |_, part| match &mut sum {
                None => {
                    sum = Some(part.to_vec());
                    Ok(())
                }
                Some(sum) => reduce(sum, part, data_type, op),
            })?;
            store(offset, &sum.unwrap_or_default());
        }
        Ok(())
    }
}

/// Copies device memory out.
fn load(from: *const c_void, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: `buffers` checked the whole buffer, of which this is a part.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>().add(offset), bytes.as_mut_ptr(), len) };
    bytes
}

/// Copies bytes into device memory.
fn save(to: *mut c_void, offset: usize, bytes: &[u8]) {
    // SAFETY: `buffers` checked the whole buffer, of which this is a part.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>().add(offset), bytes.len()) };
}

/// Checks that the device can use both buffers and that the stream exists.
fn buffers(buffers: &[(*const c_void, usize)], stream: aclrtStream) -> Result<(), Refusal> {
    let (sibling, _) = sibling()?;
    ensure(sibling.stream(stream), HCCL_E_PARA, "no such stream")?;
    for &(pointer, len) in buffers {
        ensure(sibling.usable(pointer, len), HCCL_E_PARA, "a buffer is not device memory, or too short")?;
    }
    Ok(())
}

fn bytes(count: u64, data_type: HcclDataType, times: u32) -> Result<usize, Refusal> {
    let each = element_size(data_type)? as u64;
    let total = count.checked_mul(each).and_then(|n| n.checked_mul(times.into()));
    let total = total.and_then(|n| usize::try_from(n).ok());
    total.map_or_else(|| crate::gate::refuse(HCCL_E_PARA, "a count that no memory holds"), Ok)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclAllReduce(
    send: *mut c_void,
    receive: *mut c_void,
    count: u64,
    data_type: HcclDataType,
    op: HcclReduceOp,
    comm: HcclComm,
    stream: aclrtStream,
) -> HcclResult {
    call("HcclAllReduce", |_| {
        let member = member(comm)?;
        let len = bytes(count, data_type, 1)?;
        buffers(&[(send, len), (receive, len)], stream)?;
        member.reduce_all(send, len, data_type, op, |offset, sum| save(receive, offset, sum))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclAllGather(
    send: *mut c_void,
    receive: *mut c_void,
    count: u64,
    data_type: HcclDataType,
    comm: HcclComm,
    stream: aclrtStream,
) -> HcclResult {
    call("HcclAllGather", |_| {
        let member = member(comm)?;
        let len = bytes(count, data_type, 1)?;
        buffers(&[(send, len), (receive, bytes(count, data_type, member.ranks)?)], stream)?;
        for offset in (0..len).step_by(PIECE) {
            let piece = load(send, offset, PIECE.min(len - offset));
            member.exchange(&piece, |rank, part| {
                save(receive, rank as usize * len + offset, part);
                Ok(())
            })?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclReduceScatter(
    send: *mut c_void,
    receive: *mut c_void,
    count: u64,
    data_type: HcclDataType,
    op: HcclReduceOp,
    comm: HcclComm,
    stream: aclrtStream,
) -> HcclResult {
    call("HcclReduceScatter", |_| {
        let member = member(comm)?;
        let len = bytes(count, data_type, 1)?;
        let all = bytes(count, data_type, member.ranks)?;
        buffers(&[(send, all), (receive, len)], stream)?;
        let mine = member.rank as usize * len..(member.rank as usize + 1) * len;
        member.reduce_all(send, all, data_type, op, |offset, sum| {
            let (from, to) = (mine.start.max(offset), mine.end.min(offset + sum.len()));
            if from < to {
                save(receive, from - mine.start, &sum[from - offset..to - offset]);
            }
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclBroadcast(
    buffer: *mut c_void,
    count: u64,
    data_type: HcclDataType,
    root: u32,
    comm: HcclComm,
    stream: aclrtStream,
) -> HcclResult {
    call("HcclBroadcast", |_| {
        let member = member(comm)?;
        ensure(root < member.ranks, HCCL_E_PARA, "no such root")?;
        let len = bytes(count, data_type, 1)?;
        buffers(&[(buffer, len)], stream)?;
        for offset in (0..len).step_by(PIECE) {
            let piece = load(buffer, offset, PIECE.min(len - offset));
            member.exchange(&piece, |rank, part| {
                if rank == root {
                    save(buffer, offset, part);
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}
