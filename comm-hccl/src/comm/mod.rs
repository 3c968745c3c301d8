//! The communicator: a group of ranks that HCCL has joined, with windows that the ranks reach in each other.
//!
//! Waits for peers happen in the rendezvous, which knows the dead. The vendor's own waits, for all ranks to join and in its
//! barrier, start only once every rank is known to be on its way there, and are watched from outside: see
//! [`VendorThread`](crate::VendorThread).

mod collectives;
mod engine;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod init;
mod leaving;
mod message;
mod objects;
mod windows;

pub use message::Refusal;
pub use windows::{NotAcrossHosts, NotShareable};

use crate::device::{Device, VendorPid};
use crate::error::DeviceError;
use crate::vendor_thread::{Interrupted, Overrun, VendorThread};
use crate::window::ShareMode;
use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::{
    Allocated, AllocationId, AllocationTable, ArgumentError, Backend, CommError, DROPPED, DeviceCollectives,
    DeviceWords, Key, Membership, Phase, Released, Timeout, WindowRequest,
};
use deadline::Deadline;
use leaving::Imports;
use objects::Objects;
use rendezvous::{Group, KernelWords, Step, Tag, deadline};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a release may take when its deadline has passed already.
const RELEASE_GRACE: Duration = Duration::from_millis(500);
/// What a release may take when a peer has failed already: a hung vendor call is not waited for any longer.
const FAILED_GRACE: Duration = Duration::from_secs(5);

/// A rank's communicator on Ascend.
#[derive(Debug)]
pub struct HcclComm {
    group: Group,
    device: Device,
    /// `None` once destroyed.
    thread: Option<VendorThread<Objects>>,
    /// The ranks' processes as the driver knows them.
    pids: Vec<VendorPid>,
    /// The limit of calls that are given none.
    timeout: Timeout,
    /// Locked by the thread that is at the barrier: its three waits belong together.
    at_barrier: Mutex<()>,
    allocations: Mutex<AllocationTable>,
    state: Mutex<State>,
}

/// Local to the rank. Never locked during a wait.
#[derive(Debug, Default)]
struct State {
    /// The mode that worked last, and why each better one was refused.
    mode: Option<ShareMode>,
    refusals: Vec<Refusal>,
    /// The ranks that have the windows of an allocation open.
    members: BTreeMap<Key, Vec<u32>>,
    /// The words that kernels read, as they are on the device.
    words: KernelWords<u32>,
}

/// The tags of the group's exchanges. Those of windows have a stage in the low bits.
const READY: u32 = 1;
const JOINED: u32 = 2;
const RELEASE: u32 = 3;
const BASE: u32 = 0x10;
const DOMAIN: u32 = 0x20;

impl HcclComm {
    /// How windows are shared in this group; `None` before the first.
    pub fn share_mode(&self) -> Option<ShareMode> {
        self.state().mode
    }

    /// Why each better mode was refused.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.state().refusals.clone()
    }

    /// One line for each rank: its process, its phase, and since when.
    pub fn table(&self) -> String {
        self.group.table()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn me(&self) -> u32 {
        self.group.membership().rank()
    }

    /// Makes vendor calls until a deadline. One that does not return breaks the communicator.
    fn on_vendor_thread<T: Send + 'static>(
        &self,
        phase: Phase,
        until: Deadline,
        job: impl FnOnce(&mut Objects) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, CallError> {
        let thread = self.thread.as_ref().ok_or(CallError::Broken(CommError::Closed))?;
        match thread.run(until, job) {
            Ok(answer) => answer.map_err(CallError::Device),
            Err(overrun) => Err(CallError::Broken(self.group.fail(stuck(&overrun, self.me(), phase)))),
        }
    }

    /// The same for calls whose failure is the caller's error.
    fn vendor<T: Send + 'static>(
        &self,
        phase: Phase,
        until: Deadline,
        job: impl FnOnce(&mut Objects) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, CommError> {
        self.on_vendor_thread(phase, until, job).map_err(|error| match error {
            CallError::Device(error) => device_error(error, self.me(), &self.device, phase),
            CallError::Broken(error) => error,
        })
    }

    fn deadline(&self) -> Result<Deadline, CommError> {
        deadline(self.timeout)
    }

    /// The vendor's barrier, once every rank is known to come.
    fn device_barrier(&self, step: &Step<'_>) -> Result<(), CommError> {
        let thread = self.thread.as_ref().ok_or(CommError::Closed)?;
        let watcher = || self.group.check_peers(step);
        match thread.run_watching(step.deadline(), watcher, |objects| objects.barrier()) {
            Ok(Ok(())) => Ok(()),
            // The others wait for this rank inside the vendor's code; they notice that it left.
            Ok(Err(error)) => {
                Err(self.group.fail(device_error(error, self.me(), &self.device, Phase::Barrier)))
            }
            Err(Interrupted::Watcher(error)) => {
                Err(interrupted(&self.group, thread, error, Phase::Barrier, step.deadline()))
            }
            Err(Interrupted::Overrun(overrun)) => {
                Err(self.group.fail(stuck(&overrun, self.me(), Phase::Barrier)))
            }
        }
    }

    /// Closes the windows of the peers and tells them: they wait for that before they free the windows.
    fn close_imports(&self, until: Deadline) -> Result<(), CommError> {
        let Some(thread) = &self.thread else { return Ok(()) };
        let me = self.me();
        // Nobody waits for a rank that hangs in a call of its own.
        if thread.current_call().is_some_and(|function| !COLLECTIVE.contains(&function)) {
            leaving::publish(&self.group, Imports::Stuck);
        }
        match thread.run(until, Objects::close_all_peers) {
            Ok(Ok(())) => {
                leaving::publish(&self.group, Imports::Closed);
                Ok(())
            }
            Ok(Err(error)) => {
                leaving::publish(&self.group, Imports::Stuck);
                Err(device_error(error, me, &self.device, Phase::Destroy))
            }
            Err(overrun) => {
                leaving::publish(&self.group, Imports::Stuck);
                Err(stuck(&overrun, me, Phase::Destroy))
            }
        }
    }

    /// Waits until every living rank has closed this rank's windows.
    fn wait_for_importers(&self, until: Deadline) -> Result<(), CommError> {
        let mut importers: Vec<u32> = self.state().members.values().flatten().copied().collect();
        importers.sort_unstable();
        importers.dedup();
        importers.retain(|rank| *rank != self.me());
        leaving::wait(&self.group, &importers, until)
    }

    /// Closes the peers' windows, waits for the peers to do so, and releases everything.
    fn tear_down(&mut self, until: Deadline) -> Result<(), CommError> {
        let closed = self.close_imports(until);
        let stuck = matches!(closed, Err(CommError::Stuck { .. }));
        let waited = if stuck { Ok(()) } else { self.wait_for_importers(until) };
        // A thread that has not come back by now is not waited for a second time.
        let grace = if stuck {
            Deadline::after(Duration::ZERO)
        } else {
            Deadline::after(until.left().max(RELEASE_GRACE))
        };
        let released = match grace {
            Ok(grace) => self.release_all(grace),
            Err(_) => self.release_all(until),
        };
        closed.and(waited).and(released)
    }

    /// Releases everything on the vendor thread, and ends it.
    fn release_all(&mut self, until: Deadline) -> Result<(), CommError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let me = self.group.membership().rank();
        let released = thread.run(until, Objects::release).and_then(|released| {
            thread.close(until)?;
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

/// Why a job on the vendor thread failed.
enum CallError {
    Device(DeviceError),
    /// The thread or the group cannot be used any more.
    Broken(CommError),
}

impl Backend for HcclComm {
    fn membership(&self) -> Membership {
        self.group.membership()
    }

    fn allocations(&self) -> &Mutex<AllocationTable> {
        &self.allocations
    }

    fn check_usable(&self) -> Result<(), CommError> {
        self.group.check()
    }

    fn allocate(&self, request: &WindowRequest<'_>, within: Timeout) -> Result<Allocated, CommError> {
        let step = self.group.step(request.phase(), within)?;
        let allocated = self.allocate_window(&step, request)?;
        self.state().members.insert(request.key, request.members.to_vec());
        Ok(allocated)
    }

    fn place_context(&self, context: &CommContext) -> Result<DeviceAddr, CommError> {
        let (phase, context) = (Phase::DeriveContext, *context);
        let step = self.group.step(phase, self.timeout)?;
        self.vendor(phase, step.deadline(), move |objects| objects.place(&context))
    }

    fn free_domain(&self, id: AllocationId, domain: &Released, within: Timeout) -> Result<(), CommError> {
        let phase = Phase::ReleaseDomain;
        let until = deadline(within)?;
        // Every member closes the windows of the others before any member frees its own. When some are gone, ours is
        // freed all the same.
        let closed = self.vendor(phase, until, move |objects| objects.close_peers(Some(id)));
        let waited = self.group.step(phase, within).and_then(|step| {
            self.group.exchange(&step, Tag { kind: RELEASE, id: id.0 }, &domain.members, &[]).map(drop)
        });
        let freed = self.vendor(phase, with_grace(until)?, move |objects| objects.free(Some(id)));
        self.state().members.remove(&Some(id));
        waited.and(closed).and(freed)
    }

    fn wait_for_all(&self, within: Timeout) -> Result<(), CommError> {
        let step = self.group.step(Phase::Barrier, within)?;
        let _turn = self.at_barrier.lock().unwrap_or_else(PoisonError::into_inner);
        self.group.barrier(&step)?;
        self.device_barrier(&step)?;
        // Only now does no rank watch the others any more, so that they may leave.
        self.group.barrier(&step)
    }

    fn copy_from_device(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), CommError> {
        let len = into.len();
        let job = move |objects: &mut Objects| objects.read(from, len);
        into.copy_from_slice(&self.vendor(Phase::Transfer, self.deadline()?, job)?);
        Ok(())
    }

    fn copy_to_device(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError> {
        let bytes = bytes.to_vec();
        self.vendor(Phase::Transfer, self.deadline()?, move |objects| objects.write(to, &bytes))
    }

    /// The parent's words are in host memory, and kernels read theirs on the device. The communicator's own vendor
    /// thread copies them, so that they arrive while a kernel blocks the thread that launched it.
    fn relay_kernel_abort(&self) -> Result<(), CommError> {
        let words = self.group.kernel_words();
        if self.state().words == words {
            return Ok(());
        }
        let written =
            self.vendor(Phase::Transfer, self.deadline()?, move |objects| objects.set_words(words))?;
        if written {
            self.state().words = words;
        }
        Ok(())
    }

    fn device_engine(&self) -> Option<&dyn DeviceCollectives> {
        Some(self)
    }

    fn words_on_device(&self) -> Option<&dyn DeviceWords> {
        Some(self)
    }

    /// Leaves at once, so that no rank waits for this one, then waits for the living ranks to close this rank's windows,
    /// and releases everything. Until the deadline; when a rank has failed already, for a few seconds.
    fn leave(mut self: Box<Self>, within: Timeout) -> Result<(), CommError> {
        let until = deadline(within)?;
        let broken = self.group.leave_destroyed();
        let until = if broken.is_err() { sooner(until, FAILED_GRACE)? } else { until };
        let released = self.tear_down(until);
        broken.and(released)
    }
}

impl DeviceWords for HcclComm {
    fn add_word(&self, word: DeviceAddr, by: u32, within: Timeout) -> Result<(), CommError> {
        self.group.check()?;
        self.allocations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .check_write(word, size_of::<u32>())?;
        self.vendor(Phase::Transfer, deadline(within)?, move |objects| objects.add_word(word, by))
    }

    fn check_ranks(&self, ranks: &[u32], since_ns: u64, within: Timeout) -> Result<(), CommError> {
        self.group.check_ranks(ranks, since_ns, within)
    }
}

impl Drop for HcclComm {
    fn drop(&mut self) {
        if let Ok(until) = Deadline::after(RELEASE_GRACE) {
            self.group.leave(DROPPED);
            // There is no caller to report an error to.
            let _ = self.tear_down(until);
        }
    }
}

/// The same deadline, or an earlier one after `limit`.
fn sooner(until: Deadline, limit: Duration) -> Result<Deadline, CommError> {
    let left = until.left().min(limit);
    Deadline::after(left).map_err(|_| ArgumentError::Timeout { given: left }.into())
}

/// The same deadline, or a little time for a release when it has passed.
fn with_grace(until: Deadline) -> Result<Deadline, CommError> {
    let left = until.left().max(RELEASE_GRACE);
    Deadline::after(left).map_err(|_| ArgumentError::Timeout { given: left }.into())
}

/// Where all ranks wait for each other inside the vendor's code.
const COLLECTIVE: [&str; 2] = ["HcclCommInitRootInfo", "HcclBarrier"];

/// The error of a wait for the vendor thread that ended early because a peer is gone. When this rank's own call hangs in a
/// function that waits for no other rank, the peers left because of this rank, and its hung call is the cause.
fn interrupted(
    group: &Group,
    thread: &VendorThread<Objects>,
    error: CommError,
    phase: Phase,
    until: Deadline,
) -> CommError {
    match (&error, thread.current_call().filter(|function| !COLLECTIVE.contains(function))) {
        (CommError::PeerLeft { .. }, Some(function)) => {
            let overrun = Overrun { function, waited: until.elapsed(), limit: until.limit() };
            group.fail(stuck(&overrun, group.membership().rank(), phase))
        }
        _ => group.record_failure(error),
    }
}

/// A vendor call that did not return, as the communicator's error.
fn stuck(overrun: &Overrun, rank: u32, phase: Phase) -> CommError {
    let Overrun { function, waited, limit } = *overrun;
    CommError::Stuck { function, rank, phase, waited, limit }
}

/// A device's error as the communicator's, with the rank and the device in it.
fn device_error(error: DeviceError, rank: u32, device: &Device, phase: Phase) -> CommError {
    let (error, place) = match error {
        DeviceError::Warned { warning, source } => {
            (*source, format!("rank {rank} on {}; before that, {warning}", device.logical()))
        }
        error => (error, format!("rank {rank} on {}", device.logical())),
    };
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
