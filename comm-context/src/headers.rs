//! The headers that kernels include, as files of this crate and as texts.

/// The folder of the headers in the source tree: for build scripts, tests, and programs that run where they
/// were built.
pub const INCLUDE_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// One header file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its file name, as kernels include it.
    pub name: &'static str,
    /// What is in it.
    pub text: &'static str,
}

/// Every header, for an installed program that writes them out before it compiles a kernel.
pub const fn headers() -> &'static [Header] {
    &[
        Header { name: "comm_context.h", text: include_str!("../include/comm_context.h") },
        Header { name: "tensor.h", text: include_str!("../include/tensor.h") },
        Header { name: "comm_kernel.h", text: include_str!("../include/comm_kernel.h") },
        Header { name: "comm.h", text: include_str!("../include/comm.h") },
    ]
}
