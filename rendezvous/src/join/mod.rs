//! Independent processes join at a path: the first becomes the leader, the others connect to it.
//!
//! The name is an abstract Unix socket, so exactly one process holds it and the kernel frees it when that
//! process ends. The leader accepts each rank that joins and tells all of them at once when one goes away.
//! When every rank has joined, the leader frees the name *before* it sends the group's memory to any of them:
//! a rank that has the memory can start the next rendezvous at the same path and cannot run into this one.

mod departure;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod holder;
mod joiner;
mod leader;
mod socket;
mod wire;

use crate::error::{INTERRUPTED, RendezvousError};
use crate::group::{Group, deadline};
use crate::hosts::{self, HostAddress};
use crate::memory::layout::Layout;
use crate::path::socket_name;
use crate::prepared::layout;
use comm_context::comm::{CommError, Membership, Phase, Timeout};
use deadline::Deadline;
use departure::Departure;
use fault_points::{fault_call, fault_point, fault_rank};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use wire::Message;

/// The longest sleep on sockets: a process that ends while another keeps its sockets open is noticed then.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The pause before a rank tries the name again.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// A leader listens right after it has taken the name. One that does not within this time is something else.
const LISTEN_GRACE: Duration = Duration::from_secs(1);

/// One rank's attempt to join.
struct Attempt<'a> {
    path: &'a Path,
    /// The name that `path` stands for.
    name: String,
    me: Membership,
    layout: Layout,
    deadline: Deadline,
    /// Since when the name is held and nobody listens.
    refused_since: Cell<Option<Instant>>,
    /// The process that listened at the name, found dead at the last connect.
    dead_holder: Cell<Option<i32>>,
}

impl Group {
    /// Joins the other ranks at `path`. Each owns as many bytes of the group's memory as the one that asks for
    /// the smallest `extent`, rounded up.
    ///
    /// Returns when all have joined. Nothing is ever created at the path. A path of the form `tcp://HOST:PORT` is
    /// the address of rank 0, for ranks on several hosts; `env://` takes it from the [launcher](crate::from_launcher).
    /// Such ranks share no extents: each reaches its own only.
    pub fn rendezvous(
        path: &Path,
        me: Membership,
        extent: usize,
        within: Timeout,
    ) -> Result<Self, CommError> {
        fault_rank!(me.rank());
        if let Some(address) = HostAddress::of_path(path) {
            return hosts::rendezvous(&address?, me, layout(me.nranks(), extent)?, deadline(within)?);
        }
        let name = socket_name(path)?;
        fault_point!("rendezvous.path_checked");
        let layout = layout(me.nranks(), extent)?;
        let deadline = deadline(within)?;
        let (refused_since, dead_holder) = (Cell::new(None), Cell::new(None));
        let attempt = Attempt { path, name, me, layout, deadline, refused_since, dead_holder };
        loop {
            let listening = fault_call!("rendezvous.bind").map_err(Errno::from_raw);
            let memory = match listening.and_then(|()| socket::listen(&attempt.name)) {
                Ok(listener) => {
                    fault_point!("rendezvous.leader.bound");
                    Some(leader::lead(&attempt, listener)?)
                }
                Err(Errno::EADDRINUSE) => joiner::join(&attempt)?,
                Err(errno) => return Err(system("bind", errno, path)),
            };
            // None: the leader was done with its group or ended before it knew this rank. The name is free
            // again.
            if let Some(memory) = memory {
                fault_point!("rendezvous.attached");
                return Self::enter(me, memory, attempt.deadline);
            }
            if attempt.deadline.has_passed() {
                let others = (0..me.nranks()).filter(|rank| *rank != me.rank()).collect();
                return Err(attempt.timed_out(others, attempt.holder_line()));
            }
            std::thread::sleep(RETRY_PAUSE.min(attempt.deadline.left()));
        }
    }
}

/// The ranks that wait at `path` right now, one line each; `None` when there are none.
pub fn ranks_at(path: &Path, within: Timeout) -> Result<Option<String>, CommError> {
    if let Some(address) = HostAddress::of_path(path) {
        return hosts::ranks_at(&address?, deadline(within)?);
    }
    let name = socket_name(path)?;
    Ok(query(&name, deadline(within)?).map(|(_, table)| table))
}

/// Asks the leader that holds `name` for the ranks that have not joined, a bit for each, and for its table.
fn query(name: &str, deadline: Deadline) -> Option<(u64, String)> {
    let socket = socket::connect(name).ok()?;
    socket::send(&socket, &Message::Query).ok()?;
    loop {
        match socket::receive(&socket) {
            socket::Received::Message(Message::Table { missing, text }, _) => return Some((missing, text)),
            socket::Received::Message(..) | socket::Received::End => return None,
            socket::Received::Nothing => sleep_on(&[&socket], deadline),
        }
        if deadline.has_passed() {
            return None;
        }
    }
}

impl Attempt<'_> {
    fn timed_out(&self, missing: Vec<u32>, table: String) -> CommError {
        let (waited, limit) = (self.deadline.elapsed(), self.deadline.limit());
        CommError::TimedOut { phase: Phase::Init, waited, limit, missing, table }
    }

    /// Fails when this process is asked to stop.
    fn check_interrupt(&self) -> Result<(), CommError> {
        if !mailbox_atomics::is_interrupted() {
            return Ok(());
        }
        Err(CommError::Aborted { phase: Phase::Init, reason: INTERRUPTED.to_owned() })
    }

    /// The process that holds the name and does not answer, in the place of a leader's table.
    fn holder_line(&self) -> String {
        let line = |holder| format!("  the rendezvous name is held by {holder}, which does not answer");
        holder::describe(&self.name).map_or(String::new(), line)
    }

    fn name_held(&self, why: String) -> CommError {
        let holder =
            holder::describe(&self.name).unwrap_or_else(|| "a process that has just ended".to_owned());
        RendezvousError::NameHeld { path: self.path.to_owned(), holder, why }.into()
    }
}

/// The pid namespace of this process; 0 when it is not known.
fn pid_namespace() -> u64 {
    nix::sys::stat::stat("/proc/self/ns/pid").map_or(0, |found| found.st_ino)
}

/// Whether a process could not be watched because it has ended.
pub(crate) fn is_gone(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// Sleeps until one of the sockets is readable, at most [`POLL_INTERVAL`] and until the deadline.
fn sleep_on(sockets: &[&OwnedFd], deadline: Deadline) {
    let mut fds: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|socket| PollFd::new(std::os::fd::AsFd::as_fd(*socket), PollFlags::POLLIN))
        .collect();
    let left = deadline.left().min(POLL_INTERVAL).as_millis() as u16;
    // Interrupted or not, the caller checks everything again.
    let _ = poll(&mut fds, PollTimeout::from(left + 1));
}

fn system(call: &'static str, errno: Errno, path: &Path) -> CommError {
    CommError::System { call, errno: errno as i32, what: format!("the rendezvous at {}", path.display()) }
}
