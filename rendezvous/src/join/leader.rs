//! The side of a rendezvous that holds the name.

use super::socket::{self, Received};
use super::wire::Message;
use super::{Attempt, Departure, is_gone, pid_namespace, sleep_on, system};
use crate::error::RendezvousError;
use crate::memory::Memory;
use crate::memory::layout::{Layout, layout_hash};
use crate::path::folder_gone;
use child_process::ProcessWatch;
use comm_context::comm::CommError;
use fault_points::fault_point;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many connections are accepted before messages, deaths and the deadline are checked.
const ACCEPTS_PER_TURN: usize = 64;
/// Between two looks at the path's folder, which the name depends on. A call that may go to a network.
const FOLDER_INTERVAL: Duration = Duration::from_millis(100);

/// Accepts every rank, then sends the group's memory to all.
pub(super) fn lead(attempt: &Attempt<'_>, listener: OwnedFd) -> Result<Arc<Memory>, CommError> {
    let slots = (0..attempt.me.nranks()).map(|_| None).collect();
    let layout = attempt.layout;
    let mut leader = Leader { attempt, slots, unidentified: Vec::new(), disagreement: None, layout };
    let created = leader.collect(&listener).and_then(|()| {
        fault_point!("rendezvous.leader.complete");
        Memory::create(leader.layout)
    });
    let memory = match created {
        Ok(memory) => memory,
        Err(error) => {
            // The joiners get the cause, so that they need not conclude from a closed socket that this rank
            // died.
            leader.send_all(&leader.abort_message(&error));
            return Err(error);
        }
    };
    let pid_in = |slot: &Option<Joiner>| slot.as_ref().map_or(std::process::id(), |joiner| joiner.pid as u32);
    memory.set_leader(attempt.me.rank(), leader.slots.iter().map(pid_in));
    fault_point!("rendezvous.leader.ready");
    // The name is free before any rank can know that the rendezvous is over.
    drop(listener);
    fault_point!("rendezvous.leader.closed");
    let fds: Vec<_> = memory.region().fds().collect();
    for joiner in leader.slots.iter().flatten() {
        // A rank that is gone by now is noticed by all others at the group's first barrier.
        let message = Message::Memory { nonce: memory.nonce(), extent: memory.layout().extent_len() as u64 };
        let _ = socket::send_with(&joiner.socket, &message, &fds);
        fault_point!("rendezvous.leader.memory_sent");
    }
    leader.await_attached(&memory);
    Ok(Arc::new(memory))
}

/// A connected process, as the kernel knows it.
struct Joiner {
    pid: i32,
    process_watch: Option<ProcessWatch>,
    /// It had ended when its connection was accepted.
    ended: bool,
    socket: OwnedFd,
}

impl Joiner {
    /// Whether its process has ended. Its socket may be open all the same, in a process that inherited it.
    fn has_ended(&self) -> bool {
        self.ended || self.process_watch.as_ref().is_some_and(|watch| watch.death().is_some())
    }
}

struct Leader<'a> {
    attempt: &'a Attempt<'a>,
    /// One for each rank; the leader's own stays empty.
    slots: Vec<Option<Joiner>>,
    /// Those whose rank is not known yet.
    unidentified: Vec<Joiner>,
    /// On what a rank disagrees with the leader. No group can come of it.
    disagreement: Option<String>,
    /// The memory that all ranks which have joined can map.
    layout: Layout,
}

/// Why a rank cannot be accepted.
enum Objection {
    /// This process is one too many; the others may still join.
    Process(String),
    /// The ranks disagree.
    Disagreement(String),
}

impl Leader<'_> {
    /// Accepts ranks until all have joined.
    fn collect(&mut self, listener: &OwnedFd) -> Result<(), CommError> {
        let attempt = self.attempt;
        // Absolute: another thread may change the folder that relative paths start from.
        let path = std::path::absolute(attempt.path).unwrap_or_else(|_| attempt.path.to_owned());
        let mut checked = Instant::now();
        while !self.is_complete() {
            let waiting: Vec<&OwnedFd> = self.sockets().chain([listener]).collect();
            sleep_on(&waiting, attempt.deadline);
            for _ in 0..ACCEPTS_PER_TURN {
                match socket::accept(listener).map_err(|errno| system("accept", errno, attempt.path))? {
                    Some(socket) => self.accept(socket),
                    None => break,
                }
            }
            self.receive();
            if let Some(reason) = self.disagreement.take() {
                self.send_all(&Message::Refused { reason: reason.clone() });
                return Err(RendezvousError::Refused { path: attempt.path.to_owned(), reason }.into());
            }
            if let Some(departure) = self.departed() {
                self.send_all(&departure.message());
                return Err(departure.into_error());
            }
            if checked.elapsed() >= FOLDER_INTERVAL && !self.is_complete() {
                if let Some(what) = folder_gone(&path, &attempt.name) {
                    return Err(RendezvousError::FolderReplaced { path, what }.into());
                }
                checked = Instant::now();
            }
            attempt.check_interrupt()?;
            if attempt.deadline.has_passed() && !self.is_complete() {
                return Err(attempt.timed_out(self.missing(), self.table()));
            }
        }
        Ok(())
    }

    /// What the joiners receive when the leader fails with `error`.
    fn abort_message(&self, error: &CommError) -> Message {
        match error {
            CommError::TimedOut { .. } => self.status(),
            error => Message::Refused { reason: format!("rank {}: {error}", self.attempt.me.rank()) },
        }
    }

    fn status(&self) -> Message {
        let missing = self.missing().into_iter().fold(0, |mask, rank| mask | 1 << rank);
        Message::Table { missing, text: self.table() }
    }

    fn is_complete(&self) -> bool {
        self.missing().is_empty()
    }

    fn missing(&self) -> Vec<u32> {
        let me = self.attempt.me.rank();
        (0..self.attempt.me.nranks())
            .filter(|rank| *rank != me && self.slots[*rank as usize].is_none())
            .collect()
    }

    fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        self.slots.iter().flatten().chain(&self.unidentified).map(|joiner| &joiner.socket)
    }

    /// Takes a connection of a process of this user; refuses those of others.
    fn accept(&mut self, socket: OwnedFd) {
        match socket::peer(&socket) {
            Ok(Ok(pid)) => {
                let opened = ProcessWatch::of_process(pid);
                let ended = opened.as_ref().is_err_and(is_gone);
                self.unidentified.push(Joiner { pid, process_watch: opened.ok(), ended, socket });
            }
            Ok(Err(_)) | Err(_) => {
                let reason = "this rendezvous belongs to another user".to_owned();
                let _ = socket::send(&socket, &Message::Refused { reason });
            }
        }
    }

    /// Receives the first message of each process whose rank is not known yet.
    fn receive(&mut self) {
        for joiner in std::mem::take(&mut self.unidentified) {
            match socket::receive(&joiner.socket) {
                Received::Nothing => self.unidentified.push(joiner),
                Received::Message(join @ Message::Join { rank, extent, .. }, _) => {
                    let answer = match self.objection(&joiner, &join) {
                        None => Message::Accepted { leader: self.attempt.me.rank() },
                        Some(Objection::Process(reason)) => Message::Refused { reason },
                        Some(Objection::Disagreement(reason)) => {
                            self.disagreement = Some(reason.clone());
                            Message::Refused { reason }
                        }
                    };
                    let accepted = matches!(answer, Message::Accepted { .. });
                    if socket::send(&joiner.socket, &answer).is_ok() && accepted {
                        self.slots[rank as usize] = Some(joiner);
                        self.limit_extent(extent);
                        fault_point!("rendezvous.leader.accepted");
                    }
                }
                Received::Message(Message::Query, _) => {
                    let _ = socket::send(&joiner.socket, &self.status());
                }
                Received::Message(..) | Received::End => {}
            }
        }
    }

    /// A rank can map extents of so many bytes at most.
    fn limit_extent(&mut self, extent: u64) {
        let extent = usize::try_from(extent).unwrap_or(usize::MAX);
        if extent < self.layout.extent_len() {
            self.layout = Layout::new(self.layout.nranks(), extent).unwrap_or(self.layout);
        }
    }

    fn objection(&self, joiner: &Joiner, join: &Message) -> Option<Objection> {
        let Message::Join { rank, nranks, .. } = *join else { return None };
        self.disagreement_with(joiner, join).map(Objection::Disagreement).or_else(|| {
            let me = self.attempt.me.rank();
            let joined = |pid| {
                format!("rank {rank} has joined already (pid {pid}); give each process a rank of its own")
            };
            match self.slots.get(rank as usize) {
                None => Some(format!("rank {rank} is out of range for {nranks} ranks; count them from 0")),
                Some(Some(joiner)) => Some(joined(joiner.pid as u32)),
                Some(None) if rank == me => Some(joined(std::process::id())),
                Some(None) => None,
            }
            .map(Objection::Process)
        })
    }

    /// On what the rank that joins and this one disagree.
    fn disagreement_with(&self, joiner: &Joiner, join: &Message) -> Option<String> {
        let Message::Join { hash, rank, nranks, extent, pid_namespace: theirs } = *join else { return None };
        let (me, own_extent, own) = (self.attempt.me, self.attempt.layout.extent_len(), pid_namespace());
        let leader = me.rank();
        if hash != layout_hash() {
            return Some(format!(
                "rank {rank} runs another build than rank {leader}; use one build for all ranks"
            ));
        }
        if nranks != me.nranks() {
            return Some(format!(
                "rank {rank} says {nranks} ranks, rank {leader} says {}; give all ranks the same size",
                me.nranks()
            ));
        }
        if (extent == 0) != (own_extent == 0) {
            return Some(format!(
                "one of the ranks {rank} and {leader} has its windows in memory, the other has not; use one \
                 backend for all ranks"
            ));
        }
        // The kernel reports a process outside this namespace as 0.
        let differ = own != 0 && theirs != 0 && own != theirs;
        (differ || joiner.pid == 0).then(|| {
            format!(
                "ranks {rank} and {leader} run in different pid namespaces, where neither can tell whether the \
                 other lives; start all ranks in one container, or give the containers one pid namespace"
            )
        })
    }

    /// Waits until every rank has attached the memory. Records in the memory, where all others look, the
    /// reason of one that cannot.
    fn await_attached(&self, memory: &Memory) {
        let deadline = self.attempt.deadline;
        for (rank, joiner) in self.slots.iter().enumerate() {
            let Some(joiner) = joiner else { continue };
            let mut ended = false;
            loop {
                match socket::receive(&joiner.socket) {
                    Received::Message(Message::Leave { reason }, _) => {
                        memory.publish_departure(rank as u32, &reason);
                        break;
                    }
                    // The barrier notices a rank that has ended, and keeps the deadline.
                    Received::Nothing if !ended && !deadline.has_passed() => {
                        ended = joiner.has_ended();
                        if !ended {
                            sleep_on(&[&joiner.socket], deadline);
                        }
                    }
                    Received::Nothing | Received::Message(..) | Received::End => break,
                }
            }
        }
    }

    /// An accepted rank that has gone away.
    fn departed(&self) -> Option<Departure> {
        self.slots.iter().enumerate().find_map(|(rank, slot)| {
            let joiner = slot.as_ref()?;
            // An accepted rank sends nothing more but that it leaves. Anything else is the end of its
            // connection.
            match socket::receive(&joiner.socket) {
                Received::Nothing if !joiner.has_ended() => None,
                Received::Message(Message::Leave { reason }, _) => {
                    Some(Departure::Left { rank: rank as u32, reason })
                }
                Received::Nothing | Received::End | Received::Message(..) => {
                    Some(Departure::of_process(rank as u32, joiner.pid, joiner.process_watch.as_ref()))
                }
            }
        })
    }

    fn send_all(&self, message: &Message) {
        for socket in self.sockets() {
            let _ = socket::send(socket, message);
        }
    }

    fn table(&self) -> String {
        let me = self.attempt.me;
        let mut table = String::new();
        for rank in 0..me.nranks() {
            let _ = match &self.slots[rank as usize] {
                Some(joiner) => writeln!(table, "  rank {rank:>2}  pid {:<8} waiting", joiner.pid),
                None if rank == me.rank() => {
                    let (pid, since) = (std::process::id(), self.attempt.deadline.elapsed());
                    writeln!(
                        table,
                        "  rank {rank:>2}  pid {pid:<8} leader, waiting for the others for {since:.1?}"
                    )
                }
                None => writeln!(table, "  rank {rank:>2}  not joined yet"),
            };
        }
        table
    }
}
