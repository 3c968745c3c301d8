//! Why a graph on a device failed.

use super::graph::DeviceTask;
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
    #[error(
        "{what} (submitted at {site}) is not there on a device; leave it out, split the graph there, or use a platform that \
         simulates chips"
    )]
    NotOnDevice {
        /// What it is.
        what: &'static str,
        /// Where its task was submitted.
        site: Site,
    },
    /// A task that cannot be.
    #[error("{0}")]
    Graph(#[from] RuntimeError),
    /// The deadline passed before everything was queued, or before a task had ended that the host does something after.
    #[error("task {task} (submitted at {site}) was not queued, or has not ended, within {limit:?}")]
    TimedOut {
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

impl OnDeviceError {
    /// The kind of failure, among those of all crates.
    pub fn cause(&self) -> ErrorCode {
        match self {
            Self::FrontEnd { .. } | Self::NotOnDevice { .. } => ErrorCode::Invalid,
            Self::Graph(error) if matches!(error.kind, ErrorKind::Argument(_) | ErrorKind::Limit { .. }) => {
                ErrorCode::Invalid
            }
            Self::Graph(_) | Self::Kernel { .. } => ErrorCode::Task,
            Self::TimedOut { .. } => ErrorCode::TimedOut,
            Self::Signal { source, .. } => source.cause(),
            Self::Task { source, .. } | Self::Run { source, .. } | Self::Device(source) => match source {
                DeviceError::Vendor(_) => ErrorCode::Vendor,
                _ => ErrorCode::Invalid,
            },
        }
    }
}

/// An error of the device is that of this task.
pub(super) fn at_task(index: usize, task: &DeviceTask) -> impl Fn(DeviceError) -> OnDeviceError + Copy {
    let site = task.site;
    move |source| OnDeviceError::Task { task: index, site, source }
}
