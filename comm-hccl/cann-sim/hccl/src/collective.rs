//! Collectives, piece by piece through the staging memory.
//!
//! # Safety
//! The exported functions have the vendor's C interface. Buffers are checked against what the device can use. Staging memory
//! is shared with other processes, and only copied with `shared_memory`; the sibling library copies device memory.
#![allow(unsafe_code)]

use crate::comm::{Member, PIECE, member, sibling};
use crate::gate::{Refusal, call, ensure, refuse};
use crate::reduce::{element_size, reduce};
use crate::sibling::Sibling;
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

    /// One exchange in which the pieces of the ranks differ in length.
    fn exchange_uneven(
        &self,
        piece: &[u8],
        len_of: impl Fn(u32) -> usize,
        mut take: impl FnMut(u32, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let place = |rank: u32| (self.staging + rank as usize * PIECE) as *mut u8;
        // SAFETY: as in `exchange`.
        unsafe { copy_to_shared(piece, place(self.rank)) };
        self.barrier()?;
        for rank in 0..self.ranks {
            let mut copy = vec![0; len_of(rank).min(PIECE)];
            // SAFETY: as above.
            unsafe { copy_from_shared(place(rank), &mut copy) };
            take(rank, &copy)?;
        }
        self.barrier()
    }

    /// Exchanges buffers of which rank `r` has `lens[r]` bytes. `take` gets offset, rank and bytes of each piece.
    fn exchange_uneven_all(
        &self,
        lens: &[usize],
        load_own: impl Fn(usize, usize) -> Result<Vec<u8>, Refusal>,
        mut take: impl FnMut(usize, u32, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let longest = lens.iter().copied().max().unwrap_or(0);
        for offset in (0..longest).step_by(PIECE) {
            let len_of = |rank: u32| lens[rank as usize].saturating_sub(offset).min(PIECE);
            let own = len_of(self.rank);
            let piece = if own == 0 { Vec::new() } else { load_own(offset, own)? };
            self.exchange_uneven(&piece, len_of, |rank, part| take(offset, rank, part))?;
        }
        Ok(())
    }

    /// The same list of every rank.
    fn exchange_lists(&self, own: &[usize]) -> Result<Vec<Vec<usize>>, Refusal> {
        let bytes: Vec<u8> = own.iter().flat_map(|number| (*number as u64).to_le_bytes()).collect();
        let mut all = Vec::new();
        self.exchange(&bytes, |_, list| {
            let number = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|at| bytes[at])) as usize;
            all.push(list.chunks_exact(8).map(number).collect());
            Ok(())
        })?;
        Ok(all)
    }

    /// Exchanges `len` bytes of device memory, piece by piece. `take` gets offset, rank and bytes of each.
    fn exchange_all(
        &self,
        send: *const c_void,
        len: usize,
        mut take: impl FnMut(usize, u32, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        for offset in (0..len).step_by(PIECE) {
            let piece = load(send, offset, PIECE.min(len - offset))?;
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
        mut store: impl FnMut(usize, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut sum = Vec::new();
        self.exchange_all(send, len, |offset, rank, part| {
            if rank == 0 {
                sum = part.to_vec();
            } else {
                reduce(&mut sum, part, data_type, op)?;
            }
            if rank + 1 == self.ranks {
                store(offset, &sum)?;
            }
            Ok(())
        })
    }
}

/// Copies out of device memory.
fn load(from: *const c_void, offset: usize, len: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = vec![0; len];
    let read = Sibling::get().is_some_and(|sibling| sibling.read(from as usize + offset, &mut bytes));
    ensure(read, HCCL_E_PARA, "a buffer is gone")?;
    Ok(bytes)
}

/// Copies into device memory.
fn save(to: *mut c_void, offset: usize, bytes: &[u8]) -> Result<(), Refusal> {
    let written = Sibling::get().is_some_and(|sibling| sibling.write(to as usize + offset, bytes));
    ensure(written, HCCL_E_PARA, "a buffer is gone")
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
    (@type peer) => { u32 };
    (@type from) => { *const c_void };
    (@type to) => { *const c_void };
    (@type counts) => { *const c_void };
    (@type offsets) => { *const c_void };
    (@type receive_counts) => { *const c_void };
    (@type receive_offsets) => { *const c_void };
    (@type receive_count) => { u64 };
    (@type receive_type) => { HcclDataType };
}

/// Copies a list of numbers of the host, one for each rank, as bytes of elements.
fn list_of(numbers: *const c_void, ranks: u32, data_type: HcclDataType) -> Result<Vec<usize>, Refusal> {
    ensure(!numbers.is_null(), HCCL_E_PTR, "null pointer")?;
    let number = |at: usize| {
        // SAFETY: not null; the caller provides a number for each rank.
        let number = unsafe { numbers.cast::<u64>().add(at).read_unaligned() };
        bytes(number, data_type, 1)
    };
    (0..ranks as usize).map(number).collect()
}

/// Bytes up to the end of the last part.
fn extent(lens: &[usize], starts: &[usize]) -> usize {
    lens.iter().zip(starts).map(|(len, start)| len.saturating_add(*start)).max().unwrap_or(0)
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
            save(receive, rank as usize * len + offset, part)
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
                save(receive, from - mine.start, &sum[from - offset..to - offset])?;
            }
            Ok(())
        })
    }

    HcclBroadcast(buffer, count, data_type, root) |member| {
        ensure(root < member.ranks, HCCL_E_PARA, "the root is not a rank")?;
        let len = bytes(count, data_type, 1)?;
        check_buffers(&[(buffer, len)])?;
        member.exchange_all(buffer, len, |offset, rank, part| {
            if rank == root { save(buffer, offset, part) } else { Ok(()) }
        })
    }

    HcclReduce(send, receive, count, data_type, op, root) |member| {
        ensure(root < member.ranks, HCCL_E_PARA, "the root is not a rank")?;
        let len = bytes(count, data_type, 1)?;
        check_buffers(&[(send, len), (receive, len)])?;
        member.reduce_all(send, len, data_type, op, |offset, sum| {
            if member.rank == root { save(receive, offset, sum) } else { Ok(()) }
        })
    }

    HcclReduceScatterV(send, counts, offsets, receive, count, data_type, op) |member| {
        let (lens, starts) =
            (list_of(counts, member.ranks, data_type)?, list_of(offsets, member.ranks, data_type)?);
        let all = extent(&lens, &starts);
        let mine = lens[member.rank as usize];
        ensure(mine == bytes(count, data_type, 1)?, HCCL_E_PARA, "the own count differs from the list")?;
        check_buffers(&[(send, all), (receive, mine)])?;
        let start = starts[member.rank as usize];
        member.reduce_all(send, all, data_type, op, |offset, sum| {
            let (from, to) = (start.max(offset), (start + mine).min(offset + sum.len()));
            if from < to {
                save(receive, from - start, &sum[from - offset..to - offset])?;
            }
            Ok(())
        })
    }

    HcclAllGatherV(send, count, receive, receive_counts, receive_offsets, data_type) |member| {
        let (lens, starts) = (
            list_of(receive_counts, member.ranks, data_type)?,
            list_of(receive_offsets, member.ranks, data_type)?,
        );
        let own = bytes(count, data_type, 1)?;
        ensure(own == lens[member.rank as usize], HCCL_E_PARA, "the own count differs from the list")?;
        check_buffers(&[(send, own), (receive, extent(&lens, &starts))])?;
        member.exchange_uneven_all(&lens, |offset, len| load(send, offset, len), |offset, rank, part| {
            save(receive, starts[rank as usize] + offset, part)
        })
    }

    HcclScatter(send, receive, count, data_type, root) |member| {
        ensure(root < member.ranks, HCCL_E_PARA, "the root is not a rank")?;
        let (len, all) = (bytes(count, data_type, 1)?, bytes(count, data_type, member.ranks)?);
        check_buffers(&[(receive, len)])?;
        if member.rank == root {
            check_buffers(&[(send, all)])?;
        }
        let lens: Vec<usize> = (0..member.ranks).map(|rank| if rank == root { all } else { 0 }).collect();
        let mine = member.rank as usize * len..(member.rank as usize + 1) * len;
        member.exchange_uneven_all(&lens, |offset, len| load(send, offset, len), |offset, _, part| {
            let (from, to) = (mine.start.max(offset), mine.end.min(offset + part.len()));
            if from < to {
                save(receive, from - mine.start, &part[from - offset..to - offset])?;
            }
            Ok(())
        })
    }

    HcclAlltoAll(from, count, data_type, to, receive_count, receive_type) |member| {
        let (len, all) = (bytes(count, data_type, 1)?, bytes(count, data_type, member.ranks)?);
        ensure(len == bytes(receive_count, receive_type, 1)?, HCCL_E_PARA, "counts differ")?;
        check_buffers(&[(from, all), (to, all)])?;
        let mine = member.rank as usize * len..(member.rank as usize + 1) * len;
        member.exchange_all(from, all, |offset, rank, part| {
            let (start, end) = (mine.start.max(offset), mine.end.min(offset + part.len()));
            if start < end {
                let at = rank as usize * len + start - mine.start;
                save(to.cast_mut(), at, &part[start - offset..end - offset])?;
            }
            Ok(())
        })
    }

    HcclAlltoAllV(
        from, counts, offsets, data_type, to, receive_counts, receive_offsets, receive_type
    ) |member| {
        let (lens, starts) =
            (list_of(counts, member.ranks, data_type)?, list_of(offsets, member.ranks, data_type)?);
        let (wanted, places) = (
            list_of(receive_counts, member.ranks, receive_type)?,
            list_of(receive_offsets, member.ranks, receive_type)?,
        );
        check_buffers(&[(from, extent(&lens, &starts)), (to, extent(&wanted, &places))])?;
        let matrix = member.exchange_lists(&lens)?;
        let me = member.rank as usize;
        let agree = matrix.iter().map(|row| row[me]).eq(wanted.iter().copied());
        // Round by round: in round k every rank gives what it sends to rank k, so that lengths are known.
        for round in 0..member.ranks as usize {
            let lens_of_round: Vec<usize> = matrix.iter().map(|row| row[round]).collect();
            let take = |offset: usize, rank: u32, part: &[u8]| {
                if round == me && agree {
                    save(to.cast_mut(), places[rank as usize] + offset, part)?;
                }
                Ok(())
            };
            let own = |offset: usize, len: usize| load(from, starts[round] + offset, len);
            member.exchange_uneven_all(&lens_of_round, own, take)?;
        }
        ensure(agree, HCCL_E_PARA, "what is sent here is not what is expected")
    }

    HcclSend(send, count, data_type, peer) |member| {
        ensure(peer < member.ranks && peer != member.rank, HCCL_E_PARA, "not another rank")?;
        let len = bytes(count, data_type, 1)?;
        check_buffers(&[(send, len)])?;
        member.send(peer, len, |offset, len| load(send, offset, len))
    }

    HcclRecv(receive, count, data_type, peer) |member| {
        ensure(peer < member.ranks && peer != member.rank, HCCL_E_PARA, "not another rank")?;
        let len = bytes(count, data_type, 1)?;
        check_buffers(&[(receive, len)])?;
        member.receive(peer, len, |offset, bytes| save(receive, offset, bytes))
    }
}
