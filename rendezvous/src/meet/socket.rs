//! Unix sockets that keep messages apart, with descriptors and credentials.
//!
//! # Safety
//! Takes ownership of descriptors that the kernel has just handed to this process.
#![allow(unsafe_code)]

use super::wire::{MESSAGE_BYTES, Message};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials, accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, socket, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

fn open() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

/// Takes the name for this process, or says that somebody has it (`EADDRINUSE`).
pub(crate) fn host(name: &str) -> nix::Result<OwnedFd> {
    let socket = open()?;
    bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(socket)
}

/// Goes to whoever has the name; `ECONNREFUSED` when nobody has.
pub(crate) fn visit(name: &str) -> nix::Result<OwnedFd> {
    let socket = open()?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(socket)
}

/// The next visitor, if there is one.
pub(crate) fn accept(listener: &OwnedFd) -> nix::Result<Option<OwnedFd>> {
    match accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
        // SAFETY: the kernel just made this descriptor for us.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Who is at the other end, by the kernel's word: the process, if it belongs to this user; else that user.
pub(crate) fn peer(socket: &OwnedFd) -> nix::Result<Result<i32, u32>> {
    let who: UnixCredentials = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok(if who.uid() == nix::unistd::geteuid().as_raw() { Ok(who.pid()) } else { Err(who.uid()) })
}

pub(crate) fn send(socket: &OwnedFd, message: &Message, memory: Option<BorrowedFd<'_>>) -> nix::Result<()> {
    let bytes = message.encode();
    let fds: Vec<i32> = memory.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&bytes)], control, flags, None).map(drop)
}

/// What was received.
pub(crate) enum Received {
    Nothing,
    Message(Message, Option<OwnedFd>),
    /// The other end is closed, or speaks nonsense.
    End,
}

pub(crate) fn receive(socket: &OwnedFd) -> Received {
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut control = nix::cmsg_space!([std::os::fd::RawFd; 4]);
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
            // SAFETY: the kernel just made these descriptors for us; owning all of them means that none leaks.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let len = found.bytes;
    match Message::decode(&bytes[..len]) {
        Some(message) => Received::Message(message, fds.into_iter().next()),
        None => Received::End,
    }
}
