//! The Worker: chips in processes of their own. `chipcomm/worker.py` has the class that users see.
//!
//! # Safety
//! Lends the run's orchestrator to Python, and takes it back before it is gone.
#![allow(unsafe_code)]

mod args;
mod fork;
mod functions;
mod orchestrator;

pub(crate) use functions::TaskView;
pub(crate) use orchestrator::{Orchestrator, TaskId};

use crate::comm::within;
use crate::error::{Raise, Result};
use crate::group::detached;
use crate::memory::view_of;
use args::Ranges;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use worker_orch::{
    ChipConfig, DeviceAddr, ErrorCode, Failure, HostBuffer as Buffer, Membership, PartKind, Program,
    Worker as Inner,
};

/// A chip's part of a window: name, type (none for plain bytes), count, and what it is loaded from and stored to.
type Part = (String, Option<String>, usize, Option<Py<HostBuffer>>, Option<Py<HostBuffer>>);
/// A chip: device, rank and size of its group, bytes of its window, parts.
type Config = (i32, Option<(u32, u32)>, usize, Vec<Part>);
/// A chip that is up: device, rank, nranks, context, window, its size, and `(name, type, count, address)` of its parts.
type Context = (i32, u32, u32, u64, u64, usize, Vec<(String, Option<&'static str>, usize, u64)>);

/// Chips and the processes that drive them.
#[pyclass(frozen, module = "chipcomm._native")]
pub(crate) struct Worker {
    inner: Mutex<State>,
    ranges: Arc<Ranges>,
    /// Functions that the children have.
    inherited: AtomicU64,
}

struct State {
    worker: Option<Inner>,
    python: Option<Program>,
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
}

impl State {
    fn open(&mut self) -> Result<&mut Inner> {
        self.worker.as_mut().ok_or_else(|| Raise::closed("Worker"))
    }
}

#[pymethods]
impl Worker {
    #[new]
    #[pyo3(signature = (devices, sub_workers, platform, init_within = None, run_within = None, close_within = None))]
    fn new(
        devices: Vec<i32>,
        sub_workers: usize,
        platform: &str,
        init_within: Option<f64>,
        run_within: Option<f64>,
        close_within: Option<f64>,
    ) -> PyResult<Self> {
        let platform = platform
            .parse()
            .map_err(|error: worker_orch::UnknownPlatform| Raise::invalid(error.to_string()))?;
        let mut builder = Inner::builder().platform(platform).devices(&devices).sub_workers(sub_workers);
        if init_within.is_some() {
            builder = builder.init_within(within(init_within)?);
        }
        if run_within.is_some() {
            builder = builder.run_within(within(run_within)?);
        }
        if close_within.is_some() {
            builder = builder.close_within(within(close_within)?);
        }
        let worker = builder.build().map_err(Raise::from)?;
        let state = State { worker: Some(worker), python: None, pid: std::process::id() };
        Ok(Self { inner: Mutex::new(state), ranges: Arc::default(), inherited: AtomicU64::new(0) })
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

    /// Registers a Python function: the number of the program that runs it, and its own, which is the last scalar of its tasks.
    fn register_function(&self, function: Py<PyAny>) -> PyResult<(u32, u64)> {
        let mut state = self.enter()?;
        let python = match state.python {
            Some(python) => python,
            None => {
                let python = state.open()?.register_function("a Python function", functions::run_python);
                state.python = Some(python);
                python
            }
        };
        Ok((python.number(), functions::add(function)))
    }

    /// Whether the children have a function.
    fn has_function(&self, number: u64) -> bool {
        // Relaxed: written and read with the interpreter's lock held.
        number < self.inherited.load(Ordering::Relaxed)
    }

    fn host_buffer(slf: &Bound<'_, Self>, bytes: usize) -> PyResult<HostBuffer> {
        let mut state = slf.get().enter()?;
        let buffer = state.open()?.host_buffer::<u64>(bytes.div_ceil(8).max(1)).map_err(Raise::from)?;
        let span = buffer.span();
        let at = NonNull::new(std::ptr::with_exposed_provenance_mut(span.addr() as usize));
        let at = at.ok_or_else(|| Raise::invalid("a host buffer at no address"))?;
        slf.get().ranges.add_host(span.addr(), span.len());
        Ok(HostBuffer { at, bytes, buffer: Some(buffer), ranges: slf.get().ranges.clone() })
    }

    /// Starts the chips.
    fn init(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.enter()?;
        // Relaxed: as above.
        self.inherited.store(functions::count(), Ordering::Relaxed);
        let worker = state.open()?;
        detached(py, || fork::forking(|| worker.init())).map_err(Raise::from)?;
        for context in worker.chip_contexts().map_err(Raise::from)? {
            self.ranges.add_window(context.window_base.0, context.window_size);
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

    /// Runs what `body` submits. Returns what it returned.
    fn run(&self, py: Python<'_>, body: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let mut state = self.enter()?;
        let worker = state.open()?;
        let orchestrator = Py::new(py, Orchestrator::new(self.ranges.clone()))?;
        let (mut returned, mut raised) = (None, None);
        let ran = detached(py, || {
            fork::forking(|| {
                worker.run(|orch| {
                    // SAFETY: taken back below, before `orch` is gone.
                    unsafe { orchestrator.get().set(Some(orch)) };
                    let called = Python::attach(|py| body.call1(py, (orchestrator.clone_ref(py),)));
                    // SAFETY: nothing is lent.
                    unsafe { orchestrator.get().set(None) };
                    match called {
                        Ok(value) => {
                            returned = Some(value);
                            Ok(())
                        }
                        Err(error) => {
                            raised = Some(error);
                            Err(Failure::new(ErrorCode::Task, "the function of the run raised an exception"))
                        }
                    }
                })
            })
        });
        match (raised, ran) {
            // What the function raised is the cause, unless it is the failure of a task that a submit told it.
            (Some(error), _) => Err(error),
            (None, Err(failure)) => Err(Raise::from(failure).into()),
            (None, Ok(())) => Ok(returned.unwrap_or_else(|| py.None())),
        }
    }

    fn copy_to(&self, py: Python<'_>, chip: usize, to: u64, bytes: &[u8]) -> PyResult<()> {
        let mut state = self.enter()?;
        let worker = state.open()?;
        Ok(detached(py, || fork::forking(|| worker.copy_to(chip, DeviceAddr(to), bytes)))
            .map_err(Raise::from)?)
    }

    fn copy_from(&self, py: Python<'_>, chip: usize, from: u64, bytes: usize) -> PyResult<Vec<u8>> {
        let mut state = self.enter()?;
        let worker = state.open()?;
        let mut into = vec![0; bytes];
        detached(py, || fork::forking(|| worker.copy_from(chip, DeviceAddr(from), &mut into)))
            .map_err(Raise::from)?;
        Ok(into)
    }

    /// Ends the child processes.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.enter()?;
        self.ranges.forget_windows();
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

/// Host memory that all chips of a Worker see at one address: what arrays of `Worker.empty` stand on.
#[pyclass(frozen, weakref, module = "chipcomm._native")]
pub(crate) struct HostBuffer {
    at: NonNull<u8>,
    bytes: usize,
    buffer: Option<Buffer<u64>>,
    ranges: Arc<Ranges>,
}

// SAFETY: shared memory, which may be looked at from any thread.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    fn span(&self) -> Result<worker_orch::HostSpan> {
        let span = self.buffer.as_ref().map(Buffer::span).ok_or_else(|| Raise::closed("host buffer"))?;
        let (region, start) = (span.region().clone(), span.addr() - span.region().base().as_ptr() as u64);
        let range = start as usize..start as usize + self.bytes;
        worker_orch::HostSpan::new(region, range).map_err(|error| Raise::invalid(error.to_string()))
    }
}

#[pymethods]
impl HostBuffer {
    #[getter]
    fn address(&self) -> usize {
        self.at.addr().get()
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: the buffer is mapped as long as the object, and in children as long as they live.
        unsafe { view_of(slf.as_any(), slf.get().at, slf.get().bytes, view, flags) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.ranges.remove_host(self.at.addr().get() as u64);
    }
}
