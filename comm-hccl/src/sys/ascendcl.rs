//! `libascendcl.so`: device life cycle, memory, sharing, kernels.
//!
//! # Safety
//! The only unsafe code is `resolve`, which turns symbol addresses into typed pointers; its contract says what the caller
//! vouches for.
#![allow(unsafe_code)]

use super::types::*;
use super::vendor_functions;
use core::ffi::{c_char, c_void};

vendor_functions! {
    /// The functions of `libascendcl.so`. What a share mode needs beyond plain memory is optional: a library without it still
    /// supports the other modes.
    table AscendCl of "libascendcl.so";

    /// Initialises the runtime of this process.
    required fn aclInit(config_path: *const c_char) -> aclError;
    /// Undoes `aclInit`.
    required fn aclFinalize() -> aclError;
    /// Version of the interface: major, minor, patch.
    optional fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> aclError;
    /// Name of the chip; null without one.
    required fn aclrtGetSocName() -> *const c_char;
    /// The calling thread's latest error text, or null; reading it clears it.
    required fn aclGetRecentErrMsg() -> *const c_char;

    /// Opens a device and makes its default context current.
    required fn aclrtSetDevice(device: i32) -> aclError;
    /// Undoes `aclrtSetDevice`.
    required fn aclrtResetDevice(device: i32) -> aclError;
    /// The current context's device.
    required fn aclrtGetDevice(device: *mut i32) -> aclError;
    /// How many devices this process may open.
    required fn aclrtGetDeviceCount(count: *mut u32) -> aclError;
    /// The calling thread's context.
    required fn aclrtGetCurrentContext(context: *mut aclrtContext) -> aclError;
    /// Makes a context current in the calling thread.
    required fn aclrtSetCurrentContext(context: aclrtContext) -> aclError;
    /// The physical id behind a logical one.
    optional fn aclrtGetPhyDevIdByLogicDevId(logical: i32, physical: *mut i32) -> aclError;
    /// This process's pid as the driver sees it (outside a container's pid namespace).
    optional fn aclrtDeviceGetBareTgid(pid: *mut i32) -> aclError;

    /// Makes a stream in the current context.
    required fn aclrtCreateStream(stream: *mut aclrtStream) -> aclError;
    /// Destroys a stream.
    required fn aclrtDestroyStream(stream: aclrtStream) -> aclError;
    /// Waits until everything queued on a stream is done.
    required fn aclrtSynchronizeStream(stream: aclrtStream) -> aclError;

    /// Makes an event in the current context.
    optional fn aclrtCreateEvent(event: *mut aclrtEvent) -> aclError;
    /// Destroys an event. Streams that wait for it must be done with that.
    optional fn aclrtDestroyEvent(event: aclrtEvent) -> aclError;
    /// Queues the event on a stream: it is complete when what was queued there before is done.
    optional fn aclrtRecordEvent(event: aclrtEvent, stream: aclrtStream) -> aclError;
    /// Lets what is queued on a stream from now on wait for the event.
    optional fn aclrtStreamWaitEvent(stream: aclrtStream, event: aclrtEvent) -> aclError;
    /// Whether an event is complete.
    optional fn aclrtQueryEventStatus(event: aclrtEvent, status: *mut aclrtEventRecordedStatus) -> aclError;

    /// Allocates device memory.
    required fn aclrtMalloc(pointer: *mut *mut c_void, size: usize, policy: aclrtMemMallocPolicy) -> aclError;
    /// Frees memory of `aclrtMalloc`.
    required fn aclrtFree(pointer: *mut c_void) -> aclError;
    /// Copies `count` bytes and returns when they have arrived.
    required fn aclrtMemcpy(
        destination: *mut c_void,
        capacity: usize,
        source: *const c_void,
        count: usize,
        kind: aclrtMemcpyKind,
    ) -> aclError;
    /// Fills device memory with one byte.
    required fn aclrtMemset(pointer: *mut c_void, capacity: usize, value: i32, count: usize) -> aclError;

    /// Queues a reduction on a stream: each element of the destination becomes the sum of itself and that of the source, both in
    /// device memory, own or a peer's. `count` is in bytes.
    optional fn aclrtReduceAsync(
        destination: *mut c_void,
        source: *const c_void,
        count: u64,
        kind: aclrtReduceKind,
        data_type: aclDataType,
        stream: aclrtStream,
        reserved: *mut c_void,
    ) -> aclError;

    /// Whether an address is memory of a device.
    optional fn aclrtPointerGetAttributes(
        pointer: *const c_void,
        attributes: *mut aclrtPtrAttributes,
    ) -> aclError;

    /// The unit in which physical memory is allocated.
    optional fn aclrtMemGetAllocationGranularity(
        prop: *mut aclrtPhysicalMemProp,
        option: aclrtMemGranularityOptions,
        granularity: *mut usize,
    ) -> aclError;
    /// Allocates physical memory without an address.
    optional fn aclrtMallocPhysical(
        handle: *mut aclrtDrvMemHandle,
        size: usize,
        prop: *const aclrtPhysicalMemProp,
        flags: u64,
    ) -> aclError;
    /// Frees physical memory, own or imported.
    optional fn aclrtFreePhysical(handle: aclrtDrvMemHandle) -> aclError;
    /// Reserves a range of addresses.
    optional fn aclrtReserveMemAddress(
        pointer: *mut *mut c_void,
        size: usize,
        alignment: usize,
        expected: *mut c_void,
        flags: u64,
    ) -> aclError;
    /// Releases a range of addresses.
    optional fn aclrtReleaseMemAddress(pointer: *mut c_void) -> aclError;
    /// Maps physical memory to a reserved range.
    optional fn aclrtMapMem(
        pointer: *mut c_void,
        size: usize,
        offset: usize,
        handle: aclrtDrvMemHandle,
        flags: u64,
    ) -> aclError;
    /// Unmaps physical memory from a reserved range.
    optional fn aclrtUnmapMem(pointer: *mut c_void) -> aclError;
    /// Sets which devices may use a mapped range; ids are driver-visible ones.
    optional fn aclrtMemSetAccess(
        pointer: *mut c_void,
        size: usize,
        desc: *mut aclrtMemAccessDesc,
        count: usize,
    ) -> aclError;

    /// Exports physical memory as a handle of a given share type.
    optional fn aclrtMemExportToShareableHandleV2(
        handle: aclrtDrvMemHandle,
        flags: u64,
        share_type: aclrtMemSharedHandleType,
        shareable: *mut c_void,
    ) -> aclError;
    /// Imports what a peer exported with a share type.
    optional fn aclrtMemImportFromShareableHandleV2(
        shareable: *mut c_void,
        share_type: aclrtMemSharedHandleType,
        flags: u64,
        handle: *mut aclrtDrvMemHandle,
    ) -> aclError;
    /// Lists the processes that may import a handle of a share type.
    optional fn aclrtMemSetPidToShareableHandleV2(
        shareable: *mut c_void,
        share_type: aclrtMemSharedHandleType,
        pids: *mut i32,
        count: usize,
    ) -> aclError;
    /// Exports physical memory as a 64-bit handle.
    optional fn aclrtMemExportToShareableHandle(
        handle: aclrtDrvMemHandle,
        handle_type: aclrtMemHandleType,
        flags: u64,
        shareable: *mut u64,
    ) -> aclError;
    /// Imports a 64-bit handle for a device.
    optional fn aclrtMemImportFromShareableHandle(
        shareable: u64,
        device: i32,
        handle: *mut aclrtDrvMemHandle,
    ) -> aclError;
    /// Lists the processes that may import a 64-bit handle.
    optional fn aclrtMemSetPidToShareableHandle(shareable: u64, pids: *mut i32, count: usize) -> aclError;

    /// Whether one device can reach another.
    optional fn aclrtDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> aclError;
    /// Enables access from the current device to another.
    optional fn aclrtDeviceEnablePeerAccess(peer: i32, flags: u32) -> aclError;
    /// Whether the path to a peer is up; the peer is a physical id.
    optional fn aclrtDevicePeerAccessStatus(device: i32, peer: i32, status: *mut i32) -> aclError;

    /// Makes a key for device memory that other processes can open.
    optional fn aclrtIpcMemGetExportKey(
        pointer: *mut c_void,
        size: usize,
        key: *mut c_char,
        len: usize,
        flags: u64,
    ) -> aclError;
    /// Lists the processes that may open a key.
    optional fn aclrtIpcMemSetImportPid(key: *const c_char, pids: *mut i32, count: usize) -> aclError;
    /// Opens a peer's key.
    optional fn aclrtIpcMemImportByKey(pointer: *mut *mut c_void, key: *const c_char, flags: u64) -> aclError;
    /// Destroys an own key, or closes a peer's.
    optional fn aclrtIpcMemClose(key: *const c_char) -> aclError;

    /// Loads a kernel binary.
    required fn aclrtBinaryLoadFromFile(
        path: *const c_char,
        options: *mut aclrtBinaryLoadOptions,
        binary: *mut aclrtBinHandle,
    ) -> aclError;
    /// Finds a kernel in a binary.
    required fn aclrtBinaryGetFunction(
        binary: aclrtBinHandle,
        name: *const c_char,
        function: *mut aclrtFuncHandle,
    ) -> aclError;
    /// Queues a kernel on a stream. The argument block is in host memory and copied before the call returns. Its words are
    /// the kernel's parameters, in order.
    optional fn aclrtLaunchKernelWithHostArgs(
        function: aclrtFuncHandle,
        blocks: u32,
        stream: aclrtStream,
        config: *mut aclrtLaunchKernelCfg,
        host_args: *mut c_void,
        args_size: usize,
        place_holders: *mut aclrtPlaceHolderInfo,
        place_holder_count: usize,
    ) -> aclError;
    /// The same with the argument block in *device* memory. This crate does not call it.
    optional fn aclrtLaunchKernel(
        function: aclrtFuncHandle,
        blocks: u32,
        args: *const c_void,
        args_size: usize,
        stream: aclrtStream,
    ) -> aclError;
    /// Unloads a kernel binary.
    required fn aclrtBinaryUnLoad(binary: aclrtBinHandle) -> aclError;
}
