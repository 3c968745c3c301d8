//! The way in: the ranks meet, get ready, and join HCCL's communicator together.
//!
//! # Safety
//! Takes a stream of a C caller's on its word.
#![allow(unsafe_code)]

use super::note::{Note, Refusal, Verdict, settle};
use super::objects::Objects;
use super::{HcclComm, JOINED, READY, RELEASE_GRACE, State, device_error, interrupted, stuck};
use crate::device::{Device, Handle, VendorPid};
use crate::error::DeviceError;
use crate::group::RootInfo;
use crate::lane::{Interrupted, Lane, NotStarted};
use crate::stream::Stream;
use crate::sys::aclrtStream;
use comm_context::comm::{CommError, Membership, Phase, Timeout};
use deadline::Deadline;
use rendezvous::{Group, Prepared, Step, Tag};
use std::path::Path;
use std::sync::Mutex;
use worker_errors::clip;

/// Bytes of addresses that each rank owns of the group's memory. Windows are on the device, so none are needed.
const EXTENT: usize = 1;
/// The letter's first byte: what follows is the root info, or why there is none.
const ROOT: u8 = 1;
const NO_ROOT: u8 = 2;

/// Makes or adopts the stream, on the lane.
type MakeStream = Box<dyn FnOnce(&Device) -> Result<Stream, DeviceError> + Send>;

/// The shared memory of a group whose ranks are about to be forked. No vendor library is touched.
pub fn prepare(nranks: u32) -> Result<Prepared, CommError> {
    Prepared::new(nranks, EXTENT)
}

impl HcclComm {
    /// Joins a group that the parent of this process prepared. The device stays the caller's to close, afterwards.
    pub fn join(device: &Device, prepared: &Prepared, rank: u32, within: Timeout) -> Result<Self, CommError> {
        let until = super::deadline(within)?;
        Self::enter(prepared.join(rank, within)?, device, Box::new(Stream::create), until, within)
    }

    /// Meets the other ranks at `path`.
    pub fn rendezvous(
        device: &Device,
        path: &Path,
        me: Membership,
        within: Timeout,
    ) -> Result<Self, CommError> {
        Self::meet_with(device, Box::new(Stream::create), path, me, within)
    }

    /// The same, with a stream of the caller's, which stays the caller's.
    ///
    /// # Safety
    /// The stream was made in the device's context and is destroyed only after the communicator.
    pub unsafe fn meet_on_stream(
        device: &Device,
        stream: aclrtStream,
        path: &Path,
        me: Membership,
        within: Timeout,
    ) -> Result<Self, CommError> {
        let stream = Handle(stream);
        let adopt = move |device: &Device| {
            // The whole handle crosses to the lane, not the bare pointer in it.
            let Handle(stream) = { stream };
            // SAFETY: the caller's promise is handed on; the lane ends before the communicator does.
            Ok(unsafe { Stream::adopt(device, stream) })
        };
        Self::meet_with(device, Box::new(adopt), path, me, within)
    }

    fn meet_with(
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
        // One deadline for all of it (F06): what meeting took is gone.
        let left = Timeout::new(until.left().max(std::time::Duration::from_millis(1)))?;
        let entered = {
            let step = group.step(Phase::Init, left)?;
            let entry = Entry { group: &group, device, step: &step, until };
            entry.get_ready(stream).and_then(|(lane, pids)| match entry.join(&lane) {
                Ok(()) => Ok((lane, pids)),
                Err(error) => {
                    let bound = Deadline::after(RELEASE_GRACE).unwrap_or(until);
                    // A lane that waits inside the vendor's code is left to it; it cleans up when it comes back.
                    if lane.inside().is_none() {
                        let _ = lane.close(bound);
                    }
                    Err(error)
                }
            })
        };
        let (lane, pids) = entered.inspect_err(|error| group.leave(&error.root_cause().to_string()))?;
        Ok(Self {
            group,
            device: device.clone(),
            lane: Some(lane),
            pids,
            within,
            turn: Mutex::new(()),
            state: Mutex::new(State::default()),
        })
    }
}

/// A rank on its way in.
struct Entry<'a> {
    group: &'a Group,
    device: &'a Device,
    step: &'a Step<'a>,
    until: Deadline,
}

impl Entry<'_> {
    fn me(&self) -> u32 {
        self.group.membership().rank()
    }

    fn everybody(&self) -> Vec<u32> {
        (0..self.group.membership().nranks()).collect()
    }

    fn error(&self, error: DeviceError) -> CommError {
        device_error(error, self.me(), self.device, Phase::Init)
    }

    /// Starts the lane, and learns that all ranks could: nobody goes to wait inside HCCL for a rank that cannot come.
    fn get_ready(&self, stream: MakeStream) -> Result<(Lane<Objects>, Vec<VendorPid>), CommError> {
        let device = self.device.clone();
        let started = Lane::start(self.until, move || {
            device.bind_thread()?;
            let stream = stream(&device)?;
            Ok::<_, DeviceError>(Objects::new(device, stream))
        });
        let ready = match started {
            Ok(lane) => {
                let device = self.device.clone();
                match lane.run(self.until, move |_| device.vendor_pid()) {
                    Ok(Ok(pid)) => Ok((lane, pid)),
                    Ok(Err(error)) => {
                        let _ = lane.close(self.until);
                        Err(self.error(error))
                    }
                    Err(overrun) => return Err(self.group.fail(stuck(&overrun, self.me(), Phase::Init))),
                }
            }
            Err(NotStarted::State(error)) => Err(self.error(error)),
            Err(NotStarted::Thread(error)) => {
                Err(CommError::system("pthread_create", "the vendor's thread", &error))
            }
            Err(NotStarted::Overrun(overrun)) => {
                return Err(self.group.fail(stuck(&overrun, self.me(), Phase::Init)));
            }
        };
        let (note, own) = match &ready {
            Ok((_, pid)) => (Note::Done(pid.0.to_le_bytes().to_vec()), None),
            Err(error) => (Note::Failed(error.to_string()), Some(error.clone())),
        };
        let told = self.tell(READY, &note, own);
        match (ready, told) {
            (Ok((lane, _)), Ok(payloads)) => {
                let pids = payloads
                    .iter()
                    .map(|bytes| bytes.first_chunk().map(|b| VendorPid(i32::from_le_bytes(*b))));
                match pids.collect() {
                    Some(pids) => Ok((lane, pids)),
                    None => Err(CommError::PeerFailed {
                        rank: 0,
                        phase: Phase::Init,
                        message: "a rank sent half a process id".to_owned(),
                    }),
                }
            }
            (Ok((lane, _)), Err(error)) => {
                let _ = lane.close(Deadline::after(RELEASE_GRACE).unwrap_or(self.until));
                Err(error)
            }
            (Err(own), told) => Err(told.err().unwrap_or(own)),
        }
    }

    fn join(&self, lane: &Lane<Objects>) -> Result<(), CommError> {
        let root = self.root_info(lane)?;
        let (ranks, rank) = (self.group.membership().nranks(), self.me());
        let watcher = || self.group.check_peers(self.step);
        let joined = lane.run_watching(self.until, watcher, move |objects| objects.join(&root, ranks, rank));
        match joined {
            Ok(Ok(())) => {}
            // The others wait for this rank inside HCCL; leaving is what they look out for.
            Ok(Err(error)) => return Err(self.group.fail(self.error(error))),
            Err(Interrupted::Watcher(error)) => {
                return Err(blame(interrupted(self.group, lane, error, Phase::Init, self.until)));
            }
            Err(Interrupted::Overrun(overrun)) => {
                return Err(self.group.fail(stuck(&overrun, self.me(), Phase::Init)));
            }
        }
        // Nobody goes on, or away, while another is still inside HCCL.
        self.tell(JOINED, &Note::Done(Vec::new()), None).map(drop).map_err(blame)
    }

    /// Rank 0 makes it and tells all, or tells why it cannot.
    fn root_info(&self, lane: &Lane<Objects>) -> Result<RootInfo, CommError> {
        if self.me() == 0 {
            let made = match lane.run(self.until, |objects| objects.root_info()) {
                Ok(made) => made.map_err(|error| self.error(error)),
                Err(overrun) => return Err(self.group.fail(stuck(&overrun, 0, Phase::Init))),
            };
            let letter = match &made {
                Ok(root) => [&[ROOT][..], root.as_bytes()].concat(),
                Err(error) => [&[NO_ROOT][..], clip(&error.to_string(), 1024).as_bytes()].concat(),
            };
            self.group.broadcast(&letter)?;
            return made;
        }
        let letter = self.group.receive_broadcast(self.step, 0).map_err(blame)?;
        match letter.split_first() {
            Some((&ROOT, bytes)) if bytes.len() == RootInfo::LEN => {
                let bytes = bytes.first_chunk().ok_or(CommError::Closed)?;
                Ok(RootInfo::from_bytes(bytes))
            }
            Some((&NO_ROOT, text)) => Err(CommError::PeerFailed {
                rank: 0,
                phase: Phase::Init,
                message: worker_errors::escape(&String::from_utf8_lossy(text), 2048).into_owned(),
            }),
            _ => Err(CommError::PeerFailed {
                rank: 0,
                phase: Phase::Init,
                message: "it sent half a root info".to_owned(),
            }),
        }
    }

    fn tell(&self, kind: u32, note: &Note, own: Option<CommError>) -> Result<Vec<Vec<u8>>, CommError> {
        let everybody = self.everybody();
        let notes = self.group.exchange(self.step, Tag { kind, id: 0 }, &everybody, &note.encode())?;
        match settle(&notes, &everybody, own, Phase::Init) {
            Verdict::Done(payloads) => Ok(payloads),
            Verdict::Failed(error) => Err(error),
            Verdict::Refused { first: Refusal { rank, reason: message }, .. } => {
                Err(CommError::PeerFailed { rank, phase: Phase::Init, message })
            }
        }
    }
}

/// A rank that leaves while the others come in has failed, and its reason says how.
fn blame(error: CommError) -> CommError {
    match error {
        CommError::PeerLeft { rank, reason, phase } => CommError::PeerFailed { rank, phase, message: reason },
        other => other,
    }
}
