//! HCCL's collectives, on memory of the device.
//!
//! What is only moved is moved as bytes, so that every type of elements can be. What is reduced has a type that the vendor's header
//! names for that collective.
//!
//! # Safety
//! The unsafe blocks are vendor calls. Device addresses are checked by the driver; lists of lengths are vectors that outlive the call.
#![allow(unsafe_code)]

use crate::error::DeviceError;
use crate::group::Group;
use crate::memory::as_ptr;
use crate::stream::Stream;
use crate::sys::*;
use crate::vendor_call::recorded;
use comm_context::abi::{DType, DeviceAddr};
use comm_context::comm::{DeviceCall, ReduceOp, Reduction};
use std::ffi::c_void;

/// Where a collective reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// What this rank gives.
    pub input: DeviceAddr,
    /// Where the result goes.
    pub output: DeviceAddr,
}

/// A function of a library that may lack it.
macro_rules! hccl_optional {
    ($group:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let group: &Group = $group;
        let vendor = group.vendor();
        match vendor.hccl.$name {
            None => Err(DeviceError::Unavailable { function: stringify!($name) }),
            Some(function) => group.keep_context(|| {
                // SAFETY: communicator and stream are alive, the driver checks device addresses, and lists live until the
                // call returns, which has read them by then.
                let code = recorded(stringify!($name), || unsafe { function($($arg),*) });
                Ok(vendor.hccl_result(stringify!($name), code)?)
            }),
        }
    }};
}

impl Group {
    /// Enqueues a collective on the stream; the barrier returns when all have come. `rank` is this rank in the communicator.
    pub fn enqueue(
        &self,
        call: &DeviceCall,
        rank: u32,
        buffers: Buffers,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        const BYTES: HcclDataType = HCCL_DATA_TYPE_INT8;
        let (input, output) = (as_ptr(buffers.input), as_ptr(buffers.output));
        let (comm, queue) = (self.as_raw(), stream.as_raw());
        match call {
            DeviceCall::Barrier => self.barrier(stream),
            DeviceCall::AllReduce(how) => {
                let (dtype, op) = vendor_reduction(*how);
                hccl_optional!(self, HcclAllReduce(input, output, how.count, dtype, op, comm, queue))
            }
            DeviceCall::ReduceScatter(how) => {
                let (dtype, op) = vendor_reduction(*how);
                hccl_optional!(self, HcclReduceScatter(input, output, how.count, dtype, op, comm, queue))
            }
            DeviceCall::ReduceScatterV(how, counts) => {
                let (dtype, op) = vendor_reduction(*how);
                let starts = starts(counts);
                hccl_optional!(
                    self,
                    HcclReduceScatterV(
                        input,
                        list(counts),
                        list(&starts),
                        output,
                        how.count,
                        dtype,
                        op,
                        comm,
                        queue
                    )
                )
            }
            DeviceCall::Reduce(how, root) => {
                let (dtype, op) = vendor_reduction(*how);
                hccl_optional!(self, HcclReduce(input, output, how.count, dtype, op, *root, comm, queue))
            }
            DeviceCall::Broadcast(root, bytes) => {
                let buffer = if rank == *root { input } else { output };
                hccl_optional!(self, HcclBroadcast(buffer, *bytes, BYTES, *root, comm, queue))
            }
            DeviceCall::AllGather(bytes) => {
                hccl_optional!(self, HcclAllGather(input, output, *bytes, BYTES, comm, queue))
            }
            DeviceCall::AllGatherV(lengths) => {
                let own = lengths.get(rank as usize).copied().unwrap_or(0);
                let starts = starts(lengths);
                hccl_optional!(
                    self,
                    HcclAllGatherV(input, own, output, list(lengths), list(&starts), BYTES, comm, queue)
                )
            }
            DeviceCall::AllToAll(bytes) => {
                hccl_optional!(self, HcclAlltoAll(input, *bytes, BYTES, output, *bytes, BYTES, comm, queue))
            }
            DeviceCall::AllToAllV(send, receive) => {
                let (from, to) = (starts(send), starts(receive));
                hccl_optional!(
                    self,
                    HcclAlltoAllV(
                        input,
                        list(send),
                        list(&from),
                        BYTES,
                        output,
                        list(receive),
                        list(&to),
                        BYTES,
                        comm,
                        queue
                    )
                )
            }
            DeviceCall::Scatter(root, bytes) => {
                hccl_optional!(self, HcclScatter(input, output, *bytes, BYTES, *root, comm, queue))
            }
            DeviceCall::Send(to, bytes) => {
                hccl_optional!(self, HcclSend(input, *bytes, BYTES, *to, comm, queue))
            }
            DeviceCall::Receive(from, bytes) => {
                hccl_optional!(self, HcclRecv(output, *bytes, BYTES, *from, comm, queue))
            }
        }
    }
}

/// Refuses a reduction that the vendor's header does not name, with what it names.
pub(crate) fn check(call: &DeviceCall) -> Result<(), String> {
    use DType::{Bfloat16, Float16, Float32, Int8, Int16, Int32};
    let (name, how, types): (_, _, &[DType]) = match call {
        DeviceCall::AllReduce(how) => {
            ("HcclAllReduce", how, &[Int8, Int16, Int32, Float16, Float32, Bfloat16])
        }
        DeviceCall::Reduce(how, _) => ("HcclReduce", how, &[Int8, Int16, Int32, Float16, Float32, Bfloat16]),
        DeviceCall::ReduceScatter(how) => {
            ("HcclReduceScatter", how, &[Int8, Int32, Float16, Float32, Bfloat16])
        }
        DeviceCall::ReduceScatterV(how, _) => {
            ("HcclReduceScatterV", how, &[Int8, Int32, Float16, Float32, Bfloat16])
        }
        _ => return Ok(()),
    };
    if types.contains(&how.dtype) {
        return Ok(());
    }
    Err(format!("{name} reduces elements of {types:?}, not {:?}", how.dtype))
}

fn vendor_reduction(how: Reduction) -> (HcclDataType, HcclReduceOp) {
    let dtype = match how.dtype {
        DType::Float32 => HCCL_DATA_TYPE_FP32,
        DType::Float16 => HCCL_DATA_TYPE_FP16,
        DType::Int32 => HCCL_DATA_TYPE_INT32,
        DType::Int16 => HCCL_DATA_TYPE_INT16,
        DType::Int8 => HCCL_DATA_TYPE_INT8,
        DType::Uint8 => HCCL_DATA_TYPE_UINT8,
        DType::Bfloat16 => HCCL_DATA_TYPE_BFP16,
        DType::Int64 => HCCL_DATA_TYPE_INT64,
        DType::Uint64 => HCCL_DATA_TYPE_UINT64,
        DType::Uint16 => HCCL_DATA_TYPE_UINT16,
        DType::Uint32 => HCCL_DATA_TYPE_UINT32,
        // `check` has refused them: the vendor reduces none of these.
        DType::Bool | DType::Fp8E4m3fn | DType::Fp8E8m0 | DType::Fp4E2m1 => HCCL_DATA_TYPE_UINT8,
    };
    let op = match how.op {
        ReduceOp::Sum => HCCL_REDUCE_SUM,
        ReduceOp::Prod => HCCL_REDUCE_PROD,
        ReduceOp::Max => HCCL_REDUCE_MAX,
        ReduceOp::Min => HCCL_REDUCE_MIN,
    };
    (dtype, op)
}

/// Where each part starts in a buffer that holds one after the other.
fn starts(lengths: &[u64]) -> Vec<u64> {
    let mut next = 0_u64;
    let start = |length: &u64| {
        let start = next;
        next = next.saturating_add(*length);
        start
    };
    lengths.iter().map(start).collect()
}

fn list(numbers: &[u64]) -> *const c_void {
    numbers.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        assert_eq!(starts(&[3, 0, 4]), [0, 3, 3]);
    }

    #[test]
    fn what_the_header_does_not_name_is_refused_with_what_it_names() {
        let sum = |dtype| Reduction { dtype, op: ReduceOp::Sum, count: 1 };
        assert_eq!(check(&DeviceCall::AllReduce(sum(DType::Int16))), Ok(()));
        let refused = check(&DeviceCall::ReduceScatter(sum(DType::Int16))).unwrap_err();
        assert!(refused.contains("HcclReduceScatter") && refused.contains("Bfloat16"), "{refused}");
        assert!(check(&DeviceCall::Reduce(sum(DType::Uint64), 0)).is_err());
        assert_eq!(check(&DeviceCall::Broadcast(0, 8)), Ok(()));
    }
}
