//! The communicator.

use crate::message::{Placement, agree};
use comm_context::abi::{CommContext, CommContextTail, DeviceAddr, PlacedContext};
use comm_context::comm::{
    Allocated, AllocationId, AllocationTable, Backend, CommError, HostWindows, Key, Membership, Phase,
    Released, Timeout, Window, WindowRequest,
};
use fault_points::fault_point;
use rendezvous::{Group, HostAddress, HostsError, Prepared, Step, Tag, region_error};
use shared_memory::{Arena, PAGE};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Addresses that each rank has for its windows, base and domains together. Memory is reserved for each window when it
/// is allocated.
const EXTENT: usize = 64 << 30;

/// Bytes of a window's context, in whole pages.
const CONTEXT: usize = size_of::<PlacedContext>().next_multiple_of(PAGE);

/// The tags of the group's exchanges.
const BASE: u32 = 1;
const DOMAIN: u32 = 2;
const RELEASE: u32 = 3;

/// A rank's own memory of an allocation, as offsets in the group's memory.
#[derive(Clone, Debug)]
struct Reserved {
    /// A guard follows it.
    window: Range<usize>,
    context: usize,
}

/// A rank's communicator in the simulation.
#[derive(Debug)]
pub struct SimComm {
    group: Group,
    /// Which pages of this rank's extent are in use. Never locked while a call waits for a peer, so that operations on
    /// other domains go on.
    arena: Mutex<Arena>,
    allocations: Mutex<AllocationTable>,
}

impl SimComm {
    /// Makes the shared memory of a group whose ranks the calling process is about to fork. Each of them then
    /// [joins](Self::join) it.
    pub fn prepare_group(nranks: u32) -> Result<Prepared, CommError> {
        Prepared::new(nranks, EXTENT)
    }

    /// Joins a group that the parent of this process prepared, and waits for the other ranks.
    pub fn join(prepared: &Prepared, rank: u32, within: Timeout) -> Result<Self, CommError> {
        prepared.join(rank, within).map(Self::new)
    }

    /// Joins the other ranks at `path`, however they were started, and waits for them.
    pub fn rendezvous(path: &Path, me: Membership, within: Timeout) -> Result<Self, CommError> {
        if HostAddress::of_path(path).is_some() {
            let given = path.to_string_lossy().chars().take(300).collect();
            return Err(HostsError::OneHostOnly { given }.into());
        }
        Group::rendezvous(path, me, EXTENT, within).map(Self::new)
    }

    fn new(group: Group) -> Self {
        // Contexts are at its end. What is just before the next rank's window belongs to nobody.
        let extent = group.extent(group.membership().rank());
        let arena = Arena::new(extent.start..extent.end - PAGE);
        Self { group, arena: Mutex::new(arena), allocations: Mutex::default() }
    }

    /// One line for each rank: its process, its phase, and since when.
    pub fn table(&self) -> String {
        self.group.table()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    fn arena(&self) -> MutexGuard<'_, Arena> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address in this process of an offset in the group's memory.
    fn address(&self, offset: u64) -> DeviceAddr {
        DeviceAddr(self.group.region().base().as_ptr() as u64 + offset)
    }

    /// The offset in the group's memory of an address in this process.
    pub(crate) fn offset(&self, at: DeviceAddr) -> usize {
        (at.0 - self.address(0).0) as usize
    }

    /// Reserves memory for a window and its context. The page behind the window becomes a guard; the context is elsewhere.
    fn reserve(&self, requested: usize) -> Result<Reserved, CommError> {
        let region = self.group.region();
        let mut arena = self.arena();
        let window = arena.allocate_with_gap(region, requested, PAGE).map_err(region_error)?;
        let context = arena.allocate_last(region, CONTEXT).map_err(region_error).inspect_err(|_| {
            // The first cause counts, here and below.
            let _ = arena.free(region, window.start..window.end + PAGE);
        })?;
        drop(arena);
        let reserved = Reserved { context: context.start, window };
        let guarded = region.guard(guard_of(reserved.window.end)).map_err(region_error);
        guarded.inspect_err(|_| drop(self.free(&reserved)))?;
        Ok(reserved)
    }

    /// Frees a window, its guard and its context.
    fn free(&self, reserved: &Reserved) -> Result<(), CommError> {
        let region = self.group.region();
        let Reserved { window, context } = reserved;
        let unguarded = region.unguard(guard_of(window.end));
        let mut arena = self.arena();
        let freed = arena.free(region, window.start..window.end + PAGE);
        let context = arena.free(region, *context..*context + CONTEXT);
        unguarded.and(freed).and(context).map_err(region_error)
    }

    /// Sets a guard behind every member's window, as this process reaches it. All members have agreed on the
    /// allocation by now, so that a guard that cannot be set (too many mappings) must not fail it.
    fn guard(&self, offsets: &[u64], size: usize) {
        for offset in offsets {
            let _ = self.group.region().guard(guard_of(*offset as usize + size));
        }
    }

    /// Removes these guards, before this rank reports that it does not use the windows any more: from then on their
    /// owners may use the pages for other windows, which another thread of this process may reach.
    fn unguard(&self, domain: &Released) {
        let windows = domain.context.windows_in.iter().take(domain.members.len());
        for window in windows {
            let end = self.offset(DeviceAddr(*window)) + domain.window.size;
            let _ = self.group.region().unguard(guard_of(end));
        }
    }

    /// Exchanges placements with the other members. Everything that can fail on this rank alone has happened before.
    fn exchange_placements(
        &self,
        step: &Step<'_>,
        request: &WindowRequest<'_>,
        reserved: Result<Reserved, CommError>,
    ) -> Result<Vec<u64>, CommError> {
        let requested = request.size as u64;
        let own = reserved.map(|own| Placement { offset: own.window.start as u64, requested }.encode());
        let messages = self.group.exchange_results(step, tag(request.key), request.members, own)?;
        let offsets = agree(&messages, request.members, requested, request.phase())?;
        self.check_placements(&offsets, request)?;
        Ok(offsets)
    }

    /// Refuses a window that is not, with its guard, inside the extent of the rank that reported it: what a peer sends is never trusted.
    fn check_placements(&self, offsets: &[u64], request: &WindowRequest<'_>) -> Result<(), CommError> {
        let size = (request.size.next_multiple_of(PAGE) + PAGE) as u64;
        for (&rank, &offset) in request.members.iter().zip(offsets) {
            let extent = self.group.extent(rank);
            let end = offset.checked_add(size);
            if offset < extent.start as u64 || end.is_none_or(|end| end > extent.end as u64) {
                let message = format!("it reported a window at {offset:#x}, outside its own memory");
                return Err(CommError::PeerFailed { rank, phase: request.phase(), message });
            }
        }
        Ok(())
    }

    /// A context with the addresses of the words that kernels read.
    fn placed(&self, context: CommContext) -> PlacedContext {
        let words = self.group.kernel_words_at();
        let [abort, generation] = [words.abort, words.generation].map(|at| self.address(at as u64));
        PlacedContext { context, tail: CommContextTail::new(abort, generation) }
    }

    /// Sets the guards behind all windows, and writes the context to its place.
    fn finish(&self, position: u32, own: &Reserved, offsets: &[u64]) -> Result<Allocated, CommError> {
        let size = own.window.len();
        self.guard(offsets, size);
        let bases: Vec<DeviceAddr> = offsets.iter().map(|offset| self.address(*offset)).collect();
        let context = CommContext::new(position, &bases, size as u64).map_err(CommError::impossible)?;
        self.group.region().write(own.context, self.placed(context).as_bytes()).map_err(region_error)?;
        fault_point!("comm-sim.context");
        let (base, at) = (self.address(own.window.start as u64), self.address(own.context as u64));
        Ok(Allocated { window: Window { context: at, base, size }, context })
    }
}

/// The page behind a window that ends at `end`.
fn guard_of(end: usize) -> Range<usize> {
    end..end + PAGE
}

/// The tag of the members' exchange about an allocation.
fn tag(key: Key) -> Tag {
    match key {
        None => Tag { kind: BASE, id: 0 },
        Some(id) => Tag { kind: DOMAIN, id: id.0 },
    }
}

impl Backend for SimComm {
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
        self.group.check_process()?;
        let step = self.group.step(request.phase(), within)?;
        fault_point!("comm-sim.reserve");
        let reserved = self.reserve(request.size);
        fault_point!("comm-sim.reserved");
        let agreed = self.exchange_placements(&step, request, reserved.clone());
        fault_point!("comm-sim.agreed");
        match (reserved, agreed) {
            (Ok(own), Ok(offsets)) => self.finish(request.position, &own, &offsets),
            (Ok(own), Err(error)) => {
                // The first cause counts; a page that cannot be freed is lost until the group ends.
                let _ = self.free(&own);
                Err(error)
            }
            (Err(own), agreed) => Err(agreed.err().unwrap_or(own)),
        }
    }

    fn place_context(&self, context: &CommContext) -> Result<DeviceAddr, CommError> {
        self.group.check_process()?;
        let region = self.group.region();
        let at = self.arena().allocate_last(region, CONTEXT).map_err(region_error)?;
        region.write(at.start, self.placed(*context).as_bytes()).map_err(region_error)?;
        Ok(self.address(at.start as u64))
    }

    fn free_domain(&self, id: AllocationId, domain: &Released, within: Timeout) -> Result<(), CommError> {
        self.group.check_process()?;
        fault_point!("comm-sim.release");
        self.unguard(domain);
        // No member frees its window before all have stopped using the domain. When some are gone, ours is freed all
        // the same.
        let waited = self.group.step(Phase::ReleaseDomain, within).and_then(|step| {
            self.group.exchange(&step, Tag { kind: RELEASE, id: id.0 }, &domain.members, &[]).map(drop)
        });
        let Window { context, base, size } = domain.window;
        let (start, context) = (self.offset(base), self.offset(context));
        let freed = self.free(&Reserved { window: start..start + size, context });
        fault_point!("comm-sim.released");
        waited.and(freed)
    }

    fn wait_for_all(&self, within: Timeout) -> Result<(), CommError> {
        self.group.barrier_within(Phase::Barrier, within)
    }

    fn copy_from_device(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), CommError> {
        self.group.region().read(self.offset(from), into).map_err(region_error)
    }

    fn copy_to_device(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError> {
        self.group.region().write(self.offset(to), bytes).map_err(region_error)
    }

    fn windows_in_process(&self) -> Option<&dyn HostWindows> {
        Some(self)
    }

    /// Leaves at once: a rank that gives up must not hang on those that still wait for it. Its windows stay readable for
    /// peers that have not left; the memory is freed when the last of them does.
    fn leave(self: Box<Self>, _within: Timeout) -> Result<(), CommError> {
        fault_point!("comm-sim.destroy");
        self.group.leave_destroyed()
    }
}
