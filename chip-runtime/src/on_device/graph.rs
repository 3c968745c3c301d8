//! The graph of a device while it is built.

use super::windows::DeviceWindows;
use super::{GraphDevice, OnDeviceError};
use crate::args::{Predicate, TaskArgs, TensorArg};
use crate::engine::{check, creates, existing, extent_of, output, room_of};
use crate::error::{ArgumentError, ErrorKind, RuntimeError};
use crate::signals::{Domain, Signal, SignalError, Wait};
use crate::task::{KernelId, Kernels, Site, Submitted, TaskId};
use crate::tensor::{Create, Element, Tensor};
use crate::tensor_map::{TensorMap, Use};
use comm_context::abi::TensorDesc;
use comm_hccl::DeviceMemory;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::Location;

/// A stream, by the kind of cores that its kernels run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Cube = 0,
    Vector = 1,
}

/// A task of a graph.
#[derive(Debug)]
pub(super) struct DeviceTask {
    /// Its stream and kernel; none if it only orders others.
    pub(super) launch: Option<(Queue, KernelId)>,
    pub(super) tensors: Vec<TensorDesc>,
    pub(super) scalars: Vec<u64>,
    pub(super) blocks: u32,
    pub(super) site: Site,
    pub(super) predicate: Option<Predicate>,
    pub(super) waits: Vec<Wait>,
    pub(super) signals: Vec<Signal>,
    /// Tasks that it comes after.
    pub(super) after: BTreeSet<usize>,
    /// Of these, the ones with kernels; those of tasks without one are in their place.
    pub(super) before: BTreeSet<usize>,
    /// Whether one on the other stream comes after it.
    pub(super) is_awaited_elsewhere: bool,
    /// Whether the host has something to do when it has ended.
    pub(super) is_watched: bool,
}

impl DeviceTask {
    /// Whether its kernel runs on the other stream.
    pub(super) fn is_elsewhere(&self, queue: Queue) -> bool {
        self.launch.is_some_and(|(of, _)| of != queue)
    }
}

/// A graph while it is built: see [`GraphDevice::run`].
#[derive(Debug)]
pub struct DeviceGraph<'c> {
    on: &'c GraphDevice,
    tasks: Vec<DeviceTask>,
    map: TensorMap<usize>,
    given: Vec<Range<u64>>,
    memory: Vec<DeviceMemory>,
}

impl<'c> DeviceGraph<'c> {
    pub(super) fn new(on: &'c GraphDevice) -> Self {
        let given = on.windows.iter().flat_map(DeviceWindows::ranges).collect();
        Self { on, tasks: Vec::new(), map: TensorMap::new(), given, memory: Vec::new() }
    }

    pub(super) fn into_parts(self) -> (Vec<DeviceTask>, Vec<DeviceMemory>) {
        (self.tasks, self.memory)
    }

    /// A tensor of this shape at the start of device memory, which tasks may use from now on.
    pub fn import<T: Element>(
        &mut self,
        memory: &DeviceMemory,
        shape: &[u32],
    ) -> Result<Tensor<T>, OnDeviceError> {
        let size = memory.size() as u64;
        let desc = TensorDesc::builder(memory.addr(), size, T::DTYPE, shape).build();
        let desc = desc.map_err(|source| argument(ArgumentError::Tensor { index: 0, source }))?;
        self.given.push(memory.addr().0..memory.addr().0 + size);
        Ok(Tensor::new(desc)?)
    }

    /// Lets tasks use the buffer of a tensor in device memory of another owner, which keeps it until the run has ended.
    pub fn import_raw(&mut self, desc: &TensorDesc) {
        self.given.push(desc.addr..desc.addr.saturating_add(desc.size));
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
        let refused = |error| self.on.refuse(Site::of(Location::caller()), error);
        let windows = self.on.windows.as_ref().ok_or(SignalError::NoWindow { domain }).map_err(refused)?;
        let at = windows.part(domain, rank, offset, bytes).map_err(refused)?;
        let desc = TensorDesc::builder(at, bytes, T::DTYPE, shape).build();
        let desc = desc.map_err(|source| argument(ArgumentError::Tensor { index: 0, source }))?;
        Ok(Tensor::new(desc)?)
    }

    /// Submits a task that runs one kernel.
    #[track_caller]
    pub fn submit(&mut self, kernels: Kernels, args: &TaskArgs) -> Result<Submitted, OnDeviceError> {
        let site = Site::of(Location::caller());
        let mut lanes = kernels.lanes().into_iter().enumerate().filter_map(|(lane, id)| Some((lane, id?)));
        let Some((lane, kernel)) = lanes.next() else { return Err(argument(ArgumentError::NoKernel)) };
        if lanes.next().is_some() {
            return Err(OnDeviceError::NotOnDevice {
                what: "a task with several kernels on one cluster",
                site,
            });
        }
        if !self.on.kernels.contains_key(&kernel) {
            return Err(argument(ArgumentError::UnknownKernel(kernel)));
        }
        let queue = if lane == 0 { Queue::Cube } else { Queue::Vector };
        let (have, cores) = match queue {
            Queue::Cube => (self.on.clusters, "AIC"),
            Queue::Vector => (2 * self.on.clusters, "AIV"),
        };
        if args.sync_start && args.blocks > have {
            let (blocks, need) = (args.blocks, args.blocks);
            return Err(RuntimeError::from(ErrorKind::SyncStart { blocks, need, cores, have }).into());
        }
        self.enter(Some((queue, kernel)), args, site)
    }

    /// Submits a task without a kernel, which only orders others.
    #[track_caller]
    pub fn submit_dummy(&mut self, args: &TaskArgs) -> Result<Submitted, OnDeviceError> {
        self.enter(None, args, Site::of(Location::caller()))
    }

    fn enter(
        &mut self,
        launch: Option<(Queue, KernelId)>,
        args: &TaskArgs,
        site: Site,
    ) -> Result<Submitted, OnDeviceError> {
        let bytes = check(args)?;
        self.check_signals(args).map_err(|error| self.on.refuse(site, error))?;
        let index = self.tasks.len();
        let task = TaskId::new(0, index as u32);
        let tensors = args.tensors.iter().enumerate().filter_map(|(at, arg)| Some((at, existing(arg)?)));
        let predicate = args.predicate.as_ref().map(|predicate| (args.tensors.len(), &predicate.tensor));
        for (at, desc) in tensors.chain(predicate) {
            self.check_memory(at, desc)?;
        }
        if let Some(unknown) = args.after.iter().find(|before| before.0 >= task.0) {
            return Err(argument(ArgumentError::UnknownTask(*unknown)));
        }
        let outputs = self.make_outputs(args, bytes, task)?;
        let mut made = outputs.iter();
        let tensors: Vec<TensorDesc> =
            args.tensors.iter().filter_map(|arg| existing(arg).or_else(|| made.next())).copied().collect();
        let found = self.infer(index, args, &tensors);
        self.tasks.push(DeviceTask {
            launch,
            tensors,
            scalars: args.scalars.clone(),
            blocks: args.blocks,
            site,
            predicate: args.predicate,
            waits: args.waits.clone(),
            signals: args.signals.clone(),
            after: BTreeSet::new(),
            before: BTreeSet::new(),
            is_awaited_elsewhere: false,
            is_watched: !args.signals.is_empty(),
        });
        self.order(index, found.into_iter().chain(args.after.iter().map(|before| before.local() as usize)));
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

    fn check_memory(&self, index: usize, desc: &TensorDesc) -> Result<(), OnDeviceError> {
        let range = desc.addr..desc.addr + desc.size;
        let inside = |given: &Range<u64>| given.start <= range.start && range.end <= given.end;
        if range.is_empty() || self.given.iter().any(inside) {
            return Ok(());
        }
        Err(argument(ArgumentError::UnknownMemory { index, addr: desc.addr, bytes: desc.size }))
    }

    /// The new tensors of a task, in device memory that lasts as long as the graph.
    fn make_outputs(
        &mut self,
        args: &TaskArgs,
        bytes: u64,
        task: TaskId,
    ) -> Result<Vec<TensorDesc>, OnDeviceError> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let memory = DeviceMemory::allocate(&self.on.device, bytes as usize)?;
        let (start, mut at) = (memory.addr().0, memory.addr().0);
        let mut outputs = Vec::new();
        for (index, create) in creates(args).enumerate() {
            let desc = output(create, at, task);
            outputs.push(desc.map_err(|source| argument(ArgumentError::Tensor { index, source }))?);
            if let Some(filled) = initial(create) {
                memory.write((at - start) as usize, &filled)?;
            }
            at += room_of(create).unwrap_or(0);
        }
        self.given.push(start..start + bytes);
        self.memory.push(memory);
        Ok(outputs)
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

    /// Enters the edges of a task, through tasks without a kernel.
    fn order(&mut self, index: usize, before: impl Iterator<Item = usize>) {
        let mut all = BTreeSet::new();
        for before in before {
            self.tasks[index].after.insert(before);
            match self.tasks[before].launch {
                Some(_) => drop(all.insert(before)),
                None => all.extend(self.tasks[before].before.iter().copied()),
            }
        }
        let task = &self.tasks[index];
        let queue = task.launch.map(|(queue, _)| queue);
        // The host itself comes after them: it looks at an element, or signals that they have ended.
        let is_host = if queue.is_some() { task.predicate.is_some() } else { task.is_watched };
        for before in &all {
            let before = &mut self.tasks[*before];
            before.is_awaited_elsewhere |= queue.is_some_and(|queue| before.is_elsewhere(queue));
            before.is_watched |= is_host;
        }
        self.tasks[index].before = all;
    }
}

/// The bytes of a tensor that is made with a value.
fn initial(create: &Create) -> Option<Vec<u8>> {
    let (value, elements) = (create.initial?, create.elements()?);
    let bytes = &value.to_le_bytes()[..create.dtype.size() as usize];
    Some(bytes.repeat(elements as usize))
}

fn argument(error: ArgumentError) -> OnDeviceError {
    RuntimeError::from(error).into()
}
