//! The communicator.

use crate::note::{Part, agree};
use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::{
    AllocationId, ArgumentError, CommError, Communicator, DomainSpec, Membership, Phase, Reach, SubsetView,
    Timeout, Window, validate,
};
use mailbox_atomics::{Arena, PAGE, fault_point};
use rendezvous::{Group, Prepared, Step, Topic, region_error};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses that each rank has for its windows, base and domains together. Only addresses: memory is reserved by window.
pub const EXTENT: usize = 64 << 30;

/// What a context takes.
const CONTEXT: usize = size_of::<CommContext>().next_multiple_of(PAGE);

/// The topics of the group's exchanges.
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
    reach: Reach,
    base: Option<Base>,
    /// Between the first call that allocates the base window and its end.
    making_base: bool,
    /// `None` while it is being allocated or released.
    domains: BTreeMap<AllocationId, Option<Domain>>,
}

#[derive(Clone, Debug)]
struct Base {
    window: Window,
    context: CommContext,
}

#[derive(Debug)]
struct Domain {
    members: Vec<u32>,
    made: Allocation,
}

/// A window as its members agreed on it: this rank's part, its context, and where everybody's part is.
#[derive(Debug)]
struct Allocation {
    own: Range<usize>,
    context: Range<usize>,
    offsets: Vec<u64>,
}

impl SimComm {
    /// Joins a group that the parent of this process prepared.
    pub fn join(prepared: &Prepared, rank: u32, within: Timeout) -> Result<Self, CommError> {
        prepared.join(rank, within).map(Self::new)
    }

    /// Meets the other ranks at `path`.
    pub fn meet(path: &Path, me: Membership, within: Timeout) -> Result<Self, CommError> {
        Group::meet(path, me, EXTENT, within).map(Self::new)
    }

    fn new(group: Group) -> Self {
        let arena = Arena::new(group.extent(group.membership().rank()));
        let state = State {
            arena,
            reach: Reach::default(),
            base: None,
            making_base: false,
            domains: BTreeMap::new(),
        };
        Self { group, state: Mutex::new(state) }
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

    /// Where an offset of the group's memory stands in this process.
    fn address(&self, offset: u64) -> DeviceAddr {
        DeviceAddr(self.group.region().base().as_ptr() as u64 + offset)
    }

    /// Allocates this rank's part of a window and agrees with the other members on everybody's. Everything that can fail on this rank
    /// alone happens before the others hear that it has succeeded.
    fn allocate(
        &self,
        step: &Step<'_>,
        topic: Topic,
        members: &[u32],
        asked: usize,
    ) -> Result<Allocation, CommError> {
        fault_point!("comm-sim.reserve");
        let held = self.reserve(asked);
        fault_point!("comm-sim.reserved");
        let part = match &held {
            Ok((own, _)) => {
                Part::Window { offset: own.start as u64, size: own.len() as u64, asked: asked as u64 }
            }
            Err(error) => Part::Failed { text: error.to_string() },
        };
        let agreed = self.group.exchange(step, topic, members, &part.encode()).and_then(|notes| {
            let parts: Vec<Part> = notes.iter().map(|note| Part::decode(note)).collect();
            let offsets = agree(&parts, members, self.me(), held.as_ref().err().cloned(), step_phase(topic))?;
            self.check_peers(&offsets, members, asked, step_phase(topic))?;
            Ok(offsets)
        });
        fault_point!("comm-sim.agreed");
        match (held, agreed) {
            (Ok((own, context)), Ok(offsets)) => Ok(Allocation { own, context, offsets }),
            (held, agreed) => {
                if let Ok((own, context)) = held {
                    let _ = self.free(own, context);
                }
                Err(agreed.err().unwrap_or(CommError::Closed))
            }
        }
    }

    /// Memory for a window of `asked` bytes and, behind it, for its context: one reservation, since all ranks share one object and the
    /// kernel lets one of them at a time change what is behind it.
    fn reserve(&self, asked: usize) -> Result<(Range<usize>, Range<usize>), CommError> {
        let window = asked.next_multiple_of(PAGE);
        let both = self.state().arena.take(self.group.region(), window + CONTEXT).map_err(region_error)?;
        let border = both.start + window;
        Ok((both.start..border, border..both.end))
    }

    fn free(&self, own: Range<usize>, context: Range<usize>) -> Result<(), CommError> {
        self.state().arena.give_back(self.group.region(), own.start..context.end).map_err(region_error)
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
    fn finish(&self, domain_rank: u32, made: &Allocation) -> Result<(Window, CommContext), CommError> {
        let context = self.describe(domain_rank, &made.offsets, made.own.len())?;
        self.group.region().write(made.context.start, context.as_bytes()).map_err(region_error)?;
        fault_point!("comm-sim.context");
        let window = Window {
            context: self.address(made.context.start as u64),
            base: self.address(made.own.start as u64),
            size: made.own.len(),
        };
        Ok((window, context))
    }

    fn describe(&self, domain_rank: u32, offsets: &[u64], size: usize) -> Result<CommContext, CommError> {
        let bases: Vec<DeviceAddr> = offsets.iter().map(|offset| self.address(*offset)).collect();
        let workspace = self.address(self.group.workspace_offset() as u64);
        let context = CommContext::new(domain_rank, &bases, size as u64).map_err(impossible)?;
        Ok(context.with_workspace(workspace))
    }

    /// The offsets of a range of device addresses, if this rank may touch it.
    fn resolve(
        &self,
        at: DeviceAddr,
        len: usize,
        allowed: fn(&Reach, &Range<u64>) -> bool,
    ) -> Result<usize, CommError> {
        let start = at.0.checked_sub(self.address(0).0);
        let range = start.and_then(|start| Some(start..start.checked_add(len as u64)?));
        match range {
            Some(range) if allowed(&self.state().reach, &range) => Ok(range.start as usize),
            _ => Err(ArgumentError::Unreachable { addr: at, len }.into()),
        }
    }
}

fn offsets_of(range: &Range<usize>) -> Range<u64> {
    range.start as u64..range.end as u64
}

fn step_phase(topic: Topic) -> Phase {
    if topic.kind == BASE { Phase::AllocWindows } else { Phase::AllocDomain }
}

/// A context of checked parts always holds together.
fn impossible(error: comm_context::abi::AbiError) -> CommError {
    CommError::Backend {
        what: "a bug: the context does not hold together".to_owned(),
        source: Arc::new(error),
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
        {
            let mut state = self.state();
            if state.base.is_some() || state.making_base {
                return Err(CommError::WindowsExist);
            }
            state.making_base = true;
        }
        let everybody: Vec<u32> = (0..self.nranks()).collect();
        let made = self.allocate(&step, Topic { kind: BASE, id: 0 }, &everybody, size).and_then(|made| {
            let (window, context) = self.finish(self.me(), &made)?;
            Ok((window, context, made))
        });
        let mut state = self.state();
        state.making_base = false;
        let (window, context, made) = made?;
        state.reach.add_windows(&made.offsets, window.size);
        state.reach.add_context(offsets_of(&made.context));
        state.base = Some(Base { window, context });
        Ok(window)
    }

    fn window(&self) -> Result<Window, CommError> {
        self.state().base.as_ref().map(|base| base.window).ok_or(CommError::NoWindow)
    }

    fn derive_context(&self, view: &SubsetView<'_>) -> Result<DeviceAddr, CommError> {
        self.group.check()?;
        let base = self.state().base.clone().ok_or(CommError::NoWindow)?;
        validate::subset(self.group.membership(), view, base.window.size)?;
        let context = base
            .context
            .subset(view.ranks, view.domain_rank, view.offset as u64, view.size as u64)
            .map_err(impossible)?;
        let region = self.group.region();
        let mut state = self.state();
        let at = state.arena.take(region, size_of::<CommContext>()).map_err(region_error)?;
        region.write(at.start, context.as_bytes()).map_err(region_error)?;
        state.reach.add_context(offsets_of(&at));
        Ok(self.address(at.start as u64))
    }

    fn alloc_domain(&self, spec: &DomainSpec<'_>, within: Timeout) -> Result<Window, CommError> {
        self.group.check()?;
        validate::domain(self.group.membership(), spec)?;
        let step = self.group.step(Phase::AllocDomain, within)?;
        {
            let mut state = self.state();
            if state.domains.contains_key(&spec.id) {
                return Err(CommError::DomainExists { id: spec.id });
            }
            state.domains.insert(spec.id, None);
        }
        let topic = Topic { kind: DOMAIN, id: spec.id.0 };
        let made = self.allocate(&step, topic, spec.ranks, spec.window_size).and_then(|made| {
            let (window, _) = self.finish(spec.domain_rank, &made)?;
            Ok((window, made))
        });
        let mut state = self.state();
        match made {
            Ok((window, made)) => {
                state.reach.add_windows(&made.offsets, window.size);
                state.reach.add_context(offsets_of(&made.context));
                state.domains.insert(spec.id, Some(Domain { members: spec.ranks.to_vec(), made }));
                Ok(window)
            }
            Err(error) => {
                state.domains.remove(&spec.id);
                Err(error)
            }
        }
    }

    fn release_domain(&self, id: AllocationId, within: Timeout) -> Result<(), CommError> {
        let domain = self
            .state()
            .domains
            .get_mut(&id)
            .and_then(Option::take)
            .ok_or(CommError::UnknownDomain { id })?;
        fault_point!("comm-sim.release");
        // Its members stop using it before anybody's memory goes; when some are gone, ours goes all the same.
        let waited = self.group.step(Phase::ReleaseDomain, within).and_then(|step| {
            self.group.exchange(&step, Topic { kind: RELEASE, id: id.0 }, &domain.members, &[]).map(drop)
        });
        let Allocation { own, context, offsets } = domain.made;
        {
            let mut state = self.state();
            state.domains.remove(&id);
            state.reach.remove(&offsets, &offsets_of(&context));
        }
        let freed = self.free(own, context);
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
        let offset = self.resolve(from, into.len(), Reach::may_read)?;
        self.group.region().read(offset, into).map_err(region_error)
    }

    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let offset = self.resolve(to, bytes.len(), Reach::may_write)?;
        self.group.region().write(offset, bytes).map_err(region_error)
    }

    /// Leaves at once, without waiting: a rank that gives up must not hang on those who still wait for it. Its windows stay readable for
    /// peers that have not left; the memory goes with the last of them.
    fn destroy(self: Box<Self>, _within: Timeout) -> Result<(), CommError> {
        fault_point!("comm-sim.destroy");
        let broken = self.group.check();
        let reason = match &broken {
            Ok(()) => "it destroyed its communicator".to_owned(),
            Err(error) => format!("it destroyed its communicator, because {}", error.root_cause()),
        };
        self.group.leave(&reason);
        broken
    }
}
