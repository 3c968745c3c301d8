//! A connection to another host: messages with a bound, tagged once both sides have proved who they are, and
//! keep-alive. Never blocks.

use super::error::Lost;
use super::proof::Seal;
use super::wire::{BODY_BYTES, Message};
use deadline::Deadline;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// A host or a network that says nothing for so long has failed: the limit of TCP for data that nobody acknowledges,
/// and of keep-alive when there is none.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);
/// Keep-alive: after so many seconds without data, every so many, so often.
const KEEP_ALIVE: (u32, u32, u32) = (4, 2, 3);
/// What a peer may leave unread before it counts as lost.
const OUTPUT_BYTES: usize = 4 << 20;
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 32;
/// The longest sleep, after which deadlines are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What was received.
pub(super) enum Received {
    Nothing,
    Message(Message),
    /// Nothing more comes.
    End(Lost),
}

/// A connection.
pub(super) struct Connection {
    socket: TcpStream,
    seal: Option<Seal>,
    /// The longest body that is accepted.
    limit: usize,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The writing side was closed.
    finished: bool,
}

impl Connection {
    /// Bodies of more than `limit` bytes end the connection.
    pub(super) fn new(socket: TcpStream, limit: usize) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let (idle, interval, count) = KEEP_ALIVE;
        let silence = SILENCE.as_millis() as u32;
        setsockopt(&socket, sockopt::KeepAlive, &true)
            .and_then(|()| setsockopt(&socket, sockopt::TcpKeepIdle, &idle))
            .and_then(|()| setsockopt(&socket, sockopt::TcpKeepInterval, &interval))
            .and_then(|()| setsockopt(&socket, sockopt::TcpKeepCount, &count))
            .and_then(|()| setsockopt(&socket, sockopt::TcpUserTimeout, &silence))?;
        Ok(Self { socket, seal: None, limit, input: Vec::new(), output: Vec::new(), finished: false })
    }

    /// Both sides have proved that they know the token: messages are tagged from now on.
    pub(super) fn seal(&mut self, seal: Seal) {
        self.seal = Some(seal);
        self.limit = BODY_BYTES;
    }

    /// Sends a message, or as much of it as the system takes now.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), Lost> {
        let body = message.encode();
        self.output.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.output.extend_from_slice(&body);
        if let Some(seal) = &mut self.seal {
            self.output.extend_from_slice(&seal.tag(&body));
        }
        if self.output.len() > OUTPUT_BYTES { Err(Lost::Malformed) } else { self.flush() }
    }

    /// Sends more of what was not sent yet.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        let mut sent = 0;
        let result = loop {
            if sent == self.output.len() {
                break Ok(());
            }
            match send(self.socket.as_raw_fd(), &self.output[sent..], MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::EAGAIN) => break Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => break Err(lost(errno)),
            }
        };
        self.output.drain(..sent);
        result
    }

    /// Whether everything was sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// Tells the other end that nothing more comes. To be called when everything is sent.
    pub(super) fn finish(&mut self) {
        if !self.finished {
            self.finished = true;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    /// The next message. Reads at most once.
    pub(super) fn receive(&mut self) -> Received {
        if let Some(received) = self.next() {
            return received;
        }
        let mut bytes = [0; 16 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) => Received::End(Lost::Closed),
            Ok(count) => {
                self.input.extend_from_slice(&bytes[..count]);
                self.next().unwrap_or(Received::Nothing)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Received::Nothing
            }
            Err(error) => {
                Received::End(error.raw_os_error().map_or(Lost::Closed, |n| lost(Errno::from_raw(n))))
            }
        }
    }

    /// The next message of those that were read. At most one frame and one read are kept.
    fn next(&mut self) -> Option<Received> {
        let length =
            self.input.first_chunk::<LENGTH_BYTES>().map(|bytes| u32::from_le_bytes(*bytes) as usize)?;
        if length > self.limit {
            return Some(Received::End(Lost::Malformed));
        }
        let tagged = if self.seal.is_some() { TAG_BYTES } else { 0 };
        let end = LENGTH_BYTES + length;
        let whole = self.input.get(..end + tagged)?;
        let body = &whole[LENGTH_BYTES..end];
        let genuine = match (&mut self.seal, whole[end..].first_chunk::<TAG_BYTES>()) {
            (Some(seal), Some(tag)) => seal.is_next(body, tag),
            (Some(_), None) => false,
            (None, _) => true,
        };
        let message = genuine.then(|| Message::decode(body)).flatten();
        self.input.drain(..end + tagged);
        Some(message.map_or(Received::End(Lost::Malformed), Received::Message))
    }

    /// Whether a message may be there without anything to read.
    pub(super) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// What to wait for at this connection.
    pub(super) fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        let out = if self.output.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
        (self.socket.as_fd(), PollFlags::POLLIN | out)
    }

    pub(super) fn peer(&self) -> String {
        self.socket.peer_addr().map_or_else(|_| "an unknown address".to_owned(), |peer| peer.to_string())
    }
}

fn lost(errno: Errno) -> Lost {
    match errno {
        Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EHOSTDOWN => Lost::Silent,
        _ => Lost::Closed,
    }
}

/// Sleeps until one of these is ready, at most [`POLL_INTERVAL`] and until the deadline.
pub(super) fn sleep_on<'a>(
    interests: impl IntoIterator<Item = (BorrowedFd<'a>, PollFlags)>,
    deadline: Deadline,
) {
    sleep_at_most(interests, deadline.left().min(POLL_INTERVAL));
}

/// Sleeps until one of these is ready, or for so long.
pub(super) fn sleep_at_most<'a>(
    interests: impl IntoIterator<Item = (BorrowedFd<'a>, PollFlags)>,
    limit: Duration,
) {
    let mut fds: Vec<PollFd<'_>> = interests.into_iter().map(|(fd, flags)| PollFd::new(fd, flags)).collect();
    let millis = limit.as_millis().min(10_000) as u16;
    // Interrupted or not, the caller checks everything again.
    let _ = poll(&mut fds, PollTimeout::from(millis + 1));
}

/// Sends what is left to these, then waits until they have closed their end: a process that closes a connection with
/// something unread in it makes the system drop what the other end has not read yet.
pub(super) fn close(connections: Vec<Connection>, limit: Duration) {
    let Ok(deadline) = Deadline::after(limit) else { return };
    let mut open = connections;
    while !open.is_empty() && !deadline.has_passed() {
        open.retain_mut(|connection| {
            if connection.flush().is_err() {
                return false;
            }
            if connection.is_flushed() {
                connection.finish();
            }
            loop {
                match connection.receive() {
                    Received::Message(_) if !deadline.has_passed() => {}
                    Received::Nothing => return true,
                    Received::Message(_) | Received::End(_) => return false,
                }
            }
        });
        if !open.is_empty() {
            sleep_on(open.iter().map(Connection::interest), deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::getsockopt;
    use std::net::TcpListener;

    #[test]
    fn rv_13_the_system_gives_a_silent_connection_up_after_ten_seconds() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Connection::new(socket, 64).unwrap().socket;
        assert_eq!(SILENCE, Duration::from_secs(10));
        // Where nothing is sent, the probes end it; where something is, that it is not acknowledged.
        assert!(getsockopt(&socket, sockopt::KeepAlive).unwrap());
        let idle = getsockopt(&socket, sockopt::TcpKeepIdle).unwrap();
        let interval = getsockopt(&socket, sockopt::TcpKeepInterval).unwrap();
        let probes = getsockopt(&socket, sockopt::TcpKeepCount).unwrap();
        assert_eq!(Duration::from_secs((idle + interval * probes).into()), SILENCE);
        let unacknowledged = getsockopt(&socket, sockopt::TcpUserTimeout).unwrap();
        assert_eq!(Duration::from_millis(unacknowledged.into()), SILENCE);
    }
}
