//! Unix sockets that keep messages apart, with descriptors and credentials.
//!
//! # Safety
//! Takes ownership of descriptors that the kernel has just created in this process, and asks for a limit.
#![allow(unsafe_code)]

use super::wire::{MESSAGE_BYTES, Message};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials, accept4, bind, getsockopt, recvmsg, sendmsg, socket, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The most descriptors of a message: those of the memory of 64 ranks. The kernel takes 253.
const MOST_DESCRIPTORS: usize = 80;

fn open() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

/// Takes the name for this process; `EADDRINUSE` when another process holds it.
pub(super) fn listen(name: &str) -> nix::Result<OwnedFd> {
    let socket = open()?;
    bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    nix::sys::socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket)
}

/// Connects to the process that holds the name; `ECONNREFUSED` when there is none.
pub(super) fn connect(name: &str) -> nix::Result<OwnedFd> {
    let socket = open()?;
    nix::sys::socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(socket)
}

/// The next connection, if there is one.
pub(super) fn accept(listener: &OwnedFd) -> nix::Result<Option<OwnedFd>> {
    match accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
        // SAFETY: the kernel just created this descriptor for us.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// How many descriptors this process may have open.
pub(super) fn descriptor_limit() -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is a live local of the type that the call fills.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) };
    limits.rlim_cur
}

/// The process at the other end as the kernel knows it, or its user if that is another one. The pid is 0 when
/// the process is not visible in this pid namespace.
pub(super) fn peer(socket: &OwnedFd) -> nix::Result<Result<i32, u32>> {
    let peer: UnixCredentials = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok(if peer.uid() == nix::unistd::geteuid().as_raw() { Ok(peer.pid()) } else { Err(peer.uid()) })
}

pub(super) fn send(socket: &OwnedFd, message: &Message) -> nix::Result<()> {
    send_with(socket, message, &[])
}

/// Sends a message with copies of `fds`.
pub(super) fn send_with(socket: &OwnedFd, message: &Message, fds: &[BorrowedFd<'_>]) -> nix::Result<()> {
    let bytes = message.encode();
    let fds: Vec<i32> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&bytes)], control, flags, None).map(drop)
}

/// What was received.
pub(super) enum Received {
    Nothing,
    /// A message, and the descriptors that came with it.
    Message(Message, Vec<OwnedFd>),
    /// The other end is closed, or sent a malformed message.
    End,
}

pub(super) fn receive(socket: &OwnedFd) -> Received {
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut control = nix::cmsg_space!([std::os::fd::RawFd; MOST_DESCRIPTORS]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let found = match recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut control), flags) {
        Ok(found) => found,
        Err(Errno::EAGAIN | Errno::EINTR) => return Received::Nothing,
        Err(_) => return Received::End,
    };
    let mut fds = Vec::new();
    for message in found.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel just created these descriptors for us; all of them are owned, so that none
            // leaks.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let len = found.bytes;
    match Message::decode(&bytes[..len]) {
        Some(message) => Received::Message(message, fds),
        None => Received::End,
    }
}
