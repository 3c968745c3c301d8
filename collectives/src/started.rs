//! Calls that were started and are not over: a queue for the group, worked on whenever the rank has a moment.
//!
//! Steps are written in the order of the calls, and read in that order too, but writing may be ahead of reading: that is what makes a
//! started call useful. Messages between two ranks are beside the queue.

use crate::call::{Ahead, Call};
use crate::engine::{Blocked, Clock, Ended, Engine};
use crate::error::CollError;
use crate::pairs::Transfer;
use crate::registry;
use comm_context::comm::CommError;
use fault_points::fault_point;
use std::collections::VecDeque;

/// Names a started call of a group. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    pub(crate) fn numbered(number: u64) -> Self {
        Self(number)
    }

    /// From 1.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    calls: VecDeque<Started>,
    pub(crate) transfers: Vec<(Ticket, Transfer)>,
    tickets: u64,
    /// Those that were under way when the group broke.
    lost: Vec<Ticket>,
    /// When somebody first waited for the oldest call under way.
    pub(crate) clock: Clock,
}

struct Started {
    ticket: Ticket,
    call: Box<Call>,
    placed: bool,
    settled: bool,
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.transfers.is_empty()
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn holds(&self, ticket: Ticket) -> bool {
        self.calls.iter().any(|started| started.ticket == ticket)
            || self.transfers.iter().any(|(one, _)| *one == ticket)
    }
}

impl<'c> Engine<'c> {
    /// Puts a call into the queue, and writes of it what can be written now.
    pub(crate) fn start(&mut self, mut call: Call) -> Ticket {
        let ticket = self.queue.ticket();
        if self.nranks() == 1 {
            call.copy_alone();
            return ticket;
        }
        self.queue.calls.push_back(Started { ticket, call: Box::new(call), placed: false, settled: false });
        fault_point!("coll.started");
        self.after_start();
        ticket
    }

    /// The same for a message.
    pub(crate) fn start_transfer(&mut self, transfer: Transfer) -> Ticket {
        let ticket = self.queue.ticket();
        self.queue.transfers.push((ticket, transfer));
        self.after_start();
        ticket
    }

    fn after_start(&mut self) {
        if !self.has_helper {
            registry::enter(self);
        }
        // An error breaks the group, and the call's owner gets it when it asks.
        let _ = self.progress_all();
    }

    /// Works on everything that was started, without waiting. Returns one of the words that it waits for in the end, if
    /// anything is under way; all of them are in `blocked`.
    pub(crate) fn progress_all(&mut self) -> Result<Option<Blocked<'c>>, CollError> {
        if self.queue.is_empty() {
            return self.check().map(|()| None);
        }
        self.check()?;
        let mut queue = std::mem::take(&mut self.queue);
        let worked = self.work(&mut queue);
        self.queue = queue;
        if self.queue.is_empty() {
            registry::leave(self.address());
            self.queue.clock = Clock::default();
        }
        worked.map_err(|error| self.lose_all(error))
    }

    fn work(&mut self, queue: &mut Queue) -> Result<Option<Blocked<'c>>, CollError> {
        let mut blocked = std::mem::take(&mut self.blocked);
        loop {
            blocked.clear();
            let wrote = self.write_calls(queue, &mut blocked)?;
            self.progress.notify();
            let read = self.read_calls(queue, &mut blocked)?;
            self.progress.notify();
            let moved = self.work_on_transfers(&mut queue.transfers, &mut blocked)?;
            if !(wrote || read || moved) {
                self.blocked = blocked;
                return Ok(self.blocked.last().copied());
            }
            queue.clock = Clock::default();
        }
    }

    fn write_calls(&mut self, queue: &mut Queue, blocked: &mut Vec<Blocked<'c>>) -> Result<bool, CollError> {
        let mut moved = false;
        for started in &mut queue.calls {
            if !started.placed {
                started.call.place(self);
                started.placed = true;
            }
            loop {
                match started.call.write_ahead(self)? {
                    Ahead::Wrote => moved = true,
                    Ahead::Blocked(by) => {
                        blocked.push(by);
                        return Ok(moved);
                    }
                    Ahead::ReadFirst | Ahead::WriteFirst => return Ok(moved),
                    Ahead::Done => break,
                }
            }
            if !started.settled {
                started.call.settle(self);
                started.settled = true;
            }
        }
        Ok(moved)
    }

    fn read_calls(&mut self, queue: &mut Queue, blocked: &mut Vec<Blocked<'c>>) -> Result<bool, CollError> {
        let mut moved = false;
        while let Some(front) = queue.calls.front_mut() {
            match front.call.read_ahead(self)? {
                Ahead::Wrote => moved = true,
                Ahead::Blocked(by) => {
                    blocked.push(by);
                    break;
                }
                Ahead::ReadFirst | Ahead::WriteFirst => break,
                Ahead::Done if front.settled => {
                    queue.calls.pop_front();
                    moved = true;
                }
                // What it read is still to be acknowledged.
                Ahead::Done => break,
            }
        }
        Ok(moved)
    }

    /// A wait of the progress thread is over. What failed is lost now, for the thread would find the same again at once.
    pub(crate) fn helper_waited(&mut self, blocked: &Blocked<'_>, waited: Result<Ended<'_>, CommError>) {
        if let Err(error) = self.outcome(blocked, waited) {
            self.lose_all(error);
        }
    }

    /// The group broke: nothing of what was under way goes on.
    pub(crate) fn lose_all(&mut self, error: CollError) -> CollError {
        let error = self.give_up(error);
        let tickets = self.queue.calls.drain(..).map(|started| started.ticket);
        self.queue.lost.extend(tickets);
        self.queue.lost.extend(self.queue.transfers.drain(..).map(|(ticket, _)| ticket));
        registry::leave(self.address());
        error
    }

    /// Whether a started call is over; fails if the group broke before it was.
    pub(crate) fn test(&mut self, ticket: Ticket) -> Result<bool, CollError> {
        if self.queue.holds(ticket) {
            let blocked = self.progress_all();
            registry::progress_others(self.address());
            match blocked {
                Ok(Some(blocked)) if self.queue.holds(ticket) => {
                    // Who only ever tests has to find out that a peer is gone or has given up, too.
                    if self.queue.clock.is_time_to_check() {
                        let mut clock = self.queue.clock;
                        let checked = self.check_waits(&blocked, &mut clock);
                        self.queue.clock = clock;
                        checked.map_err(|error| self.lose_all(error))?;
                    }
                    return Ok(false);
                }
                Ok(_) if self.queue.holds(ticket) => return Ok(false),
                // The cause is returned below.
                _ => {}
            }
        }
        if self.queue.lost.contains(&ticket) { self.cause().map(|()| true) } else { Ok(true) }
    }

    /// Waits for a started call.
    pub(crate) fn wait_for(&mut self, ticket: Ticket) -> Result<(), CollError> {
        let mut clock = Clock::default();
        while self.queue.holds(ticket) {
            match self.progress_all() {
                Ok(Some(blocked)) if self.queue.holds(ticket) => {
                    registry::progress_others(self.address());
                    self.wait(&blocked, &mut clock).map_err(|error| self.lose_all(error))?;
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        if self.queue.lost.contains(&ticket) { self.cause() } else { Ok(()) }
    }

    /// Waits for everything that was started. Afterwards nothing is under way, also when it fails.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), CollError> {
        let mut clock = Clock::default();
        while !self.queue.is_empty() {
            if let Some(blocked) = self.progress_all()? {
                registry::progress_others(self.address());
                self.wait(&blocked, &mut clock).map_err(|error| self.lose_all(error))?;
            }
        }
        Ok(())
    }

    /// Runs a call to its end, behind those that are under way.
    #[cold]
    pub(crate) fn run_queued(&mut self, call: Call) -> Result<(), CollError> {
        let ticket = self.start(call);
        self.wait_for(ticket)
    }
}
