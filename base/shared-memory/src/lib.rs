//! Anonymous memory that several processes share.
//!
//! A [`Region`] is a sealed memfd: it has no name, cannot change its size, and has memory behind it before
//! it is written. It is inherited by a fork at the same address, or passed on as a descriptor. An
//! [`Arena`] allocates pages of a sparse region. A region may be made of several objects ([`Parts`]), in which
//! processes reserve memory side by side. [`slice`](Region::slice) copies typed values in and out, and a
//! [`ReadOnlyRegion`] is for observers. [`copy_from_shared`] and [`copy_to_shared`] are the one
//! copy for bytes that others may write at the same time.
//!
//! # Contract
//! - **SM-1** A region has no name, cannot be resized by any process, and has its memory reserved before
//!   use: nothing is left behind, and there is no SIGBUS.
//! - **SM-2** Too little memory is an error that says need, have and which limit, never a signal.
//! - **SM-3** A mapping never replaces another one.
//! - **SM-4** A page that is allocated is zero, whatever it held before, and has one owner: a second free
//!   of it is refused.
//! - **SM-5** No safe call races. A copy of shared bytes accesses each of them once; what was checked in a
//!   copy stays as it was.
//! - **SM-6** Mappings are left out of core dumps, which would put memory behind every hole of a sparse
//!   region.
//! - **SM-7** Processes that announce what they reserve never take more than there is between them: what
//!   others are about to take counts as gone.
//! - **SM-8** A [`ReadOnlyRegion`] cannot be written by the process that attached it.
//! - **SM-9** An error for too little memory or too few addresses names the limit that was hit, with what it
//!   leaves: need is more than have, unless the kernel gives no reason.
//! - **SM-10** [`GatheredPages`] are second addresses of shared memory, never of any other, until they are dropped.
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

mod addresses;
mod arena;
mod available;
mod copy;
mod error;
mod gathered;
mod identity;
mod mapping;
mod parts;
mod read_only;
mod region;
mod slice;

pub use addresses::fitting_addresses;
pub use arena::{Arena, PAGE};
pub use available::{check_memory, why_refused};
pub use copy::{copy_from_shared, copy_to_shared};
pub use error::{Limit, RegionError};
pub use gathered::GatheredPages;
pub use identity::{FNV_OFFSET, fnv1a, nonce};
pub use parts::Parts;
pub use read_only::ReadOnlyRegion;
pub use region::{Region, Shared};
pub use slice::{Plain, SharedReadSlice, SharedSlice};
