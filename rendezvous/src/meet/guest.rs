//! The side of a meeting that comes to the host.

use super::socket::{self, Received};
use super::wire::Message;
use super::{Arrival, MeetError, sleep_on, system};
use crate::layout::layout_hash;
use crate::memory::Memory;
use comm_context::comm::{CommError, Death, Phase};
use nix::errno::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Joins the host's meeting. `None` when there turned out to be no host any more.
pub(super) fn visit(arrival: &Arrival<'_>) -> Result<Option<Arc<Memory>>, CommError> {
    let socket = match socket::visit(&arrival.name) {
        Ok(socket) => socket,
        Err(Errno::ECONNREFUSED | Errno::EAGAIN) => return Ok(None),
        Err(errno) => return Err(system("connect", errno, arrival.path)),
    };
    let host_pid = match socket::peer(&socket).map_err(|errno| system("getsockopt", errno, arrival.path))? {
        Ok(pid) => pid,
        Err(uid) => {
            return Err(MeetError::ForeignOwner { path: arrival.path.display().to_string(), uid }.into());
        }
    };
    let join = Message::Join {
        hash: layout_hash(),
        rank: arrival.me.rank(),
        nranks: arrival.me.nranks(),
        extent: arrival.layout.extent as u64,
    };
    if socket::send(&socket, &join, None).is_err() {
        return Ok(None);
    }
    wait_to_be_let_in(arrival, &socket, host_pid)
}

fn wait_to_be_let_in(
    arrival: &Arrival<'_>,
    socket: &OwnedFd,
    host_pid: i32,
) -> Result<Option<Arc<Memory>>, CommError> {
    let mut host_rank = None;
    loop {
        match socket::receive(socket) {
            Received::Message(Message::Seated { host }, _) => host_rank = Some(host),
            Received::Message(Message::Welcome { nonce }, Some(fd)) => {
                return Memory::attach(fd, arrival.layout, nonce).map(|memory| Some(Arc::new(memory)));
            }
            Received::Message(Message::Refused { blame, text }, _) => {
                return Err(refused(arrival, blame, text));
            }
            Received::Message(..) | Received::End => {
                return match host_rank {
                    // The host had finished, or ended before it read our hello: not our meeting.
                    None => Ok(None),
                    Some(rank) => Err(CommError::PeerDied {
                        rank,
                        pid: u32::try_from(host_pid).ok(),
                        how: Death::Vanished,
                        phase: Phase::Init,
                    }),
                };
            }
            Received::Nothing => sleep_on(&[socket], arrival.deadline),
        }
        if arrival.deadline.has_passed() {
            let others = (0..arrival.me.nranks()).filter(|rank| *rank != arrival.me.rank()).collect();
            return Err(arrival.timed_out(others, String::new()));
        }
    }
}

/// The host's no, as an error: the death of a rank, or a sentence.
fn refused(arrival: &Arrival<'_>, blame: u32, text: String) -> CommError {
    match blame.checked_sub(1).filter(|rank| *rank < arrival.me.nranks()) {
        Some(rank) if rank != arrival.me.rank() => {
            CommError::PeerDied { rank, pid: text.parse().ok(), how: Death::Vanished, phase: Phase::Init }
        }
        _ => MeetError::Refused { path: arrival.path.display().to_string(), reason: text }.into(),
    }
}
