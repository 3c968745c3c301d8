//! Vendor codes, with their names and what to do about them: the one table of them.

use crate::sys::*;
use std::fmt;
use worker_errors::escape;

/// A code of one of the two libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// An `aclError`.
    Acl(i32),
    /// An `HcclResult`.
    Hccl(i32),
}

/// A vendor call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct VendorError {
    /// The vendor's function.
    pub function: &'static str,
    /// What it returned.
    pub code: Code,
    /// The vendor's own words, escaped and cut to a bounded length; may be empty.
    pub detail: String,
}

impl fmt::Display for VendorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {}", self.function, self.code)?;
        if !self.detail.is_empty() {
            write!(f, "; the vendor says: {}", self.detail)?;
        }
        if let Some(advice) = self.code.advice() {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.name()) {
            (Self::Acl(code) | Self::Hccl(code), Some(name)) => write!(f, "{code} ({name})"),
            (Self::Acl(code), None) => write!(f, "ACL code {code}"),
            (Self::Hccl(code), None) => write!(f, "HCCL code {code}"),
        }
    }
}

impl Code {
    /// The bare number.
    pub fn number(self) -> i32 {
        match self {
            Self::Acl(code) | Self::Hccl(code) => code,
        }
    }

    /// The vendor's name for it.
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|e| e.1)
    }

    /// What to do next.
    pub fn advice(self) -> Option<&'static str> {
        self.entry().map(|e| e.2)
    }

    /// Whether this machine or library lacks the feature, so that another share mode may work.
    pub fn is_unsupported(self) -> bool {
        matches!(
            self,
            Self::Acl(
                ACL_ERROR_RT_FEATURE_NOT_SUPPORT | ACL_ERROR_API_NOT_SUPPORT | ACL_ERROR_FEATURE_UNSUPPORTED
            )
        )
    }

    fn entry(self) -> Option<&'static Entry> {
        let (table, code) = match self {
            Self::Acl(code) => (ACL, code),
            Self::Hccl(code) => (HCCL, code),
        };
        table.iter().find(|e| e.0 == code)
    }
}

/// Code, the vendor's name, what to do next.
type Entry = (i32, &'static str, &'static str);

macro_rules! table {
    ($( $name:ident: $advice:literal, )*) => { &[$( ($name, stringify!($name), $advice), )*] };
}

const ACL: &[Entry] = table! {
    ACL_ERROR_INVALID_PARAM: "an argument was refused: check sizes, alignment and that the object is still alive",
    ACL_ERROR_UNINITIALIZE: "call it after aclInit, in the same process",
    ACL_ERROR_REPEAT_INITIALIZE: "aclInit was called before: call it once in a process",
    ACL_ERROR_INVALID_FILE: "check that the file exists and can be read",
    ACL_ERROR_REPEAT_FINALIZE: "aclFinalize was called before: call it once in a process",
    ACL_ERROR_RT_PARAM_INVALID: "an argument was refused: check sizes, alignment and that the object is still alive",
    ACL_ERROR_RT_INVALID_DEVICEID: "check the device id against `npu-smi info` and ASCEND_RT_VISIBLE_DEVICES",
    ACL_ERROR_RT_CONTEXT_NULL: "this thread has no ACL context: set the device or the context in it first",
    ACL_ERROR_RT_STREAM_CONTEXT: "the stream belongs to another context: use it in the thread that made it",
    ACL_ERROR_RT_FILE_OPEN: "check that the kernel file exists and can be read",
    ACL_ERROR_RT_INVALID_HANDLE: "the object was released, or is of another device: check who owns it",
    ACL_ERROR_RT_WAIT_TIMEOUT: "a task on the device did not end in time: look for a kernel that waits on a peer",
    ACL_ERROR_RT_TASK_TIMEOUT: "a task on the device did not end in time: look for a kernel that waits on a peer",
    ACL_ERROR_BAD_ALLOC: "host memory is short: see the machine's memory and the container's limit",
    ACL_ERROR_API_NOT_SUPPORT: "this CANN version does not have it: install a newer one",
    ACL_ERROR_FEATURE_UNSUPPORTED: "this chip or CANN version does not have it: leave it out, or install a newer one",
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT: "this chip, driver or CANN version does not have it: leave it out, or install newer ones",
    ACL_ERROR_RT_MEMORY_ALLOCATION: "device memory is short: ask for less, or see which process holds it with `npu-smi info`",
    ACL_ERROR_RT_NO_DEVICE: "no device is visible: check the driver and ASCEND_RT_VISIBLE_DEVICES",
    ACL_ERROR_RT_RESOURCE_ALLOC_FAIL: "the device has no more of this resource: look for leaked streams or processes",
    ACL_ERROR_RT_NO_PERMISSION: "this process may not use it: check the pids that the exporting rank allowed",
    ACL_ERROR_RT_DEVICE_OOM: "device memory is short: ask for less, or see which process holds it with `npu-smi info`",
    ACL_ERROR_INTERNAL_ERROR: "see the plog",
    ACL_ERROR_RT_INTERNAL_ERROR: "a fork after aclInit also looks like this: start chip processes before any vendor call",
    ACL_ERROR_RT_LOST_HEARTBEAT: "the device is gone: see `npu-smi info` and the plog; it may need a reset",
    ACL_ERROR_RT_AICORE_TIMEOUT: "a kernel did not end in time: look for a wait on a peer",
    ACL_ERROR_RT_AICORE_EXCEPTION: "a kernel faulted: check the addresses it was given; the device needs a reset",
    ACL_ERROR_RT_AICPU_EXCEPTION: "the thread's ACL context was switched, most often by HcclBarrier: restore it first",
    ACL_ERROR_RT_KERNEL_LOOKUP: "the kernel binary has no function of this name: see its symbols with nm",
    ACL_ERROR_RT_DRV_INTERNAL_ERROR: "the driver refused: a logical device id where a driver-visible one belongs looks like this; see the plog",
};

const HCCL: &[Entry] = table! {
    HCCL_E_PARA: "check the arguments: rank, size of the group, count, data type",
    HCCL_E_PTR: "a pointer is NULL: check buffers, communicator and stream",
    HCCL_E_MEMORY: "device memory is short: ask for less, or see which process holds it with `npu-smi info`",
    HCCL_E_INTERNAL: "see the plog",
    HCCL_E_NOT_SUPPORT: "this chip or CANN version does not have it: leave it out, or install a newer one",
    HCCL_E_NOT_FOUND: "a resource is missing: check the rank table and the network configuration (hccn.conf)",
    HCCL_E_UNAVAIL: "a port may be taken: rank 0 needs 60000 to 60031 and 16666 free (HCCL_IF_BASE_PORT moves them)",
    HCCL_E_SYSCALL: "a system call failed: see the plog; check the limits of open files and locked memory",
    HCCL_E_TIMEOUT: "a rank did not come: see which one failed first; HCCL_CONNECT_TIMEOUT sets the limit (120 s)",
    HCCL_E_OPEN_FILE_FAILURE: "check that the configuration and log folders of the library can be read and written",
    HCCL_E_TCP_CONNECT: "rank 0 could not be reached: is it alive, and are its ports (60000 to 60031, 16666) open?",
    HCCL_E_ROCE_CONNECT: "the RoCE link is down: check link and IP address of every device with `hccn_tool`",
    HCCL_E_TCP_TRANSFER: "a peer hung up: see which rank failed first",
    HCCL_E_ROCE_TRANSFER: "a peer hung up or the RoCE link is unstable: see which rank failed first, and the links with `hccn_tool`",
    HCCL_E_RUNTIME: "an ACL call inside HCCL failed: is the device set in this thread?",
    HCCL_E_DRV: "the driver refused: see the plog",
    HCCL_E_PROFILING: "see the plog",
    HCCL_E_CCE: "see the plog",
    HCCL_E_NETWORK: "check the network of every device with `hccn_tool`",
    HCCL_E_AGAIN: "try again",
    HCCL_E_REMOTE: "a peer reported an error: see which rank failed first",
    HCCL_E_SUSPENDING: "the communicator is being suspended: wait until it goes on",
    HCCL_E_OPRETRY_FAIL: "an operation failed again when it was repeated: see which rank failed first",
    HCCL_E_OOM: "device memory is short: ask for less, or see which process holds it with `npu-smi info`",
};

/// The longest vendor text that is kept; the vendor's messages can run to pages.
const DETAIL_MAX: usize = 512;

/// Vendor text for a log: one line, control characters escaped, limited in length, the cut marked.
pub(crate) fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    escape(&words.join(" "), DETAIL_MAX).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_function_the_code_and_what_to_do() {
        let error = VendorError {
            function: "aclrtMemSetAccess",
            code: Code::Acl(507899),
            detail: one_line("EL0004:  bad\n id \x07"),
        };
        assert_eq!(
            error.to_string(),
            "aclrtMemSetAccess failed with 507899 (ACL_ERROR_RT_DRV_INTERNAL_ERROR); the vendor says: EL0004: bad id \\u{7}; the \
             driver refused: a logical device id where a driver-visible one belongs looks like this; see the plog"
        );
        assert!(ACL.iter().chain(HCCL).all(|entry| !entry.2.is_empty()), "a code without advice");
    }

    #[test]
    fn every_hccl_code_has_a_name() {
        for code in 1..=24 {
            assert!(Code::Hccl(code).name().is_some(), "{code}");
        }
        assert_eq!(Code::Hccl(9).to_string(), "9 (HCCL_E_TIMEOUT)");
        assert_eq!(Code::Acl(123456).to_string(), "ACL code 123456");
    }

    #[test]
    fn no_code_is_listed_twice() {
        for table in [ACL, HCCL] {
            let mut codes: Vec<_> = table.iter().map(|e| e.0).collect();
            codes.sort_unstable();
            codes.dedup();
            assert_eq!(codes.len(), table.len());
        }
    }

    #[test]
    fn long_vendor_text_is_cut_with_a_mark() {
        let text = one_line(&"é".repeat(2000));
        assert!(text.contains("bytes cut") && text.len() <= DETAIL_MAX, "{text}");
        assert_eq!(one_line(""), "");
    }
}
