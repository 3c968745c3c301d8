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
//! Tensors may lie in memory of the device, in windows, and in memory of the host: of these, what tasks use is copied to the device
//! before anything starts, and what they write is copied back at the end. The orchestration may be a C++ function of the prebuilt
//! flavour (`Orchestration::call_on_device`, feature `cxx`): it is code of the host like any other.
//!
//! Before they start, graphs of a session tell each other which words they signal ([`GraphDevice::exchange_over`]), and when they are
//! over.
//!
//! # Contract
//! - **CA-1** A kernel starts when all tasks have ended that its task comes after, by its tensors or by name.
//! - **CA-2** A run ends a little after its deadline at the latest: the device ends kernels that run longer.
//! - **CA-3** Tensors of a task lie in memory that the graph was given, or that a task of it has made whose scope is open.
//! - **CA-4** What a host cannot do is refused by name, with what to do instead: the front ends that build while tasks run, kernels
//!   that need several cores of one cluster at once, and completions that wait for words.
//! - **CA-5** A task starts after its WAITs are met, and holds back only what comes after it. A SIGNAL is sent once, after its task
//!   has ended without an error.
//! - **CA-6** A WAIT whose peer dies or leaves, or that is not met by the deadline, ends the run with an error that names this rank, the
//!   task, the word with what it holds and what was wanted, and the rank that should have signalled. What was delivered before counts.
//! - **CA-7** Of host memory that a graph was given, the elements that its tasks say they write are copied back when the run has ended
//!   well, and nothing else of it ever changes.
//! - **CA-8** Where graphs exchange what they signal, one that waits for a word which the graph of the rank it names does not signal is
//!   refused before anything of it runs, and a WAIT for a graph that is over without the signal ends at once. Both name both ends.
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
//! given up, such as a chip of a Worker. No circle of WAITs between chips is proved while all of their graphs go on: it has the
//! deadline. A kernel that itself waits for a peer holds back the kernels behind it on its stream. Times of a recording are the host's.
//!
mod drive;
mod error;
mod exchange;
mod graph;
mod host;
mod recorder;
mod tasks;
mod windows;

pub use error::{Missing, OnDeviceError};
pub use graph::DeviceGraph;

use crate::engine::{Session, panic_text};
use crate::error::{ErrorKind, RuntimeError};
use crate::limits::{FrontEnd, Limits};
use crate::record::Recording;
use crate::signals::{Domain, SignalError};
use crate::task::{KernelId, Site};
use comm_context::abi::DeviceAddr;
use comm_context::comm::Communicator;
use comm_hccl::{Device, DeviceError, DeviceMemory, Generation, KernelBinary, Stream};
use deadline::Deadline;
use drive::Drive;
use graph::Built;
use shared_memory::Region;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
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
    /// Of these, the clusters and the depth of scopes: device memory has its own.
    limits: Limits,
    /// Where WAIT and SIGNAL reach; none without peers.
    windows: Option<DeviceWindows>,
    session: Option<Session>,
    runs: u64,
    records: bool,
    recording: Option<Recording>,
}

#[derive(Debug)]
struct DeviceKernel {
    binary: KernelBinary,
    symbol: String,
    /// The file and the symbol.
    name: String,
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
            limits: Limits::of_platform(platform),
            windows: None,
            session: None,
            runs: 0,
            records: false,
            recording: None,
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

    /// Graphs tell each other which words they signal, before they start: a WAIT for a word that the graph of the rank it names does
    /// not signal is refused. They do so in [so many bytes](crate::signals::Signals::words_bytes) at `words_at` of a region that all
    /// ranks of the communicator share, zero-filled at first. Without it such a WAIT has the deadline. Call it after
    /// [`connect`](Self::connect).
    #[track_caller]
    pub fn exchange_over(&mut self, words: Arc<Region>, words_at: usize) -> Result<(), OnDeviceError> {
        let here = Site::of(Location::caller());
        let windows = self.windows.as_mut().ok_or(SignalError::NoWindow { domain: Domain::BASE });
        let added = windows.and_then(|windows| windows.exchange_over(words, words_at));
        added.map_err(|error| self.refuse(here, error))
    }

    /// The next run is one of several, of these ranks of the communicator, that begin together: `number` is the same for all of them,
    /// and above that of every earlier one. A rank that is not among them runs no graph that could signal.
    pub fn session(&mut self, number: u64, members: &[u32]) {
        self.session = Some(Session { number, members: members.to_vec() });
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

    /// Loads a kernel under the next free number.
    pub fn kernel(&mut self, path: &Path, symbol: &str) -> Result<KernelId, OnDeviceError> {
        let id = KernelId(self.kernels.last_key_value().map_or(0, |(last, _)| last.0 + 1));
        self.set_kernel(id, path, symbol)?;
        Ok(id)
    }

    /// Loads a kernel under this number. One that had the number before is released.
    pub fn set_kernel(&mut self, id: KernelId, path: &Path, symbol: &str) -> Result<(), OnDeviceError> {
        let binary = KernelBinary::load(&self.device, path, symbol)?;
        binary.kernel(symbol)?;
        let name = format!("{}:{symbol}", path.file_stem().unwrap_or_default().to_string_lossy());
        let kernel = DeviceKernel { binary, symbol: symbol.to_owned(), name };
        match self.kernels.insert(id, kernel) {
            Some(before) => Ok(before.binary.release()?),
            None => Ok(()),
        }
    }

    /// Records the graph and what runs when, in the next runs; [`take_recording`](Self::take_recording) has the last.
    ///
    /// Times are the host's: a kernel starts when it was queued and everything that it comes after had ended, and ends when the host
    /// found that it had, some 20 µs to 1 ms late. A stream is a track.
    pub fn record(&mut self) {
        self.records = true;
    }

    /// What was recorded of the last run.
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }

    /// The same, to keep.
    pub fn take_recording(&mut self) -> Option<Recording> {
        self.recording.take()
    }

    /// Builds a graph and runs it: returns when all its kernels have ended, or with the first failure.
    #[track_caller]
    pub fn run<T>(
        &mut self,
        front_end: FrontEnd,
        deadline: Deadline,
        orchestration: impl FnOnce(&mut DeviceGraph<'_>) -> Result<T, OnDeviceError>,
    ) -> Result<T, OnDeviceError> {
        let here = Site::of(Location::caller());
        self.runs += 1;
        self.recording = None;
        let session = self.session.take();
        let session = session.unwrap_or_else(|| Session::alone(self.runs, self.rank()));
        let built = if front_end == FrontEnd::Prebuilt {
            self.build(here, orchestration)
        } else {
            Err(OnDeviceError::FrontEnd { name: front_end.name() })
        };
        let mut recording = None;
        let ran = self.exchange(&session, built, deadline).and_then(|(value, built)| {
            built.host.copy_in()?;
            self.drive(&built, &session, here, deadline, &mut recording)?;
            built.host.copy_back()?;
            built.memory.into_iter().try_for_each(DeviceMemory::release)?;
            Ok(value)
        });
        self.declare_over(&session);
        self.recording = recording;
        ran
    }

    fn build<T>(
        &self,
        here: Site,
        orchestration: impl FnOnce(&mut DeviceGraph<'_>) -> Result<T, OnDeviceError>,
    ) -> Result<(T, Built), OnDeviceError> {
        let mut graph = DeviceGraph::new(self);
        let returned = catch_unwind(AssertUnwindSafe(|| orchestration(&mut graph)));
        let value = returned.unwrap_or_else(|panic| {
            let kind = ErrorKind::Orchestration(panic_text(&*panic));
            Err(RuntimeError::from(kind).at_site(Some(here)).into())
        })?;
        Ok((value, graph.finish()?))
    }

    /// Runs a graph that is complete. Nothing of it runs any more when this returns.
    fn drive(
        &self,
        built: &Built,
        session: &Session,
        here: Site,
        deadline: Deadline,
        recording: &mut Option<Recording>,
    ) -> Result<(), OnDeviceError> {
        let mut drive = Drive::new(self, &built.tasks, session, deadline)?;
        let driven = drive.run();
        // Whatever happened, nothing is freed that a kernel may still use.
        let ended = self.streams.iter().try_for_each(Stream::synchronize);
        *recording = drive.take_recording();
        driven?;
        let tasks = built.tasks.len();
        ended.map_err(|source| OnDeviceError::Run { tasks, site: here, source })?;
        drive.finish()
    }

    fn rank(&self) -> u32 {
        self.windows.as_ref().map_or(0, DeviceWindows::rank)
    }

    fn clusters(&self) -> u32 {
        self.limits.clusters as u32
    }

    /// A wait or a signal was refused, or has failed.
    fn refuse(&self, site: Site, source: SignalError) -> OnDeviceError {
        refused(self.rank(), site, source)
    }

    /// Copies bytes of the device to the host.
    fn read(
        &self,
        from: DeviceAddr,
        into: &mut [u8],
        site: Site,
        failed: impl FnOnce(DeviceError) -> OnDeviceError,
    ) -> Result<(), OnDeviceError> {
        match self.windows.as_ref().filter(|windows| windows.holds(from)) {
            // The window may be a peer's, which only the communicator knows how to read.
            Some(windows) => windows.read(from, into).map_err(|error| self.refuse(site, error)),
            None => self.device.read(from, into).map_err(failed),
        }
    }

    /// Copies bytes of the host to the device.
    fn write(&self, to: DeviceAddr, bytes: &[u8], site: Site) -> Result<(), OnDeviceError> {
        match self.windows.as_ref().filter(|windows| windows.holds(to)) {
            Some(windows) => windows.write(to, bytes).map_err(|error| self.refuse(site, error)),
            None => Ok(self.device.write(to, bytes)?),
        }
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
