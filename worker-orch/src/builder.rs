//! What a Worker shall be, before it is one.

use crate::exec::Start;
use crate::memory::Heap;
use crate::program::Programs;
use crate::worker::Worker;
use chip_bootstrap::{ChipConfig, Platform};
use comm_context::comm::Timeout;
use std::path::{Path, PathBuf};
use worker_errors::{ErrorCode, Failure};

/// The level of a Worker that drives the chips of one host.
pub const CHIP_LEVEL: u32 = 3;

/// Builds a [`Worker`].
///
/// ```
/// use worker_orch::Worker;
///
/// let worker = Worker::builder().devices(&[0, 1]).sub_workers(1).build()?;
/// # Ok::<_, worker_errors::Failure>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct WorkerBuilder {
    pub(crate) level: u32,
    pub(crate) start: Start,
    pub(crate) platform: Platform,
    pub(crate) devices: Vec<i32>,
    pub(crate) sub_workers: usize,
    pub(crate) init_within: Option<Timeout>,
    pub(crate) run_within: Option<Timeout>,
    pub(crate) close_within: Timeout,
    pub(crate) trace: Option<PathBuf>,
}

impl Default for WorkerBuilder {
    fn default() -> Self {
        Self {
            level: CHIP_LEVEL,
            start: Start::default(),
            platform: Platform::Sim,
            devices: Vec::new(),
            sub_workers: 0,
            init_within: None,
            run_within: None,
            close_within: Timeout::new(std::time::Duration::from_secs(5)).unwrap_or_default(),
            trace: None,
        }
    }
}

impl WorkerBuilder {
    /// 3 for the chips of one host (the default), more for a Worker of Workers.
    pub fn level(mut self, level: u32) -> Self {
        self.level = level;
        self
    }

    /// How the processes are started; by fork unless said otherwise.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// What the chips are; the simulation unless said otherwise.
    pub fn platform(mut self, platform: Platform) -> Self {
        self.platform = platform;
        self
    }

    /// One chip for each device, without communicator and buffers; [`Worker::configure_chips`] says more about them.
    pub fn devices(mut self, devices: &[i32]) -> Self {
        self.devices = devices.to_vec();
        self
    }

    /// Processes on the host that run Rust functions.
    pub fn sub_workers(mut self, count: usize) -> Self {
        self.sub_workers = count;
        self
    }

    /// How long bring-up may take. Otherwise 120 s, or what `CHIPCOMM_TIMEOUT_S` says.
    pub fn init_within(mut self, limit: Timeout) -> Self {
        self.init_within = Some(limit);
        self
    }

    /// How long a run may take. Otherwise 120 s, or what `CHIPCOMM_TIMEOUT_S` says.
    pub fn run_within(mut self, limit: Timeout) -> Self {
        self.run_within = Some(limit);
        self
    }

    /// How long chips get to go before they are killed; 5 s unless said otherwise.
    pub fn close_within(mut self, limit: Timeout) -> Self {
        self.close_within = limit;
        self
    }

    /// Writes when every task ran to this file, for Perfetto.
    pub fn trace(mut self, file: &Path) -> Self {
        self.trace = Some(file.to_owned());
        self
    }

    /// Checks everything and makes the Worker. Nothing runs before [`Worker::init`].
    pub fn build(self) -> Result<Worker, Failure> {
        let bad = |text: String| Failure::new(ErrorCode::Invalid, text).in_phase("build");
        if self.level < CHIP_LEVEL {
            return Err(bad(format!("level {} drives no chips; levels start at {CHIP_LEVEL}", self.level)));
        }
        if self.level > CHIP_LEVEL && !self.devices.is_empty() {
            let text = "a Worker of Workers has no devices of its own; give them to its child Workers";
            return Err(bad(text.to_owned()));
        }
        if self.level > CHIP_LEVEL && self.start == Start::Exec {
            let text = "a Worker of Workers starts its child Workers by fork; give Start::Exec to those of level 3, which start the chips";
            return Err(bad(text.to_owned()));
        }
        for (index, device) in self.devices.iter().enumerate() {
            if *device < 0 || self.devices[..index].contains(device) {
                return Err(bad(format!("device {device} is negative or named twice")));
            }
        }
        let from_env = || Timeout::from_env(Timeout::ENV).map_err(|error| bad(error.to_string()));
        let init_within = self.init_within.map_or_else(from_env, Ok)?;
        let run_within = self.run_within.map_or_else(from_env, Ok)?;
        let chips = self.devices.iter().map(|device| ChipConfig::new(*device)).collect();
        Ok(Worker::new(self, init_within, run_within, chips, Heap::new()?, Programs::default()))
    }
}
