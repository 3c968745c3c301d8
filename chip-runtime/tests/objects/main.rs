//! Orchestrations and kernels in C++, compiled as their users do.
#![cfg(feature = "cxx")]
#![allow(missing_docs)]

mod build;
mod mistakes;
mod right;
