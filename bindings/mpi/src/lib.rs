//! The Rust half of `libchipcomm_mpi.so`, by which any MPI program has its collectives done by [`collectives`]: see
//! docs/guide-mpi.md.
//!
//! The C half, in the folder `c`, is compiled with the wrapper of an MPI library against its `mpi.h`, linked with this archive and
//! loaded by `LD_PRELOAD`. It decides which calls to take, from what MPI obliges to be equal on all ranks, packs what is not
//! contiguous, and calls the few functions here.
//!
//! # Contract
//! - **CM-1** Take or pass on is the same on all ranks of a communicator, in every call.
//! - **CM-2** A wait for a peer keeps MPI's own messages going: a call that is taken cannot deadlock where MPI's own would not.
//! - **CM-3** A call that is taken does what MPI says of it: for all predefined types that `collectives` has, derived types, `MPI_IN_PLACE`,
//!   and any displacements.
//! - **CM-4** A rank that dies ends the waits of the others with an error of MPI's on their communicator.
//! - **CM-5** A group ends with its communicator, without waiting for the others; `MPI_Finalize` leaves nothing.
//! - **CM-6** A communicator whose ranks cannot make a group has all its calls passed on, on all ranks.
//! - **CM-7** What is not taken is as without the library: its result, its speed, and what `MPI_Init_thread` grants.
//!
//! # What it does not do
//! Non-blocking and persistent collectives, neighborhoods, scans and windows are the MPI library's. It has no ranks of its own.

mod exports;
mod host;
mod open;
