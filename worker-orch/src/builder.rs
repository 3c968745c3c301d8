//! The description of a Worker, before there is one.

use crate::heap::{Guards, Heap};
use crate::parent::TraceFile;
use crate::shared::Programs;
use crate::start::{Start, functions_of_program};
use crate::worker::Worker;
use chip_bootstrap::{ChipMemoryKind, Platform};
use comm_context::comm::{AddressSpace, Timeout};
use std::path::Path;
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
    settings: Settings,
    heap: Option<AddressSpace>,
    init_within: Option<Timeout>,
    run_within: Option<Timeout>,
    checked: bool,
}

/// How many runs are in flight unless the user says something else.
const RUNS_IN_FLIGHT: usize = 8;

/// Turns the checks of tasks on: `1`, or `0` for off.
const CHECK_ENV: &str = "CHIPCOMM_CHECK";

/// What a Worker keeps of its description.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) level: u32,
    pub(crate) start: Start,
    pub(crate) platform: Platform,
    pub(crate) devices: Vec<i32>,
    pub(crate) sub_workers: usize,
    pub(crate) windows: Option<AddressSpace>,
    pub(crate) close_within: Timeout,
    pub(crate) trace: Option<TraceFile>,
    pub(crate) runs_in_flight: usize,
    pub(crate) measured: bool,
}

impl Default for WorkerBuilder {
    fn default() -> Self {
        let settings = Settings {
            level: CHIP_LEVEL,
            start: Start::default(),
            platform: Platform::default(),
            devices: Vec::new(),
            sub_workers: 0,
            windows: None,
            close_within: Timeout::new(std::time::Duration::from_secs(5)).unwrap_or_default(),
            trace: None,
            runs_in_flight: RUNS_IN_FLIGHT,
            measured: false,
        };
        Self { settings, heap: None, init_within: None, run_within: None, checked: false }
    }
}

impl WorkerBuilder {
    /// 3 for the chips of one host (the default), more for a Worker of Workers.
    pub fn level(mut self, level: u32) -> Self {
        self.settings.level = level;
        self
    }

    /// How the child processes are started; by fork unless specified otherwise.
    pub fn start(mut self, start: Start) -> Self {
        self.settings.start = start;
        self
    }

    /// What the chips are; the simulation unless specified otherwise.
    pub fn platform(mut self, platform: Platform) -> Self {
        self.settings.platform = platform;
        self
    }

    /// One chip for each device, without communicator and buffers; [`Worker::configure_chips`] adds these.
    pub fn devices(mut self, devices: &[i32]) -> Self {
        self.settings.devices = devices.to_vec();
        self
    }

    /// Processes on the host that run Rust functions.
    pub fn sub_workers(mut self, count: usize) -> Self {
        self.settings.sub_workers = count;
        self
    }

    /// Addresses for the windows of each chip on the simulation, base and domains together; by default 64 GiB, or
    /// the value of `CHIPCOMM_WINDOW_SPACE`, or less where a process may not have that many (`ulimit -v`).
    pub fn window_space(mut self, bytes: AddressSpace) -> Self {
        self.settings.windows = Some(bytes);
        self
    }

    /// Addresses for host buffers; by default 256 GiB, or the value of `CHIPCOMM_HEAP_SPACE`, or less where a
    /// process may not have that many.
    pub fn heap_space(mut self, bytes: AddressSpace) -> Self {
        self.heap = Some(bytes);
        self
    }

    /// How long bring-up may take; by default 120 s, or the value of `CHIPCOMM_TIMEOUT_S`.
    pub fn init_within(mut self, limit: Timeout) -> Self {
        self.init_within = Some(limit);
        self
    }

    /// How long a run may take; by default 120 s, or the value of `CHIPCOMM_TIMEOUT_S`.
    pub fn run_within(mut self, limit: Timeout) -> Self {
        self.run_within = Some(limit);
        self
    }

    /// How long child processes have to end before they are killed; by default 5 s.
    pub fn close_within(mut self, limit: Timeout) -> Self {
        self.settings.close_within = limit;
        self
    }

    /// Writes the times of all tasks to this file, for Perfetto. Those of Workers below go there too, unless they have
    /// a file of their own.
    ///
    /// ```
    /// # use worker_orch::{Args, Failure, Worker};
    /// let file = std::env::temp_dir().join(format!("trace-{}.json", std::process::id()));
    /// let mut worker = Worker::builder().devices(&[0]).trace(&file).build()?;
    /// let work = worker.register_function("work", |_| Ok(()));
    /// worker.init()?;
    /// worker.run(|orch| orch.submit_next_level(work, &Args::new(), 0))?;
    /// worker.close()?; // the file is complete
    /// let text = std::fs::read_to_string(&file).unwrap();
    /// assert!(text.contains("work"));
    /// # std::fs::remove_file(&file).unwrap();
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn trace(mut self, file: &Path) -> Self {
        self.settings.trace = Some(TraceFile::new(file));
        self
    }

    /// Checks what tasks do with their memory, on the simulation; the environment variable `CHIPCOMM_CHECK=1` does the same.
    ///
    /// Host buffers, chip memory and the buffers of windows then end at pages that a task cannot access, with known bytes in front of and behind
    /// them that are compared after every task. Inputs are read-only while a task runs. Outputs in host buffers are filled with 0xFF bytes, and
    /// the first access to each of their pages must be a write. An access that breaks this still happens, and the task fails: the error
    /// names chip, program, task, argument and offset.
    ///
    /// Bounds are those of a buffer: a task that leaves its part of one is found only where it touches what is not its own. Named
    /// buffers of a window lie elsewhere than without the checks, and the window is larger. Peers' windows are not watched: who writes
    /// behind a buffer of a peer is found by the peer, by the bytes there. It costs, for each task, another frame, four
    /// calls of `mprotect` for each buffer of the task and of the chip's windows, and a fault for each page of its outputs; and two pages of
    /// addresses for each buffer.
    pub fn checked(mut self) -> Self {
        self.checked = true;
        self
    }

    /// How many runs of [`Worker::submit_run`] are in flight at most, 8 by default; with more the oldest is waited for.
    pub fn runs_in_flight(mut self, most: usize) -> Self {
        self.settings.runs_in_flight = most;
        self
    }

    /// Measures when tasks run, for [`Worker::task`] and [`Worker::metrics`]. It costs three readings of the clock for each task.
    pub fn measured(mut self) -> Self {
        self.settings.measured = true;
        self
    }

    /// Checks everything and makes the Worker. No process is started before [`Worker::init`].
    pub fn build(self) -> Result<Worker, Failure> {
        let Settings { level, start, devices, platform, .. } = &self.settings;
        let bad = |text: String| Failure::new(ErrorCode::Invalid, text).in_phase("build");
        if *level < CHIP_LEVEL {
            return Err(bad(format!(
                "there is no level {level}; a Worker of chips has level {CHIP_LEVEL}, one of Workers a higher one"
            )));
        }
        if *level > CHIP_LEVEL && !devices.is_empty() {
            let text = "a Worker of Workers has no devices of its own; give them to the Workers below it";
            return Err(bad(text.to_owned()));
        }
        if *level > CHIP_LEVEL && *start == Start::Exec {
            let text = "a Worker of Workers starts the Workers below it by fork; \
                        give Start::Exec to those of level 3, which start the chips";
            return Err(bad(text.to_owned()));
        }
        if self.settings.runs_in_flight == 0 {
            return Err(bad("no run can be in flight; allow at least 1 with runs_in_flight".to_owned()));
        }
        for (index, device) in devices.iter().enumerate() {
            if *device < 0 || devices[..index].contains(device) {
                return Err(bad(format!(
                    "device {device} is negative or named twice; name each device once, from 0"
                )));
            }
        }
        let from_env = || Timeout::from_env(Timeout::ENV).map_err(|error| bad(error.to_string()));
        let init_within = self.init_within.map_or_else(from_env, Ok)?;
        let run_within = self.run_within.map_or_else(from_env, Ok)?;
        let heap = match self.heap {
            Some(space) => Some(space),
            None => AddressSpace::from_env(AddressSpace::HEAP_ENV).map_err(|error| bad(error.to_string()))?,
        };
        let guards = match std::env::var(CHECK_ENV).as_deref() {
            _ if self.checked => Guards::With,
            Ok("1") => Guards::With,
            Ok("" | "0") | Err(_) => Guards::Without,
            Ok(other) => return Err(bad(format!("{CHECK_ENV}={other}: write 1 or 0"))),
        };
        if guards == Guards::With && platform.chip_memory() == ChipMemoryKind::Device {
            let text = format!(
                "the memory of tasks is checked on the simulation only, and these chips are {platform}; leave \
                 {CHECK_ENV} and `checked` out and use the vendor's tool"
            );
            return Err(bad(text));
        }
        let programs = Programs::new(functions_of_program());
        Ok(Worker::new(self.settings, init_within, run_within, Heap::new(heap, guards)?, programs))
    }
}
