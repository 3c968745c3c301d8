//! The side of a rendezvous that connects to the leader.

use super::socket::{self, Received};
use super::wire::Message;
use super::{Attempt, Departure, query, sleep_on, system};
use crate::error::RendezvousError;
use crate::memory::Memory;
use crate::memory::layout::layout_hash;
use child_process::ProcessWatch;
use comm_context::comm::CommError;
use deadline::Deadline;
use fault_points::{fault_call, fault_point};
use nix::errno::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a rank whose deadline passed waits for the leader's answer as to which ranks are missing.
const QUERY_TIMEOUT: Duration = Duration::from_millis(100);

/// A connection to the leader, and the leader's process as the kernel knows it.
struct Connection {
    socket: OwnedFd,
    pid: i32,
    process_watch: Option<ProcessWatch>,
}

/// Joins at the leader. `None` when there turned out to be no leader any more.
pub(super) fn join(attempt: &Attempt<'_>) -> Result<Option<Arc<Memory>>, CommError> {
    let socket = match fault_call!("rendezvous.connect").and_then(|()| socket::connect(&attempt.name)) {
        Ok(socket) => socket,
        Err(Errno::ECONNREFUSED | Errno::EAGAIN) => return Ok(None),
        Err(errno) => return Err(system("connect", errno, attempt.path)),
    };
    let pid = match socket::peer(&socket).map_err(|errno| system("getsockopt", errno, attempt.path))? {
        Ok(pid) => pid,
        Err(uid) => {
            return Err(RendezvousError::ForeignOwner { path: attempt.path.to_owned(), uid }.into());
        }
    };
    fault_point!("rendezvous.connected");
    let join = Message::Join {
        hash: layout_hash(),
        rank: attempt.me.rank(),
        nranks: attempt.me.nranks(),
        extent: attempt.layout.extent_len() as u64,
    };
    if socket::send(&socket, &join, None).is_err() {
        return Ok(None);
    }
    fault_point!("rendezvous.join_sent");
    let process_watch = ProcessWatch::of_process(pid).ok();
    await_memory(attempt, &Connection { socket, pid, process_watch })
}

fn await_memory(attempt: &Attempt<'_>, leader: &Connection) -> Result<Option<Arc<Memory>>, CommError> {
    let nranks = attempt.me.nranks();
    let mut leader_rank = None;
    loop {
        match socket::receive(&leader.socket) {
            Received::Message(Message::Accepted { leader }, _) if leader < nranks => {
                leader_rank = Some(leader);
                fault_point!("rendezvous.accepted");
            }
            Received::Message(Message::Memory { nonce }, Some(fd)) => {
                fault_point!("rendezvous.memory_received");
                return Memory::attach(fd, attempt.layout, nonce).map(|memory| Some(Arc::new(memory)));
            }
            Received::Message(Message::Refused { reason }, _) => {
                return Err(RendezvousError::Refused { path: attempt.path.to_owned(), reason }.into());
            }
            Received::Message(Message::Lost { departed, pid, reason }, _) => {
                return match Departure::decode(departed, pid, reason, nranks) {
                    Some(departure) => Err(departure.into_error()),
                    None => Ok(None),
                };
            }
            Received::Message(Message::Table { missing, text }, _) => {
                let missing = (0..nranks).filter(|rank| missing >> rank & 1 == 1).collect();
                return Err(attempt.timed_out(missing, text));
            }
            Received::Message(..) | Received::End => {
                return match leader_rank {
                    // The leader was done, or ended before it read our message: this was not our rendezvous.
                    None => Ok(None),
                    Some(rank) => {
                        let watch = leader.process_watch.as_ref();
                        Err(Departure::of_process(rank, leader.pid, watch).into_error())
                    }
                };
            }
            Received::Nothing => sleep_on(&[&leader.socket], attempt.deadline),
        }
        if attempt.deadline.has_passed() {
            return Err(give_up(attempt, leader));
        }
    }
}

/// The deadline passed: asks the leader which ranks are missing, and tells it that this rank leaves.
fn give_up(attempt: &Attempt<'_>, leader: &Connection) -> CommError {
    let me = attempt.me;
    let answer = Deadline::after(QUERY_TIMEOUT).ok().and_then(|deadline| query(&attempt.name, deadline));
    let reason = format!("it gave up the rendezvous at its deadline of {:?}", attempt.deadline.limit());
    let _ = socket::send(&leader.socket, &Message::Leave { reason }, None);
    let (missing, table) = answer.unwrap_or((!(1 << me.rank()), String::new()));
    attempt.timed_out((0..me.nranks()).filter(|rank| missing >> rank & 1 == 1).collect(), table)
}
