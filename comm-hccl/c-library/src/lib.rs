//! `libcomm_hccl.so`: the C API of `comm.h` on Ascend.
//!
//! The caller owns the device and the stream: before `comm_init` it has called `aclInit` and `aclrtSetDevice` in the
//! calling thread, and it destroys the stream and resets the device after `comm_destroy`. A NULL stream makes the
//! library use one of its own. Nothing of this has run on hardware.

mod open;

comm_context::export_c_api!(crate::open::open);
