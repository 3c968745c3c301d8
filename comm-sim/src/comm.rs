//! The communicator.

use crate::guards::Guards;
use crate::kernel_wait::wait_record;
use crate::message::{Placement, agree};
use crate::space;
use comm_context::abi::{CommContext, CommContextTail, DeviceAddr, PlacedContext};
use comm_context::comm::{
    AddressSpace, Allocated, AllocationId, AllocationTable, Backend, CommError, HostWindows, Key, Membership,
    Phase, Released, Timeout, Window, WindowRequest,
};
use fault_points::fault_point;
use rendezvous::{Group, HostAddress, HostsError, Prepared, Step, Tag, region_error};
use shared_memory::{Arena, PAGE, RegionError};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a domain's context, in whole pages.
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
    /// Which pages of this rank's extent are in use. Never locked while a call waits for a peer or for memory, so that
    /// operations on other domains go on.
    pages: Mutex<Pages>,
    guards: Mutex<Guards>,
    allocations: Mutex<AllocationTable>,
}

/// Contexts of released domains that keep their memory, for the next domains.
const SPARE_CONTEXTS: usize = 64;

#[derive(Debug)]
struct Pages {
    /// Contexts are at its start, windows at its end, each with a page behind it. Behind the extent, where a page of the
    /// inaccessible gap is part of it, that is a guard at no cost.
    arena: Arena,
    /// Pages for contexts that have memory, and that nobody uses.
    contexts: Vec<usize>,
}

impl SimComm {
    /// Makes the shared memory of a group whose ranks the calling process is about to fork. Each of them then
    /// [joins](Self::join) it.
    ///
    /// Each rank has addresses for its windows: as `CHIPCOMM_WINDOW_SPACE` says, else 64 GiB or what this process may
    /// have.
    ///
    /// ```
    /// # use comm_sim::{CommError, Communicator, SimComm, Timeout};
    /// let prepared = SimComm::prepare_group(1)?;
    /// // In each child, after the fork, with its own rank:
    /// let comm = SimComm::join(&prepared, 0, Timeout::DEFAULT)?;
    /// comm.barrier(Timeout::DEFAULT)?;
    /// Box::new(comm).destroy(Timeout::DEFAULT)?;
    /// # Ok::<_, CommError>(())
    /// ```
    pub fn prepare_group(nranks: u32) -> Result<Prepared, CommError> {
        Self::prepare_group_with(nranks, None)
    }

    /// Like [`prepare_group`](Self::prepare_group), with so many addresses for the windows of each rank.
    pub fn prepare_group_with(nranks: u32, windows: Option<AddressSpace>) -> Result<Prepared, CommError> {
        let space = space::for_each_rank(nranks, windows)?;
        Prepared::new(nranks, space.bytes).map_err(|error| space.explain(error))
    }

    /// Joins a group that the parent of this process prepared, and waits for the other ranks.
    pub fn join(prepared: &Prepared, rank: u32, within: Timeout) -> Result<Self, CommError> {
        prepared.join(rank, within).map(Self::new)
    }

    /// Joins the other ranks at `path`, however they were started, and waits for them. Each rank has addresses for its
    /// windows as in a [prepared](Self::prepare_group) group; where ranks differ, the least counts.
    pub fn rendezvous(path: &Path, me: Membership, within: Timeout) -> Result<Self, CommError> {
        Self::rendezvous_with(path, me, None, within)
    }

    /// Like [`rendezvous`](Self::rendezvous), with so many addresses for the windows of each rank.
    pub fn rendezvous_with(
        path: &Path,
        me: Membership,
        windows: Option<AddressSpace>,
        within: Timeout,
    ) -> Result<Self, CommError> {
        if HostAddress::of_path(path).is_some() {
            let given = path.to_string_lossy().chars().take(300).collect();
            return Err(HostsError::OneHostOnly { given }.into());
        }
        let space = space::for_each_rank(me.nranks(), windows)?;
        let joined = Group::rendezvous(path, me, space.bytes, within).map_err(|error| space.explain(error));
        joined.map(Self::new)
    }

    fn new(group: Group) -> Self {
        let extent = group.extent(group.membership().rank());
        let arena = Arena::new(extent.start..extent.end + PAGE);
        let pages = Pages { arena, contexts: Vec::new() };
        Self { group, pages: Mutex::new(pages), guards: Mutex::default(), allocations: Mutex::default() }
    }

    /// One line for each rank: its process, its phase, and since when.
    pub fn table(&self) -> String {
        self.group.table()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guards(&self) -> MutexGuard<'_, Guards> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address in this process of an offset in the group's memory.
    fn address(&self, offset: u64) -> DeviceAddr {
        DeviceAddr(self.group.region().base().as_ptr() as u64 + offset)
    }

    /// The offset in the group's memory of an address in this process.
    pub(crate) fn offset(&self, at: DeviceAddr) -> usize {
        (at.0 - self.address(0).0) as usize
    }

    /// Reserves memory for a window and a place for its context. The page behind the window is nobody's.
    fn reserve(&self, request: &WindowRequest<'_>) -> Result<Reserved, CommError> {
        let len = request.size.next_multiple_of(PAGE);
        let taken = self.pages().arena.take_last(len + PAGE).map_err(|error| self.too_few(error))?;
        let window = taken.start..taken.end - PAGE;
        let context = match request.key {
            // There is one base window, and a place for its context that has memory already.
            None => Ok(self.group.backend_bytes(self.group.membership().rank()).start),
            Some(_) => self.context_page(),
        };
        let reserved = context.and_then(|context| match self.group.reserve(window.clone()) {
            Ok(()) => Ok(Reserved { window: window.clone(), context }),
            Err(error) => {
                self.free_context(context);
                // Part of it may have been reserved before memory ran out. The first cause counts.
                let _ = self.group.region().release(window.clone());
                Err(error)
            }
        });
        reserved.inspect_err(|_| {
            let _ = self.pages().arena.give_back(taken);
        })
    }

    /// A page with memory, for a context.
    fn context_page(&self) -> Result<usize, CommError> {
        if let Some(page) = self.pages().contexts.pop() {
            return Ok(page);
        }
        let taken = self.pages().arena.take(CONTEXT).map_err(|error| self.too_few(error))?;
        self.guards().uncover(self.group.region(), taken.clone());
        self.group.reserve(taken.clone()).inspect_err(|_| {
            let _ = self.pages().arena.give_back(taken.clone());
        })?;
        Ok(taken.start)
    }

    fn free_context(&self, page: usize) {
        let mut pages = self.pages();
        if !self.group.extent(self.group.membership().rank()).contains(&page) {
            // That of the base window.
        } else if pages.contexts.len() < SPARE_CONTEXTS {
            pages.contexts.push(page);
        } else {
            let _ = pages.arena.free(self.group.region(), page..page + CONTEXT);
        }
    }

    /// The error for a rank whose addresses are used up.
    fn too_few(&self, error: RegionError) -> CommError {
        match region_error(error) {
            CommError::OutOfMemory { what, need, have } => {
                let what = format!("{what}, or give each rank more (CHIPCOMM_WINDOW_SPACE)");
                CommError::OutOfMemory { what, need, have }
            }
            other => other,
        }
    }

    /// Frees a window, the page behind it, and its context.
    fn free(&self, reserved: &Reserved) -> Result<(), CommError> {
        let Reserved { window, context } = reserved;
        self.free_context(*context);
        let released = self.group.region().release(window.clone());
        let given_back = self.pages().arena.give_back(window.start..window.end + PAGE);
        released.and(given_back).map_err(region_error)
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

    /// Refuses a window that is not inside the extent of the rank that reported it, or not at a page: what a peer
    /// sends is never trusted.
    fn check_placements(&self, offsets: &[u64], request: &WindowRequest<'_>) -> Result<(), CommError> {
        let size = request.size.next_multiple_of(PAGE) as u64;
        for (&rank, &offset) in request.members.iter().zip(offsets) {
            let extent = self.group.extent(rank);
            let end = offset.checked_add(size);
            let whole = offset.is_multiple_of(PAGE as u64);
            if !whole || offset < extent.start as u64 || end.is_none_or(|end| end > extent.end as u64) {
                let message = format!(
                    "it reported a window at {offset:#x}, outside its own memory (all ranks must run the same build)"
                );
                return Err(CommError::PeerFailed { rank, phase: request.phase(), message });
            }
        }
        Ok(())
    }

    /// A context with the addresses of the words that kernels read.
    fn placed(&self, context: CommContext) -> PlacedContext {
        let words = self.group.kernel_words_at();
        let [abort, generation] = [words.abort, words.generation].map(|at| self.address(at as u64));
        let record = wait_record(self.group.backend_bytes(self.group.membership().rank()));
        let tail = CommContextTail::new(abort, generation)
            .with_wait(self.address(record as u64))
            .with_cores(self.group.cores());
        PlacedContext { context, tail }
    }

    /// Sets the guards behind all windows, and writes the context to its place.
    fn finish(
        &self,
        request: &WindowRequest<'_>,
        own: &Reserved,
        offsets: &[u64],
    ) -> Result<Allocated, CommError> {
        let size = own.window.len();
        let windows = offsets.iter().map(|offset| *offset as usize..*offset as usize + size);
        self.guards().set(&self.group, request.members.iter().copied().zip(windows));
        let bases: Vec<DeviceAddr> = offsets.iter().map(|offset| self.address(*offset)).collect();
        let context =
            CommContext::new(request.position, &bases, size as u64).map_err(CommError::impossible)?;
        self.group.region().write(own.context, self.placed(context).as_bytes()).map_err(region_error)?;
        fault_point!("comm-sim.context");
        let (base, at) = (self.address(own.window.start as u64), self.address(own.context as u64));
        Ok(Allocated { window: Window { context: at, base, size }, context })
    }
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
        let reserved = self.reserve(request);
        fault_point!("comm-sim.reserved");
        let agreed = self.exchange_placements(&step, request, reserved.clone());
        fault_point!("comm-sim.agreed");
        match (reserved, agreed) {
            (Ok(own), Ok(offsets)) => self.finish(request, &own, &offsets),
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
        let at = self.context_page()?;
        self.group.region().write(at, self.placed(*context).as_bytes()).map_err(region_error)?;
        Ok(self.address(at as u64))
    }

    fn free_domain(&self, id: AllocationId, domain: &Released, within: Timeout) -> Result<(), CommError> {
        self.group.check_process()?;
        fault_point!("comm-sim.release");
        // No member frees its window before all have stopped using the domain. When some are gone, ours is freed all
        // the same.
        let waited = self.group.step(Phase::ReleaseDomain, within).and_then(|step| {
            self.group.exchange(&step, Tag { kind: RELEASE, id: id.0 }, &domain.members, &[]).map(drop)
        });
        let Window { context, base, size } = domain.window;
        let windows = domain.context.windows_in.iter().take(domain.members.len());
        let ends = windows.map(|window| self.offset(DeviceAddr(*window)) + size);
        self.guards().retire(self.group.region(), ends);
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
