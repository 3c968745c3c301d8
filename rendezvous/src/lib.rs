//! Ranks find each other, share anonymous memory and small messages, and detect each other's end.
//!
//! There are two ways to form a group. Ranks that one parent starts join memory that it has
//! [prepared](Prepared). Ranks that were started by anything else (a shell, `mpirun`, a test harness) and
//! know only their rank and a common path [join at that path](Group::rendezvous): the first becomes the
//! leader, the others connect to it. Either way each gets a [`Group`]: a barrier, an exchange of messages
//! between any of the ranks, one broadcast, a published phase, and errors that name the rank that is missing,
//! dead or gone. Both backends use it.
//!
//! # Contract
//! - **RV-1** Nothing is created in the file system, so nothing is left there and nothing can be stale: the
//!   path is only a name.
//! - **RV-2** A path where something exists is refused at once with what it is, and so is a name that another
//!   user holds. A process that holds the name and does not answer is named.
//! - **RV-3** Ranks may start in any order. When a rank goes away while others wait for it, all of them fail
//!   at once with its number.
//! - **RV-4** The name is free before any rank knows that the rendezvous is over: the next rendezvous at the
//!   same path cannot run into the last.
//! - **RV-5** An exchange returns on no member before every member has called, each message is taken once,
//!   and exchanges of other members or tags do not wait for it.
//! - **RV-6** A group that lost a rank it needed stays broken, and every later call repeats the first cause.
//! - **RV-7** A rank that leaves gives a reason, and ranks that wait for it fail with that reason, unless a
//!   death explains it better. A rank whose wait failed has left.
//! - **RV-8** When members disagree on the list of members, the exchange fails on every side, however late
//!   one comes, and may be tried again.
//! - **RV-9** When a rendezvous fails, every rank that has joined fails with the cause: a death with its rank,
//!   a rank that gave up or cannot attach the memory, what two ranks disagree on, or a deadline with the ranks
//!   that are missing. A rank that comes later starts the
//!   next rendezvous.
//! - **RV-10** Bytes from a peer are copied, then bounded and checked; a copy of a message is whole. No peer
//!   can change what was checked.
//! - **RV-11** A group belongs to the process that joined. In a forked copy of it, leaving and dropping change
//!   nothing, and an exchange is refused.
//! - **RV-12** Ranks on several hosts join at rank 0's address, `tcp://HOST:PORT`. Only rank 0 listens, only there and only
//!   until all have joined. Only processes that prove that they know the token join; the token never crosses the network,
//!   and each message is tagged with a key made of it. A process that does not know it, whatever it sends or does not
//!   send, keeps nobody from joining.
//! - **RV-13** On several hosts a lost connection is a death: at once when it is closed, after ten seconds when nothing comes
//!   any more. All that is said above holds there as well, but for extents, which are a rank's own. Everything passes
//!   through rank 0: when it leaves or is lost, the group is at its end.
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
//! let messages = group.exchange(&step, Tag { kind: 1, id: 7 }, &[0], b"hello")?;
//! assert_eq!(messages, [b"hello"]);
//! assert!(!path.exists());
//! # drop(step);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! A path works within one machine, one user, one network namespace and one pid namespace; ranks in different pid
//! namespaces are refused. It allocates no windows; the extents that
//! ranks own are plain addresses for a backend to use. It does not authenticate ranks of the same user to
//! each other. Between hosts it encrypts nothing.

mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod hosts;
mod inspect;
mod join;
mod launcher;
mod memory;
mod path;
mod prepared;

pub use error::{RendezvousError, region_error};
pub use group::{Group, KernelWords, RESULT_BYTES, Step, Tag, deadline};
pub use hosts::{HostAddress, HostsError};
pub use inspect::groups_of;
pub use join::ranks_at;
pub use launcher::{Launched, LauncherError, address_from_launcher, from_launcher};
pub use memory::layout::{BROADCAST_BYTES, MESSAGE_BYTES};
pub use prepared::{Prepared, Ticket};
