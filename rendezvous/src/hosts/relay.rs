//! The thread that carries what ranks do from host to host.
//!
//! Each rank has the group's memory to itself and writes only its own part of it. Whatever it does there it also
//! queues here as an [`Event`]. The thread sends the events to rank 0, which numbers them by sending them to all
//! others in one order, and does to this rank's copies what other ranks did. Since there is one writer per word and
//! one order, a rank never sees an effect before its cause, as in memory that is really shared.
//!
//! A connection that ends is the death of the rank behind it. Rank 0 reports it to all. When rank 0 itself is lost,
//! the group is at its end.

use super::connection::{Connection, Received, sleep_at_most};
use super::error::Lost;
use super::event::{Copies, Event};
use super::wire::{Member, Message};
use crate::memory::Memory;
use deadline::{Deadline, monotonic_ns};
use fault_points::fault_point;
use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the end of a group waits for its last messages to arrive: a stopped peer takes none, and no call lasts a second
/// longer than its limit.
const CLOSE_LIMIT: Duration = Duration::from_millis(750);
/// The longest sleep of the thread: events and messages wake it.
const IDLE: Duration = Duration::from_secs(5);

/// What a rank tells the others. Clones share one queue.
#[derive(Clone, Debug)]
pub(crate) struct Uplink(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    wake: EventFd,
    /// The ranks whose connections are lost, and how.
    lost: Vec<OnceLock<Lost>>,
}

#[derive(Debug, Default)]
struct Queue {
    events: Vec<Event>,
    /// Nothing more comes.
    closed: bool,
}

impl Uplink {
    pub(super) fn new(nranks: u32) -> std::io::Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let lost = (0..nranks).map(|_| OnceLock::new()).collect();
        Ok(Self(Arc::new(Shared { queue: Mutex::default(), wake, lost })))
    }

    /// Tells all other ranks. Never blocks.
    pub(crate) fn tell(&self, event: Event) {
        self.change(|queue| queue.events.push(event));
    }

    /// How the connection to `rank` was lost; `None` while it stands.
    fn lost(&self, rank: u32) -> Option<Lost> {
        self.0.lost.get(rank as usize)?.get().copied()
    }

    fn set_lost(&self, rank: u32, how: Lost) {
        if let Some(lost) = self.0.lost.get(rank as usize) {
            let _ = lost.set(how);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // After the end of the thread nobody takes events away.
        if !queue.closed {
            change(&mut queue);
            let _ = self.0.wake.write(1);
        }
    }

    fn take(&self) -> Queue {
        let _ = self.0.wake.read();
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        Queue { events: std::mem::take(&mut queue.events), closed: queue.closed }
    }
}

/// The other hosts of a group.
#[derive(Debug)]
pub(crate) struct Hosts {
    me: u32,
    members: Vec<Member>,
    uplink: Uplink,
    /// The process that joined. A forked copy of it has no thread.
    owner: u32,
    thread: Option<JoinHandle<()>>,
}

impl Hosts {
    /// Starts the thread. `connections` are those to the other ranks, of which a rank other than 0 has one.
    pub(super) fn start(
        me: u32,
        members: Vec<Member>,
        connections: Vec<(u32, Connection)>,
        memory: Arc<Memory>,
    ) -> std::io::Result<Self> {
        let nranks = members.len() as u32;
        let uplink = Uplink::new(nranks)?;
        let others = (0..).zip(&members).filter(|(rank, _)| *rank != me);
        others.for_each(|(rank, member)| memory.enter_elsewhere(rank, member.pid));
        let relay = Relay { me, uplink: uplink.clone(), connections, copies: Copies::new(nranks), memory };
        let thread = std::thread::Builder::new().name("chipcomm-relay".to_owned()).spawn(|| relay.run())?;
        Ok(Self { me, members, uplink, owner: std::process::id(), thread: Some(thread) })
    }

    /// Tells all other ranks. Never blocks.
    pub(crate) fn tell(&self, event: Event) {
        self.uplink.tell(event);
    }

    pub(crate) fn uplink(&self) -> Uplink {
        self.uplink.clone()
    }

    /// The rank whose loss cuts this one off from `rank`, and how it was lost.
    pub(crate) fn lost(&self, rank: u32) -> Option<(u32, Lost)> {
        let lost = |rank| self.uplink.lost(rank).map(|how| (rank, how));
        // Everything comes through rank 0. What it reported before it was lost came first.
        lost(rank).or_else(|| if self.me == 0 { None } else { lost(0) })
    }

    /// The name of the host of `rank`.
    pub(crate) fn name(&self, rank: u32) -> &str {
        self.members.get(rank as usize).map_or("?", |member| &member.host.name)
    }

    /// Whether the ranks run on one host.
    pub(crate) fn are_together(&self, a: u32, b: u32) -> bool {
        let host = |rank: u32| self.members.get(rank as usize).map(|member| member.host.id);
        host(a) == host(b)
    }
}

impl Drop for Hosts {
    /// Sends what is queued, and ends the thread. Bounded by [`CLOSE_LIMIT`].
    fn drop(&mut self) {
        if std::process::id() != self.owner {
            return;
        }
        self.uplink.change(|queue| queue.closed = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's state.
struct Relay {
    me: u32,
    uplink: Uplink,
    connections: Vec<(u32, Connection)>,
    copies: Copies,
    memory: Arc<Memory>,
}

impl Relay {
    fn run(mut self) {
        let mut closing: Option<Deadline> = None;
        loop {
            let Queue { events, closed } = self.uplink.take();
            for event in events {
                self.send(&Message::Event { rank: self.me, event }, self.me);
                fault_point!("hosts.relay.sent");
            }
            if closed
                && self
                    .is_closed(*closing.get_or_insert_with(|| Deadline::since(monotonic_ns(), CLOSE_LIMIT)))
            {
                return;
            }
            let ready = self.connections.iter().any(|(_, connection)| connection.has_input());
            let limit = closing.map_or(IDLE, |until| until.left());
            let wake = (self.uplink.0.wake.as_fd(), PollFlags::POLLIN);
            let interests = self.connections.iter().map(|(_, connection)| connection.interest());
            sleep_at_most(interests.chain([wake]), if ready { Duration::ZERO } else { limit });
            self.receive();
        }
    }

    /// Nothing more comes from this rank. A joiner ends its connection, and keeps reading until rank 0 has ended it
    /// too: a connection that is closed with something unread in it loses what was sent last. Rank 0 waits for the
    /// joiners, whose last events it still has to pass on.
    fn is_closed(&mut self, until: Deadline) -> bool {
        fault_point!("hosts.relay.closing");
        if self.me != 0 {
            let flushed = self.connections.iter_mut().filter(|(_, connection)| connection.is_flushed());
            flushed.for_each(|(_, connection)| connection.finish());
        }
        self.connections.is_empty() || until.has_passed()
    }

    /// Sends to all other ranks but `origin`, from which it comes.
    fn send(&mut self, message: &Message, origin: u32) {
        let mut lost = Vec::new();
        for (rank, connection) in self.connections.iter_mut().filter(|(rank, _)| *rank != origin) {
            if let Err(how) = connection.send(message) {
                lost.push((*rank, how));
            }
        }
        lost.into_iter().for_each(|(rank, how)| self.lose(rank, how));
    }

    /// Takes what has come, some of it from each rank in turn.
    fn receive(&mut self) {
        for rank in 0..self.copies.len() {
            let Some(at) = self.connections.iter().position(|(of, _)| *of == rank) else { continue };
            let flushed = self.connections[at].1.flush();
            let received = match flushed {
                Ok(()) => self.connections[at].1.receive(),
                Err(how) => Received::End(how),
            };
            match received {
                Received::Nothing => {}
                Received::Message(Message::Event { rank: of, event }) if self.may_say(rank, of, &event) => {
                    self.relay(of, event);
                }
                // It could not begin.
                Received::Message(Message::Leave { reason }) => self.relay(rank, Event::Left(reason)),
                Received::Message(_) => self.lose(rank, Lost::Malformed),
                Received::End(how) => self.lose(rank, how),
            }
        }
    }

    /// Ranks speak for themselves, and rank 0 also for others.
    fn may_say(&self, rank: u32, of: u32, event: &Event) -> bool {
        let loss = matches!(event, Event::Lost(_));
        let reported = self.me != 0 && of != self.me && (of as usize) < self.uplink.0.lost.len();
        if self.me == 0 { of == rank && !loss } else { reported }
    }

    /// To the other hosts first: what this rank does in answer must come after it there.
    fn relay(&mut self, of: u32, event: Event) {
        if let Event::Lost(how) = event {
            self.uplink.set_lost(of, how);
        }
        let message = Message::Event { rank: of, event };
        if self.me == 0 {
            self.send(&message, of);
            fault_point!("hosts.relay.forwarded");
        }
        if let Message::Event { event, .. } = &message {
            self.copies.apply(&self.memory, of, event);
        }
        fault_point!("hosts.relay.applied");
    }

    /// The connection to `rank` is lost.
    fn lose(&mut self, rank: u32, how: Lost) {
        self.connections.retain(|(of, _)| *of != rank);
        self.uplink.set_lost(rank, how);
        if self.me == 0 {
            self.send(&Message::Event { rank, event: Event::Lost(how) }, rank);
        }
        // Whoever waits checks who is gone when it is woken.
        let others = (0..self.copies.len()).filter(|rank| *rank != self.me);
        others.for_each(|rank| self.copies.notify(&self.memory, rank));
    }
}
