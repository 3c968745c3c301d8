//! `libcomm_sim.so`: the C API of `comm.h` and `comm_coll.h` on the simulation backend.
//!
//! `cargo build --release -p comm-sim-c` builds `target/release/libcomm_sim.so`; the headers are in
//! `comm-context/include`. `tests/c` has a program in C, one in C++ and one in Python.
//!
//! # Contract
//! - **CL-1** No argument of a C caller crashes the process: NULL, a stale handle or a wrong count is an error
//!   with a text.
//! - **CL-2** No panic crosses into the caller. It becomes the code `COMM_E_INTERNAL`, and the peers get an error that
//!   names the rank.

mod open;

comm_context::export_c_api!(crate::open::open);
collectives::export_coll_c_api!();
