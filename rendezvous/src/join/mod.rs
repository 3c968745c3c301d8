//! Independent processes join at a path: the first becomes the leader, the others connect to it.
//!
//! The name is an abstract Unix socket, so exactly one process holds it and the kernel frees it when that
//! process ends. The leader accepts each rank that joins and tells all of them at once when one goes away.
//! When every rank has joined, the leader frees the name *before* it sends the group's memory to any of them:
//! a rank that has the memory can start the next rendezvous at the same path and cannot run into this one.

mod departure;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod joiner;
mod leader;
mod socket;
mod wire;

use crate::group::{Group, deadline};
use crate::memory::layout::Layout;
use crate::path::socket_name;
use crate::prepared::layout;
use comm_context::comm::{CommError, Membership, Phase, Timeout};
use deadline::Deadline;
use departure::Departure;
use fault_points::{fault_call, fault_point, fault_rank};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::OwnedFd;
use std::path::Path;
use wire::Message;

/// The fault points of [`Group::rendezvous`] at which a rank can end before the ranks that depend on it know
/// of it. They cannot name it then and run into their deadlines. For tests that end ranks at every point.
pub const UNANNOUNCED_POINTS: &[&str] = &[
    // No other process knows that it exists.
    "rendezvous.path_checked",
    "rendezvous.bind",
    "rendezvous.connect",
    "rendezvous.connected",
    // It has asked to join, and the leader may find it dead before it accepts it.
    "rendezvous.join_sent",
    // It holds the name, and has accepted no rank yet.
    "rendezvous.leader.bound",
    // It has accepted some ranks. Those that come later find no leader, lead the next rendezvous and wait for
    // it.
    "rendezvous.leader.accepted",
    // The leader aborts the rendezvous, and a rank that comes after that finds nobody who knows of the death.
    // That the ranks that have joined name it is shown in tests/proc_rendezvous.rs.
    "rendezvous.accepted",
];

/// One rank's attempt to join.
struct Attempt<'a> {
    path: &'a Path,
    /// The name that `path` stands for.
    name: String,
    me: Membership,
    layout: Layout,
    deadline: Deadline,
}

impl Group {
    /// Joins the other ranks at `path`. Each owns `extent` bytes of the group's memory, the same on every
    /// rank.
    ///
    /// Returns when all have joined. Nothing is ever created at the path.
    pub fn rendezvous(
        path: &Path,
        me: Membership,
        extent: usize,
        within: Timeout,
    ) -> Result<Self, CommError> {
        fault_rank!(me.rank());
        let name = socket_name(path)?;
        fault_point!("rendezvous.path_checked");
        let layout = layout(me.nranks(), extent)?;
        let attempt = Attempt { path, name, me, layout, deadline: deadline(within)? };
        loop {
            let memory = match fault_call!("rendezvous.bind").and_then(|()| socket::listen(&attempt.name)) {
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
                return Err(attempt.timed_out(others, String::new()));
            }
        }
    }
}

/// The ranks that wait at `path` right now, one line each; `None` when there are none.
pub fn ranks_at(path: &Path, within: Timeout) -> Result<Option<String>, CommError> {
    let name = socket_name(path)?;
    Ok(query(&name, deadline(within)?).map(|(_, table)| table))
}

/// Asks the leader that holds `name` for the ranks that have not joined, a bit for each, and for its table.
fn query(name: &str, deadline: Deadline) -> Option<(u64, String)> {
    let socket = socket::connect(name).ok()?;
    socket::send(&socket, &Message::Query, None).ok()?;
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
}

/// Sleeps until one of the sockets is readable, at most until the deadline.
fn sleep_on(sockets: &[&OwnedFd], deadline: Deadline) {
    let mut fds: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|socket| PollFd::new(std::os::fd::AsFd::as_fd(*socket), PollFlags::POLLIN))
        .collect();
    let left = deadline.left().as_millis().min(60_000) as u16;
    // Interrupted or not, the caller checks everything again.
    let _ = poll(&mut fds, PollTimeout::from(left + 1));
}

fn system(call: &'static str, errno: Errno, path: &Path) -> CommError {
    CommError::System { call, errno: errno as i32, what: format!("the rendezvous at {}", path.display()) }
}
