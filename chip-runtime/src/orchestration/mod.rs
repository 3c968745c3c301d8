//! Orchestrations and kernels that were compiled to shared objects.
//!
//! Everything here but the core that a thread is (`lane`) needs the feature `cxx`: six of the functions that an
//! orchestration calls have a variable number of arguments, and C++ code throws, so one C++ file stands between.

// Without objects nobody asks.
#[cfg_attr(not(feature = "cxx"), allow(dead_code))]
pub(crate) mod lane;

#[cfg(feature = "cxx")]
mod builder;
#[cfg(feature = "cxx")]
mod decode;
#[cfg(feature = "cxx")]
mod error;
#[cfg(all(feature = "cxx", any(fuzzing, test)))]
pub(crate) mod fuzzing;
#[cfg(feature = "cxx")]
mod kernel;
#[cfg(feature = "cxx")]
mod library;
#[cfg(feature = "cxx")]
mod object;
#[cfg(feature = "cxx")]
mod ops;
#[cfg(feature = "cxx")]
mod outputs;
#[cfg(feature = "cxx")]
mod shim;

#[cfg(feature = "cxx")]
pub use error::LoadError;
#[cfg(feature = "cxx")]
pub use kernel::KernelObject;
#[cfg(feature = "cxx")]
pub use object::Orchestration;
