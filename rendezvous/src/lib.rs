//! Ranks find each other, share anonymous memory and small notes, and learn of each other's end.
//!
//! There are two ways in. Ranks that one parent forks join the memory that it [prepared](Prepared) before. Ranks that were started by
//! anything else (a shell, `mpirun`, a test harness) and only know their rank and a common path [meet](Group::rendezvous) there. Either way
//! each gets a [`Group`]: a barrier, an exchange of notes between any of the ranks, a published phase, and errors that name who is missing,
//! dead or gone. Both backends stand on it.
//!
//! # Contract
//! - **RV-1** Nothing is created in the file system, so nothing is left there and nothing can be stale: the path is only a name.
//! - **RV-2** What lies at the path is refused by name at once, and so is a meeting that another user holds.
//! - **RV-3** Ranks may start in any order. A rank that goes away while others wait for it is told to all of them at once, by rank.
//! - **RV-4** When a meeting is over its name is free before any rank knows it: the next meeting at the same path cannot run into the last.
//! - **RV-5** An exchange returns on no member before every member has called, each note is taken once, and exchanges of other members or
//!   tags do not wait for it.
//! - **RV-6** A group that lost a rank it needed stays broken, and every later call repeats the first cause.
//! - **RV-7** A rank that leaves says why, and whoever waits for it hears that, unless a death explains it better. A rank whose wait ended
//!   without what it waited for has left.
//! - **RV-8** Members that disagree on who the members are hear it on every side, however late one comes, and may try again.
//! - **RV-9** Whoever waits at a meeting that ends is told how: a death with its rank and cause, a rank that gave up, or a deadline with those
//!   who are missing. A rank that comes after that starts the next meeting.
//!
//! # Example
//! ```
//! use comm_context::comm::{Membership, Phase, Timeout};
//! use rendezvous::{Group, Tag};
//!
//! let folder = std::env::temp_dir();
//! let path = folder.join(format!("example-{}", std::process::id()));
//! // One rank is a group too.
//! let group = Group::rendezvous(&path, Membership::new(0, 1)?, 1 << 20, Timeout::DEFAULT)?;
//! let step = group.step(Phase::Barrier, Timeout::DEFAULT)?;
//! group.barrier(&step)?;
//! let notes = group.exchange(&step, Tag { kind: 1, id: 7 }, &[0], b"hello")?;
//! assert_eq!(notes, [b"hello"]);
//! assert!(!path.exists());
//! # drop(step);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It works within one machine, one user and one network namespace. It allocates no windows; the extents that ranks own are plain addresses
//! for a backend to use. It does not authenticate ranks of the same user to each other.

#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod inspect;
mod launcher;
mod layout;
mod meet;
mod memory;
mod notes;
mod path;
mod ticket;
mod verdict;
mod watch;
mod word_wait;

pub use group::{Group, Prepared, Step, deadline};
pub use inspect::groups_of;
pub use launcher::{Launched, LauncherError, from_launcher};
pub use layout::{BROADCAST_BYTES, MESSAGE_BYTES};
pub use meet::{RendezvousError, UNKNOWN_YET, who_is_there};
pub use memory::region_error;
pub use notes::Tag;
pub use path::PathError;
pub use ticket::Ticket;

/// A number that no other meeting has had: the standard library's per-process random keys, the time and the process.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(deadline::monotonic_ns());
    hasher.write_u32(std::process::id());
    hasher.finish()
}
