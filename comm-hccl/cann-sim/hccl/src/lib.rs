//! `libhccl.so` of cann-sim, the **test double** of the Ascend vendor libraries; none of it is the vendor's
//! code.
//!
//! Ranks join in the session's control file. A collective goes through staging memory that rank 0's process holds, piece by
//! piece, with a barrier before and after each piece. Contexts belong to the sibling `libascendcl.so`, which this library
//! finds beside itself.

#![deny(unsafe_code)]
#![allow(non_snake_case, reason = "the vendor's names")]

mod collective;
mod comm;
mod gate;
mod pair;
mod reduce;
mod sibling;

use collective::*;
use comm::*;

const _: comm_hccl::sys::Hccl = comm_hccl::sys::Hccl {
    HcclGetRootInfo,
    HcclCommInitRootInfo,
    HcclGetCommName,
    HcclBarrier,
    HcclGetCommAsyncError,
    HcclGetErrorString,
    HcclCommDestroy,
    HcclAllReduce: Some(HcclAllReduce),
    HcclAllGather: Some(HcclAllGather),
    HcclReduceScatter: Some(HcclReduceScatter),
    HcclBroadcast: Some(HcclBroadcast),
    HcclReduceScatterV: Some(HcclReduceScatterV),
    HcclAllGatherV: Some(HcclAllGatherV),
    HcclReduce: Some(HcclReduce),
    HcclScatter: Some(HcclScatter),
    HcclAlltoAll: Some(HcclAlltoAll),
    HcclAlltoAllV: Some(HcclAlltoAllV),
    HcclSend: Some(HcclSend),
    HcclRecv: Some(HcclRecv),
};
