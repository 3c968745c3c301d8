//! The Worker: chips in processes of their own. `chipcomm/worker.py` has the class that users see.

mod args;
mod buffers;
mod fork;
mod functions;
mod orchestrator;
mod run;

pub(crate) use buffers::{ChipMemory, HostBuffer};
pub(crate) use functions::TaskView;
pub(crate) use orchestrator::{Orchestrator, TaskId};
pub(crate) use run::Run;

use crate::comm::within;
use crate::error::{Raise, Result};
use crate::group::detached;
use args::Ranges;
use functions::Registered;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use worker_orch::{
    CHIP_LEVEL, ChipConfig, DeviceAddr, Failure, Membership, PartKind, Program, Signature, Worker as Inner,
};

/// A chip's part of a window: name, type (none for plain bytes), count, and what it is loaded from and stored to.
type Part = (String, Option<String>, usize, Option<Py<HostBuffer>>, Option<Py<HostBuffer>>);
/// A chip: device, rank and size of its group, bytes of its window, parts.
type Config = (i32, Option<(u32, u32)>, usize, Vec<Part>);
/// A chip that is up: device, rank, nranks, context, window, its size, and `(name, type, count, address)` of its parts.
type Context = (i32, u32, u32, u64, u64, usize, Vec<(String, Option<&'static str>, usize, u64)>);

/// A tensor of a signature: access, type, least number of elements.
type Parameter = (u8, String, u64);

/// Chips, or Workers, and the processes that drive them.
#[pyclass(frozen, module = "chipcomm._native")]
pub(crate) struct Worker {
    level: u32,
    inner: Mutex<State>,
    ranges: Arc<Ranges>,
}

struct State {
    worker: Option<Inner>,
    /// The orchestrations of this Worker's programs.
    orchestrations: Vec<Registered>,
    /// Whether it was put under another.
    is_below: bool,
    pid: u32,
}

impl Worker {
    fn enter(&self) -> Result<MutexGuard<'_, State>> {
        let state = match self.inner.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Raise::invalid(
                    "this Worker is inside a call; call it from one thread, and not inside its own run",
                ));
            }
        };
        if state.pid == std::process::id() { Ok(state) } else { Err(Raise::forked("Worker")) }
    }

    /// Calls a Worker that is up, without the interpreter's lock.
    fn command<T>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Inner) -> core::result::Result<T, Failure>,
    ) -> Result<T> {
        let mut state = self.enter()?;
        let worker = state.open()?;
        Ok(detached(py, || fork::forking(self.levels(), || call(worker)))?)
    }

    /// How many levels of processes there are below this one.
    fn levels(&self) -> u32 {
        self.level + 1 - CHIP_LEVEL
    }
}

impl State {
    fn open(&mut self) -> Result<&mut Inner> {
        if self.is_below {
            let text = "this Worker is under another one, which brings it up and closes it; register its programs \
                        and make its arrays before add_worker";
            return Err(Raise::invalid(text));
        }
        self.worker.as_mut().ok_or_else(|| Raise::closed("Worker"))
    }
}

#[pymethods]
impl Worker {
    #[new]
    #[pyo3(signature = (
        level, devices, sub_workers, platform, init_within = None, run_within = None, close_within = None,
        checked = false, trace = None, runs_in_flight = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "a Worker has that many settings")]
    fn new(
        level: u32,
        devices: Vec<i32>,
        sub_workers: usize,
        platform: &str,
        init_within: Option<f64>,
        run_within: Option<f64>,
        close_within: Option<f64>,
        checked: bool,
        trace: Option<PathBuf>,
        runs_in_flight: Option<usize>,
    ) -> PyResult<Self> {
        let platform = platform
            .parse()
            .map_err(|error: worker_orch::UnknownPlatform| Raise::invalid(error.to_string()))?;
        let mut builder =
            Inner::builder().level(level).platform(platform).devices(&devices).sub_workers(sub_workers);
        if init_within.is_some() {
            builder = builder.init_within(within(init_within)?);
        }
        if run_within.is_some() {
            builder = builder.run_within(within(run_within)?);
        }
        if close_within.is_some() {
            builder = builder.close_within(within(close_within)?);
        }
        if checked {
            builder = builder.checked();
        }
        if let Some(file) = trace {
            builder = builder.trace(&file);
        }
        if let Some(most) = runs_in_flight {
            builder = builder.runs_in_flight(most);
        }
        let worker = Some(builder.build().map_err(Raise::from)?);
        let pid = std::process::id();
        let state = State { worker, orchestrations: Vec::new(), is_below: false, pid };
        Ok(Self { level, inner: Mutex::new(state), ranges: Arc::default() })
    }

    /// Puts a Worker under this one, for good.
    fn add_worker(&self, child: &Bound<'_, Self>) -> PyResult<()> {
        let mut state = self.enter()?;
        let mut below = child.get().enter()?;
        let (worker, own) = (state.open()?, below.open()?);
        // What the call below refuses would be lost with it, so that is looked at here.
        if child.get().level >= self.level {
            let (lower, level) = (child.get().level, self.level);
            let text = format!(
                "a Worker of level {lower} cannot be under one of level {level}; put it under one of a higher level"
            );
            return Err(Raise::invalid(text).into());
        }
        if worker.chip_contexts().is_ok() || own.chip_contexts().is_ok() {
            return Err(Raise::invalid("one of the two Workers is up already; close it first").into());
        }
        let Some(own) = below.worker.take() else { return Ok(()) };
        worker.add_worker(own).map_err(Raise::from)?;
        below.is_below = true;
        self.ranges.add_below(child.get().ranges.clone());
        Ok(())
    }

    fn configure_chips(&self, chips: Vec<Config>) -> PyResult<()> {
        let mut configs = Vec::with_capacity(chips.len());
        for (device, member, window, parts) in chips {
            let mut config = ChipConfig::new(device);
            if let Some((rank, nranks)) = member {
                config = config.communicator(Membership::new(rank, nranks).map_err(Raise::from)?);
            }
            if window > 0 {
                config = config.window(window);
            }
            for (name, dtype, count, load, store) in parts {
                config = match dtype {
                    Some(dtype) => config.buffer(&name, args::tensor_type(&dtype)?, count),
                    None => config.region(&name, count),
                };
                if let Some(host) = load {
                    config = config.load_from(&host.get().span()?);
                }
                if let Some(host) = store {
                    config = config.store_to(&host.get().span()?);
                }
            }
            configs.push(config);
        }
        Ok(self.enter()?.open()?.configure_chips(configs).map_err(Raise::from)?)
    }

    fn register_kernel(&self, path: PathBuf, symbol: &str) -> PyResult<u32> {
        let mut state = self.enter()?;
        Ok(state.open()?.register_kernel_symbol(&path, symbol).map_err(Raise::from)?.number())
    }

    /// Registers a Python function for chips and sub-workers.
    fn register_function(&self, name: &str, function: Py<PyAny>) -> PyResult<u32> {
        let mut state = self.enter()?;
        let program = state.open()?.register_closure(name, move |task| functions::run_task(task, &function));
        Ok(program.map_err(Raise::from)?.number())
    }

    /// Registers a Python function for Workers of the next level: the number of the program, and the function's own, which is the last
    /// scalar but one of its tasks; the last is the number of the Worker.
    fn register_orchestration(&self, name: &str, function: Py<PyAny>) -> PyResult<(u32, u64)> {
        let mut state = self.enter()?;
        let program = state.open()?.register_orchestration(name, functions::run_orchestration);
        let registered = Registered::new(function, self.ranges.clone());
        let number = registered.0;
        state.orchestrations.push(registered);
        Ok((program.number(), number))
    }

    fn unregister(&self, program: u32) -> PyResult<()> {
        Ok(self.enter()?.open()?.unregister(Program::from_number(program)).map_err(Raise::from)?)
    }

    fn set_signature(&self, program: u32, tensors: Vec<Parameter>, scalars: usize) -> PyResult<()> {
        let mut signature = Signature::new().scalars(scalars);
        for (access, dtype, count) in tensors {
            signature = signature.tensor_of(args::access(access)?, args::tensor_type(&dtype)?, count);
        }
        let mut state = self.enter()?;
        Ok(state.open()?.set_signature(Program::from_number(program), signature).map_err(Raise::from)?)
    }

    fn host_buffer(&self, bytes: usize) -> PyResult<HostBuffer> {
        let mut state = self.enter()?;
        let buffer = state.open()?.host_buffer::<u64>(bytes.div_ceil(8).max(1)).map_err(Raise::from)?;
        Ok(HostBuffer::new(buffer, bytes, self.ranges.clone())?)
    }

    /// Starts the chips.
    fn init(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.enter()?;
        let worker = state.open()?;
        detached(py, || fork::forking(self.levels(), || worker.init())).map_err(Raise::from)?;
        for context in worker.chip_contexts().map_err(Raise::from)? {
            self.ranges.add_chip(context.window_base.0, context.window_size);
        }
        Ok(())
    }

    fn chip_contexts(&self) -> PyResult<Vec<Context>> {
        let mut state = self.enter()?;
        let contexts = state.open()?.chip_contexts().map_err(Raise::from)?;
        let each = contexts.iter().map(|chip| {
            let parts = chip.buffers.iter().map(|part| {
                let (dtype, count) = match part.kind {
                    PartKind::Buffer { dtype, count } => (Some(functions::numpy_name(dtype)), count),
                    PartKind::Region { bytes } => (None, bytes),
                };
                (part.name.clone(), dtype, count, part.addr.0)
            });
            let parts = parts.collect();
            (
                chip.device,
                chip.rank,
                chip.nranks,
                chip.device_ctx.0,
                chip.window_base.0,
                chip.window_size,
                parts,
            )
        });
        Ok(each.collect())
    }

    fn chip_alloc(&self, py: Python<'_>, chip: usize, bytes: usize) -> PyResult<ChipMemory> {
        let memory = self.command(py, |worker| worker.chip_alloc(chip, bytes))?;
        Ok(ChipMemory::new(memory, self.ranges.clone()))
    }

    fn chip_bytes(&self, chip: usize) -> PyResult<u64> {
        Ok(self.enter()?.open()?.chip_bytes(chip).map_err(Raise::from)?)
    }

    fn copy_to(&self, py: Python<'_>, chip: usize, to: u64, bytes: &[u8]) -> PyResult<()> {
        Ok(self.command(py, |worker| worker.copy_to(chip, DeviceAddr(to), bytes))?)
    }

    fn copy_from<'py>(
        &self,
        py: Python<'py>,
        chip: usize,
        from: u64,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut into = vec![0; bytes];
        self.command(py, |worker| worker.copy_from(chip, DeviceAddr(from), &mut into))?;
        Ok(PyBytes::new(py, &into))
    }

    fn set_run_within(&self, seconds: f64) -> PyResult<()> {
        self.enter()?.open()?.set_run_within(within(Some(seconds))?);
        Ok(())
    }

    /// Ends the child processes.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.enter()?;
        self.ranges.forget_chips();
        let Some(worker) = state.worker.as_mut() else { return Ok(()) };
        Ok(detached(py, || worker.close()).map_err(Raise::from)?)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // A child of the Worker, or of the program: its parent ends the processes.
            std::mem::forget(self.worker.take());
        }
    }
}
