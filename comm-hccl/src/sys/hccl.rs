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
}
