//! Collectives, piece by piece through the staging memory.
//!
//! # Safety
//! The exported functions have the vendor's C interface. Buffers are checked against what the device can use. Staging and
//! device memory are shared with other processes, and only copied with `shared_memory`.
#![allow(unsafe_code)]

use crate::comm::{Member, PIECE, member, sibling};
use crate::gate::{Refusal, call, ensure, refuse};
use crate::reduce::{element_size, reduce};
use comm_hccl::sys::*;
use shared_memory::{copy_from_shared, copy_to_shared};
use std::ffi::c_void;

impl Member {
    /// One exchange: every rank writes a piece, then `take` gets the pieces of all, rank by rank.
    fn exchange(
        &self,
        piece: &[u8],
        mut take: impl FnMut(u32, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let place = |rank: u32| (self.staging + rank as usize * PIECE) as *mut u8;
        // SAFETY: a piece has at most `PIECE` bytes, and the staging memory, which stays mapped while the member lives, has
        // as many for every rank.
        unsafe { copy_to_shared(piece, place(self.rank)) };
        // The barriers order the copies: every piece is written before the first, and read before the second.
        self.barrier()?;
        let mut copy = vec![0; piece.len()];
        for rank in 0..self.ranks {
            // SAFETY: as above.
            unsafe { copy_from_shared(place(rank), &mut copy) };
            take(rank, &copy)?;
        }
        self.barrier()
    }

    /// Exchanges `len` bytes of device memory, piece by piece. `take` gets offset, rank and bytes of each.
    fn exchange_all(
        &self,
        send: *const c_void,
        len: usize,
        mut take: impl FnMut(usize, u32, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        for offset in (0..len).step_by(PIECE) {
            let piece = load(send, offset, PIECE.min(len - offset));
            self.exchange(&piece, |rank, part| take(offset, rank, part))?;
        }
        Ok(())
    }

    /// Reduces `len` bytes of every rank, piece by piece. `store` gets offset and bytes of each reduced piece.
    fn reduce_all(
        &self,
        send: *const c_void,
        len: usize,
        data_type: HcclDataType,
        op: HcclReduceOp,
        mut store: impl FnMut(usize, &[u8]),
    ) -> Result<(), Refusal> {
        let mut sum = Vec::new();
        self.exchange_all(send, len, |offset, rank, part| {
            if rank == 0 {
                sum = part.to_vec();
            } else {
                reduce(&mut sum, part, data_type, op)?;
            }
            if rank + 1 == self.ranks {
                store(offset, &sum);
            }
            Ok(())
        })
    }
}

/// Copies out of device memory.
fn load(from: *const c_void, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: `check_buffers` found the whole buffer mapped, of which this is a part.
    unsafe { copy_from_shared(from.cast::<u8>().add(offset), &mut bytes) };
    bytes
}

/// Copies into device memory.
fn save(to: *mut c_void, offset: usize, bytes: &[u8]) {
    // SAFETY: `check_buffers` found the whole buffer mapped, of which this is a part.
    unsafe { copy_to_shared(bytes, to.cast::<u8>().add(offset)) };
}

/// Checks that the device can use the buffers.
fn check_buffers(buffers: &[(*const c_void, usize)]) -> Result<(), Refusal> {
    let sibling = sibling()?;
    for &(pointer, len) in buffers {
        ensure(sibling.usable(pointer, len), HCCL_E_PARA, "a buffer is not device memory, or too short")?;
    }
    Ok(())
}

/// Bytes of `times` buffers of `count` elements.
fn bytes(count: u64, data_type: HcclDataType, times: u32) -> Result<usize, Refusal> {
    let each = element_size(data_type)? as u64;
    let total = count.checked_mul(each).and_then(|n| n.checked_mul(times.into()));
    let total = total.and_then(|n| usize::try_from(n).ok());
    total.map_or_else(|| refuse(HCCL_E_PARA, "the count is too large"), Ok)
}

/// Declares collectives. Each has the parameters that it names, then the communicator and the stream, which are checked
/// before its body runs.
macro_rules! collectives {
    ($( $name:ident($($parameter:ident),*) |$member:ident| $body:block )*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            $($parameter: collectives!(@type $parameter),)*
            comm: HcclComm,
            stream: aclrtStream,
        ) -> HcclResult {
            call(stringify!($name), |_| {
                let $member = member(comm)?;
                ensure(sibling()?.stream(stream), HCCL_E_PARA, "unknown stream")?;
                $body
            })
        }
    )* };
    (@type send) => { *mut c_void };
    (@type receive) => { *mut c_void };
    (@type buffer) => { *mut c_void };
    (@type count) => { u64 };
    (@type data_type) => { HcclDataType };
    (@type op) => { HcclReduceOp };
    (@type root) => { u32 };
}

collectives! {
    HcclAllReduce(send, receive, count, data_type, op) |member| {
        let len = bytes(count, data_type, 1)?;
        check_buffers(&[(send, len), (receive, len)])?;
        member.reduce_all(send, len, data_type, op, |offset, sum| save(receive, offset, sum))
    }

    HcclAllGather(send, receive, count, data_type) |member| {
        let len = bytes(count, data_type, 1)?;
        check_buffers(&[(send, len), (receive, bytes(count, data_type, member.ranks)?)])?;
        member.exchange_all(send, len, |offset, rank, part| {
            save(receive, rank as usize * len + offset, part);
            Ok(())
        })
    }

    HcclReduceScatter(send, receive, count, data_type, op) |member| {
        let len = bytes(count, data_type, 1)?;
        let all = bytes(count, data_type, member.ranks)?;
        check_buffers(&[(send, all), (receive, len)])?;
        let mine = member.rank as usize * len..(member.rank as usize + 1) * len;
        member.reduce_all(send, all, data_type, op, |offset, sum| {
            let (from, to) = (mine.start.max(offset), mine.end.min(offset + sum.len()));
            if from < to {
                save(receive, from - mine.start, &sum[from - offset..to - offset]);
            }
        })
    }

    HcclBroadcast(buffer, count, data_type, root) |member| {
        ensure(root < member.ranks, HCCL_E_PARA, "the root is not a rank")?;
        let len = bytes(count, data_type, 1)?;
        check_buffers(&[(buffer, len)])?;
        member.exchange_all(buffer, len, |offset, rank, part| {
            if rank == root {
                save(buffer, offset, part);
            }
            Ok(())
        })
    }
}
