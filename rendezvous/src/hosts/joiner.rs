//! A rank other than 0: connects to rank 0, proves that it knows the token, and waits until all have joined.

use super::Attempt;
use super::connection::{Connection, Received, close, sleep_on};
use super::error::{HostsError, Lost};
use super::proof::{Transcript, challenge};
use super::roll::departure;
use super::token::Token;
use super::wire::{Join, Member, Message, TEXT_BYTES};
use comm_context::comm::{CommError, Phase};
use fault_points::{fault_call, fault_point};
use nix::errno::Errno;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// One attempt to connect, before the next of rank 0's addresses is tried.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// The pause before rank 0, which may not listen yet, is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Rank 0 answers as soon as it accepts. What says nothing for so long is tried again.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long after the deadline rank 0 may still say who is missing.
const GRACE: Duration = Duration::from_millis(300);
/// How long the last message to rank 0 may take.
const CLOSE_LIMIT: Duration = Duration::from_millis(200);

/// Joins at rank 0. Returns the connection and all ranks.
pub(super) fn join(
    attempt: &Attempt<'_>,
    token: &Token,
    own: &Join,
) -> Result<(Connection, Vec<Member>), CommError> {
    let addresses = attempt.address.resolve(attempt.deadline)?;
    fault_point!("hosts.joiner.resolved");
    loop {
        for address in &addresses {
            let proved = match connect(attempt, *address)? {
                Ok(connection) => prove(attempt, token, own, connection)?,
                Err(why) => Err(why),
            };
            match proved {
                Ok(connection) => return await_start(attempt, own, connection),
                Err(why) if attempt.deadline.has_passed() => {
                    return Err(never_accepted(attempt, &format!("{address} {why}")));
                }
                Err(_) => {}
            }
        }
        std::thread::sleep(RETRY_PAUSE.min(attempt.deadline.left()));
    }
}

/// Asks rank 0 who has joined; `None` when nobody waits there.
pub(super) fn observe(attempt: &Attempt<'_>, token: &Token, own: &Join) -> Result<Option<String>, CommError> {
    for address in attempt.address.resolve(attempt.deadline)? {
        let Ok(connection) = connect(attempt, address)? else { continue };
        let Ok(mut connection) = prove(attempt, token, own, connection)? else { continue };
        if let Ok(Message::Table { text, .. }) = answer(attempt, &mut connection) {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// The deadline passed before rank 0 accepted this rank.
fn never_accepted(attempt: &Attempt<'_>, last: &str) -> CommError {
    let (waited, limit) = (attempt.deadline.elapsed(), attempt.deadline.limit());
    let table = format!("  rank  0  does not answer at {}: {last}\n", attempt.address);
    CommError::TimedOut { phase: Phase::Init, waited, limit, missing: vec![0], table }
}

/// A connection, or why there is none now.
fn connect(attempt: &Attempt<'_>, address: SocketAddr) -> Result<Result<Connection, String>, CommError> {
    let limit = attempt.deadline.left().min(CONNECT_LIMIT).max(Duration::from_millis(1));
    let connected = fault_call!("hosts.joiner.connect")
        .map_err(std::io::Error::from_raw_os_error)
        .and_then(|()| TcpStream::connect_timeout(&address, limit))
        .and_then(|socket| {
            // A port that nobody listens at can be connected to itself.
            let alone = socket.local_addr()? == socket.peer_addr()?;
            if alone { Err(Errno::ECONNREFUSED.into()) } else { Connection::new(socket, TEXT_BYTES + 64) }
        });
    let error = match connected {
        Ok(connection) => return Ok(Ok(connection)),
        Err(error) => error,
    };
    match error.raw_os_error().map(Errno::from_raw) {
        // Rank 0 does not listen yet, is busy, or did not answer in time.
        None
        | Some(Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::ETIMEDOUT | Errno::EAGAIN | Errno::EINTR) => {
            Ok(Err(format!("cannot be connected to ({error})")))
        }
        Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EPERM) => {
            let reason = error.to_string();
            Err(HostsError::Unreachable { address: attempt.address.to_string(), reason }.into())
        }
        Some(errno) => {
            let what = format!("the rendezvous at {}", attempt.address);
            Err(CommError::System { call: "connect", errno: errno as i32, what })
        }
    }
}

/// Proves to rank 0 that this rank knows the token, and checks that rank 0 does. An inner error is a connection that
/// ended before rank 0 knew this rank.
fn prove(
    attempt: &Attempt<'_>,
    token: &Token,
    own: &Join,
    mut connection: Connection,
) -> Result<Result<Connection, String>, CommError> {
    fault_point!("hosts.joiner.connected");
    let address = || attempt.address.to_string();
    let not_rank_zero = |what: &str| HostsError::NotRankZero { address: address(), what: what.to_owned() };
    let hello = match answer(attempt, &mut connection) {
        Ok(Message::Hello { challenge }) => challenge,
        Ok(_) => return Err(not_rank_zero("it sent something else than its challenge").into()),
        Err(Lost::Malformed) => return Err(not_rank_zero("it sent a malformed message").into()),
        Err(how) => return Ok(Err(went_away(how).to_owned())),
    };
    let own_challenge = challenge().map_err(|error| CommError::system("open", "/dev/urandom", &error))?;
    let bytes = own.bytes();
    let transcript = Transcript { token, leader: &hello, joiner: &own_challenge, join: &bytes };
    let join =
        Message::Join { challenge: own_challenge, join: own.clone(), proof: transcript.joiner_proof() };
    if let Err(how) = connection.send(&join) {
        return Ok(Err(went_away(how).to_owned()));
    }
    fault_point!("hosts.joiner.join_sent");
    match answer(attempt, &mut connection) {
        Ok(Message::Accepted { proof }) if transcript.is_leader(&proof) => {
            connection.seal(transcript.joiner_seal());
            fault_point!("hosts.joiner.accepted");
            Ok(Ok(connection))
        }
        Ok(Message::Refused { reason }) => Err(HostsError::Refused {
            address: address(),
            reason: format!("rank 0 refused rank {}: {reason}", own.rank),
        }
        .into()),
        Ok(_) | Err(Lost::Malformed) => Err(not_rank_zero("it does not know the token").into()),
        Err(how) => Ok(Err(went_away(how).to_owned())),
    }
}

fn went_away(how: Lost) -> &'static str {
    match how {
        Lost::Closed | Lost::Malformed => "closed the connection before it accepted this rank",
        Lost::Silent => "accepts connections and does not answer",
    }
}

/// The next message, in time.
fn answer(attempt: &Attempt<'_>, connection: &mut Connection) -> Result<Message, Lost> {
    let until =
        deadline::Deadline::since(deadline::monotonic_ns(), ANSWER_LIMIT.min(attempt.deadline.left()));
    loop {
        connection.flush()?;
        match connection.receive() {
            Received::Message(message) => return Ok(message),
            Received::End(how) => return Err(how),
            Received::Nothing if until.has_passed() => return Err(Lost::Silent),
            Received::Nothing => sleep_on([connection.interest()], until),
        }
    }
}

/// Waits until all ranks have joined.
fn await_start(
    attempt: &Attempt<'_>,
    own: &Join,
    mut connection: Connection,
) -> Result<(Connection, Vec<Member>), CommError> {
    let deadline = attempt.deadline;
    // Rank 0, whose time is over at about the same moment, knows who is missing, and says it if nobody leaves before.
    let gives_up = deadline::Deadline::since(deadline.start_ns(), deadline.limit() + GRACE);
    loop {
        match connection.receive() {
            Received::Message(Message::Start { members }) if members.len() == own.nranks as usize => {
                fault_point!("hosts.joiner.started");
                return Ok((connection, members));
            }
            Received::Message(Message::Refused { reason }) => {
                return Err(HostsError::Refused { address: attempt.address.to_string(), reason }.into());
            }
            Received::Message(Message::Lost { rank, pid, how }) => return Err(departure(rank, pid, how)),
            Received::Message(Message::Table { missing, text }) => {
                let missing = (0..own.nranks).filter(|rank| missing >> rank & 1 == 1).collect();
                let (waited, limit) = (deadline.elapsed(), deadline.limit());
                return Err(CommError::TimedOut { phase: Phase::Init, waited, limit, missing, table: text });
            }
            Received::Message(_) => return Err(departure(0, 0, Lost::Malformed)),
            Received::End(how) => return Err(departure(0, 0, how)),
            Received::Nothing if gives_up.has_passed() => {
                let reason = format!("it gave up after {:.1?}", deadline.limit());
                let _ = connection.send(&Message::Leave { reason });
                close(vec![connection], CLOSE_LIMIT);
                let (waited, limit) = (deadline.elapsed(), deadline.limit());
                let table = "  rank  0  has accepted this rank and waits for others\n".to_owned();
                return Err(CommError::TimedOut {
                    phase: Phase::Init,
                    waited,
                    limit,
                    missing: Vec::new(),
                    table,
                });
            }
            Received::Nothing => sleep_on([connection.interest()], gives_up),
        }
    }
}
