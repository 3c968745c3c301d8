//! The side of a meeting that comes to the host.

use super::socket::{self, Received};
use super::wire::Message;
use super::{Arrival, Departure, RendezvousError, ask, sleep_on, system};
use crate::layout::layout_hash;
use crate::memory::Memory;
use child_process::ProcessWatch;
use comm_context::comm::CommError;
use deadline::Deadline;
use fault_points::{fault_call, fault_point};
use nix::errno::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a rank that gives up asks the host who is missing.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// A connection to the host, and the host's process by the kernel's word.
struct Visit {
    socket: OwnedFd,
    pid: i32,
    process_watch: Option<ProcessWatch>,
}

/// Joins the host's meeting. `None` when there turned out to be no host any more.
pub(super) fn visit(arrival: &Arrival<'_>) -> Result<Option<Arc<Memory>>, CommError> {
    let socket = match fault_call!("rendezvous.connect").and_then(|()| socket::visit(&arrival.name)) {
        Ok(socket) => socket,
        Err(Errno::ECONNREFUSED | Errno::EAGAIN) => return Ok(None),
        Err(errno) => return Err(system("connect", errno, arrival.path)),
    };
    let pid = match socket::peer(&socket).map_err(|errno| system("getsockopt", errno, arrival.path))? {
        Ok(pid) => pid,
        Err(uid) => {
            return Err(
                RendezvousError::ForeignOwner { path: arrival.path.display().to_string(), uid }.into()
            );
        }
    };
    fault_point!("rendezvous.connected");
    let join = Message::Join {
        hash: layout_hash(),
        rank: arrival.me.rank(),
        nranks: arrival.me.nranks(),
        extent: arrival.layout.extent as u64,
    };
    if socket::send(&socket, &join, None).is_err() {
        return Ok(None);
    }
    fault_point!("rendezvous.asked");
    wait_to_be_let_in(arrival, &Visit { socket, pid, process_watch: ProcessWatch::of_process(pid).ok() })
}

fn wait_to_be_let_in(arrival: &Arrival<'_>, host: &Visit) -> Result<Option<Arc<Memory>>, CommError> {
    let nranks = arrival.me.nranks();
    let mut host_rank = None;
    loop {
        match socket::receive(&host.socket) {
            Received::Message(Message::Seated { host }, _) if host < nranks => {
                host_rank = Some(host);
                fault_point!("rendezvous.accepted");
            }
            Received::Message(Message::Welcome { nonce }, Some(fd)) => {
                fault_point!("rendezvous.welcomed");
                return Memory::attach(fd, arrival.layout, nonce).map(|memory| Some(Arc::new(memory)));
            }
            Received::Message(Message::Refused { text }, _) => {
                return Err(RendezvousError::Refused {
                    path: arrival.path.display().to_string(),
                    reason: text,
                }
                .into());
            }
            Received::Message(Message::Lost { departed, pid, reason }, _) => {
                return match Departure::decode(departed, pid, reason, nranks) {
                    Some(departure) => Err(departure.into_error()),
                    None => Ok(None),
                };
            }
            Received::Message(Message::Table { missing, text }, _) => {
                let missing = (0..nranks).filter(|rank| missing >> rank & 1 == 1).collect();
                return Err(arrival.timed_out(missing, text));
            }
            Received::Message(..) | Received::End => {
                return match host_rank {
                    // The host had finished, or ended before it read our hello: not our meeting.
                    None => Ok(None),
                    Some(rank) => {
                        Err(Departure::of_process(rank, host.pid, host.process_watch.as_ref()).into_error())
                    }
                };
            }
            Received::Nothing => sleep_on(&[&host.socket], arrival.deadline),
        }
        if arrival.deadline.has_passed() {
            return Err(give_up(arrival, host));
        }
    }
}

/// The deadline passed: learns from the host who is missing, and tells it that this rank does not wait any longer.
fn give_up(arrival: &Arrival<'_>, host: &Visit) -> CommError {
    let me = arrival.me;
    let asked = Deadline::after(LAST_WORDS).ok().and_then(|deadline| ask(&arrival.name, deadline));
    let limit = arrival.deadline.limit();
    let text = format!("it gave up the meeting when its time of {limit:?} was over");
    let _ = socket::send(&host.socket, &Message::Refused { text }, None);
    let (missing, table) = asked.unwrap_or((!(1 << me.rank()), String::new()));
    arrival.timed_out((0..me.nranks()).filter(|rank| missing >> rank & 1 == 1).collect(), table)
}
