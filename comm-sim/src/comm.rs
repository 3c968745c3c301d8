//! The communicator.

use crate::note::{Part, agree};
use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::{
    Allocated, AllocationId, AllocationTable, CommError, Communicator, DomainSpec, HostWindows, Key,
    Membership, Phase, Released, SubsetView, Timeout, Window, validate,
};
use fault_points::fault_point;
use rendezvous::{Group, Prepared, Step, Tag, region_error};
use shared_memory::{Arena, PAGE};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Addresses that each rank has for its windows, base and domains together. Only addresses: memory is reserved by window.
pub const EXTENT: usize = 64 << 30;

/// What a context takes.
const CONTEXT: usize = size_of::<CommContext>().next_multiple_of(PAGE);

/// The tags of the group's exchanges.
const BASE: u32 = 1;
const DOMAIN: u32 = 2;
const RELEASE: u32 = 3;

/// The shared memory of a group whose ranks are about to be forked.
pub fn prepare(nranks: u32) -> Result<Prepared, CommError> {
    Prepared::new(nranks, EXTENT)
}

/// A rank's communicator in the simulation.
#[derive(Debug)]
pub struct SimComm {
    group: Group,
    state: Mutex<State>,
}

/// Local to the rank. Never locked while waiting for a peer, so that operations on other domains go on.
#[derive(Debug)]
struct State {
    arena: Arena,
    allocations: AllocationTable,
}

impl SimComm {
    /// Joins a group that the parent of this process prepared.
    pub fn join(prepared: &Prepared, rank: u32, within: Timeout) -> Result<Self, CommError> {
        prepared.join(rank, within).map(Self::new)
    }

    /// Meets the other ranks at `path`.
    pub fn rendezvous(path: &Path, me: Membership, within: Timeout) -> Result<Self, CommError> {
        Group::rendezvous(path, me, EXTENT, within).map(Self::new)
    }

    fn new(group: Group) -> Self {
        let arena = Arena::new(group.extent(group.membership().rank()));
        let state = State { arena, allocations: AllocationTable::default() };
        Self { group, state: Mutex::new(state) }
    }

    /// Who is in the group, in which phase, and for how long: one line each.
    pub fn table(&self) -> String {
        self.group.table()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Whether a range lies in one window.
    pub(crate) fn check_window(&self, at: DeviceAddr, len: usize) -> Result<(), CommError> {
        self.state().allocations.check_write(at, len)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn me(&self) -> u32 {
        self.group.membership().rank()
    }

    /// Where an offset of the group's memory stands in this process.
    fn address(&self, offset: u64) -> DeviceAddr {
        DeviceAddr(self.group.region().base().as_ptr() as u64 + offset)
    }

    /// Allocates this rank's part of a window, agrees with the other members on everybody's, and writes the context. Everything that can
    /// fail on this rank alone happens before the others hear that it has succeeded.
    fn allocate(
        &self,
        step: &Step<'_>,
        key: Key,
        members: &[u32],
        position: u32,
        asked: usize,
    ) -> Result<Allocated, CommError> {
        fault_point!("comm-sim.reserve");
        let held = self.reserve(asked);
        fault_point!("comm-sim.reserved");
        let part = match &held {
            Ok(own) => Part::Window { offset: own.start as u64, size: own.len() as u64, asked: asked as u64 },
            Err(error) => Part::Failed { text: error.to_string() },
        };
        let (tag, phase) = subject(key);
        let agreed = self.group.exchange(step, tag, members, &part.encode()).and_then(|notes| {
            let parts: Vec<Part> = notes.iter().map(|note| Part::decode(note)).collect();
            let offsets = agree(&parts, members, self.me(), held.as_ref().err().cloned(), phase)?;
            self.check_peers(&offsets, members, asked, phase)?;
            Ok(offsets)
        });
        fault_point!("comm-sim.agreed");
        match (held, agreed) {
            (Ok(own), Ok(offsets)) => self.finish(position, &own, &offsets),
            (held, agreed) => {
                if let Ok(own) = held {
                    let _ = self.free(own);
                }
                Err(agreed.err().unwrap_or(CommError::Closed))
            }
        }
    }

    /// Memory for a window of `asked` bytes and, behind it, for its context: one reservation, since all ranks share one object and the
    /// kernel lets one of them at a time change what is behind it.
    fn reserve(&self, asked: usize) -> Result<Range<usize>, CommError> {
        let window = asked.next_multiple_of(PAGE);
        let both = self.state().arena.take(self.group.region(), window + CONTEXT).map_err(region_error)?;
        Ok(both.start..both.start + window)
    }

    /// Gives back a window and the context behind it.
    fn free(&self, own: Range<usize>) -> Result<(), CommError> {
        let both = own.start..own.end + CONTEXT;
        self.state().arena.give_back(self.group.region(), both).map_err(region_error)
    }

    /// A peer's window must lie in that peer's own extent: its note is not believed.
    fn check_peers(
        &self,
        offsets: &[u64],
        members: &[u32],
        asked: usize,
        phase: Phase,
    ) -> Result<(), CommError> {
        let size = asked.next_multiple_of(PAGE) as u64;
        for (rank, offset) in members.iter().zip(offsets) {
            let extent = self.group.extent(*rank);
            let end = offset.checked_add(size);
            if *offset < extent.start as u64 || end.is_none_or(|end| end > extent.end as u64) {
                return Err(CommError::PeerFailed {
                    rank: *rank,
                    phase,
                    message: format!("it said that its window is at {offset:#x}, outside its own memory"),
                });
            }
        }
        Ok(())
    }

    /// Writes the context of a window to its place.
    fn finish(&self, position: u32, own: &Range<usize>, offsets: &[u64]) -> Result<Allocated, CommError> {
        let bases: Vec<DeviceAddr> = offsets.iter().map(|offset| self.address(*offset)).collect();
        let context = CommContext::new(position, &bases, own.len() as u64).map_err(CommError::impossible)?;
        let context = context.with_workspace(self.address(self.group.workspace_offset() as u64));
        self.group.region().write(own.end, context.as_bytes()).map_err(region_error)?;
        fault_point!("comm-sim.context");
        let (base, at) = (self.address(own.start as u64), self.address(own.end as u64));
        Ok(Allocated { window: Window { context: at, base, size: own.len() }, context })
    }

    /// Where an address of this rank's stands in the group's memory.
    pub(crate) fn offset(&self, at: DeviceAddr) -> usize {
        (at.0 - self.address(0).0) as usize
    }
}

/// What the members' exchange about an allocation is called, and the phase that it is part of.
fn subject(key: Key) -> (Tag, Phase) {
    match key {
        None => (Tag { kind: BASE, id: 0 }, Phase::AllocWindows),
        Some(id) => (Tag { kind: DOMAIN, id: id.0 }, Phase::AllocDomain),
    }
}

impl Communicator for SimComm {
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
        let everybody: Vec<u32> = (0..self.nranks()).collect();
        let made = self.allocate(&step, None, &everybody, self.me(), size);
        self.state().allocations.end(None, &everybody, made)
    }

    fn window(&self) -> Result<Window, CommError> {
        self.state().allocations.base()
    }

    fn derive_context(&self, view: &SubsetView<'_>) -> Result<DeviceAddr, CommError> {
        self.group.check()?;
        let (region, mut state) = (self.group.region(), self.state());
        let context = state.allocations.derive(self.group.membership(), view)?;
        let at = state.arena.take(region, size_of::<CommContext>()).map_err(region_error)?;
        region.write(at.start, context.as_bytes()).map_err(region_error)?;
        let at = self.address(at.start as u64);
        state.allocations.add_context(at);
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
        let Released { members, window } = self.state().allocations.release(id)?;
        fault_point!("comm-sim.release");
        // Its members stop using it before anybody's memory goes; when some are gone, ours goes all the same.
        let waited = self.group.step(Phase::ReleaseDomain, within).and_then(|step| {
            self.group.exchange(&step, Tag { kind: RELEASE, id: id.0 }, &members, &[]).map(drop)
        });
        let start = self.offset(window.base);
        let freed = self.free(start..start + window.size);
        self.state().allocations.forget(id);
        fault_point!("comm-sim.released");
        waited.and(freed)
    }

    fn barrier(&self, within: Timeout) -> Result<(), CommError> {
        let step = self.group.step(Phase::Barrier, within)?;
        self.group.barrier(&step)
    }

    fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), CommError> {
        if into.is_empty() {
            return Ok(());
        }
        self.state().allocations.check_read(from, into.len())?;
        self.group.region().read(self.offset(from), into).map_err(region_error)
    }

    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.state().allocations.check_write(to, bytes.len())?;
        self.group.region().write(self.offset(to), bytes).map_err(region_error)
    }

    fn host_windows(&self) -> Option<&dyn HostWindows> {
        Some(self)
    }

    /// Leaves at once, without waiting: a rank that gives up must not hang on those who still wait for it. Its windows stay readable for
    /// peers that have not left; the memory goes with the last of them.
    fn destroy(self: Box<Self>, _within: Timeout) -> Result<(), CommError> {
        fault_point!("comm-sim.destroy");
        self.group.leave_destroyed()
    }
}
