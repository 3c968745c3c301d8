//! The side of a meeting that holds the name.

use super::socket::{self, Received};
use super::wire::Message;
use super::{Arrival, Departure, sleep_on, system};
use crate::layout::layout_hash;
use crate::memory::Memory;
use child_process::ProcessWatch;
use comm_context::comm::CommError;
use fault_points::fault_point;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A rank that waits to be let in.
struct Seat {
    pid: i32,
    process_watch: Option<ProcessWatch>,
    socket: OwnedFd,
}

/// Seats every rank, then hands out the group's memory.
pub(super) fn gather(arrival: &Arrival<'_>, listener: OwnedFd) -> Result<Arc<Memory>, CommError> {
    let mut meeting =
        Meeting { arrival, seats: (0..arrival.me.nranks()).map(|_| None).collect(), unknown: Vec::new() };
    let made = meeting.fill(&listener).and_then(|()| {
        fault_point!("rendezvous.leader.complete");
        let nonce = crate::nonce();
        Ok((Memory::create(arrival.layout, nonce)?, nonce))
    });
    let (memory, nonce) = match made {
        Ok(made) => made,
        Err(error) => {
            // Whoever waits here is told what happened, not left to guess from a closed socket.
            meeting.tell_all(&meeting.farewell(&error));
            return Err(error);
        }
    };
    // Pids by the kernel's word: the group can tell a rank's death even before that rank has entered its own card.
    for (seat, pid) in meeting.seats.iter().zip(&memory.header().pids) {
        pid.store(seat.as_ref().map_or(std::process::id(), |seat| seat.pid as u32));
    }
    memory.header().host.store(u64::from(arrival.me.rank()) + 1);
    fault_point!("rendezvous.leader.ready");
    // The name is free before anybody can know that the meeting is over.
    drop(listener);
    fault_point!("rendezvous.leader.closed");
    for seat in meeting.seats.iter().flatten() {
        // A rank that has gone away in the meantime is noticed by everybody at the group's first barrier.
        let _ = socket::send(&seat.socket, &Message::Welcome { nonce }, Some(memory.region.fd()));
        fault_point!("rendezvous.leader.welcomed");
    }
    Ok(Arc::new(memory))
}

struct Meeting<'a> {
    arrival: &'a Arrival<'a>,
    /// One for each rank; the host's own stays empty.
    seats: Vec<Option<Seat>>,
    /// Those who have not said yet who they are.
    unknown: Vec<Seat>,
}

impl Meeting<'_> {
    /// Seats ranks until all are here.
    fn fill(&mut self, listener: &OwnedFd) -> Result<(), CommError> {
        let arrival = self.arrival;
        while !self.is_complete() {
            let waiting: Vec<&OwnedFd> = self.sockets().chain([listener]).collect();
            sleep_on(&waiting, arrival.deadline);
            while let Some(socket) =
                socket::accept(listener).map_err(|errno| system("accept", errno, arrival.path))?
            {
                self.greet(socket);
            }
            self.hear();
            if let Some(departure) = self.lost() {
                self.tell_all(&departure.message());
                return Err(departure.into_error());
            }
            if arrival.deadline.has_passed() && !self.is_complete() {
                return Err(arrival.timed_out(self.missing(), self.table()));
            }
        }
        Ok(())
    }

    /// What those who wait hear when the host gives up.
    fn farewell(&self, error: &CommError) -> Message {
        match error {
            CommError::TimedOut { .. } => self.answer(),
            error => Message::Refused { text: format!("rank {}: {error}", self.arrival.me.rank()) },
        }
    }

    fn answer(&self) -> Message {
        let missing = self.missing().into_iter().fold(0, |mask, rank| mask | 1 << rank);
        Message::Table { missing, text: self.table() }
    }

    fn is_complete(&self) -> bool {
        self.missing().is_empty()
    }

    fn missing(&self) -> Vec<u32> {
        let me = self.arrival.me.rank();
        (0..self.arrival.me.nranks())
            .filter(|rank| *rank != me && self.seats[*rank as usize].is_none())
            .collect()
    }

    fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        self.seats.iter().flatten().chain(&self.unknown).map(|seat| &seat.socket)
    }

    /// Lets a visitor of this user speak; others are told to go.
    fn greet(&mut self, socket: OwnedFd) {
        match socket::peer(&socket) {
            Ok(Ok(pid)) => {
                self.unknown.push(Seat { pid, process_watch: ProcessWatch::of_process(pid).ok(), socket });
            }
            Ok(Err(_)) | Err(_) => {
                let text = "this meeting belongs to another user".to_owned();
                let _ = socket::send(&socket, &Message::Refused { text }, None);
            }
        }
    }

    /// Reads what the visitors say of themselves.
    fn hear(&mut self) {
        for seat in std::mem::take(&mut self.unknown) {
            match socket::receive(&seat.socket) {
                Received::Nothing => self.unknown.push(seat),
                Received::Message(Message::Join { hash, rank, nranks, extent }, _) => {
                    let answer = match self.objection(hash, rank, nranks, extent) {
                        None => Message::Seated { host: self.arrival.me.rank() },
                        Some(text) => Message::Refused { text },
                    };
                    let seated = matches!(answer, Message::Seated { .. });
                    if socket::send(&seat.socket, &answer, None).is_ok() && seated {
                        self.seats[rank as usize] = Some(seat);
                        fault_point!("rendezvous.leader.accepted");
                    }
                }
                Received::Message(Message::Ask, _) => {
                    let _ = socket::send(&seat.socket, &self.answer(), None);
                }
                Received::Message(..) | Received::End => {}
            }
        }
    }

    /// Why a rank cannot be seated.
    fn objection(&self, hash: u64, rank: u32, nranks: u32, extent: u64) -> Option<String> {
        let me = self.arrival.me;
        if hash != layout_hash() {
            return Some(
                "this rank runs another build than the host of the meeting; use one build for all".to_owned(),
            );
        }
        if nranks != me.nranks() {
            return Some(format!("this rank says {nranks} ranks, rank {} says {}", me.rank(), me.nranks()));
        }
        if extent != self.arrival.layout.extent as u64 {
            return Some(format!(
                "this rank's windows may have {extent} bytes, rank {}'s {}",
                me.rank(),
                self.arrival.layout.extent
            ));
        }
        match self.seats.get(rank as usize) {
            None => Some(format!("there is no rank {rank} of {nranks}")),
            Some(Some(seat)) => Some(format!("rank {rank} is here already (pid {})", seat.pid)),
            Some(None) if rank == me.rank() => {
                Some(format!("rank {rank} is here already (pid {})", std::process::id()))
            }
            Some(None) => None,
        }
    }

    /// A seated rank that has gone away.
    fn lost(&self) -> Option<Departure> {
        self.seats.iter().enumerate().find_map(|(rank, seat)| {
            let seat = seat.as_ref()?;
            // A seated rank says nothing more but that it goes, so anything heard from it is its end.
            match socket::receive(&seat.socket) {
                Received::Nothing => None,
                Received::Message(Message::Refused { text }, _) => {
                    Some(Departure::Left { rank: rank as u32, reason: text })
                }
                Received::End | Received::Message(..) => {
                    Some(Departure::of_process(rank as u32, seat.pid, seat.process_watch.as_ref()))
                }
            }
        })
    }

    fn tell_all(&self, message: &Message) {
        for socket in self.sockets() {
            let _ = socket::send(socket, message, None);
        }
    }

    fn table(&self) -> String {
        let me = self.arrival.me;
        let mut table = String::new();
        for rank in 0..me.nranks() {
            let _ = match &self.seats[rank as usize] {
                Some(seat) => writeln!(table, "  rank {rank:>2}  pid {:<8} waits at the meeting", seat.pid),
                None if rank == me.rank() => {
                    let since = self.arrival.deadline.elapsed();
                    writeln!(
                        table,
                        "  rank {rank:>2}  pid {:<8} hosts the meeting for {since:.1?}",
                        std::process::id()
                    )
                }
                None => writeln!(table, "  rank {rank:>2}  not here yet"),
            };
        }
        table
    }
}
