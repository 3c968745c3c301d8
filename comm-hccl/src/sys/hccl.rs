//! `libhccl.so`: communicators and collectives.
//!
//! # Safety
//! The only unsafe code is `resolve`, which turns symbol addresses into typed pointers; its contract says what the caller
//! vouches for.
#![allow(unsafe_code)]

use super::types::*;
use super::vendor_functions;
use core::ffi::{c_char, c_void};

vendor_functions! {
    /// The functions of `libhccl.so`.
    table Hccl of "libhccl.so";

    /// Opens rank 0's listener and describes it.
    required fn HcclGetRootInfo(root: *mut HcclRootInfo) -> HcclResult;
    /// Joins a communicator; returns when every rank has.
    required fn HcclCommInitRootInfo(
        ranks: u32,
        root: *const HcclRootInfo,
        rank: u32,
        comm: *mut HcclComm,
    ) -> HcclResult;
    /// The communicator's name, at most `COMM_NAME_MAX_LENGTH` bytes.
    required fn HcclGetCommName(comm: HcclComm, name: *mut c_char) -> HcclResult;
    /// Waits for every rank. It switches the calling thread's ACL context.
    required fn HcclBarrier(comm: HcclComm, stream: aclrtStream) -> HcclResult;
    /// The error of a queued operation.
    required fn HcclGetCommAsyncError(comm: HcclComm, error: *mut HcclResult) -> HcclResult;
    /// The text of a code.
    required fn HcclGetErrorString(code: HcclResult) -> *const c_char;
    /// Leaves the communicator.
    required fn HcclCommDestroy(comm: HcclComm) -> HcclResult;

    /// Reduces over all ranks, result on all.
    optional fn HcclAllReduce(
        send: *mut c_void,
        receive: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        op: HcclReduceOp,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Collects every rank's part on all.
    optional fn HcclAllGather(
        send: *mut c_void,
        receive: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Reduces over all ranks, one part to each.
    optional fn HcclReduceScatter(
        send: *mut c_void,
        receive: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        op: HcclReduceOp,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Copies the root's buffer to all.
    optional fn HcclBroadcast(
        buffer: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        root: u32,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Reduces over all ranks, a part of its own size to each; counts and offsets are `u64` of the host, in elements.
    optional fn HcclReduceScatterV(
        send: *mut c_void,
        send_counts: *const c_void,
        send_offsets: *const c_void,
        receive: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        op: HcclReduceOp,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Collects every rank's part, each of its own size, on all.
    optional fn HcclAllGatherV(
        send: *mut c_void,
        count: u64,
        receive: *mut c_void,
        receive_counts: *const c_void,
        receive_offsets: *const c_void,
        data_type: HcclDataType,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Reduces over all ranks, result on the root.
    optional fn HcclReduce(
        send: *mut c_void,
        receive: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        op: HcclReduceOp,
        root: u32,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Sends a part of the root's buffer to each.
    optional fn HcclScatter(
        send: *mut c_void,
        receive: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        root: u32,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Sends a part to each rank.
    optional fn HcclAlltoAll(
        send: *const c_void,
        send_count: u64,
        send_type: HcclDataType,
        receive: *const c_void,
        receive_count: u64,
        receive_type: HcclDataType,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Sends a part of its own size to each rank.
    optional fn HcclAlltoAllV(
        send: *const c_void,
        send_counts: *const c_void,
        send_offsets: *const c_void,
        send_type: HcclDataType,
        receive: *const c_void,
        receive_counts: *const c_void,
        receive_offsets: *const c_void,
        receive_type: HcclDataType,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Sends to one rank.
    optional fn HcclSend(
        send: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        to: u32,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
    /// Receives from one rank.
    optional fn HcclRecv(
        receive: *mut c_void,
        count: u64,
        data_type: HcclDataType,
        from: u32,
        comm: HcclComm,
        stream: aclrtStream,
    ) -> HcclResult;
}
