//! Prebuilt graphs on an Ascend device, driven from the host.
//!
//! The orchestration runs to its end on the host; then the host queues the kernels in the order of their submits, on one
//! stream for each kind of core. What must come after a kernel of the other stream waits for an event of it; on its own
//! stream the order is enough. The device starts each kernel by itself, and the host waits for the end of both streams.
//!
//! WAIT and SIGNAL are words of windows on the devices. The host looks at the words of all WAITs with growing pauses (20 µs to 1 ms)
//! and queues a task when those of it are met; what does not come after that task goes on meanwhile. A SIGNAL is sent by the host when
//! its task has ended: SET by a copy on the device, ADD by the device's own sum, so that any number of chips may add to a word. For a
//! predicate the host waits until what the task comes after has ended, reads the element, and queues the kernel or not.
//!
//! # Contract
//! - **CA-1** A kernel starts when all tasks have ended that its task comes after, by its tensors or by name.
//! - **CA-2** A run ends a little after its deadline at the latest: the device ends kernels that run longer.
//! - **CA-3** Tensors of a task lie in memory that the graph was given or has made.
//! - **CA-4** What a host cannot do is refused by name: the front ends that build while tasks run, kernels that need several
//!   cores of one cluster at once, and completions that wait for words.
//! - **CA-5** A task starts after its WAITs are met, and holds back only what comes after it. A SIGNAL is sent once, after its task
//!   has ended without an error.
//! - **CA-6** A WAIT whose peer dies or leaves, or that is not met by the deadline, ends the run with an error that names this rank, the
//!   task, the word with what it holds and what was wanted, and the rank that should have signalled. What was delivered before counts.
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
//! given up, such as a chip of a Worker. Chips do not exchange what their graphs signal, and no
//! deadlock between chips is proved: such a WAIT has the deadline. A kernel that itself waits for a peer holds back the kernels behind
//! it on its stream.
//!
mod drive;
mod error;
mod graph;
mod windows;

pub use error::OnDeviceError;
pub use graph::DeviceGraph;

use crate::limits::{FrontEnd, Limits};
use crate::signals::{Domain, SignalError};
use crate::task::{KernelId, Site};
use comm_context::abi::DeviceAddr;
use comm_context::comm::Communicator;
use comm_hccl::{Device, Generation, KernelBinary, Stream};
use deadline::Deadline;
use drive::Drive;
use graph::DeviceTask;
use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use windows::DeviceWindows;

/// A device that runs prebuilt graphs.
#[derive(Debug)]
pub struct GraphDevice {
    device: Device,
    /// That of cube kernels, then that of vector kernels.
    streams: [Stream; 2],
    kernels: BTreeMap<KernelId, DeviceKernel>,
    clusters: u32,
    /// Where WAIT and SIGNAL reach; none without peers.
    windows: Option<DeviceWindows>,
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
            windows: None,
        })
    }

    /// Lets tasks wait for words of the windows of this communicator, signal them, and use the windows as tensors. The base window,
    /// if there is one, is [`Domain::BASE`]. The communicator is of the same device, and is kept until [`close`](Self::close).
    #[track_caller]
    pub fn connect(&mut self, comm: Arc<Box<dyn Communicator>>) -> Result<(), OnDeviceError> {
        let (rank, here) = (comm.rank(), Site::of(Location::caller()));
        let connected = DeviceWindows::over(comm);
        self.windows = Some(connected.map_err(|source| refused(rank, here, source))?);
        Ok(())
    }

    /// Adds a domain that this chip is a member of, by its context. `members` are the ranks of the communicator, in the domain's
    /// order. Before the domain is released, it must be [forgotten](Self::forget_domains).
    #[track_caller]
    pub fn add_domain(
        &mut self,
        name: &str,
        context: DeviceAddr,
        members: &[u32],
    ) -> Result<Domain, OnDeviceError> {
        let here = Site::of(Location::caller());
        let windows = self.windows.as_mut().ok_or(SignalError::NoWindow { domain: Domain::BASE });
        let added = windows.and_then(|windows| windows.add(name, context, members));
        added.map_err(|error| self.refuse(here, error))
    }

    /// The domain whose `CommContext` is at `context`, as kernels get it.
    pub fn domain(&self, context: DeviceAddr) -> Option<Domain> {
        self.windows.as_ref()?.at(context)
    }

    /// Forgets all domains but the base window.
    pub fn forget_domains(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.forget_domains();
        }
    }

    fn refuse(&self, site: Site, source: SignalError) -> OnDeviceError {
        refused(self.windows.as_ref().map_or(0, DeviceWindows::rank), site, source)
    }

    /// A wait or a signal of this task has failed.
    fn signal_error(&self, task: &DeviceTask, source: SignalError) -> OnDeviceError {
        self.refuse(task.site, source)
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
        let mut drive = Drive::new(self, &tasks, deadline)?;
        let driven = drive.run();
        // Whatever happened, nothing is freed that a kernel may still use.
        let ended = self.streams.iter().try_for_each(Stream::synchronize);
        driven?;
        ended.map_err(|source| OnDeviceError::Run { tasks: tasks.len(), site: here, source })?;
        drive.finish()?;
        drop(memory);
        Ok(value)
    }

    /// Releases kernels and streams, and returns the first error.
    pub fn close(self) -> Result<(), OnDeviceError> {
        let Self { streams, kernels, .. } = self;
        let kernels = kernels.into_values().map(|kernel| kernel.binary.release());
        let results: Vec<_> = kernels.chain(streams.into_iter().map(Stream::release)).collect();
        Ok(results.into_iter().collect::<Result<(), _>>()?)
    }
}

fn refused(rank: u32, site: Site, source: SignalError) -> OnDeviceError {
    OnDeviceError::Signal { rank, site, source }
}
