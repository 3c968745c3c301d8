//! Why a graph on a device failed.

use crate::error::{ErrorKind, RuntimeError};
use crate::signals::SignalError;
use crate::task::Site;
use comm_hccl::DeviceError;
use std::time::Duration;
use worker_errors::ErrorCode;

/// A failure of a graph on a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnDeviceError {
    /// Another front end than the prebuilt one.
    #[error(
        "the front end {name} submits tasks while others run, on the chip itself; a device is driven from the host, which runs \
         prebuilt graphs: use the front end prebuilt, or a platform that simulates chips"
    )]
    FrontEnd {
        /// Its name.
        name: &'static str,
    },
    /// Something that a host cannot do for a device.
    #[error("{what} (submitted at {site}) is not there on a device: {}; or use a platform that simulates chips", .what.advice())]
    NotOnDevice {
        /// What it is.
        what: Missing,
        /// Where its task was submitted.
        site: Site,
    },
    /// Host memory was imported in the middle of a graph whose copy of a part of it is on the device already.
    #[error(
        "{bytes} bytes of host memory at {addr:#x} (imported at {site}) overlap what a task uses already, which was copied to \
         the device by itself; import host memory before the first task that uses any of it"
    )]
    HostOverlap {
        /// Where it starts.
        addr: u64,
        /// How much it is.
        bytes: u64,
        /// Where it was imported.
        site: Site,
    },
    /// A tensor in host memory could not be copied to the device, or back.
    #[error(
        "{bytes} bytes of host memory at {addr:#x}, used by the task submitted at {site}, could not be {what}: {source}; pass \
         a smaller buffer, or keep the tensor in device memory"
    )]
    Host {
        /// Where it starts.
        addr: u64,
        /// How much it is.
        bytes: u64,
        /// What was to be done.
        what: &'static str,
        /// Where the task was submitted that uses it.
        site: Site,
        /// What the device says.
        source: Box<DeviceError>,
    },
    /// A task that cannot be.
    #[error("{0}")]
    Graph(#[from] RuntimeError),
    /// The deadline passed before everything was queued, or before a task had ended that the host does something after.
    #[error(
        "task {task} (submitted at {site}) {what} within {limit:?}; give the run more time, or see what its kernels wait for"
    )]
    TimedOut {
        /// What did not happen to the task.
        what: &'static str,
        /// The limit.
        limit: Duration,
        /// The first task that was not.
        task: usize,
        /// Where it was submitted.
        site: Site,
    },
    /// A WAIT or a SIGNAL was refused, or the run ended while it waited.
    #[error("rank {rank}, at {site}: {source}")]
    Signal {
        /// This chip.
        rank: u32,
        /// Where its task was submitted.
        site: Site,
        /// What it was; it names the other end.
        source: SignalError,
    },
    /// A kernel has set an error.
    #[error("a kernel of task {task} (submitted at {site}) set the error {error}")]
    Kernel {
        /// The task.
        task: usize,
        /// Where it was submitted.
        site: Site,
        /// What it set.
        error: i32,
    },
    /// The device refused a task, or has failed by the time that it was queued.
    #[error("task {task} (submitted at {site}): {source}")]
    Task {
        /// The task.
        task: usize,
        /// Where it was submitted.
        site: Site,
        /// What the device says.
        source: DeviceError,
    },
    /// A kernel of the graph has failed after all were queued.
    #[error("one of the {tasks} tasks of the graph (run at {site}) has failed: {source}")]
    Run {
        /// How many there are.
        tasks: usize,
        /// Where the graph was run.
        site: Site,
        /// What the device says.
        source: DeviceError,
    },
    /// The device has failed otherwise.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// What a host cannot do for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// Kernels that start together on the cores of one cluster.
    #[error("a task with several kernels on one cluster")]
    Mix,
    /// A kernel has asked that its task is complete when words have reached values.
    #[error("a completion that waits for words")]
    Completion,
}

impl Missing {
    /// Why it is not there, and what to do.
    fn advice(self) -> &'static str {
        match self {
            Self::Mix => {
                "nothing makes kernels of two streams start together; submit a task for each that does not wait for the other, or \
                 join them in one kernel"
            }
            Self::Completion => {
                "what comes after the kernel is queued before the host can know of it; let the next task WAIT for the word, or \
                 let the kernel return when it is done"
            }
        }
    }
}

impl OnDeviceError {
    /// The kind of failure, among those of all crates.
    pub fn cause(&self) -> ErrorCode {
        match self {
            Self::FrontEnd { .. } | Self::NotOnDevice { .. } | Self::HostOverlap { .. } => ErrorCode::Invalid,
            Self::Graph(error) if matches!(error.kind, ErrorKind::Argument(_) | ErrorKind::Limit { .. }) => {
                ErrorCode::Invalid
            }
            Self::Graph(_) | Self::Kernel { .. } => ErrorCode::Task,
            Self::TimedOut { .. } => ErrorCode::TimedOut,
            Self::Signal { source, .. } => source.cause(),
            Self::Host { source, .. } => of_device(source),
            Self::Task { source, .. } | Self::Run { source, .. } | Self::Device(source) => of_device(source),
        }
    }
}

fn of_device(source: &DeviceError) -> ErrorCode {
    match source {
        DeviceError::Vendor(_) => ErrorCode::Vendor,
        _ => ErrorCode::Invalid,
    }
}

/// An error of the device is that of this task.
pub(super) fn at_task(index: usize, site: Site) -> impl Fn(DeviceError) -> OnDeviceError + Copy {
    move |source| OnDeviceError::Task { task: index, site, source }
}
