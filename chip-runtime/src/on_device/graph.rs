//! The graph of a device while it is built.

use super::{GraphDevice, OnDeviceError};
use crate::args::{TaskArgs, TensorArg};
use crate::engine::{check, creates, existing, extent_of, output, room_of};
use crate::error::{ArgumentError, ErrorKind, RuntimeError};
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
    /// Tasks with kernels that it comes after; those of tasks without one are in their place.
    before: BTreeSet<usize>,
    /// The last of them on the other stream.
    pub(super) last_elsewhere: Option<usize>,
    /// Whether one on the other stream comes after it.
    pub(super) is_awaited_elsewhere: bool,
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
        Self { on, tasks: Vec::new(), map: TensorMap::new(), given: Vec::new(), memory: Vec::new() }
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
        let refused = [
            (args.predicate.is_some(), "a predicate"),
            (!args.waits.is_empty(), "a WAIT"),
            (!args.signals.is_empty(), "a SIGNAL"),
        ];
        if let Some((_, what)) = refused.into_iter().find(|(asked, _)| *asked) {
            return Err(OnDeviceError::NotOnDevice { what, site });
        }
        let bytes = check(args)?;
        let index = self.tasks.len();
        let task = TaskId::new(0, index as u32);
        for (at, desc) in args.tensors.iter().enumerate().filter_map(|(at, arg)| Some((at, existing(arg)?))) {
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
            before: BTreeSet::new(),
            last_elsewhere: None,
            is_awaited_elsewhere: false,
        });
        self.order(index, found.into_iter().chain(args.after.iter().map(|before| before.local() as usize)));
        Ok(Submitted { task, outputs })
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
        for (desc, arg) in tensors.iter().zip(&args.tensors) {
            let Some(extent) = extent_of(desc) else { continue };
            if desc.manual_dep == 1 || matches!(arg, TensorArg::NoDep(_)) {
                continue;
            }
            let kind = if arg.writes() { Use::Write } else { Use::Read };
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
            match self.tasks[before].launch {
                Some(_) => drop(all.insert(before)),
                None => all.extend(self.tasks[before].before.iter().copied()),
            }
        }
        if let Some((queue, _)) = self.tasks[index].launch {
            let elsewhere = |before: &&usize| self.tasks[**before].launch.is_some_and(|(of, _)| of != queue);
            let last = all.iter().rev().find(elsewhere).copied();
            self.tasks[index].last_elsewhere = last;
            if let Some(last) = last {
                self.tasks[last].is_awaited_elsewhere = true;
            }
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
