//! Child processes that end with their parent, and watches that report when a process has died.
//!
//! A [`Child`] is forked, or started from this program's file ([`Child::respawn`]). A [`ProcessWatch`]
//! is a descriptor that shows whether one process lives. A closure over some of them is a
//! [`Watch`](deadline::Watch) for the wait of `mailbox-atomics`.
//!
//! # Contract
//! - **CP-1** A child is killed when its parent ends, at any point, in whatever way.
//! - **CP-2** A child inherits only the descriptors that it needs.
//! - **CP-3** Dropping a [`Child`] kills and reaps it; it leaves no zombie. One that is inside the kernel for longer is not
//!   waited for: it is reaped, once it has ended, when another child is started or dropped.
//! - **CP-4** Every end is reported as it was: exit code, signal, or unknown where only another process
//!   got the status. A child notes its exit code itself, so that it is known although SIGCHLD is ignored,
//!   or the program around reaps all its children.
//! - **CP-5** A signal goes to the child or to nobody: a process that has its number later gets none.
//! - **CP-6** A child runs no signal handler of its parent, and nothing is blocked in it.
//! - **CP-7** What C code in a child prints with `printf` is written when the child exits, once.
//! - **CP-8** A forked child takes no lock that a thread of its parent may have held: its panics go
//!   straight to standard error, and [`is_forked_child`] tells code that logs to be silent.
//! - **CP-9** A [`DeathThread`] reports a death at once, and again until it is noticed.
//!
//! # Example
//! ```
//! use child_process::Child;
//! use deadline::{Deadline, HowDied};
//! use std::time::Duration;
//!
//! // SAFETY: the body takes no lock that another thread could hold.
//! let child = unsafe { Child::fork(&[], || 7) }?;
//! let ended = child.reap(Deadline::after(Duration::from_secs(5))?);
//! assert_eq!(ended, Some(HowDied::Exited(7)));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It does not restart children and passes no messages. Linux only.

mod child;
mod death_thread;
mod forked;
mod left;
mod pidfd;
mod pipes;
mod process_watch;
mod respawn;
mod stdio;

pub use child::{Child, PANIC_EXIT_CODE, exit};
pub use death_thread::{DeathThread, Noticed};
pub use forked::is_forked_child;
pub use process_watch::ProcessWatch;
pub use respawn::{NotRespawned, respawned};
