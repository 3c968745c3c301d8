//! Independent processes meet: the first to come is the host, the others visit it.
//!
//! The name is an abstract Unix socket, so exactly one process has it and the kernel takes it back when that process ends. The host
//! seats each rank that comes, tells all at once when one of them goes away, and when everybody is there it gives up the name *before* it
//! lets anyone in: nobody who was let in can meet the remains of this meeting when it starts the next one at the same path.

mod departure;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod guest;
mod host;
mod socket;
mod wire;

use crate::group::{Group, deadline, layout};
use crate::path::socket_name;
use comm_context::comm::{CommError, Membership, Phase, Timeout};
use deadline::Deadline;
use departure::Departure;
use fault_points::{fault_call, fault_point, fault_rank};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::OwnedFd;
use std::path::Path;
use wire::Message;

/// The fault points of [`Group::rendezvous`] at which a rank can end before anybody who matters knows that it is there: nobody can name it then, so a
/// deadline must. For tests that let ranks end at every point.
pub const UNKNOWN_YET: &[&str] = &[
    // It has told nobody that it exists.
    "rendezvous.path_checked",
    "rendezvous.bind",
    "rendezvous.connect",
    "rendezvous.connected",
    // It has asked for a seat, and the host may find it dead before it gives it one.
    "rendezvous.asked",
    // It holds the name, and no rank has a seat yet.
    "rendezvous.leader.bound",
    // Some ranks have a seat, others come later and find no host: they hold the next meeting and wait for it.
    "rendezvous.leader.accepted",
    // The host calls the meeting off, and a rank that comes after that finds nobody who could tell it. That those who are at the meeting
    // are told is shown in tests/proc_meet.rs.
    "rendezvous.accepted",
];

/// What a rank brings to a meeting.
struct Arrival<'a> {
    path: &'a Path,
    name: String,
    me: Membership,
    layout: crate::layout::Layout,
    deadline: Deadline,
}

impl Group {
    /// Meets the other ranks at `path`. Each owns `extent` bytes of the group's memory, the same on every rank.
    ///
    /// Returns when all are there. Nothing is ever created at the path.
    pub fn rendezvous(
        path: &Path,
        me: Membership,
        extent: usize,
        within: Timeout,
    ) -> Result<Self, CommError> {
        fault_rank!(me.rank());
        let name = socket_name(path)?;
        fault_point!("rendezvous.path_checked");
        let arrival =
            Arrival { path, name, me, layout: layout(me.nranks(), extent)?, deadline: deadline(within)? };
        loop {
            let memory = match fault_call!("rendezvous.bind").and_then(|()| socket::host(&arrival.name)) {
                Ok(listener) => {
                    fault_point!("rendezvous.leader.bound");
                    Some(host::gather(&arrival, listener)?)
                }
                Err(Errno::EADDRINUSE) => guest::visit(&arrival)?,
                Err(errno) => return Err(system("bind", errno, path)),
            };
            // None: the host had just finished with its group, or went away before it knew us; the name is free again.
            if let Some(memory) = memory {
                fault_point!("rendezvous.attached");
                return Self::enter_memory(me, memory, arrival.deadline);
            }
            if arrival.deadline.has_passed() {
                return Err(arrival
                    .timed_out((0..me.nranks()).filter(|rank| *rank != me.rank()).collect(), String::new()));
            }
        }
    }
}

/// Who is at the meeting at `path` right now, one line each; `None` when there is no meeting.
pub fn who_is_there(path: &Path, within: Timeout) -> Result<Option<String>, CommError> {
    let name = socket_name(path)?;
    Ok(ask(&name, deadline(within)?).map(|(_, table)| table))
}

/// Asks whoever holds the name who is there: a bit for each rank that is not, and the table.
fn ask(name: &str, deadline: Deadline) -> Option<(u64, String)> {
    let socket = socket::visit(name).ok()?;
    socket::send(&socket, &Message::Ask, None).ok()?;
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

impl Arrival<'_> {
    fn timed_out(&self, missing: Vec<u32>, table: String) -> CommError {
        let (waited, limit) = (self.deadline.elapsed(), self.deadline.limit());
        CommError::TimedOut { phase: Phase::Init, waited, limit, missing, table }
    }
}

/// Sleeps until one of the sockets has something to say, at most until the deadline.
fn sleep_on(sockets: &[&OwnedFd], deadline: Deadline) {
    let mut fds: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|socket| PollFd::new(std::os::fd::AsFd::as_fd(*socket), PollFlags::POLLIN))
        .collect();
    let left = deadline.left().as_millis().min(60_000) as u16;
    // Interrupted or not, the caller looks at everything again.
    let _ = poll(&mut fds, PollTimeout::from(left + 1));
}

fn system(call: &'static str, errno: Errno, path: &Path) -> CommError {
    CommError::System { call, errno: errno as i32, what: format!("the meeting at {}", path.display()) }
}

/// A meeting that cannot be, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// Another user holds the name.
    #[error(
        "the meeting at {path} is held by a process of another user (uid {uid}); choose a path in a folder of your own"
    )]
    ForeignOwner {
        /// The path.
        path: String,
        /// The other user.
        uid: u32,
    },
    /// The host would not have us.
    #[error("refused at the meeting at {path}: {reason}")]
    Refused {
        /// The path.
        path: String,
        /// The host's words.
        reason: String,
    },
}

impl From<RendezvousError> for CommError {
    fn from(error: RendezvousError) -> Self {
        Self::Backend { what: "init".to_owned(), source: std::sync::Arc::new(error) }
    }
}
