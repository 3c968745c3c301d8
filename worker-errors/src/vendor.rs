//! Names and advice for the codes that vendor libraries return.

/// A vendor code that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorCode {
    /// The vendor's spelling.
    pub name: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

/// The `aclError` codes that deserve more than their number. 0 is success and no error, so it has no entry.
pub fn acl(code: i32) -> Option<VendorCode> {
    ACL.iter().find(|(known, ..)| *known == code).map(|&(_, name, advice)| VendorCode { name, advice })
}

/// The `HcclResult` codes. 0 is success and no error, so it has no entry.
pub fn hccl(code: i32) -> Option<VendorCode> {
    let index = usize::try_from(code).ok()?.checked_sub(1)?;
    HCCL.get(index).map(|&(name, advice)| VendorCode { name, advice })
}

const ACL: [(i32, &str, &str); 6] = [
    (100002, "ACL_ERROR_REPEAT_INITIALIZE", "harmless: the library is already initialised in this process"),
    (
        107000,
        "ACL_ERROR_RT_PARAM_INVALID",
        "check the arguments in the device log; sizes must be multiples of the granularity",
    ),
    (
        107001,
        "ACL_ERROR_RT_INVALID_DEVICEID",
        "use an id below aclrtGetDeviceCount; with ASCEND_RT_VISIBLE_DEVICES set, ids count within that list",
    ),
    (
        207000,
        "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
        "this machine or driver lacks the feature; the next kind of window is tried by itself",
    ),
    (
        507018,
        "ACL_ERROR_RT_AICPU_EXCEPTION",
        "after HcclBarrier: restore the thread's context and do not synchronise; else read the device log",
    ),
    (
        507899,
        "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
        "often a logical device id where the driver-visible one is due; else read the driver log",
    ),
];

/// In the order of the codes, from 1.
const HCCL: [(&str, &str); 24] = [
    ("HCCL_E_PARA", "check the arguments: rank, size of the group, count, data type"),
    ("HCCL_E_PTR", "a pointer is null; check buffers, communicator and stream"),
    ("HCCL_E_MEMORY", "the library could not get host or device memory; free some or use smaller buffers"),
    ("HCCL_E_INTERNAL", "read the plog of the failing rank"),
    ("HCCL_E_NOT_SUPPORT", "this chip or CANN version lacks it; compare versions on all machines"),
    (
        "HCCL_E_NOT_FOUND",
        "a resource is missing; check the rank table and the network configuration (hccn.conf)",
    ),
    ("HCCL_E_UNAVAIL", "a resource is busy or gone; check that no other job holds the device"),
    ("HCCL_E_SYSCALL", "the system refused a call; read the plog, check limits of files and locked memory"),
    (
        "HCCL_E_TIMEOUT",
        "a rank did not come in time; find the first rank that failed, then raise HCCL_CONNECT_TIMEOUT",
    ),
    (
        "HCCL_E_OPEN_FILE_FAILURE",
        "check that the library's configuration and log folders can be read and written",
    ),
    (
        "HCCL_E_TCP_CONNECT",
        "rank 0's port cannot be reached or is taken (60000 to 60031, 16666); see what holds it",
    ),
    ("HCCL_E_ROCE_CONNECT", "check the links and addresses of the cards with hccn_tool"),
    ("HCCL_E_TCP_TRANSFER", "a connection broke; look for the rank that died first"),
    ("HCCL_E_ROCE_TRANSFER", "a link broke; check it with hccn_tool and look for the rank that died first"),
    ("HCCL_E_RUNTIME", "an ACL call inside failed; read aclGetRecentErrMsg and the plog"),
    ("HCCL_E_DRV", "the driver failed; read the driver log, check npu-smi info"),
    ("HCCL_E_PROFILING", "switch profiling off, or check its settings"),
    ("HCCL_E_CCE", "the device compiler's runtime failed; read the plog"),
    ("HCCL_E_NETWORK", "check the network between the machines and the cards (hccn_tool)"),
    ("HCCL_E_AGAIN", "try again"),
    ("HCCL_E_REMOTE", "another rank failed; look for its error, which came first"),
    ("HCCL_E_SUSPENDING", "the communicator is suspended; resume or destroy it before the next call"),
    ("HCCL_E_OPRETRY_FAIL", "retries were used up; check the links with hccn_tool"),
    ("HCCL_E_OOM", "device memory is used up; free some or use smaller buffers"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_have_the_names_that_the_vendor_gave_them() {
        let name = |code: Option<VendorCode>| code.map(|c| c.name);
        for (code, want) in
            [(1, "HCCL_E_PARA"), (9, "HCCL_E_TIMEOUT"), (11, "HCCL_E_TCP_CONNECT"), (15, "HCCL_E_RUNTIME")]
        {
            assert_eq!(name(hccl(code)), Some(want));
        }
        for (code, want) in [(21, "HCCL_E_REMOTE"), (24, "HCCL_E_OOM")] {
            assert_eq!(name(hccl(code)), Some(want));
        }
        for (code, want) in
            [(100002, "ACL_ERROR_REPEAT_INITIALIZE"), (507018, "ACL_ERROR_RT_AICPU_EXCEPTION")]
        {
            assert_eq!(name(acl(code)), Some(want));
        }
    }

    #[test]
    fn success_and_unknown_codes_have_no_entry() {
        for code in [i32::MIN, -1, 0, 25, i32::MAX] {
            assert_eq!(hccl(code), None, "{code}");
            assert_eq!(acl(code), None, "{code}");
        }
    }

    #[test]
    fn every_entry_has_its_own_name_and_some_advice() {
        let entries: Vec<_> = (1..=24).filter_map(hccl).chain(ACL.iter().filter_map(|e| acl(e.0))).collect();
        assert_eq!(entries.len(), HCCL.len() + ACL.len());
        assert!(entries.iter().all(|e| e.advice.len() >= "try again".len()));
        assert_eq!(entries.iter().map(|e| e.name).collect::<HashSet<_>>().len(), entries.len());
    }
}
