//! A group: made over a communicator, collective to make and to close.
//!
//! # Safety
//! The engine is in an [`UnsafeCell`]: a group is not `Sync`, no call runs code of the caller while it is inside, and where there is
//! a progress thread its lock is held. The engine borrows windows and communicator for a lifetime that is argued at [`Collectives::over`].
#![allow(unsafe_code)]

use crate::device::DeviceEngine;
use crate::engine::Engine;
use crate::error::{BadArgument, CollError};
use crate::fork_guard::ForkGuard;
use crate::layout::{self, Layout};
use crate::memory::Memory;
use crate::options::Options;
use crate::plan::Setting;
use crate::pool::Pool;
use crate::registry;
use crate::request::{CallText, mix};
use crate::table::Table;
use crate::tensor::WindowTensor;
use crate::thread::Helper;
use crate::{Element, Ticket};
use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::{
    AllocationId, CommError, Communicator, DomainSpec, HostWindows, Leaving, Timeout, Window, WordWait,
    validate,
};
use core::cell::{RefCell, UnsafeCell};
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use deadline::monotonic_ns;
use fault_points::fault_point;
use shared_memory::{FNV_OFFSET, fnv1a};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The domains of groups have ids from here on; choose others for your own.
const IDS: u64 = 0xC011_0000_0000_0000;
/// How long a group that has failed, or is dropped in a panic, waits for the others to release it.
const CLOSE_BROKEN: Duration = Duration::from_secs(2);

/// A communicator to make a group over: borrowed, or shared with its owner.
#[derive(Clone)]
pub enum CommRef<'c> {
    /// It outlives the group.
    Borrowed(&'c dyn Communicator),
    /// The group keeps it alive. In a box, so that its owner can take it out of the `Arc` and destroy it.
    Shared(Arc<Box<dyn Communicator>>),
}

impl CommRef<'_> {
    fn get(&self) -> &dyn Communicator {
        match self {
            Self::Borrowed(comm) => *comm,
            Self::Shared(comm) => comm.as_ref().as_ref(),
        }
    }
}

impl<'c> From<&'c dyn Communicator> for CommRef<'c> {
    fn from(comm: &'c dyn Communicator) -> Self {
        Self::Borrowed(comm)
    }
}

impl<'c, C: Communicator> From<&'c C> for CommRef<'c> {
    fn from(comm: &'c C) -> Self {
        Self::Borrowed(comm)
    }
}

impl From<Arc<Box<dyn Communicator>>> for CommRef<'_> {
    fn from(comm: Arc<Box<dyn Communicator>>) -> Self {
        Self::Shared(comm)
    }
}

/// What a tensor knows of its group.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) pool: RefCell<Pool>,
    /// What was allocated without a type, by its address.
    pub(crate) untyped: RefCell<BTreeMap<usize, Range<usize>>>,
    failed: Arc<AtomicBool>,
}

impl Local {
    pub(crate) fn has_failed(&self) -> bool {
        // Acquire: pairs with the release in `give_up`, which may be the progress thread's.
        self.failed.load(Ordering::Acquire)
    }
}

/// One rank's end of a group of ranks that make collective calls.
///
/// Every rank makes the same calls in the same order. A call that fails for another reason than a wrong argument breaks the group: the
/// first cause is kept, every later call repeats it, and [tensors](WindowTensor) of the group are poisoned. One thread at a time: the
/// type is `Send`, not `Sync`.
pub struct Collectives<'c> {
    // Dropped first: they borrow from what follows. There is one of the two.
    engine: Option<Box<UnsafeCell<Engine<'c>>>>,
    device: Option<DeviceEngine<'c>>,
    helper: Option<Helper>,
    pub(crate) local: Local,
    guard: ForkGuard,
    id: AllocationId,
    /// Context, memory and bytes, where the calls are made in windows.
    window: Option<(DeviceAddr, DeviceAddr, usize)>,
    members: Box<[u32]>,
    me: usize,
    options: Options,
    is_open: bool,
    comm: CommRef<'c>,
}

// SAFETY: everything inside may be used by one thread after another. The engine's raw pointers lead to shared memory; addresses of the
// engine in `registry` are kept only while calls are under way, and those borrow the group or are made by unsafe functions that
// forbid it.
unsafe impl Send for Collectives<'_> {}

impl<'c> Collectives<'c> {
    /// Makes a group of all ranks of a communicator: collective.
    pub fn new(comm: impl Into<CommRef<'c>>, options: Options) -> Result<Self, CollError> {
        let comm = comm.into();
        let ranks: Vec<u32> = (0..comm.get().nranks()).collect();
        Self::over(comm, &ranks, options)
    }

    /// Makes a group of some ranks of a communicator, in that order: collective among them.
    ///
    /// A rank may be in any number of groups. Groups of the same ranks in the same order are made, and dropped, in the same order on all.
    ///
    /// ```
    /// # use collectives::{Collectives, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("over-{}", std::process::id()));
    /// // What each of three ranks does with its communicator.
    /// let rank = |comm: &SimComm, number: u32| -> Result<(), Error> {
    ///     if number == 1 {
    ///         return Ok(()); // no member: it takes no part
    ///     }
    ///     let pair = Collectives::over(comm, &[2, 0], Options::new().pool(1 << 16))?;
    ///     let mut order = [0; 2];
    ///     pair.all_gather(&[number], &mut order)?;
    ///     assert_eq!(order, [2, 0]);
    ///     Ok(pair.close()?)
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 3)?, Timeout::DEFAULT)?;
    /// #     rank(&comm, number)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..3).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn over(comm: impl Into<CommRef<'c>>, ranks: &[u32], options: Options) -> Result<Self, CollError> {
        let comm = comm.into();
        // SAFETY: the communicator is borrowed for `'c`, or kept alive by `self.comm`, which is dropped after the engine.
        let borrowed = unsafe { core::mem::transmute::<&dyn Communicator, &'c dyn Communicator>(comm.get()) };
        let rank = borrowed.rank();
        let members = || BadArgument::Members { ranks: ranks.to_vec(), me: rank };
        let me = ranks.iter().position(|one| *one == rank).ok_or_else(members)?;
        let Some(host) = borrowed.host_windows() else {
            return Self::on_devices(comm, borrowed, ranks, me, options);
        };
        let layout = Layout::new(ranks.len(), options.pool)
            .filter(|layout| layout.total() <= validate::MAX_WINDOW_SIZE);
        let layout = layout.ok_or(BadArgument::Pool { pool: options.pool })?;
        // Settled here, so that groups that are split off have the same.
        let table = options.table.map_or_else(Table::from_environment, Ok)?;
        let options = options.table(table);
        let (id, window) = allocate(borrowed, ranks, me, &layout, options.within)?;
        fault_point!("coll.allocated");
        let made = Self::attach(borrowed, host, ranks, me, layout, window, (options.within, table));
        let made = made
            .and_then(|(engine, failed)| Ok((engine, failed, options.thread.map(|_| helper()).transpose()?)));
        let (mut engine, failed, helper) = made.inspect_err(|_| {
            let _ = borrowed.release_domain(id, bounded(options.within));
        })?;
        engine.has_helper = helper.is_some();
        fault_point!("coll.attached");
        Ok(Self {
            engine: Some(Box::new(UnsafeCell::new(engine))),
            device: None,
            helper,
            local: Local {
                pool: RefCell::new(Pool::new(layout.pool())),
                untyped: RefCell::default(),
                failed,
            },
            guard: ForkGuard::new(),
            id,
            window: Some((window.context, window.base, layout.total())),
            members: ranks.into(),
            me,
            options,
            is_open: true,
            comm,
        })
    }

    /// Makes a group whose calls the devices make.
    fn on_devices(
        comm: CommRef<'c>,
        borrowed: &'c dyn Communicator,
        ranks: &[u32],
        me: usize,
        options: Options,
    ) -> Result<Self, CollError> {
        let engine = borrowed.device_collectives().ok_or(CollError::NoHostWindows)?;
        let id = AllocationId(IDS | (members_hash(ranks) & 0x0000_ffff_ffff_ffff));
        let group = engine.device_group(ranks, id.0, options.within);
        let group = group.map_err(|cause| CollError::Setup { what: "making a group", cause })?;
        let failed = Arc::new(AtomicBool::new(false));
        let device = DeviceEngine::new(group, me, ranks.len(), options.within, failed.clone());
        Ok(Self {
            engine: None,
            device: Some(device),
            helper: None,
            local: Local { pool: RefCell::new(Pool::new(0..0)), untyped: RefCell::default(), failed },
            guard: ForkGuard::new(),
            id,
            window: None,
            members: ranks.into(),
            me,
            options,
            is_open: true,
            comm,
        })
    }

    /// The devices' engine, where it makes the calls; refused in a forked copy.
    #[inline]
    pub(crate) fn device(&self) -> Option<Result<&DeviceEngine<'c>, CollError>> {
        let device = self.device.as_ref()?;
        Some(if self.guard.is_owner() { Ok(device) } else { Err(CollError::Forked) })
    }

    /// Finds the windows of all members, and sees that all have the same layout and table.
    fn attach(
        comm: &'c dyn Communicator,
        host: &'c dyn HostWindows,
        ranks: &[u32],
        me: usize,
        layout: Layout,
        window: Window,
        (within, table): (Timeout, Table),
    ) -> Result<(Engine<'c>, Arc<AtomicBool>), CollError> {
        let setup = |cause| CollError::Setup { what: "making a group", cause };
        let mut bytes = [0; size_of::<CommContext>()];
        comm.read(window.context, &mut bytes).map_err(setup)?;
        let context = CommContext::decode(&bytes).map_err(CommError::impossible).map_err(setup)?;
        let pointers = context.windows_in[..ranks.len()]
            .iter()
            .map(|at| host.host_pointer(DeviceAddr(*at), layout.total()));
        let windows = pointers.collect::<Result<Vec<_>, _>>().map_err(setup)?;
        // SAFETY: the communicator says that the windows lie there, at page boundaries, until the domain is released, which `close`
        // does after the last use.
        let memory = unsafe { Memory::new(layout, windows.into(), me) };
        memory.populate();
        for (at, word) in table.to_words().into_iter().enumerate() {
            // Relaxed: published with the hash, by the release of its store.
            memory.table_word(me, at).store(word, Ordering::Relaxed);
        }
        memory.base_word(me).store(layout::base_of(host.generation()));
        memory.cores_word(me).store(u64::from(host.has_core_per_rank()));
        memory.hash_word(me).store_and_wake(layout.hash());
        let since_ns = monotonic_ns();
        let unused = AtomicU32::new(0);
        for rank in (0..ranks.len()).filter(|rank| *rank != me) {
            let word = memory.hash_word(rank);
            // Its rank always wakes those who wait for it, so nobody reads the announcement.
            let wait = WordWait {
                word: word.as_atomic(),
                parked_on: &unused,
                tag: NonZeroU32::MIN,
                needed: &[ranks[rank]],
                since_ns,
                within,
                poll: None,
            };
            host.wait_on(&wait, &mut |hash| hash != 0).map_err(setup)?;
            let (mine, theirs) = (layout.hash(), word.load());
            if mine != theirs {
                return Err(CollError::Layout { rank, mine, theirs });
            }
            // Relaxed: the hash is there, and the table was written before it.
            let theirs = std::array::from_fn(|at| memory.table_word(rank, at).load(Ordering::Relaxed));
            if table.to_words() != theirs {
                return Err(CollError::Table { text: table.differences(me, rank, theirs) });
            }
        }
        let core_per_rank = memory.cores_word(0).load() != 0;
        let setting = Setting::new(ranks.len(), layout.half, core_per_rank, table);
        let failed = Arc::new(AtomicBool::new(false));
        let engine = Engine::new(memory, me, ranks.into(), host, within, setting, failed.clone());
        Ok((engine, failed))
    }

    /// This rank in the group.
    pub fn rank(&self) -> usize {
        self.me
    }

    /// How many ranks the group has.
    pub fn nranks(&self) -> usize {
        self.members.len()
    }

    /// The communicator's ranks of the members, in the order of the group.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// What a kernel on this rank opens the group with (`CommGroup` of `comm_collectives.h`): the context, the memory and its bytes. From
    /// then on this rank's calls are the kernels', and the host only closes the group. `None` where devices make the calls.
    ///
    /// Kernels count anew after a run that was cancelled. Ranks in Rust that share the group with them make another one then; in this
    /// one their calls would differ.
    pub fn for_kernels(&self) -> Option<(DeviceAddr, DeviceAddr, usize)> {
        self.window
    }

    /// Whether a call has broken the group.
    pub fn has_failed(&self) -> bool {
        self.local.has_failed()
    }

    /// Memory for `len` elements in this rank's window, all zero. Local: no peer takes part.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<WindowTensor<'_, T>, CollError> {
        let engine = self.enter()?;
        let range = self.take_from_pool(len.checked_mul(size_of::<T>()))?;
        let at = engine.memory.window(self.me).wrapping_add(range.start);
        Ok(WindowTensor::new(&self.local, at, len, range))
    }

    pub(crate) fn take_from_pool(&self, bytes: Option<usize>) -> Result<Range<usize>, CollError> {
        let mut pool = self.local.pool.borrow_mut();
        bytes.and_then(|bytes| pool.take(bytes)).ok_or_else(|| CollError::PoolFull {
            need: bytes.unwrap_or(usize::MAX),
            free: pool.largest(),
            pool: pool.size(),
        })
    }

    /// Breaks the group: its calls fail with `why` here, and on every rank that waits for this one at once.
    pub fn give_up(&self, why: &str) {
        let error = CollError::PeerGaveUp { rank: self.me, call: CallText::plain(why.to_owned()) };
        if let Some(Ok(device)) = self.device() {
            device.give_up(error);
        } else if let Ok(mut engine) = self.enter() {
            engine.lose_all(error);
        }
    }

    /// Drops the group without the others: for a rank that is about to leave its communicator, which then frees the windows.
    pub fn abandon(mut self) {
        if self.end_locally()
            && let Some(device) = self.device.take()
        {
            let _ = device.close(Leaving::Alone, bounded(self.options.within));
        }
    }

    /// Closes the group: collective. Fails when a peer is gone, or does not close it in time; this rank's part is released either way.
    pub fn close(mut self) -> Result<(), CollError> {
        self.release()
    }

    /// Ends what this process has of the group. Returns whether there is something to release.
    fn end_locally(&mut self) -> bool {
        if !std::mem::take(&mut self.is_open) {
            return false;
        }
        if !self.guard.is_owner() {
            // The thread is not in this process, and whatever it held stays held.
            std::mem::forget(self.helper.take());
            return false;
        }
        if let Some(helper) = &mut self.helper {
            helper.stop();
        }
        if let Some(engine) = &self.engine {
            registry::leave(engine.get().addr());
        }
        true
    }

    fn release(&mut self) -> Result<(), CollError> {
        if !self.end_locally() {
            return if self.guard.is_owner() { Ok(()) } else { Err(CollError::Forked) };
        }
        fault_point!("coll.closing");
        if let Some(device) = self.device.take() {
            let alone = self.has_failed() || std::thread::panicking();
            let leaving = if alone { Leaving::Alone } else { Leaving::Together };
            let closed = device.close(leaving, self.options.within);
            return closed.map_err(|cause| CollError::Setup { what: "closing a group", cause });
        }
        if std::thread::panicking() {
            // The others need not wait for what does not come.
            if let Ok(mut engine) = self.enter() {
                engine.give_up_in_panic();
            }
        }
        let within = if self.has_failed() || std::thread::panicking() {
            bounded(self.options.within)
        } else {
            self.options.within
        };
        let released = self.comm.get().release_domain(self.id, within);
        fault_point!("coll.closed");
        released.map_err(|cause| CollError::Setup { what: "closing a group", cause })
    }

    /// A call on the group panicked, and the panic goes no further: nobody shall use what it left.
    #[cold]
    pub(crate) fn break_after_panic(&self) {
        if let Some(Ok(_)) = self.device() {
            self.give_up("a panic");
        } else if let Ok(mut engine) = self.enter() {
            engine.give_up_in_panic();
        }
    }

    /// The engine, for the length of one call.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Entered<'_, 'c>, CollError> {
        if !self.guard.is_owner() {
            return Err(CollError::Forked);
        }
        let Some(engine) = &self.engine else { return Err(CollError::NoHostWindows) };
        let lock = self.helper.as_ref().map(Helper::lock);
        Ok(Entered { group: self, engine, lock })
    }

    pub(crate) fn has_progress_thread(&self) -> bool {
        self.helper.is_some()
    }

    pub(crate) fn comm(&self) -> &CommRef<'c> {
        &self.comm
    }

    pub(crate) fn options(&self) -> Options {
        self.options
    }

    /// Waits for everything that was started, and leaves nothing under way.
    pub(crate) fn finish_all(&self) -> Result<(), CollError> {
        if let Some(device) = self.device() {
            return device?.wait_for_all();
        }
        self.enter()?.wait_for_all()
    }

    pub(crate) fn is_over(&self, ticket: Ticket) -> Result<bool, CollError> {
        if let Some(device) = self.device() {
            return device?.test(ticket);
        }
        let (is_over, is_crowded) = {
            let mut engine = self.enter()?;
            let is_over = engine.test(ticket)?;
            (is_over, !is_over && engine.is_crowded())
        };
        if is_crowded {
            // A caller that does nothing but ask keeps the core from the ranks that it asks after: each of them would cost a time slice.
            // Not inside, where the progress thread would wait for it.
            std::thread::yield_now();
        }
        Ok(is_over)
    }

    pub(crate) fn finish(&self, ticket: Ticket) -> Result<(), CollError> {
        if let Some(device) = self.device() {
            return device?.wait(ticket);
        }
        self.enter()?.wait_for(ticket)
    }
}

impl Drop for Collectives<'_> {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

impl fmt::Debug for Collectives<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collectives(rank {} of {:?}, domain {})", self.me, self.members, self.id)
    }
}

/// The engine in use.
pub(crate) struct Entered<'g, 'c> {
    group: &'g Collectives<'c>,
    engine: &'g UnsafeCell<Engine<'c>>,
    lock: Option<crate::thread::Lock<'g>>,
}

impl<'c> core::ops::Deref for Entered<'_, 'c> {
    type Target = Engine<'c>;

    #[inline]
    fn deref(&self) -> &Engine<'c> {
        // SAFETY: see the head of the file: one thread, one call at a time, and no call calls back.
        unsafe { &*self.engine.get() }
    }
}

impl core::ops::DerefMut for Entered<'_, '_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as above.
        unsafe { &mut *self.engine.get() }
    }
}

impl Drop for Entered<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if let (Some(helper), Some(lock)) = (&self.group.helper, self.lock.take()) {
            // SAFETY: as above; nothing else borrows the engine any more.
            let engine = unsafe { &mut *self.engine.get() };
            let under_way = !engine.queue.is_empty();
            helper.resume(
                lock,
                if under_way { core::ptr::from_mut(engine).cast() } else { core::ptr::null_mut() },
            );
        }
    }
}

fn helper() -> Result<Helper, CollError> {
    Helper::start().map_err(|error| CollError::Setup {
        what: "making a group",
        cause: CommError::system("clone", "a progress thread", &error),
    })
}

fn bounded(within: Timeout) -> Timeout {
    Timeout::new(CLOSE_BROKEN).unwrap_or(within).min(within)
}

fn members_hash(ranks: &[u32]) -> u64 {
    let count = fnv1a(FNV_OFFSET, &(ranks.len() as u32).to_le_bytes());
    ranks.iter().fold(count, |hash, rank| fnv1a(hash, &rank.to_le_bytes()))
}

/// The id of the domain that a group of these members has if this rank has so many of them already.
fn domain_id(members: u64, turn: u64) -> AllocationId {
    AllocationId(IDS | (mix(members, turn) & 0x0000_ffff_ffff_ffff))
}

/// Allocates the group's domain under the first id that this rank has free: the same on all members, because all make and close groups
/// of these ranks in the same order, and no other ranks have the same ids.
fn allocate(
    comm: &dyn Communicator,
    ranks: &[u32],
    me: usize,
    layout: &Layout,
    within: Timeout,
) -> Result<(AllocationId, Window), CollError> {
    let members = members_hash(ranks);
    for turn in 0_u64.. {
        let id = domain_id(members, turn);
        let spec = DomainSpec { id, ranks, domain_rank: me as u32, window_size: layout.total() };
        match comm.alloc_domain(&spec, within) {
            Err(CommError::DomainExists { .. }) if turn < 1 << 16 => {}
            Ok(window) => return Ok((id, window)),
            Err(cause) => return Err(CollError::Setup { what: "making a group", cause }),
        }
    }
    unreachable!("the last turn returns")
}

#[cfg(test)]
mod tests {
    use super::{domain_id, members_hash};
    use crate::{Collectives, Pending, WindowTensor};
    use static_assertions::{assert_impl_all, assert_not_impl_any};
    use std::collections::HashSet;

    // CO-14. What is of a group stays on the thread that uses the group.
    assert_impl_all!(Collectives<'static>: Send);
    assert_not_impl_any!(Collectives<'static>: Sync);
    assert_not_impl_any!(WindowTensor<'static, f32>: Send, Sync);
    assert_not_impl_any!(Pending<'static>: Send, Sync);

    // CO-1. A rank whose group of other ranks has the id would take the next one, and wait where nobody comes.
    #[test]
    fn groups_of_different_ranks_have_different_domains() {
        let mut lists = vec![vec![]];
        let mut longer: Vec<Vec<u32>> = vec![vec![]];
        for _ in 0..4 {
            let with = |list: &Vec<u32>, rank| list.iter().copied().chain([rank]).collect::<Vec<u32>>();
            let more = |list: &Vec<u32>| {
                (0..8).filter(|rank| !list.contains(rank)).map(|rank| with(list, rank)).collect()
            };
            longer = longer.iter().flat_map(|list| -> Vec<_> { more(list) }).collect();
            lists.extend(longer.iter().cloned());
        }
        lists.extend((1..=64).map(|nranks| (0..nranks).collect()));
        let lists: HashSet<Vec<u32>> = lists.into_iter().collect();
        let ids = lists.iter().flat_map(|list| (0..4).map(|turn| domain_id(members_hash(list), turn).0));
        assert_eq!(ids.collect::<HashSet<u64>>().len(), 4 * lists.len());
    }
}
