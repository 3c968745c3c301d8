//! What every code of the vendor's says: a call of the double returns it, and the user of that call reads the error.

mod support;

use comm_hccl::sys::*;
use comm_hccl::*;
use support::*;

/// Codes of AscendCL, with the names and advice that their users read.
const ACL: &[(i32, &str, &str)] = &[
    (
        ACL_ERROR_INVALID_PARAM,
        "ACL_ERROR_INVALID_PARAM",
        "an argument was refused: check sizes, alignment and that the object is still alive",
    ),
    (ACL_ERROR_UNINITIALIZE, "ACL_ERROR_UNINITIALIZE", "call it after aclInit, in the same process"),
    (
        ACL_ERROR_REPEAT_INITIALIZE,
        "ACL_ERROR_REPEAT_INITIALIZE",
        "aclInit was called before: call it once in a process",
    ),
    (ACL_ERROR_INVALID_FILE, "ACL_ERROR_INVALID_FILE", "check that the file exists and can be read"),
    (
        ACL_ERROR_REPEAT_FINALIZE,
        "ACL_ERROR_REPEAT_FINALIZE",
        "aclFinalize was called before: call it once in a process",
    ),
    (
        ACL_ERROR_RT_PARAM_INVALID,
        "ACL_ERROR_RT_PARAM_INVALID",
        "an argument was refused: check sizes, alignment and that the object is still alive",
    ),
    (
        ACL_ERROR_RT_INVALID_DEVICEID,
        "ACL_ERROR_RT_INVALID_DEVICEID",
        "check the device id against `npu-smi info` and ASCEND_RT_VISIBLE_DEVICES",
    ),
    (
        ACL_ERROR_RT_CONTEXT_NULL,
        "ACL_ERROR_RT_CONTEXT_NULL",
        "this thread has no ACL context: set the device or the context in it first",
    ),
    (
        ACL_ERROR_RT_STREAM_CONTEXT,
        "ACL_ERROR_RT_STREAM_CONTEXT",
        "the stream belongs to another context: use it in the thread that made it",
    ),
    (ACL_ERROR_RT_FILE_OPEN, "ACL_ERROR_RT_FILE_OPEN", "check that the kernel file exists and can be read"),
    (
        ACL_ERROR_RT_INVALID_HANDLE,
        "ACL_ERROR_RT_INVALID_HANDLE",
        "the object was released, or is of another device: check who owns it",
    ),
    (
        ACL_ERROR_RT_WAIT_TIMEOUT,
        "ACL_ERROR_RT_WAIT_TIMEOUT",
        "a task on the device did not end in time: look for a kernel that waits on a peer",
    ),
    (
        ACL_ERROR_RT_TASK_TIMEOUT,
        "ACL_ERROR_RT_TASK_TIMEOUT",
        "a task on the device did not end in time: look for a kernel that waits on a peer",
    ),
    (
        ACL_ERROR_BAD_ALLOC,
        "ACL_ERROR_BAD_ALLOC",
        "host memory is short: see the machine's memory and the container's limit",
    ),
    (
        ACL_ERROR_API_NOT_SUPPORT,
        "ACL_ERROR_API_NOT_SUPPORT",
        "this CANN version does not have it: install a newer one",
    ),
    (
        ACL_ERROR_FEATURE_UNSUPPORTED,
        "ACL_ERROR_FEATURE_UNSUPPORTED",
        "this chip or CANN version does not have it: leave it out, or install a newer one",
    ),
    (
        ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
        "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
        "this chip, driver or CANN version does not have it: leave it out, or install newer ones",
    ),
    (
        ACL_ERROR_RT_MEMORY_ALLOCATION,
        "ACL_ERROR_RT_MEMORY_ALLOCATION",
        "device memory is short: ask for less, or see which process holds it with `npu-smi info`",
    ),
    (
        ACL_ERROR_RT_NO_DEVICE,
        "ACL_ERROR_RT_NO_DEVICE",
        "no device is visible: check the driver and ASCEND_RT_VISIBLE_DEVICES",
    ),
    (
        ACL_ERROR_RT_RESOURCE_ALLOC_FAIL,
        "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL",
        "the device has no more of this resource: look for leaked streams or processes",
    ),
    (
        ACL_ERROR_RT_NO_PERMISSION,
        "ACL_ERROR_RT_NO_PERMISSION",
        "this process may not use it: check the pids that the exporting rank allowed",
    ),
    (
        ACL_ERROR_RT_DEVICE_OOM,
        "ACL_ERROR_RT_DEVICE_OOM",
        "device memory is short: ask for less, or see which process holds it with `npu-smi info`",
    ),
    (ACL_ERROR_INTERNAL_ERROR, "ACL_ERROR_INTERNAL_ERROR", "see the plog"),
    (
        ACL_ERROR_RT_INTERNAL_ERROR,
        "ACL_ERROR_RT_INTERNAL_ERROR",
        "a fork after aclInit also looks like this: start chip processes before any vendor call",
    ),
    (
        ACL_ERROR_RT_LOST_HEARTBEAT,
        "ACL_ERROR_RT_LOST_HEARTBEAT",
        "the device is gone: see `npu-smi info` and the plog; it may need a reset",
    ),
    (
        ACL_ERROR_RT_AICORE_TIMEOUT,
        "ACL_ERROR_RT_AICORE_TIMEOUT",
        "a kernel did not end in time: look for a wait on a peer",
    ),
    (
        ACL_ERROR_RT_AICORE_EXCEPTION,
        "ACL_ERROR_RT_AICORE_EXCEPTION",
        "a kernel faulted: check the addresses it was given; the device needs a reset",
    ),
    (
        ACL_ERROR_RT_AICPU_EXCEPTION,
        "ACL_ERROR_RT_AICPU_EXCEPTION",
        "the thread's ACL context was switched, most often by HcclBarrier: restore it first",
    ),
    (
        ACL_ERROR_RT_KERNEL_LOOKUP,
        "ACL_ERROR_RT_KERNEL_LOOKUP",
        "the kernel binary has no function of this name: see its symbols with nm",
    ),
    (
        ACL_ERROR_RT_DRV_INTERNAL_ERROR,
        "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
        "the driver refused: a logical device id where a driver-visible one belongs looks like this; see the plog",
    ),
];

/// Codes of HCCL, with the names and advice that their users read.
const HCCL: &[(i32, &str, &str)] = &[
    (HCCL_E_PARA, "HCCL_E_PARA", "check the arguments: rank, size of the group, count, data type"),
    (HCCL_E_PTR, "HCCL_E_PTR", "a pointer is NULL: check buffers, communicator and stream"),
    (
        HCCL_E_MEMORY,
        "HCCL_E_MEMORY",
        "device memory is short: ask for less, or see which process holds it with `npu-smi info`",
    ),
    (HCCL_E_INTERNAL, "HCCL_E_INTERNAL", "see the plog"),
    (
        HCCL_E_NOT_SUPPORT,
        "HCCL_E_NOT_SUPPORT",
        "this chip or CANN version does not have it: leave it out, or install a newer one",
    ),
    (
        HCCL_E_NOT_FOUND,
        "HCCL_E_NOT_FOUND",
        "a resource is missing: check the rank table and the network configuration (hccn.conf)",
    ),
    (
        HCCL_E_UNAVAIL,
        "HCCL_E_UNAVAIL",
        "a port may be taken: rank 0 needs 60000 to 60031 and 16666 free (HCCL_IF_BASE_PORT moves them)",
    ),
    (
        HCCL_E_SYSCALL,
        "HCCL_E_SYSCALL",
        "a system call failed: see the plog; check the limits of open files and locked memory",
    ),
    (
        HCCL_E_TIMEOUT,
        "HCCL_E_TIMEOUT",
        "a rank did not come: see which one failed first; HCCL_CONNECT_TIMEOUT sets the limit (120 s)",
    ),
    (
        HCCL_E_OPEN_FILE_FAILURE,
        "HCCL_E_OPEN_FILE_FAILURE",
        "check that the configuration and log folders of the library can be read and written",
    ),
    (
        HCCL_E_TCP_CONNECT,
        "HCCL_E_TCP_CONNECT",
        "rank 0 could not be reached: is it alive, and are its ports (60000 to 60031, 16666) open?",
    ),
    (
        HCCL_E_ROCE_CONNECT,
        "HCCL_E_ROCE_CONNECT",
        "the RoCE link is down: check link and IP address of every device with `hccn_tool`",
    ),
    (HCCL_E_TCP_TRANSFER, "HCCL_E_TCP_TRANSFER", "a peer hung up: see which rank failed first"),
    (
        HCCL_E_ROCE_TRANSFER,
        "HCCL_E_ROCE_TRANSFER",
        "a peer hung up or the RoCE link is unstable: see which rank failed first, and the links with `hccn_tool`",
    ),
    (HCCL_E_RUNTIME, "HCCL_E_RUNTIME", "an ACL call inside HCCL failed: is the device set in this thread?"),
    (HCCL_E_DRV, "HCCL_E_DRV", "the driver refused: see the plog"),
    (HCCL_E_PROFILING, "HCCL_E_PROFILING", "see the plog"),
    (HCCL_E_CCE, "HCCL_E_CCE", "see the plog"),
    (HCCL_E_NETWORK, "HCCL_E_NETWORK", "check the network of every device with `hccn_tool`"),
    (HCCL_E_AGAIN, "HCCL_E_AGAIN", "try again"),
    (HCCL_E_REMOTE, "HCCL_E_REMOTE", "a peer reported an error: see which rank failed first"),
    (HCCL_E_SUSPENDING, "HCCL_E_SUSPENDING", "the communicator is being suspended: wait until it goes on"),
    (
        HCCL_E_OPRETRY_FAIL,
        "HCCL_E_OPRETRY_FAIL",
        "an operation failed again when it was repeated: see which rank failed first",
    ),
    (
        HCCL_E_OOM,
        "HCCL_E_OOM",
        "device memory is short: ask for less, or see which process holds it with `npu-smi info`",
    ),
];

fn rules(function: &str, codes: &[(i32, &str, &str)]) -> String {
    codes
        .iter()
        .enumerate()
        .map(|(at, (code, ..))| format!("{function}#{} return {code}\n", at + 1))
        .collect()
}

fn compare(function: &str, codes: &[(i32, &str, &str)], call: impl Fn() -> DeviceError) {
    for (code, name, advice) in codes {
        let said = call().to_string();
        let start = format!("{function} failed with {code} ({name})");
        assert!(said.starts_with(&start) && said.ends_with(&format!("; {advice}")), "{code}: {said}");
    }
}

#[test]
fn what_every_code_of_the_vendor_says() {
    let double = double("");
    let rules = rules("aclrtMalloc", ACL) + &rules("HcclGetRootInfo", HCCL);
    double.session.script(&rules).unwrap();
    assert_success(&run_part(&double, "part_codes", &[]));
}

#[test]
#[ignore = "a part of what_every_code_of_the_vendor_says"]
fn part_codes() {
    if my_rank().is_none() {
        return;
    }
    let (runtime, device) = open_device(0);
    compare("aclrtMalloc", ACL, || DeviceMemory::allocate(&device, 4096).map(drop).expect_err("a fault"));
    compare("HcclGetRootInfo", HCCL, || RootInfo::open(&device).map(drop).expect_err("a fault"));
    device.close().unwrap();
    runtime.finalise().unwrap();
}
