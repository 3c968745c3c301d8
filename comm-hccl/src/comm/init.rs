//! How a rank gets its communicator: it joins the group, starts its vendor thread, and joins HCCL's communicator together
//! with all other ranks.
//!
//! # Safety
//! Relies on a C caller for the validity of its stream.
#![allow(unsafe_code)]

use super::leaving::EXTENT;
use super::objects::Objects;
use super::{HcclComm, JOINED, READY, RELEASE_GRACE, State, device_error, interrupted, stuck};
use crate::device::{Device, Handle, VendorPid};
use crate::error::DeviceError;
use crate::group::RootInfo;
use crate::stream::Stream;
use crate::sys::aclrtStream;
use crate::vendor_thread::{Interrupted, NotStarted, VendorThread};
use comm_context::comm::{CommError, Membership, Phase, Timeout};
use deadline::Deadline;
use rendezvous::{BROADCAST_BYTES, Group, Prepared, Step, Tag};
use std::path::Path;
use std::sync::Mutex;
use worker_errors::cursor::Reader;
use worker_errors::{clip, escape};

/// The first byte of rank 0's broadcast: the root info follows, or the text of the error.
const ROOT: u8 = 1;
const NO_ROOT: u8 = 2;
/// The longest error text in the broadcast.
const ROOT_ERROR: usize = 1024;
const _: () = assert!(RootInfo::LEN < BROADCAST_BYTES && ROOT_ERROR < BROADCAST_BYTES);

/// Makes or adopts the stream, on the vendor thread.
type MakeStream = Box<dyn FnOnce(&Device) -> Result<Stream, DeviceError> + Send>;

impl HcclComm {
    /// Makes the shared memory of a group whose ranks the calling process is about to fork. Each of them then
    /// [joins](Self::join) it. No vendor library is touched.
    pub fn prepare_group(nranks: u32) -> Result<Prepared, CommError> {
        Prepared::new(nranks, EXTENT)
    }

    /// Joins a group that the parent of this process prepared, and waits for the other ranks. The device stays the
    /// caller's, who closes it after the communicator.
    pub fn join(device: &Device, prepared: &Prepared, rank: u32, within: Timeout) -> Result<Self, CommError> {
        let until = super::deadline(within)?;
        Self::enter(prepared.join(rank, within)?, device, Box::new(Stream::create), until, within)
    }

    /// Joins the other ranks at `path`, however they were started, and waits for them. Ranks on several hosts join at
    /// `tcp://HOST:PORT`, which is rank 0's, or at `env://`; see [`rendezvous::Group::rendezvous`].
    pub fn rendezvous(
        device: &Device,
        path: &Path,
        me: Membership,
        within: Timeout,
    ) -> Result<Self, CommError> {
        Self::rendezvous_with(device, Box::new(Stream::create), path, me, within)
    }

    /// The same with a stream of the caller's, which stays the caller's.
    ///
    /// # Safety
    /// The stream was made in the device's context and is destroyed only after the communicator.
    pub unsafe fn rendezvous_on_stream(
        device: &Device,
        stream: aclrtStream,
        path: &Path,
        me: Membership,
        within: Timeout,
    ) -> Result<Self, CommError> {
        let stream = Handle(stream);
        let adopt = move |device: &Device| {
            // The closure captures the whole handle, which is `Send`, not the pointer in it.
            let Handle(stream) = { stream };
            // SAFETY: the caller's promise; the vendor thread ends before the communicator does.
            Ok(unsafe { Stream::adopt(device, stream) })
        };
        Self::rendezvous_with(device, Box::new(adopt), path, me, within)
    }

    fn rendezvous_with(
        device: &Device,
        stream: MakeStream,
        path: &Path,
        me: Membership,
        within: Timeout,
    ) -> Result<Self, CommError> {
        let until = super::deadline(within)?;
        Self::enter(Group::rendezvous(path, me, EXTENT, within)?, device, stream, until, within)
    }

    fn enter(
        group: Group,
        device: &Device,
        stream: MakeStream,
        until: Deadline,
        within: Timeout,
    ) -> Result<Self, CommError> {
        // One deadline for everything (F06): the time that the rendezvous took is gone.
        let left = Timeout::new(until.left().max(std::time::Duration::from_millis(1)))?;
        let entered = group.step(Phase::Init, left).and_then(|step| {
            let init = Init { group: &group, device, step: &step, until };
            init.start_thread(stream).and_then(|(thread, pids)| match init.join(&thread) {
                Ok(()) => Ok((thread, pids)),
                Err(error) => {
                    // A thread that waits inside the vendor's code is left behind; it cleans up when the call returns.
                    if thread.current_call().is_none() {
                        init.close(thread);
                    }
                    Err(error)
                }
            })
        });
        let (thread, pids) = entered.inspect_err(|error| group.leave(&error.root_cause().to_string()))?;
        Ok(Self {
            group,
            device: device.clone(),
            thread: Some(thread),
            pids,
            timeout: within,
            at_barrier: Mutex::new(()),
            allocations: Mutex::default(),
            state: Mutex::new(State::default()),
        })
    }
}

/// A rank that is joining.
struct Init<'a> {
    group: &'a Group,
    device: &'a Device,
    step: &'a Step<'a>,
    until: Deadline,
}

impl Init<'_> {
    fn me(&self) -> u32 {
        self.group.membership().rank()
    }

    fn error(&self, error: DeviceError) -> CommError {
        device_error(error, self.me(), self.device, Phase::Init)
    }

    fn close(&self, thread: VendorThread<Objects>) {
        let _ = thread.close(Deadline::after(RELEASE_GRACE).unwrap_or(self.until));
    }

    /// Starts the vendor thread, and waits until every rank has started its own: no rank waits inside HCCL for one that
    /// cannot come. Returns the process ids of all ranks as the driver knows them.
    fn start_thread(&self, stream: MakeStream) -> Result<(VendorThread<Objects>, Vec<VendorPid>), CommError> {
        let device = self.device.clone();
        let started = VendorThread::start(self.until, move || {
            device.bind_thread()?;
            let stream = stream(&device)?;
            Ok::<_, DeviceError>(Objects::new(device, stream))
        });
        let ready = match started {
            Ok(thread) => {
                let device = self.device.clone();
                match thread.run(self.until, move |_| device.vendor_pid()) {
                    Ok(Ok(pid)) => Ok((thread, pid)),
                    Ok(Err(error)) => {
                        self.close(thread);
                        Err(self.error(error))
                    }
                    Err(overrun) => return Err(self.group.fail(stuck(&overrun, self.me(), Phase::Init))),
                }
            }
            Err(NotStarted::State(error)) => Err(self.error(error)),
            Err(NotStarted::Thread(error)) => {
                Err(CommError::system("pthread_create", "the vendor thread", &error))
            }
            Err(NotStarted::Overrun(overrun)) => {
                return Err(self.group.fail(stuck(&overrun, self.me(), Phase::Init)));
            }
        };
        let (thread, own) = match ready {
            Ok((thread, pid)) => (Some(thread), Ok(pid.0.to_le_bytes().to_vec())),
            Err(error) => (None, Err(error)),
        };
        let pids = self.exchange(READY, own).and_then(|payloads| self.decode_pids(&payloads));
        match (thread, pids) {
            (Some(thread), Ok(pids)) => Ok((thread, pids)),
            (thread, pids) => {
                thread.into_iter().for_each(|thread| self.close(thread));
                Err(pids.err().unwrap_or(CommError::Closed))
            }
        }
    }

    fn decode_pids(&self, payloads: &[Vec<u8>]) -> Result<Vec<VendorPid>, CommError> {
        let pid = |(rank, bytes): (u32, &Vec<u8>)| {
            let mut from = Reader::new(bytes);
            let pid = from.i32().and_then(|pid| from.end(VendorPid(pid)));
            pid.ok_or_else(|| malformed(rank, "process id"))
        };
        (0..).zip(payloads).map(pid).collect()
    }

    fn join(&self, thread: &VendorThread<Objects>) -> Result<(), CommError> {
        let root = self.root_info(thread)?;
        let (ranks, rank) = (self.group.membership().nranks(), self.me());
        let watcher = || self.group.check_peers(self.step);
        let joined =
            thread.run_watching(self.until, watcher, move |objects| objects.join(&root, ranks, rank));
        match joined {
            Ok(Ok(())) => {}
            // The others wait for this rank inside HCCL; they notice that it left.
            Ok(Err(error)) => return Err(self.group.fail(self.error(error))),
            Err(Interrupted::Watcher(error)) => {
                return Err(as_failure(interrupted(self.group, thread, error, Phase::Init, self.until)));
            }
            Err(Interrupted::Overrun(overrun)) => {
                return Err(self.group.fail(stuck(&overrun, self.me(), Phase::Init)));
            }
        }
        // No rank continues, or leaves, while another is still inside HCCL.
        self.exchange(JOINED, Ok(Vec::new())).map(drop).map_err(as_failure)
    }

    /// Rank 0 makes the root info and broadcasts it, or broadcasts why it cannot.
    fn root_info(&self, thread: &VendorThread<Objects>) -> Result<RootInfo, CommError> {
        if self.me() == 0 {
            let made = match thread.run(self.until, |objects| objects.root_info()) {
                Ok(made) => made.map_err(|error| self.error(error)),
                Err(overrun) => return Err(self.group.fail(stuck(&overrun, 0, Phase::Init))),
            };
            let message = match &made {
                Ok(root) => [&[ROOT][..], root.as_bytes()].concat(),
                Err(error) => [&[NO_ROOT][..], clip(&error.to_string(), ROOT_ERROR).as_bytes()].concat(),
            };
            self.group.broadcast(&message)?;
            return made;
        }
        let message = self.group.receive_broadcast(self.step, 0).map_err(as_failure)?;
        match message.split_first() {
            Some((&ROOT, bytes)) => {
                bytes.try_into().map(RootInfo::from_bytes).map_err(|_| malformed(0, "root info"))
            }
            Some((&NO_ROOT, text)) => {
                let message = escape(&String::from_utf8_lossy(text), 2 * ROOT_ERROR).into_owned();
                Err(CommError::PeerFailed { rank: 0, phase: Phase::Init, message })
            }
            _ => Err(malformed(0, "root info")),
        }
    }

    fn exchange(&self, kind: u32, own: Result<Vec<u8>, CommError>) -> Result<Vec<Vec<u8>>, CommError> {
        let members: Vec<u32> = (0..self.group.membership().nranks()).collect();
        self.group.exchange_results(self.step, Tag { kind, id: 0 }, &members, own)
    }
}

fn malformed(rank: u32, what: &str) -> CommError {
    CommError::PeerFailed { rank, phase: Phase::Init, message: format!("it sent a malformed {what}") }
}

/// A rank that leaves while the others join has failed, and its reason says how.
fn as_failure(error: CommError) -> CommError {
    match error {
        CommError::PeerLeft { rank, reason, phase } => CommError::PeerFailed { rank, phase, message: reason },
        other => other,
    }
}
