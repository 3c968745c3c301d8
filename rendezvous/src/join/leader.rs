//! The side of a rendezvous that holds the name.

use super::socket::{self, Received};
use super::wire::Message;
use super::{Attempt, Departure, sleep_on, system};
use crate::memory::Memory;
use crate::memory::layout::layout_hash;
use child_process::ProcessWatch;
use comm_context::comm::CommError;
use fault_points::fault_point;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Accepts every rank, then sends the group's memory to all.
pub(super) fn lead(attempt: &Attempt<'_>, listener: OwnedFd) -> Result<Arc<Memory>, CommError> {
    let slots = (0..attempt.me.nranks()).map(|_| None).collect();
    let mut leader = Leader { attempt, slots, unidentified: Vec::new() };
    let created = leader.collect(&listener).and_then(|()| {
        fault_point!("rendezvous.leader.complete");
        Memory::create(attempt.layout)
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
    for joiner in leader.slots.iter().flatten() {
        // A rank that is gone by now is noticed by all others at the group's first barrier.
        let message = Message::Memory { nonce: memory.nonce() };
        let _ = socket::send(&joiner.socket, &message, Some(memory.region().fd()));
        fault_point!("rendezvous.leader.memory_sent");
    }
    Ok(Arc::new(memory))
}

/// A connected process, as the kernel knows it.
struct Joiner {
    pid: i32,
    process_watch: Option<ProcessWatch>,
    socket: OwnedFd,
}

struct Leader<'a> {
    attempt: &'a Attempt<'a>,
    /// One for each rank; the leader's own stays empty.
    slots: Vec<Option<Joiner>>,
    /// Those whose rank is not known yet.
    unidentified: Vec<Joiner>,
}

impl Leader<'_> {
    /// Accepts ranks until all have joined.
    fn collect(&mut self, listener: &OwnedFd) -> Result<(), CommError> {
        let attempt = self.attempt;
        while !self.is_complete() {
            let waiting: Vec<&OwnedFd> = self.sockets().chain([listener]).collect();
            sleep_on(&waiting, attempt.deadline);
            while let Some(socket) =
                socket::accept(listener).map_err(|errno| system("accept", errno, attempt.path))?
            {
                self.accept(socket);
            }
            self.receive();
            if let Some(departure) = self.departed() {
                self.send_all(&departure.message());
                return Err(departure.into_error());
            }
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
                let process_watch = ProcessWatch::of_process(pid).ok();
                self.unidentified.push(Joiner { pid, process_watch, socket });
            }
            Ok(Err(_)) | Err(_) => {
                let reason = "this rendezvous belongs to another user".to_owned();
                let _ = socket::send(&socket, &Message::Refused { reason }, None);
            }
        }
    }

    /// Receives the first message of each process whose rank is not known yet.
    fn receive(&mut self) {
        for joiner in std::mem::take(&mut self.unidentified) {
            match socket::receive(&joiner.socket) {
                Received::Nothing => self.unidentified.push(joiner),
                Received::Message(Message::Join { hash, rank, nranks, extent }, _) => {
                    let answer = match self.objection(hash, rank, nranks, extent) {
                        None => Message::Accepted { leader: self.attempt.me.rank() },
                        Some(reason) => Message::Refused { reason },
                    };
                    let accepted = matches!(answer, Message::Accepted { .. });
                    if socket::send(&joiner.socket, &answer, None).is_ok() && accepted {
                        self.slots[rank as usize] = Some(joiner);
                        fault_point!("rendezvous.leader.accepted");
                    }
                }
                Received::Message(Message::Query, _) => {
                    let _ = socket::send(&joiner.socket, &self.status(), None);
                }
                Received::Message(..) | Received::End => {}
            }
        }
    }

    /// Why a rank cannot be accepted.
    fn objection(&self, hash: u64, rank: u32, nranks: u32, extent: u64) -> Option<String> {
        let me = self.attempt.me;
        if hash != layout_hash() {
            let leader = me.rank();
            return Some(format!(
                "this rank runs another build than rank {leader}; use one build for all ranks"
            ));
        }
        if nranks != me.nranks() {
            return Some(format!("this rank says {nranks} ranks, rank {} says {}", me.rank(), me.nranks()));
        }
        if extent != self.attempt.layout.extent_len() as u64 {
            return Some(format!(
                "this rank's windows may have {extent} bytes, rank {}'s {}",
                me.rank(),
                self.attempt.layout.extent_len()
            ));
        }
        match self.slots.get(rank as usize) {
            None => Some(format!("rank {rank} is out of range for {nranks} ranks")),
            Some(Some(joiner)) => Some(format!("rank {rank} has joined already (pid {})", joiner.pid)),
            Some(None) if rank == me.rank() => {
                Some(format!("rank {rank} has joined already (pid {})", std::process::id()))
            }
            Some(None) => None,
        }
    }

    /// An accepted rank that has gone away.
    fn departed(&self) -> Option<Departure> {
        self.slots.iter().enumerate().find_map(|(rank, slot)| {
            let joiner = slot.as_ref()?;
            // An accepted rank sends nothing more but that it leaves. Anything else is the end of its
            // connection.
            match socket::receive(&joiner.socket) {
                Received::Nothing => None,
                Received::Message(Message::Leave { reason }, _) => {
                    Some(Departure::Left { rank: rank as u32, reason })
                }
                Received::End | Received::Message(..) => {
                    Some(Departure::of_process(rank as u32, joiner.pid, joiner.process_watch.as_ref()))
                }
            }
        })
    }

    fn send_all(&self, message: &Message) {
        for socket in self.sockets() {
            let _ = socket::send(socket, message, None);
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
