//! `libcomm_hccl.so`: the C API of `comm.h` and `comm_coll.h` on Ascend.
//!
//! `cargo build --release -p comm-hccl-c` builds `target/release/libcomm_hccl.so`; the headers are in
//! `comm-context/include`.
//!
//! The caller owns the device and the stream: it calls `aclInit` and `aclrtSetDevice` in the calling thread before
//! `comm_init`, and destroys the stream and resets the device after `comm_destroy`. With a NULL stream the library makes one
//! of its own. Nothing of this has run on hardware.

mod open;

comm_context::export_c_api!(crate::open::open);
collectives::export_coll_c_api!();
