//! The side of a rendezvous that connects to the leader.

use super::socket::{self, Received};
use super::wire::Message;
use super::{Attempt, Departure, LISTEN_GRACE, is_gone, pid_namespace, query, sleep_on, system};
use crate::error::RendezvousError;
use crate::memory::Memory;
use crate::memory::layout::layout_hash;
use crate::prepared::layout;
use child_process::ProcessWatch;
use comm_context::comm::CommError;
use deadline::Deadline;
use fault_points::{fault_call, fault_point};
use nix::errno::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank whose deadline passed waits for the leader's answer as to which ranks are missing.
const QUERY_TIMEOUT: Duration = Duration::from_millis(100);

/// A connection to the leader, and the leader's process as the kernel knows it.
struct Connection {
    socket: OwnedFd,
    pid: i32,
    process_watch: Option<ProcessWatch>,
}

impl Connection {
    fn has_ended(&self) -> bool {
        self.process_watch.as_ref().is_some_and(|watch| watch.death().is_some())
    }
}

/// Joins at the leader. `None` when there turned out to be no leader any more.
pub(super) fn join(attempt: &Attempt<'_>) -> Result<Option<Arc<Memory>>, CommError> {
    let socket = match fault_call!("rendezvous.connect")
        .map_err(Errno::from_raw)
        .and_then(|()| socket::connect(&attempt.name))
    {
        Ok(socket) => socket,
        // Too many connections wait there already.
        Err(Errno::EAGAIN) => return Ok(None),
        Err(Errno::ECONNREFUSED) => return not_listening(attempt),
        Err(errno) => return Err(system("connect", errno, attempt.path)),
    };
    let pid = match socket::peer(&socket).map_err(|errno| system("getsockopt", errno, attempt.path))? {
        Ok(pid) => pid,
        Err(uid) => {
            return Err(RendezvousError::ForeignOwner { path: attempt.path.to_owned(), uid }.into());
        }
    };
    attempt.refused_since.set(None);
    let process_watch = match ProcessWatch::of_process(pid) {
        Ok(watch) if watch.death().is_some() => return dead_holder(attempt, pid),
        Err(error) if is_gone(&error) => return dead_holder(attempt, pid),
        watch => watch.ok(),
    };
    attempt.dead_holder.set(None);
    fault_point!("rendezvous.connected");
    let join = Message::Join {
        hash: layout_hash(),
        rank: attempt.me.rank(),
        nranks: attempt.me.nranks(),
        extent: attempt.layout.extent_len() as u64,
        pid_namespace: pid_namespace(),
    };
    if socket::send(&socket, &join).is_err() {
        return Ok(None);
    }
    fault_point!("rendezvous.join_sent");
    await_memory(attempt, &Connection { socket, pid, process_watch })
}

/// The name is held and nobody listens. A leader may be about to; after a while it is somebody else.
fn not_listening(attempt: &Attempt<'_>) -> Result<Option<Arc<Memory>>, CommError> {
    let since = attempt.refused_since.get().unwrap_or_else(Instant::now);
    attempt.refused_since.set(Some(since));
    if since.elapsed() < LISTEN_GRACE {
        return Ok(None);
    }
    Err(attempt.name_held("does not listen there".to_owned()))
}

/// The process that listened is dead. The kernel closes what a process has open before it reports its death,
/// so the second connection to a dead process is to another that inherited the socket and will not answer.
fn dead_holder(attempt: &Attempt<'_>, pid: i32) -> Result<Option<Arc<Memory>>, CommError> {
    if attempt.dead_holder.replace(Some(pid)) != Some(pid) {
        return Ok(None);
    }
    Err(attempt.name_held(format!("inherited it from pid {pid}, which has ended, and does not answer")))
}

fn await_memory(attempt: &Attempt<'_>, leader: &Connection) -> Result<Option<Arc<Memory>>, CommError> {
    let nranks = attempt.me.nranks();
    let mut leader_rank = None;
    let mut ended = false;
    loop {
        match socket::receive(&leader.socket) {
            Received::Message(Message::Accepted { leader }, _) if leader < nranks => {
                leader_rank = Some(leader);
                fault_point!("rendezvous.accepted");
            }
            Received::Message(Message::Memory { nonce, extent }, fds) => {
                fault_point!("rendezvous.memory_received");
                return attach(attempt, leader, fds, nonce, extent).map(Some);
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
            // Nothing more comes from a process that has ended, also when another keeps its socket open.
            Received::Nothing if !ended => {
                ended = leader.has_ended();
                if !ended {
                    sleep_on(&[&leader.socket], attempt.deadline);
                }
            }
            Received::Message(..) | Received::End | Received::Nothing => {
                return match leader_rank {
                    // The leader was done, or ended before it read our message: this was not our rendezvous.
                    None => Ok(None),
                    Some(rank) => {
                        let watch = leader.process_watch.as_ref();
                        Err(Departure::of_process(rank, leader.pid, watch).into_error())
                    }
                };
            }
        }
        attempt.check_interrupt()?;
        if attempt.deadline.has_passed() {
            return Err(give_up(attempt, leader));
        }
    }
}

fn attach(
    attempt: &Attempt<'_>,
    leader: &Connection,
    fds: Vec<OwnedFd>,
    nonce: u64,
    extent: u64,
) -> Result<Arc<Memory>, CommError> {
    // The leader's numbers are checked with the sizes of the objects.
    let layout = layout(attempt.me.nranks(), usize::try_from(extent).unwrap_or(usize::MAX))?;
    if fds.len() < layout.objects() {
        return Err(leave(leader, out_of_descriptors()));
    }
    let memory = Memory::attach(fds, layout, nonce, None).map_err(|error| leave(leader, error))?;
    let _ = socket::send(&leader.socket, &Message::Attached);
    Ok(Arc::new(memory))
}

/// Tells the leader that this rank cannot join because of `error`. Returns `error`.
fn leave(leader: &Connection, error: CommError) -> CommError {
    let reason = format!("it could not join, because {error}");
    let _ = socket::send(&leader.socket, &Message::Leave { reason });
    error
}

/// The kernel drops descriptors for which the receiver has no room.
fn out_of_descriptors() -> CommError {
    let limit = socket::descriptor_limit();
    let what = format!("the group's memory: all {limit} descriptors of this process are in use");
    CommError::System { call: "recvmsg", errno: Errno::EMFILE as i32, what }
}

/// The deadline passed: asks the leader which ranks are missing, and tells it that this rank leaves.
fn give_up(attempt: &Attempt<'_>, leader: &Connection) -> CommError {
    let me = attempt.me;
    let answer = Deadline::after(QUERY_TIMEOUT).ok().and_then(|deadline| query(&attempt.name, deadline));
    let reason = format!("it gave up the rendezvous at its deadline of {:?}", attempt.deadline.limit());
    let _ = socket::send(&leader.socket, &Message::Leave { reason });
    let (missing, table) = answer.unwrap_or_else(|| (!(1 << me.rank()), attempt.holder_line()));
    attempt.timed_out((0..me.nranks()).filter(|rank| missing >> rank & 1 == 1).collect(), table)
}
