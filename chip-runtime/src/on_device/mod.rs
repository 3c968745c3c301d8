//! Prebuilt graphs on an Ascend device, driven from the host.
//!
//! The orchestration runs to its end on the host; then the host queues the kernels in the order of their submits, on one
//! stream for each kind of core. What must come after a kernel of the other stream waits for an event of it; on its own
//! stream the order is enough. The device starts each kernel by itself, and the host waits for the end of both streams.
//!
//! # Contract
//! - **CA-1** A kernel starts when all tasks have ended that its task comes after, by its tensors or by name.
//! - **CA-2** A run ends a little after its deadline at the latest: the device ends kernels that run longer.
//! - **CA-3** Tensors of a task lie in memory that the graph was given or has made.
//! - **CA-4** What a host cannot do is refused by name: the front ends that build while tasks run, kernels that need several
//!   cores of one cluster at once, predicates, and WAIT and SIGNAL.
//!
//! ```no_run
//! use chip_runtime::on_device::GraphDevice;
//! use chip_runtime::{Create, FrontEnd, Kernels, TaskArgs};
//! use comm_hccl::{Device, DeviceMemory, LogicalDevice, Runtime, Vendor, VisibleDevices};
//! use deadline::Deadline;
//! use std::time::Duration;
//!
//! let runtime = Runtime::start(Vendor::load(None)?)?;
//! let device = Device::open(runtime, LogicalDevice(0), &VisibleDevices::from_env()?)?;
//! let mut graphs = GraphDevice::new(&device)?;
//! let scale = graphs.kernel("scale.o".as_ref(), "kernel_entry")?;
//! let data = DeviceMemory::allocate(&device, 4096)?;
//! graphs.run(FrontEnd::Prebuilt, Deadline::after(Duration::from_secs(10))?, |graph| {
//!     let data = graph.import::<f32>(&data, &[1024])?;
//!     let args = TaskArgs::new().input(&data).output(Create::of::<f32>(&[1024])).scalar(2);
//!     let twice = graph.submit(Kernels::aiv(scale), &args)?.outputs[0];
//!     graph.submit(Kernels::aiv(scale), &TaskArgs::new().input(&twice).output_existing(&data).scalar(3))?;
//!     Ok(())
//! })?;
//! graphs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It bounds no vendor call but the kernels: who must not hang makes these calls on a thread or in a process that can be
//! given up. It is not behind a Worker: there a graph on a device is refused.
//!
//! # Safety
//! Launches kernels, which the user vouches for by naming their file; the graph keeps everything that they are given until
//! their streams have ended.
#![allow(unsafe_code)]

mod error;
mod graph;

pub use error::OnDeviceError;
pub use graph::DeviceGraph;

use crate::limits::{FrontEnd, Limits};
use crate::task::{KernelId, Site};
use comm_hccl::{Arguments, Device, Event, Generation, KernelBinary, LaunchSpec, Stream};
use deadline::Deadline;
use error::at_task;
use graph::DeviceTask;
use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;

/// A device that runs prebuilt graphs.
#[derive(Debug)]
pub struct GraphDevice {
    device: Device,
    /// That of cube kernels, then that of vector kernels.
    streams: [Stream; 2],
    kernels: BTreeMap<KernelId, DeviceKernel>,
    clusters: u32,
}

#[derive(Debug)]
struct DeviceKernel {
    binary: KernelBinary,
    symbol: String,
}

impl GraphDevice {
    /// Makes the streams of a device.
    pub fn new(device: &Device) -> Result<Self, OnDeviceError> {
        let platform = match device.generation() {
            Generation::A5 => "a5",
            Generation::A2a3 | Generation::Unknown => "a2a3",
        };
        Ok(Self {
            device: device.clone(),
            streams: [Stream::create(device)?, Stream::create(device)?],
            kernels: BTreeMap::new(),
            clusters: Limits::of_platform(platform).clusters as u32,
        })
    }

    /// Loads a kernel under the next free number.
    pub fn kernel(&mut self, path: &Path, symbol: &str) -> Result<KernelId, OnDeviceError> {
        let binary = KernelBinary::load(&self.device, path, symbol)?;
        binary.kernel(symbol)?;
        let id = KernelId(self.kernels.len() as u32);
        self.kernels.insert(id, DeviceKernel { binary, symbol: symbol.to_owned() });
        Ok(id)
    }

    /// Builds a graph and runs it: returns when all its kernels have ended, or with the first failure.
    #[track_caller]
    pub fn run<T>(
        &mut self,
        front_end: FrontEnd,
        deadline: Deadline,
        orchestration: impl FnOnce(&mut DeviceGraph<'_>) -> Result<T, OnDeviceError>,
    ) -> Result<T, OnDeviceError> {
        if front_end != FrontEnd::Prebuilt {
            return Err(OnDeviceError::FrontEnd { name: front_end.name() });
        }
        let here = Site::of(Location::caller());
        let mut graph = DeviceGraph::new(self);
        let value = orchestration(&mut graph)?;
        let (tasks, memory) = graph.into_parts();
        let mut launched = Launched::default();
        let queued = self.launch_all(&tasks, deadline, &mut launched);
        // Whatever happened, nothing is freed that a kernel may still use.
        let ended = self.streams.iter().try_for_each(Stream::synchronize);
        queued?;
        ended.map_err(|source| OnDeviceError::Run { tasks: tasks.len(), site: here, source })?;
        launched.check(&tasks)?;
        launched.events.into_values().try_for_each(Event::release)?;
        drop(memory);
        Ok(value)
    }

    fn launch_all(
        &self,
        tasks: &[DeviceTask],
        deadline: Deadline,
        launched: &mut Launched,
    ) -> Result<(), OnDeviceError> {
        for (index, task) in tasks.iter().enumerate() {
            let Some((queue, kernel)) = task.launch else { continue };
            let here = at_task(index, task);
            if deadline.has_passed() {
                return Err(OnDeviceError::TimedOut {
                    limit: deadline.limit(),
                    task: index,
                    site: task.site,
                });
            }
            let stream = &self.streams[queue as usize];
            // A stream keeps its order, so that the last task of the other one stands for those before it.
            if let Some(before) = task.last_elsewhere {
                launched.events[&before].block(stream).map_err(here)?;
            }
            let args =
                Arguments::place(&self.device, &task.tensors, &task.scalars, task.blocks).map_err(here)?;
            let spec = LaunchSpec { blocks: task.blocks, limit: Some(deadline.left()) };
            let kernel = &self.kernels[&kernel];
            let function = kernel.binary.kernel(&kernel.symbol).map_err(here)?;
            // SAFETY: the user vouches for the kernel; arguments, tensors and binary stay until both streams are
            // synchronised, also when this function fails.
            unsafe { function.launch(stream, &spec, args.list()) }.map_err(here)?;
            launched.arguments.push((index, args));
            if task.is_awaited_elsewhere {
                let event = Event::create(&self.device).map_err(here)?;
                event.record(stream).map_err(here)?;
                launched.events.insert(index, event);
            }
        }
        Ok(())
    }

    /// Releases kernels and streams, and returns the first error.
    pub fn close(self) -> Result<(), OnDeviceError> {
        let Self { streams, kernels, .. } = self;
        let kernels = kernels.into_values().map(|kernel| kernel.binary.release());
        let results: Vec<_> = kernels.chain(streams.into_iter().map(Stream::release)).collect();
        Ok(results.into_iter().collect::<Result<(), _>>()?)
    }
}

/// What stays until the streams have ended.
#[derive(Default)]
struct Launched {
    arguments: Vec<(usize, Arguments)>,
    events: BTreeMap<usize, Event>,
}

impl Launched {
    /// Fails with the first task whose kernel says so in its slab.
    fn check(&self, tasks: &[DeviceTask]) -> Result<(), OnDeviceError> {
        for (index, arguments) in &self.arguments {
            let task = &tasks[*index];
            for (count, error) in arguments.completions().map_err(at_task(*index, task))? {
                if error != 0 {
                    return Err(OnDeviceError::Kernel { task: *index, site: task.site, error });
                }
                if count != 0 {
                    return Err(OnDeviceError::NotOnDevice {
                        what: "a completion that waits for words",
                        site: task.site,
                    });
                }
            }
        }
        Ok(())
    }
}
