//! `libascendcl.so` of cann-sim, the **test double** of the Ascend vendor libraries; none of it is the
//! vendor's code.
//!
//! The crate `cann-sim` says what the double does and does not do. Each vendor function passes the gate, which counts calls
//! and applies the script of faults, and then uses `state`, which holds every object of the process. The table at the end of
//! this file is of the type that `comm_hccl::sys` declares, so that a function of another type, or a missing one, does not
//! compile.

#![deny(unsafe_code)]
#![allow(non_snake_case, reason = "the vendor's names")]

mod addresses;
mod device_process;
mod event;
mod gate;
mod ipc;
mod kernel;
mod lifecycle;
mod memory;
mod peer;
mod physical;
mod private;
mod share;
mod state;
mod view;

use event::*;
use ipc::*;
use kernel::*;
use lifecycle::*;
use memory::*;
use peer::*;
use physical::*;
use share::*;

macro_rules! table {
    (required: $($required:ident)*; optional: $($optional:ident)*) => {
        comm_hccl::sys::AscendCl { $($required,)* $($optional: Some($optional),)* }
    };
}

const _: comm_hccl::sys::AscendCl = table! {
    required:
        aclInit aclFinalize aclrtGetSocName aclGetRecentErrMsg aclrtSetDevice aclrtResetDevice aclrtGetDevice
        aclrtGetDeviceCount aclrtGetCurrentContext aclrtSetCurrentContext aclrtCreateStream aclrtDestroyStream
        aclrtSynchronizeStream aclrtMalloc aclrtFree aclrtMemcpy aclrtMemset aclrtBinaryLoadFromFile
        aclrtBinaryGetFunction aclrtBinaryUnLoad;
    optional:
        aclrtLaunchKernelWithHostArgs aclrtLaunchKernel
        aclrtCreateEvent aclrtDestroyEvent aclrtRecordEvent aclrtStreamWaitEvent aclrtQueryEventStatus
        aclrtGetVersion aclrtGetPhyDevIdByLogicDevId aclrtDeviceGetBareTgid aclrtPointerGetAttributes aclrtReduceAsync
        aclrtMemGetAllocationGranularity
        aclrtMallocPhysical aclrtFreePhysical aclrtReserveMemAddress aclrtReleaseMemAddress aclrtMapMem aclrtUnmapMem
        aclrtMemSetAccess aclrtMemExportToShareableHandleV2 aclrtMemImportFromShareableHandleV2
        aclrtMemSetPidToShareableHandleV2 aclrtMemExportToShareableHandle aclrtMemImportFromShareableHandle
        aclrtMemSetPidToShareableHandle aclrtDeviceCanAccessPeer aclrtDeviceEnablePeerAccess
        aclrtDevicePeerAccessStatus aclrtIpcMemGetExportKey aclrtIpcMemSetImportPid aclrtIpcMemImportByKey
        aclrtIpcMemClose
};
