//! Groups that make HCCL's collectives.
//!
//! Each group has an HCCL communicator, a stream and a vendor thread of its own, so that calls of one group neither wait for nor order
//! those of another. Its communicator is made from a root info, as the first one is: `HcclCreateSubCommConfig` takes a struct that
//! grows with every version of the vendor's header.

use super::engine::Engine;
use super::objects::Objects;
use super::{FAILED_GRACE, HcclComm, RELEASE_GRACE, device_error, stuck};
use crate::device::Device;
use crate::error::DeviceError;
use crate::group::RootInfo;
use crate::vendor_thread::{Interrupted, NotStarted, VendorThread};
use comm_context::abi::DeviceAddr;
use comm_context::comm::{
    AllocationId, CommError, DeviceCall, DeviceCallUnderWay, DeviceCollectives, DeviceGroup, DeviceRequest,
    DomainSpec, Leaving, Phase, Timeout, validate,
};
use deadline::monotonic_ns;
use rendezvous::{MESSAGE_BYTES, Step, Tag, deadline};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// The tags of a group's exchanges; parts of the root info have those from `PART` on.
const GROUP_READY: u32 = 0x30;
const GROUP_ROOT: u32 = 0x31;
const GROUP_JOINED: u32 = 0x32;
const GROUP_CLOSED: u32 = 0x33;
const PART: u32 = 0x100;

/// How often a wait looks after the other ranks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// One rank's end of a group.
#[derive(Debug)]
struct HcclGroup<'c> {
    comm: &'c HcclComm,
    /// `None` once closed.
    thread: Option<VendorThread<Engine>>,
    members: Vec<u32>,
    id: u64,
}

impl DeviceCollectives for HcclComm {
    fn device_group(
        &self,
        ranks: &[u32],
        id: u64,
        within: Timeout,
    ) -> Result<Box<dyn DeviceGroup + '_>, CommError> {
        let position = ranks.iter().position(|rank| *rank == self.me()).unwrap_or(ranks.len()) as u32;
        let spec = DomainSpec { id: AllocationId(id), ranks, domain_rank: position, window_size: 1 };
        validate::domain(self.group.membership(), &spec)?;
        let step = self.group.step(Phase::Collective, within)?;
        let made = Join { comm: self, step: &step, members: ranks, id, within }.run(position)?;
        Ok(Box::new(made))
    }
}

/// A group that is being made.
struct Join<'a, 'c> {
    comm: &'c HcclComm,
    step: &'a Step<'a>,
    members: &'a [u32],
    id: u64,
    within: Timeout,
}

impl<'c> Join<'_, 'c> {
    /// Every member starts its thread, then all join HCCL's communicator together: none waits inside HCCL for one that cannot come.
    fn run(&self, position: u32) -> Result<HcclGroup<'c>, CommError> {
        let device = self.comm.device.clone();
        let started = VendorThread::start(self.step.deadline(), move || Engine::new(device, position));
        let started = started.map_err(|error| match error {
            NotStarted::State(error) => self.error(error),
            NotStarted::Thread(error) => CommError::system("pthread_create", "a vendor thread", &error),
            NotStarted::Overrun(overrun) => stuck(&overrun, self.comm.me(), Phase::Collective),
        });
        let (thread, own) = match started {
            Ok(thread) => (Some(thread), Ok(Vec::new())),
            Err(error) => (None, Err(error)),
        };
        let mut group = HcclGroup { comm: self.comm, thread, members: self.members.to_vec(), id: self.id };
        // On an error the group is dropped, which releases what there is of it.
        self.agree(GROUP_READY, own)?;
        let root = self.root_info(&group)?;
        self.join(&group, root)?;
        // No rank goes on while another is still inside HCCL.
        self.agree(GROUP_JOINED, Ok(Vec::new()))
            .inspect_err(|_| drop(group.release(Leaving::Alone, RELEASE_GRACE)))?;
        Ok(group)
    }

    /// The first member makes the root info, and sends it in parts.
    fn root_info(&self, group: &HcclGroup<'_>) -> Result<RootInfo, CommError> {
        let until = self.step.deadline();
        let made = match (&group.thread, self.members.first() == Some(&self.comm.me())) {
            (Some(thread), true) => match thread.run(until, |engine| engine.root_info()) {
                Ok(made) => Some(made.map_err(|error| self.error(error))),
                Err(overrun) => {
                    return Err(self.comm.group.fail(stuck(&overrun, self.comm.me(), Phase::Collective)));
                }
            },
            _ => None,
        };
        let root = made.transpose();
        self.agree(GROUP_ROOT, root.as_ref().map(|_| Vec::new()).map_err(Clone::clone))?;
        let root = root?;
        let mut bytes = Vec::with_capacity(RootInfo::LEN);
        for (part, start) in (0..).zip((0..RootInfo::LEN).step_by(MESSAGE_BYTES)) {
            let end = (start + MESSAGE_BYTES).min(RootInfo::LEN);
            let own = root.as_ref().map_or(&[][..], |root| &root.as_bytes()[start..end]);
            let tag = Tag { kind: PART + part, id: self.id };
            let all = self.comm.group.exchange(self.step, tag, self.members, own)?;
            bytes.extend_from_slice(all.first().map_or(&[], Vec::as_slice));
        }
        let bytes: [u8; RootInfo::LEN] = bytes.try_into().map_err(|_| CommError::PeerFailed {
            rank: self.members[0],
            phase: Phase::Collective,
            message: "it sent a malformed root info".to_owned(),
        })?;
        Ok(RootInfo::from_bytes(&bytes))
    }

    fn join(&self, group: &HcclGroup<'_>, root: RootInfo) -> Result<(), CommError> {
        let (until, ranks) = (self.step.deadline(), self.members.len() as u32);
        let since = monotonic_ns();
        let thread = group.thread.as_ref().ok_or(CommError::Closed)?;
        let joined = thread.run_watching(
            until,
            || group.check_members(since, self.within),
            move |engine| engine.join(&root, ranks),
        );
        match joined {
            Ok(Ok(())) => Ok(()),
            // The others wait for this rank inside HCCL; they notice that it left.
            Ok(Err(error)) => Err(self.comm.group.fail(self.error(error))),
            Err(Interrupted::Watcher(error)) => Err(error),
            Err(Interrupted::Overrun(overrun)) => {
                Err(self.comm.group.fail(stuck(&overrun, self.comm.me(), Phase::Collective)))
            }
        }
    }

    fn agree(&self, kind: u32, own: Result<Vec<u8>, CommError>) -> Result<(), CommError> {
        self.comm.group.exchange_results(self.step, Tag { kind, id: self.id }, self.members, own).map(drop)
    }

    fn error(&self, error: DeviceError) -> CommError {
        device_error(error, self.comm.me(), &self.comm.device, Phase::Collective)
    }
}

impl HcclGroup<'_> {
    fn release(&mut self, leaving: Leaving, limit: Duration) -> Result<(), CommError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let until = deadline(Timeout::new(limit)?)?;
        let met = match leaving {
            Leaving::Alone => Ok(()),
            Leaving::Together => {
                self.comm.group.step(Phase::Collective, Timeout::new(limit)?).and_then(|step| {
                    let tag = Tag { kind: GROUP_CLOSED, id: self.id };
                    self.comm.group.exchange(&step, tag, &self.members, &[]).map(drop)
                })
            }
        };
        let me = self.comm.me();
        let released = thread.run(until, Engine::release).and_then(|released| {
            thread.close(until)?;
            Ok(released)
        });
        let released = match released {
            Ok(released) => {
                released.map_err(|error| device_error(error, me, &self.comm.device, Phase::Collective))
            }
            // Left behind with everything that it holds.
            Err(overrun) => Err(stuck(&overrun, me, Phase::Collective)),
        };
        met.and(released)
    }

    fn on_base_thread<T: Send + 'static>(
        &self,
        within: Timeout,
        job: impl FnOnce(&mut Objects) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, CommError> {
        self.comm.vendor(Phase::Transfer, deadline(within)?, job)
    }
}

impl DeviceGroup for HcclGroup<'_> {
    fn start(&self, request: DeviceRequest) -> Result<Box<dyn DeviceCallUnderWay>, CommError> {
        self.comm.group.check()?;
        let thread = self.thread.as_ref().ok_or(CommError::Closed)?;
        let answer = thread.submit(move |engine| engine.run(&request));
        let (device, rank) = (self.comm.device.clone(), self.comm.me());
        Ok(Box::new(UnderWay { answer, found: None, device, rank }))
    }

    fn wait(
        &self,
        call: &mut dyn DeviceCallUnderWay,
        since_ns: u64,
        within: Timeout,
    ) -> Result<Vec<u8>, CommError> {
        // The answer is looked for once more before another rank's end counts.
        let mut ended = Ok(());
        loop {
            if call.wait_for(POLL_INTERVAL) {
                let taken = call.take().unwrap_or(Err(CommError::Closed));
                // The others wait for this rank inside HCCL; they notice that it left.
                return taken.map_err(|error| self.comm.group.fail(error));
            }
            ended?;
            ended = self.check_members(since_ns, within);
        }
    }

    fn check_members(&self, since_ns: u64, within: Timeout) -> Result<(), CommError> {
        let others: Vec<u32> = self.members.iter().copied().filter(|rank| *rank != self.comm.me()).collect();
        self.comm.group.check_ranks(&others, since_ns, within)
    }

    fn check(&self, call: &DeviceCall) -> Result<(), String> {
        crate::collective::check(call)
    }

    fn is_on_device(&self, addr: DeviceAddr, within: Timeout) -> Result<bool, CommError> {
        self.on_base_thread(within, move |objects| objects.is_on_device(addr))
    }

    fn allocate(&self, bytes: usize, within: Timeout) -> Result<DeviceAddr, CommError> {
        self.on_base_thread(within, move |objects| objects.allocate(bytes))
    }

    fn free(&self, addr: DeviceAddr, within: Timeout) -> Result<(), CommError> {
        self.on_base_thread(within, move |objects| objects.free_allocated(addr))
    }

    fn close(mut self: Box<Self>, leaving: Leaving, within: Timeout) -> Result<(), CommError> {
        let limit = match leaving {
            Leaving::Together => within.get(),
            Leaving::Alone => within.get().min(FAILED_GRACE),
        };
        self.release(leaving, limit)
    }
}

impl Drop for HcclGroup<'_> {
    fn drop(&mut self) {
        let _ = self.release(Leaving::Alone, RELEASE_GRACE);
    }
}

/// A call on a vendor thread.
struct UnderWay {
    answer: Receiver<Result<Vec<u8>, DeviceError>>,
    found: Option<Result<Vec<u8>, CommError>>,
    device: Device,
    rank: u32,
}

impl DeviceCallUnderWay for UnderWay {
    fn wait_for(&mut self, at_most: Duration) -> bool {
        if self.found.is_none() {
            self.found = match self.answer.recv_timeout(at_most) {
                Ok(answer) => Some(
                    answer.map_err(|error| device_error(error, self.rank, &self.device, Phase::Collective)),
                ),
                Err(RecvTimeoutError::Disconnected) => Some(Err(CommError::Closed)),
                Err(RecvTimeoutError::Timeout) => None,
            };
        }
        self.found.is_some()
    }

    fn take(&mut self) -> Option<Result<Vec<u8>, CommError>> {
        self.found.take()
    }
}
