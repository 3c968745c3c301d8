//! Rank 0: listens at the address while the ranks join, and at no other time.

use super::Attempt;
use super::connection::{Connection, Received, close, sleep_on};
use super::error::{HostsError, Lost};
use super::proof::{Challenge, challenge};
use super::roll::{Admission, Roll, departure};
use super::wire::{Member, Message, STRANGER_BYTES};
use comm_context::comm::{CommError, Phase};
use deadline::Deadline;
use fault_points::{fault_call, fault_point};
use nix::errno::Errno;
use nix::poll::PollFlags;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// A process that connects proves within this time that it knows the token.
const PROOF_LIMIT: Duration = Duration::from_secs(5);
/// Connections that may wait for their proof. When there are more, the oldest goes.
const MOST_STRANGERS: usize = 128;
/// How many connections are accepted before messages, deaths and the deadline are checked.
const ACCEPTS_PER_TURN: usize = 32;
/// How long the reason of a failure may take to reach the ranks that have joined.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// The connections of the ranks that have joined.
pub(super) type Joined = Vec<(u32, Connection)>;

/// A connection that has not proved that it knows the token.
struct Stranger {
    connection: Connection,
    hello: Challenge,
    until: Deadline,
}

/// Accepts every rank, then tells all that the group is complete.
pub(super) fn lead(attempt: &Attempt<'_>, mut roll: Roll<'_>) -> Result<(Vec<Member>, Joined), CommError> {
    let listener = listen(attempt)?;
    fault_point!("hosts.leader.listening");
    let mut leader = Leader { attempt, joined: Vec::new(), strangers: Vec::new() };
    let collected = leader.collect(&listener, &mut roll);
    // The port is free before any rank can know that the rendezvous is over, also when a forked copy of this process
    // has the socket open.
    let _ = nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
    drop(listener);
    fault_point!("hosts.leader.closed");
    match collected {
        Ok(()) => {
            leader.start(&roll);
            Ok((roll.members(), leader.joined))
        }
        Err(ended) => {
            let Ended { message, error } = *ended;
            for (_, connection) in &mut leader.joined {
                let _ = connection.send(&message);
            }
            close(leader.joined.into_iter().map(|(_, connection)| connection).collect(), CLOSE_LIMIT);
            Err(error)
        }
    }
}

/// Why there will be no group: for the ranks that have joined, and for this one.
struct Ended {
    message: Message,
    error: CommError,
}

struct Leader<'a> {
    attempt: &'a Attempt<'a>,
    joined: Joined,
    strangers: Vec<Stranger>,
}

impl Leader<'_> {
    fn collect(&mut self, listener: &TcpListener, roll: &mut Roll<'_>) -> Result<(), Box<Ended>> {
        let deadline = self.attempt.deadline;
        while !roll.is_complete() {
            let sockets = self.joined.iter().map(|(_, connection)| connection);
            let sockets = sockets.chain(self.strangers.iter().map(|stranger| &stranger.connection));
            let interests = sockets.map(Connection::interest).chain([(listener.as_fd(), PollFlags::POLLIN)]);
            sleep_on(interests, deadline);
            self.accept(listener, roll);
            self.admit(roll)?;
            self.check_joined(roll)?;
            if deadline.has_passed() && !roll.is_complete() {
                return Err(self.timed_out(roll));
            }
        }
        Ok(())
    }

    /// Takes new connections and sends each its challenge.
    fn accept(&mut self, listener: &TcpListener, roll: &mut Roll<'_>) {
        for _ in 0..ACCEPTS_PER_TURN {
            // A connection that is gone again, or for which there is no descriptor now, is not this rank's failure: the
            // process at its other end tries again.
            let Ok((socket, _)) = listener.accept() else { return };
            let stranger = Connection::new(socket, STRANGER_BYTES).and_then(|mut connection| {
                let hello = challenge()?;
                let _ = connection.send(&Message::Hello { challenge: hello });
                let until = Deadline::since(deadline::monotonic_ns(), PROOF_LIMIT);
                Ok(Stranger { connection, hello, until })
            });
            self.strangers.extend(stranger);
            if self.strangers.len() > MOST_STRANGERS {
                let oldest = self.strangers.remove(0);
                roll.refuse_stranger(&oldest.connection.peer(), "was one of too many at once");
            }
        }
    }

    /// Reads the first message of each connection whose rank is not known yet.
    fn admit(&mut self, roll: &mut Roll<'_>) -> Result<(), Box<Ended>> {
        let mut disagreement = None;
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.connection.receive() {
                Received::Nothing if !stranger.until.has_passed() => self.strangers.push(stranger),
                Received::Nothing => {
                    roll.refuse_stranger(&stranger.connection.peer(), "said nothing");
                }
                Received::Message(Message::Join { challenge, join, proof }) => {
                    let (rank, peer) = (join.rank, stranger.connection.peer());
                    let mut connection = stranger.connection;
                    match roll.admit(&stranger.hello, &challenge, join, &proof, &peer) {
                        Admission::Accepted { proof, seal } => {
                            let sent = connection.send(&Message::Accepted { proof });
                            connection.seal(seal);
                            self.joined.push((rank, connection));
                            fault_point!("hosts.leader.accepted");
                            if let Err(how) = sent {
                                disagreement = disagreement.or(Some(lost(rank, roll.pid(rank), how)));
                            }
                        }
                        Admission::Observer { proof, seal } => {
                            let _ = connection.send(&Message::Accepted { proof });
                            connection.seal(seal);
                            let _ = connection.send(&self.status(roll));
                        }
                        Admission::Stranger => {
                            let reason =
                                "it does not have the token that rank 0 has; give all ranks the same";
                            let _ = connection.send(&Message::Refused { reason: reason.to_owned() });
                        }
                        Admission::Disagreement { reason, proof, seal } => {
                            let _ = connection.send(&Message::Accepted { proof });
                            connection.seal(seal);
                            // It gets the reason with the others.
                            self.joined.push((u32::MAX, connection));
                            disagreement = disagreement.or(Some(self.refused(reason)));
                        }
                    }
                }
                Received::Message(_) | Received::End(Lost::Malformed) => {
                    roll.refuse_stranger(&stranger.connection.peer(), "sent a malformed message");
                }
                Received::End(_) => roll.refuse_stranger(&stranger.connection.peer(), "went away"),
            }
        }
        disagreement.map_or(Ok(()), Err)
    }

    /// An accepted rank sends nothing but that it leaves. Anything else is the end of it.
    fn check_joined(&mut self, roll: &Roll<'_>) -> Result<(), Box<Ended>> {
        for (rank, connection) in &mut self.joined {
            let how = match connection.flush().map(|()| connection.receive()) {
                Ok(Received::Nothing) => continue,
                Ok(Received::Message(Message::Leave { reason })) => {
                    let reason = format!("rank {rank} left: {reason}");
                    return Err(self.refused(reason));
                }
                Ok(Received::Message(_)) => Lost::Malformed,
                Ok(Received::End(how)) | Err(how) => how,
            };
            let rank = *rank;
            self.joined.retain(|(of, _)| *of != rank);
            return Err(lost(rank, roll.pid(rank), how));
        }
        Ok(())
    }

    fn start(&mut self, roll: &Roll<'_>) {
        let start = Message::Start { members: roll.members() };
        for (_, connection) in &mut self.joined {
            // A rank that is gone by now is noticed by all others at the group's first barrier.
            let _ = connection.send(&start);
            fault_point!("hosts.leader.started");
        }
    }

    fn refused(&self, reason: String) -> Box<Ended> {
        let error = HostsError::Refused { address: self.attempt.address.to_string(), reason: reason.clone() };
        Box::new(Ended { message: Message::Refused { reason }, error: error.into() })
    }

    fn timed_out(&self, roll: &Roll<'_>) -> Box<Ended> {
        let deadline = self.attempt.deadline;
        let (missing, table) = (roll.missing(), roll.table(deadline.elapsed()));
        let (waited, limit) = (deadline.elapsed(), deadline.limit());
        let error = CommError::TimedOut { phase: Phase::Init, waited, limit, missing, table };
        Box::new(Ended { message: self.status(roll), error })
    }

    fn status(&self, roll: &Roll<'_>) -> Message {
        let missing = roll.missing().iter().fold(0, |bits, rank| bits | 1 << rank);
        Message::Table { missing, text: roll.table(self.attempt.deadline.elapsed()) }
    }
}

fn lost(rank: u32, pid: u32, how: Lost) -> Box<Ended> {
    Box::new(Ended { message: Message::Lost { rank, pid, how }, error: departure(rank, pid, how) })
}

/// Listens at the first of the addresses that is this host's.
fn listen(attempt: &Attempt<'_>) -> Result<TcpListener, CommError> {
    let mut last = None;
    for address in attempt.address.resolve(attempt.deadline)? {
        fault_point!("hosts.leader.resolved");
        let allowed = fault_call!("hosts.leader.listen").map_err(std::io::Error::from_raw_os_error);
        let listening = allowed.and_then(|()| bind(address));
        match listening {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into());
    let advice = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EADDRINUSE) => "another process uses the port; choose another one, or end that process",
        Some(Errno::EADDRNOTAVAIL) => {
            "the address is not one of this host's; start rank 0 on the host that it names"
        }
        Some(Errno::EACCES) => "ports below 1024 need privileges; choose a higher one",
        _ => "check the address",
    };
    let address = attempt.address.to_string();
    Err(HostsError::CannotListen { address, reason: error.to_string(), advice }.into())
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
