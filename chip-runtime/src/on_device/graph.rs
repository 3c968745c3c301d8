//! The graph of a device while it is built.

use super::host::HostTensors;
use super::tasks::{DeviceTask, Queue, comes_after, resolve};
use super::windows::DeviceWindows;
use super::{
    GraphDevice, OnDeviceError,
    error::{Missing, at_task},
};
use crate::args::{TaskArgs, TensorArg};
use crate::buffer::Buffer;
use crate::element;
use crate::engine::{NOTHING_YET, check, check_tensor, creates, existing, extent_of, output, room_of};
use crate::error::{ArgumentError, ErrorKind, RuntimeError};
use crate::limits::ScopeMode;
use crate::signals::{Domain, SignalError};
use crate::task::{KernelId, Kernels, Site, Submitted, TaskId};
use crate::tensor::{Create, Element, Tensor};
use crate::tensor_map::{TensorMap, Use};
use comm_context::abi::{DeviceAddr, NO_OWNER, TensorDesc};
use comm_hccl::DeviceMemory;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::Location;

/// A graph while it is built: see [`GraphDevice::run`].
#[derive(Debug)]
pub struct DeviceGraph<'c> {
    on: &'c GraphDevice,
    tasks: Vec<DeviceTask>,
    map: TensorMap<usize>,
    given: Vec<Range<u64>>,
    host: HostTensors,
    memory: Vec<DeviceMemory>,
    scopes: Vec<Scope>,
    site: Option<Site>,
}

/// A scope that is open, besides the outer one.
#[derive(Debug)]
struct Scope {
    mode: ScopeMode,
    site: Site,
    tasks: Vec<usize>,
}

/// A graph that is complete.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) tasks: Vec<DeviceTask>,
    pub(super) host: HostTensors,
    /// What its tasks make, which stays until all kernels have ended.
    pub(super) memory: Vec<DeviceMemory>,
}

impl<'c> DeviceGraph<'c> {
    pub(super) fn new(on: &'c GraphDevice) -> Self {
        let given = on.windows.iter().flat_map(DeviceWindows::ranges).collect();
        Self {
            on,
            tasks: Vec::new(),
            map: TensorMap::new(),
            given,
            host: HostTensors::default(),
            memory: Vec::new(),
            scopes: Vec::new(),
            site: None,
        }
    }

    /// The orchestration has returned. Scopes that are still open are an error.
    pub(super) fn finish(mut self) -> Result<Built, OnDeviceError> {
        if let Some(last) = self.scopes.last() {
            let kind = ErrorKind::OpenScopes { open: self.scopes.len(), scope: Some(last.site) };
            return Err(RuntimeError::from(kind).into());
        }
        resolve(&mut self.tasks);
        let Self { tasks, host, memory, .. } = self;
        Ok(Built { tasks, host, memory })
    }

    /// A tensor of this shape at the start of device memory, which tasks may use from now on.
    #[track_caller]
    pub fn import<T: Element>(
        &mut self,
        memory: &DeviceMemory,
        shape: &[u32],
    ) -> Result<Tensor<T>, OnDeviceError> {
        let (size, site) = (memory.size() as u64, self.here());
        let desc = TensorDesc::builder(memory.addr(), size, T::DTYPE, shape).build();
        let desc = desc.map_err(|source| argument(ArgumentError::Tensor { index: 0, source }, site))?;
        self.given.push(memory.addr().0..memory.addr().0 + size);
        Ok(Tensor::new(desc)?)
    }

    /// Lets tasks use the buffer of a tensor in device memory of another owner, which keeps it until the run has ended.
    pub fn import_raw(&mut self, desc: &TensorDesc) {
        self.given.push(desc.addr..desc.addr.saturating_add(desc.size));
    }

    /// Lets tasks use a buffer in host memory, until the end of the run. What tasks use of it is copied to the device before
    /// the first of them starts; what they write is copied back when the run has ended well, and otherwise stays as it was.
    #[track_caller]
    pub fn import_host<T: Element>(&mut self, buffer: &mut Buffer<T>) -> Result<Tensor<T>, OnDeviceError> {
        let tensor = buffer.tensor()?;
        self.host.give_buffer(buffer.memory(), self.here())?;
        Ok(tensor)
    }

    /// The domain of a `CommContext`, which lies in device memory, for waits and signals.
    pub fn domain(&self, context: DeviceAddr) -> Result<Domain, RuntimeError> {
        let found = self.on.windows.as_ref().and_then(|windows| windows.at(context));
        Ok(found.ok_or(SignalError::NoContext { context: context.0 })?)
    }

    /// A tensor of this shape in the window of a rank, its own or a peer's, which tasks may use.
    #[track_caller]
    pub fn window<T: Element>(
        &self,
        domain: Domain,
        rank: u32,
        offset: u64,
        shape: &[u32],
    ) -> Result<Tensor<T>, OnDeviceError> {
        let elements = shape.iter().try_fold(1u64, |all, len| all.checked_mul(u64::from(*len)));
        let bytes = elements.and_then(|all| all.checked_mul(size_of::<T>() as u64)).unwrap_or(u64::MAX);
        let site = self.here();
        let refused = |error| self.on.refuse(site, error);
        let windows = self.on.windows.as_ref().ok_or(SignalError::NoWindow { domain }).map_err(refused)?;
        let at = windows.part(domain, rank, offset, bytes).map_err(refused)?;
        let desc = TensorDesc::builder(at, bytes, T::DTYPE, shape).build();
        let desc = desc.map_err(|source| argument(ArgumentError::Tensor { index: 0, source }, site))?;
        Ok(Tensor::new(desc)?)
    }

    /// Submits a task that runs one kernel.
    #[track_caller]
    pub fn submit(&mut self, kernels: Kernels, args: &TaskArgs) -> Result<Submitted, OnDeviceError> {
        let site = self.here();
        let mut lanes = kernels.lanes().into_iter().enumerate().filter_map(|(lane, id)| Some((lane, id?)));
        let Some((lane, kernel)) = lanes.next() else { return Err(argument(ArgumentError::NoKernel, site)) };
        if lanes.next().is_some() {
            return Err(OnDeviceError::NotOnDevice { what: Missing::Mix, site });
        }
        if !self.on.kernels.contains_key(&kernel) {
            return Err(argument(ArgumentError::UnknownKernel(kernel), site));
        }
        let queue = if lane == 0 { Queue::Cube } else { Queue::Vector };
        let (have, cores) = match queue {
            Queue::Cube => (self.on.clusters(), "AIC"),
            Queue::Vector => (2 * self.on.clusters(), "AIV"),
        };
        if args.sync_start && args.blocks > have {
            let (blocks, need) = (args.blocks, args.blocks);
            return Err(failed(ErrorKind::SyncStart { blocks, need, cores, have }, site));
        }
        self.enter(Some((queue, kernel)), args, site)
    }

    /// Submits a task without a kernel, which only orders others.
    #[track_caller]
    pub fn submit_dummy(&mut self, args: &TaskArgs) -> Result<Submitted, OnDeviceError> {
        self.enter(None, args, self.here())
    }

    /// Makes tensors, in device memory that lasts as long as the graph.
    #[track_caller]
    pub fn allocate(&mut self, tensors: &[Create]) -> Result<Submitted, OnDeviceError> {
        let mut args = TaskArgs::new();
        tensors.iter().for_each(|create| args.push(TensorArg::Output(*create)));
        self.enter(None, &args, self.here())
    }

    /// Opens a scope: what its tasks make cannot be used after it. In a [manual](ScopeMode::Manual) one no edges are inferred.
    #[track_caller]
    pub fn scope_begin(&mut self, mode: ScopeMode) -> Result<(), OnDeviceError> {
        let (site, limit) = (self.here(), self.on.limits.scope_depth);
        if self.scopes.len() >= limit {
            return Err(failed(ErrorKind::ScopeDepth { limit }, site));
        }
        self.scopes.push(Scope { mode, site, tasks: Vec::new() });
        Ok(())
    }

    /// Closes the scope that was opened last.
    #[track_caller]
    pub fn scope_end(&mut self) -> Result<(), OnDeviceError> {
        let Some(scope) = self.scopes.pop() else { return Err(failed(ErrorKind::NoScope, self.here())) };
        scope.tasks.into_iter().for_each(|task| self.tasks[task].scope_open = false);
        Ok(())
    }

    /// Makes `after` come after `before`.
    #[track_caller]
    pub fn add_dependency(&mut self, after: TaskId, before: TaskId) -> Result<(), OnDeviceError> {
        let site = self.here();
        let index = |task: TaskId| {
            let index = usize::try_from(task.0).ok().filter(|index| *index < self.tasks.len());
            index.ok_or_else(|| argument(ArgumentError::UnknownTask(task), site))
        };
        let (from, to) = (index(before)?, index(after)?);
        if comes_after(&self.tasks, from, to) {
            return Err(failed(ErrorKind::Cycle { before, after }, site));
        }
        self.tasks[to].after.insert(from);
        Ok(())
    }

    /// The bits of one element of a tensor that no task makes, in the low bytes, as they are before the graph starts.
    #[track_caller]
    pub fn get_element(
        &mut self,
        tensor: &impl AsRef<TensorDesc>,
        index: &[u32],
    ) -> Result<u64, OnDeviceError> {
        let (tensor, site) = (tensor.as_ref(), self.here());
        let place = self.reach_element(tensor, index, site)?;
        if let Some(bits) = self.host.load(tensor, place) {
            return Ok(bits);
        }
        let mut bits = [0; 8];
        self.on.read(DeviceAddr(place.0), &mut bits[..place.1], site, OnDeviceError::Device)?;
        Ok(u64::from_le_bytes(bits))
    }

    /// Replaces one element of a tensor that no task makes, before the graph starts.
    #[track_caller]
    pub fn set_element(
        &mut self,
        tensor: &impl AsRef<TensorDesc>,
        index: &[u32],
        bits: u64,
    ) -> Result<(), OnDeviceError> {
        let (tensor, site) = (tensor.as_ref(), self.here());
        let place = self.reach_element(tensor, index, site)?;
        if self.host.store(tensor, place, bits) {
            return Ok(());
        }
        self.on.write(DeviceAddr(place.0), &bits.to_le_bytes()[..place.1], site)
    }

    /// The place that the next calls are at, instead of the caller's; for orchestrations that are not in Rust.
    pub fn set_site(&mut self, site: Option<Site>) {
        self.site = site;
    }

    /// How many clusters the device has.
    pub fn cluster_count(&self) -> usize {
        self.on.limits.clusters
    }

    #[track_caller]
    fn here(&self) -> Site {
        // Not in a closure, which would be the caller.
        let caller = Site::of(Location::caller());
        self.site.unwrap_or(caller)
    }

    /// Where an element of a tensor that no task makes is, and how many bytes it has.
    fn reach_element(
        &self,
        desc: &TensorDesc,
        index: &[u32],
        site: Site,
    ) -> Result<(u64, usize), OnDeviceError> {
        let here = |error: RuntimeError| OnDeviceError::from(error.at_site(Some(site)));
        check_tensor(0, desc).map_err(here)?;
        let place = element::place(desc, index).map_err(here)?;
        if !self.host.holds(desc) && self.check_memory(0, desc, site)?.is_some() {
            return Err(failed(ErrorKind::DataAccess(NOTHING_YET), site));
        }
        Ok(place)
    }

    fn enter(
        &mut self,
        launch: Option<(Queue, KernelId)>,
        args: &TaskArgs,
        site: Site,
    ) -> Result<Submitted, OnDeviceError> {
        let bytes = check(args).map_err(|error| OnDeviceError::from(error.at_site(Some(site))))?;
        self.check_signals(args).map_err(|error| self.on.refuse(site, error))?;
        let index = self.tasks.len();
        let task = TaskId::new(0, index as u32);
        if let Some(unknown) = args.after.iter().find(|before| before.0 >= task.0) {
            return Err(argument(ArgumentError::UnknownTask(*unknown), site));
        }
        let args = &self.reach_tensors(args, site)?;
        let (outputs, memory) = self.make_outputs(args, bytes, task, site)?;
        let mut made = outputs.iter();
        let tensors: Vec<TensorDesc> =
            args.tensors.iter().filter_map(|arg| existing(arg).or_else(|| made.next())).copied().collect();
        let infers = self.scopes.last().is_none_or(|scope| scope.mode == ScopeMode::Auto);
        let mut after = if infers { self.infer(index, args, &tensors) } else { BTreeSet::new() };
        after.extend(args.after.iter().map(|before| before.local() as usize));
        self.tasks.push(DeviceTask {
            launch,
            tensors,
            scalars: args.scalars.clone(),
            blocks: args.blocks,
            site,
            predicate: args.predicate,
            waits: args.waits.clone(),
            signals: args.signals.clone(),
            memory,
            scope_open: true,
            after,
            before: BTreeSet::new(),
            is_awaited_elsewhere: false,
            is_watched: !args.signals.is_empty() || self.on.records,
        });
        if let Some(scope) = self.scopes.last_mut() {
            scope.tasks.push(index);
        }
        Ok(Submitted { task, outputs })
    }

    /// Refuses waits and signals that cannot be.
    fn check_signals(&self, args: &TaskArgs) -> Result<(), SignalError> {
        let domain = args.waits.iter().map(|wait| wait.domain);
        let Some(domain) = domain.chain(args.signals.iter().map(|signal| signal.domain)).next() else {
            return Ok(());
        };
        let windows = self.on.windows.as_ref().ok_or(SignalError::NoWindow { domain })?;
        args.waits.iter().try_for_each(|wait| windows.awaited(wait).map(drop))?;
        args.signals.iter().try_for_each(|signal| windows.check_signal(signal))
    }

    /// The arguments of a task with its tensors as they are on the device, in memory that the graph knows.
    fn reach_tensors(&mut self, args: &TaskArgs, site: Site) -> Result<TaskArgs, OnDeviceError> {
        // What is refused leaves the graph as it was.
        let tensors = args.tensors.iter().enumerate().filter_map(|(at, arg)| Some((at, existing(arg)?)));
        let predicate = args.predicate.as_ref().map(|predicate| (args.tensors.len(), &predicate.tensor));
        for (at, desc) in tensors.chain(predicate) {
            if !self.host.holds(desc) {
                self.check_memory(at, desc, site)?;
            }
        }
        let mut args = args.clone();
        for arg in &mut args.tensors {
            let is_written = arg.writes() || matches!(arg, TensorArg::NoDep(_));
            let Some(desc) = arg.existing_mut() else { continue };
            if let Some(copy) = self.host.on_device(&self.on.device, desc, site)? {
                if is_written {
                    self.host.writes(desc, site);
                }
                *desc = copy;
            }
        }
        if let Some(predicate) = &mut args.predicate
            && let Some(copy) = self.host.on_device(&self.on.device, &predicate.tensor, site)?
        {
            predicate.tensor = copy;
        }
        Ok(args)
    }

    /// Whether a tensor lies in memory that this graph knows, and who made it.
    fn check_memory(
        &self,
        index: usize,
        desc: &TensorDesc,
        site: Site,
    ) -> Result<Option<usize>, OnDeviceError> {
        let range = desc.addr..desc.addr + desc.size;
        let inside = |given: &Range<u64>| given.start <= range.start && range.end <= given.end;
        let wrong = |error| Err(argument(error, site));
        if desc.owner_task_id == NO_OWNER {
            if range.is_empty() || self.given.iter().any(inside) {
                return Ok(None);
            }
            return wrong(ArgumentError::UnknownMemory { index, addr: desc.addr, bytes: desc.size });
        }
        let owner = TaskId(desc.owner_task_id);
        match usize::try_from(owner.0).ok().and_then(|at| Some((at, self.tasks.get(at)?))) {
            Some((_, task)) if !task.scope_open => wrong(ArgumentError::ScopeEnded { index, owner }),
            Some((at, task)) if inside(&task.memory) => Ok(Some(at)),
            _ => wrong(ArgumentError::NotOwner { index, owner }),
        }
    }

    /// The new tensors of a task, in device memory that lasts as long as the graph, and where that is.
    fn make_outputs(
        &mut self,
        args: &TaskArgs,
        bytes: u64,
        task: TaskId,
        site: Site,
    ) -> Result<(Vec<TensorDesc>, Range<u64>), OnDeviceError> {
        if bytes == 0 {
            return Ok((Vec::new(), 0..0));
        }
        let here = at_task(task.local() as usize, site);
        let memory = DeviceMemory::allocate(&self.on.device, bytes as usize).map_err(here)?;
        let (start, mut at) = (memory.addr().0, memory.addr().0);
        let mut outputs = Vec::new();
        for (index, create) in creates(args).enumerate() {
            let desc = output(create, at, task);
            outputs.push(desc.map_err(|source| argument(ArgumentError::Tensor { index, source }, site))?);
            if let Some(filled) = initial(create) {
                memory.write((at - start) as usize, &filled).map_err(here)?;
            }
            at += room_of(create).unwrap_or(0);
        }
        self.memory.push(memory);
        Ok((outputs, start..start + bytes))
    }

    /// The tasks that this one has to come after because of its tensors.
    fn infer(&mut self, index: usize, args: &TaskArgs, tensors: &[TensorDesc]) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut entries = Vec::new();
        let used = |arg: &TensorArg| match arg {
            TensorArg::NoDep(_) => None,
            arg if arg.writes() => Some(Use::Write),
            _ => Some(Use::Read),
        };
        let tensors = tensors.iter().zip(args.tensors.iter().map(used));
        let predicate = args.predicate.iter().map(|predicate| (&predicate.tensor, Some(Use::Read)));
        for (desc, kind) in tensors.chain(predicate).filter(|(desc, _)| desc.manual_dep != 1) {
            let (Some(extent), Some(kind)) = (extent_of(desc), kind) else { continue };
            self.map.conflicts(
                &extent,
                kind,
                |_| false,
                |before| {
                    found.insert(before);
                },
            );
            entries.push((extent, kind));
        }
        for (extent, kind) in entries {
            self.map.enter(&extent, kind, index, |_| false);
        }
        found
    }
}

mod raw {
    //! # Safety
    //! Memory that the caller answers for.
    #![allow(unsafe_code)]

    use super::{DeviceGraph, OnDeviceError, TensorDesc};

    impl DeviceGraph<'_> {
        /// Lets tasks use the buffer of a tensor in host memory that is not a [`Buffer`](crate::Buffer)'s, as
        /// [`import_host`](Self::import_host) does. Buffers that overlap have one copy; import all of them before the first task.
        ///
        /// # Safety
        /// The bytes of the buffer are mapped and initialized until the run has ended, also when it ends with an error, and nobody has a
        /// Rust reference to them.
        #[track_caller]
        pub unsafe fn import_host_raw(&mut self, desc: &TensorDesc) -> Result<(), OnDeviceError> {
            let site = self.here();
            self.host.give(desc.addr..desc.addr.saturating_add(desc.size), site)
        }
    }
}

/// The bytes of a tensor that is made with a value.
fn initial(create: &Create) -> Option<Vec<u8>> {
    let (value, elements) = (create.initial?, create.elements()?);
    let bytes = &value.to_le_bytes()[..create.dtype.size() as usize];
    Some(bytes.repeat(elements as usize))
}

fn argument(error: ArgumentError, site: Site) -> OnDeviceError {
    failed(ErrorKind::Argument(error), site)
}

fn failed(kind: ErrorKind, site: Site) -> OnDeviceError {
    RuntimeError::from(kind).at_site(Some(site)).into()
}
