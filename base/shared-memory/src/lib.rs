//! Anonymous memory that several processes share.
//!
//! A [`Region`] is a sealed memfd: it has no name, cannot change its size, and has memory behind it before
//! it is written. It is inherited by a fork at the same address, or passed on as a descriptor. An
//! [`Arena`] allocates pages of a sparse region. [`copy_from_shared`] and [`copy_to_shared`] are the one
//! copy for bytes that others may write at the same time.
//!
//! # Contract
//! - **SM-1** A region has no name, cannot be resized by any process, and has its memory reserved before
//!   use: nothing is left behind, and there is no SIGBUS.
//! - **SM-2** Too little memory is an error that says need, have and which limit, never a signal.
//! - **SM-3** A mapping never replaces another one.
//! - **SM-4** A page that is allocated is zero, whatever it held before.
//! - **SM-5** No safe call races. A copy of shared bytes accesses each of them once; what was checked in a
//!   copy stays as it was.
//!
//! # Example
//! ```
//! use shared_memory::Region;
//!
//! let region = Region::create("example", 4096)?;
//! region.write(64, b"hello")?;
//! let mut copy = [0; 5];
//! region.read(64, &mut copy)?;
//! assert_eq!(&copy, b"hello");
//! # Ok::<_, shared_memory::RegionError>(())
//! ```
//!
//! # What it does not do
//! It orders nothing between processes: publish and wait with the words of `mailbox-atomics`. It does not
//! protect bytes from a hostile peer: copy them out, then check the copy.

mod arena;
mod available;
mod copy;
mod identity;
mod mapping;
mod region;

pub use arena::{Arena, PAGE};
pub use copy::{copy_from_shared, copy_to_shared};
pub use identity::{FNV_OFFSET, fnv1a, nonce};
pub use region::{Region, RegionError, Shared};
