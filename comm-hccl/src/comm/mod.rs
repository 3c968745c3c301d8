//! The communicator: ranks that met by the rendezvous, joined by HCCL, with windows that they reach in each other.
//!
//! All waiting for peers is done in the rendezvous, which knows who is dead. The vendor's own waits, for all ranks to
//! join and in its barrier, are entered only when every rank is known to be on its way there, and watched from
//! outside: see [`Lane`](crate::Lane).

mod init;
mod note;
mod objects;
mod windows;

pub use init::prepare;
pub use windows::NoWay;

use crate::device::{Device, VendorPid};
use crate::error::DeviceError;
use crate::lane::{Interrupted, Lane, Overrun};
use crate::window::WindowWay;
use comm_context::abi::DeviceAddr;
use comm_context::comm::{
    AllocationId, AllocationTable, ArgumentError, CommError, Communicator, DomainSpec, Phase, Released,
    SubsetView, Timeout, Window, validate,
};
use deadline::Deadline;
use note::Refusal;
use objects::Objects;
use rendezvous::{Group, Step, Tag, deadline};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What releasing may take beyond a deadline that has passed already.
const RELEASE_GRACE: Duration = Duration::from_millis(500);

/// A rank's communicator on Ascend.
#[derive(Debug)]
pub struct HcclComm {
    group: Group,
    device: Device,
    /// `None` once destroyed.
    lane: Option<Lane<Objects>>,
    /// The ranks' processes as the driver knows them.
    pids: Vec<VendorPid>,
    /// The bound of calls that are given none.
    within: Timeout,
    /// One barrier at a time: each is three waits that belong together.
    turn: Mutex<()>,
    state: Mutex<State>,
}

/// Local to the rank. Never locked while waiting.
#[derive(Debug, Default)]
struct State {
    allocations: AllocationTable,
    /// The way that worked last, and why each better one was refused.
    way: Option<WindowWay>,
    refusals: Vec<(WindowWay, Refusal)>,
    /// The abort word as it is on the device.
    abort: u32,
}

/// The tags of the group's exchanges. The windows' have a stage in the low bits.
pub(crate) const READY: u32 = 1;
pub(crate) const JOINED: u32 = 2;
const RELEASE: u32 = 3;
const BASE: u32 = 0x10;
const DOMAIN: u32 = 0x20;

impl HcclComm {
    /// How windows are shared in this group; `None` before the first.
    pub fn way(&self) -> Option<WindowWay> {
        self.state().way
    }

    /// Why each better way was refused, one text each.
    pub fn refusals(&self) -> Vec<String> {
        self.state().refusals.iter().map(|(way, refusal)| refusal_text(*way, refusal)).collect()
    }

    /// Who is in the group, in which phase, and for how long: one line each.
    pub fn table(&self) -> String {
        self.group.table()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn me(&self) -> u32 {
        self.group.membership().rank()
    }

    fn everybody(&self) -> Vec<u32> {
        (0..self.group.membership().nranks()).collect()
    }

    /// Runs vendor calls until a deadline. One that does not come back breaks the communicator.
    fn on_lane<T: Send + 'static>(
        &self,
        phase: Phase,
        until: Deadline,
        job: impl FnOnce(&mut Objects) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, LaneError> {
        let lane = self.lane.as_ref().ok_or(LaneError::Broken(CommError::Closed))?;
        match lane.run(until, job) {
            Ok(answer) => answer.map_err(LaneError::Device),
            Err(overrun) => Err(LaneError::Broken(self.group.fail(stuck(&overrun, self.me(), phase)))),
        }
    }

    /// The same where any failure is the caller's.
    fn vendor<T: Send + 'static>(
        &self,
        phase: Phase,
        until: Deadline,
        job: impl FnOnce(&mut Objects) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, CommError> {
        self.on_lane(phase, until, job).map_err(|error| error.in_phase(self.me(), &self.device, phase))
    }

    fn deadline(&self) -> Result<Deadline, CommError> {
        deadline(self.within)
    }

    /// The vendor's barrier, once every rank is known to come.
    fn device_barrier(&self, step: &Step<'_>) -> Result<(), CommError> {
        let lane = self.lane.as_ref().ok_or(CommError::Closed)?;
        let watcher = || self.group.check_peers(step);
        match lane.run_watching(step.deadline(), watcher, |objects| objects.barrier()) {
            Ok(Ok(())) => Ok(()),
            // The others are waiting for this rank inside the vendor's code: they must hear of it.
            Ok(Err(error)) => {
                Err(self.group.fail(device_error(error, self.me(), &self.device, Phase::Barrier)))
            }
            Err(Interrupted::Watcher(error)) => {
                Err(interrupted(&self.group, lane, error, Phase::Barrier, step.deadline()))
            }
            Err(Interrupted::Overrun(overrun)) => {
                Err(self.group.fail(stuck(&overrun, self.me(), Phase::Barrier)))
            }
        }
    }

    /// Ends the lane, releasing what is on it.
    fn release_all(&mut self, until: Deadline) -> Result<(), CommError> {
        let Some(lane) = self.lane.take() else { return Ok(()) };
        let me = self.group.membership().rank();
        let released = lane.run(until, Objects::release).and_then(|released| {
            lane.close(until)?;
            Ok(released)
        });
        match released {
            Ok(released) => released.map_err(|error| device_error(error, me, &self.device, Phase::Destroy)),
            Err(overrun) => {
                self.device.forget_if_adopted();
                Err(stuck(&overrun, me, Phase::Destroy))
            }
        }
    }
}

/// Why a job on the lane gave nothing.
enum LaneError {
    Device(DeviceError),
    /// The lane or the group is of no use any more.
    Broken(CommError),
}

impl LaneError {
    fn in_phase(self, rank: u32, device: &Device, phase: Phase) -> CommError {
        match self {
            Self::Device(error) => device_error(error, rank, device, phase),
            Self::Broken(error) => error,
        }
    }
}

impl Communicator for HcclComm {
    fn rank(&self) -> u32 {
        self.me()
    }

    fn nranks(&self) -> u32 {
        self.group.membership().nranks()
    }

    fn alloc_windows(&self, size: usize, within: Timeout) -> Result<Window, CommError> {
        self.group.check()?;
        validate::window_size("win_size", size)?;
        let step = self.group.step(Phase::AllocWindows, within)?;
        self.state().allocations.begin(None)?;
        let everybody = self.everybody();
        let made = self.allocate(&step, None, &everybody, self.me(), size);
        self.state().allocations.end(None, &everybody, made)
    }

    fn window(&self) -> Result<Window, CommError> {
        self.state().allocations.base()
    }

    fn derive_context(&self, view: &SubsetView<'_>) -> Result<DeviceAddr, CommError> {
        self.group.check()?;
        let context = self.state().allocations.derive(self.group.membership(), view)?;
        let step = self.group.step(Phase::DeriveContext, self.within)?;
        let at =
            self.vendor(Phase::DeriveContext, step.deadline(), move |objects| objects.place(&context))?;
        self.state().allocations.add_context(at);
        Ok(at)
    }

    fn alloc_domain(&self, spec: &DomainSpec<'_>, within: Timeout) -> Result<Window, CommError> {
        self.group.check()?;
        validate::domain(self.group.membership(), spec)?;
        let step = self.group.step(Phase::AllocDomain, within)?;
        let key = Some(spec.id);
        self.state().allocations.begin(key)?;
        let made = self.allocate(&step, key, spec.ranks, spec.domain_rank, spec.window_size);
        self.state().allocations.end(key, spec.ranks, made)
    }

    fn release_domain(&self, id: AllocationId, within: Timeout) -> Result<(), CommError> {
        let Released { members, .. } = self.state().allocations.release(id)?;
        let phase = Phase::ReleaseDomain;
        let until = deadline(within)?;
        // Everybody lets go of the others' windows before anybody frees its own; when some are gone, ours goes all the
        // same.
        let closed = self.vendor(phase, until, move |objects| objects.close_peers(Some(id)));
        let waited = self.group.step(phase, within).and_then(|step| {
            self.group.exchange(&step, Tag { kind: RELEASE, id: id.0 }, &members, &[]).map(drop)
        });
        let freed = self.vendor(phase, in_time(until)?, move |objects| objects.free(Some(id)));
        self.state().allocations.forget(id);
        waited.and(closed).and(freed)
    }

    fn barrier(&self, within: Timeout) -> Result<(), CommError> {
        let step = self.group.step(Phase::Barrier, within)?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.group.barrier(&step)?;
        self.device_barrier(&step)?;
        // Only now has nobody a reason to watch the others any more, so that they may leave.
        self.group.barrier(&step)
    }

    fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), CommError> {
        if into.is_empty() {
            return Ok(());
        }
        self.state().allocations.check_read(from, into.len())?;
        let len = into.len();
        let job = move |objects: &mut Objects| objects.read(from, len);
        into.copy_from_slice(&self.vendor(Phase::Transfer, self.deadline()?, job)?);
        Ok(())
    }

    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.state().allocations.check_write(to, bytes.len())?;
        let bytes = bytes.to_vec();
        self.vendor(Phase::Transfer, self.deadline()?, move |objects| objects.write(to, &bytes))
    }

    /// The parent's word is in the host's memory and kernels look at one on the device. This goes over the communicator's own lane, so it
    /// comes through while a kernel keeps the thread that launched it.
    fn relay_abort(&self) -> Result<(), CommError> {
        let word = self.group.kernel_abort();
        if self.state().abort == word {
            return Ok(());
        }
        let told = self.vendor(Phase::Transfer, self.deadline()?, move |objects| objects.set_abort(word))?;
        if told {
            self.state().abort = word;
        }
        Ok(())
    }

    /// Leaves at once, without waiting for anybody, and releases everything; the deadline is for the vendor's calls.
    fn destroy(mut self: Box<Self>, within: Timeout) -> Result<(), CommError> {
        let broken = self.group.leave_destroyed();
        let released = self.release_all(deadline(within)?);
        broken.and(released)
    }
}

impl Drop for HcclComm {
    fn drop(&mut self) {
        if let Ok(until) = Deadline::after(RELEASE_GRACE) {
            // Nobody is left to tell.
            let _ = self.release_all(until);
        }
    }
}

/// The same deadline, or a little time to release things when it has passed.
fn in_time(until: Deadline) -> Result<Deadline, CommError> {
    let left = until.left().max(RELEASE_GRACE);
    Deadline::after(left).map_err(|_| ArgumentError::Timeout { given: left }.into())
}

/// Where all ranks wait for each other inside the vendor's code.
const COLLECTIVE: [&str; 2] = ["HcclCommInitRootInfo", "HcclBarrier"];

/// What ended a wait for the lane from outside. A peer that has given up did so because of this rank, when this one's own
/// call does not come back from where nobody waits for anybody.
fn interrupted(
    group: &Group,
    lane: &Lane<Objects>,
    error: CommError,
    phase: Phase,
    until: Deadline,
) -> CommError {
    match (&error, lane.inside().filter(|function| !COLLECTIVE.contains(function))) {
        (CommError::PeerLeft { .. }, Some(function)) => {
            let overrun = Overrun { function, waited: until.elapsed(), limit: until.limit() };
            group.fail(stuck(&overrun, group.membership().rank(), phase))
        }
        _ => group.record_failure(error),
    }
}

/// A vendor call that did not come back, as the communicator's error.
pub(crate) fn stuck(overrun: &Overrun, rank: u32, phase: Phase) -> CommError {
    let Overrun { function, waited, limit } = *overrun;
    CommError::Stuck { function, rank, phase, waited, limit }
}

/// A device's error as the communicator's, with the rank and the device in it.
pub(crate) fn device_error(error: DeviceError, rank: u32, device: &Device, phase: Phase) -> CommError {
    let place = format!("rank {rank} on {}", device.logical());
    let DeviceError::Vendor(error) = error else {
        return CommError::Backend { what: format!("{phase} on {place}"), source: Arc::new(error) };
    };
    let detail =
        if error.detail.is_empty() { place } else { format!("{place}; the vendor says: {}", error.detail) };
    CommError::Vendor {
        function: error.function,
        code: error.code.number(),
        name: error.code.name().unwrap_or("a code without a name"),
        advice: error.code.advice().unwrap_or("see the vendor's log"),
        detail,
        phase,
    }
}

fn refusal_text(way: WindowWay, refusal: &Refusal) -> String {
    format!("{way}: rank {}: {}", refusal.rank, refusal.reason)
}
