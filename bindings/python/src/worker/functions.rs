//! Python functions as tasks, and as orchestrations of a Worker below: what runs one in a child process.
//!
//! # Safety
//! Shows the memory of a task's tensors to the function as arrays. The parent has checked that each lies in a host buffer or a window, and
//! these have the same address in every process of a Worker. Lends the task itself, and takes it back before it is gone.
#![allow(unsafe_code)]

use super::args::Ranges;
use super::fork;
use super::orchestrator::Orchestrator;
use crate::error::Raise;
use crate::group::Group;
use crate::memory::Bytes;
use collectives::Collectives;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use worker_orch::{DType, ErrorCode, Failure, Orchestrator as Inner, Task};

/// The orchestrations of all Workers of this process, by number. A child has those that were there when it was forked. Locked only with
/// the interpreter's lock held, so that no other thread has it at a fork.
static ORCHESTRATIONS: Mutex<BTreeMap<u64, Orchestration>> = Mutex::new(BTreeMap::new());

/// A Python function, and the memory that its Worker and those below it know.
#[derive(Clone)]
struct Orchestration {
    function: Arc<Py<PyAny>>,
    ranges: Arc<Ranges>,
}

fn orchestrations() -> MutexGuard<'static, BTreeMap<u64, Orchestration>> {
    ORCHESTRATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An orchestration in the table, as long as its Worker.
pub(super) struct Registered(pub(super) u64);

impl Registered {
    pub(super) fn new(function: Py<PyAny>, ranges: Arc<Ranges>) -> Self {
        let mut all = orchestrations();
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, Orchestration { function: Arc::new(function), ranges });
        Self(number)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Dropped after the lock: it may call Python.
        let _function = orchestrations().remove(&self.0);
    }
}

/// The numpy name of an element type; bfloat16 shows as its bits.
pub(super) fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Float32 => "float32",
        DType::Float16 => "float16",
        DType::Int32 => "int32",
        DType::Int16 => "int16",
        DType::Int8 => "int8",
        DType::Uint8 => "uint8",
        DType::Int64 => "int64",
        DType::Uint64 => "uint64",
        DType::Uint16 => "uint16",
        DType::Uint32 => "uint32",
        _ => "uint16",
    }
}

/// What a Python function gets.
#[pyclass(frozen, name = "Task", module = "chipcomm")]
pub(crate) struct TaskView {
    #[pyo3(get)]
    tensors: Py<PyList>,
    #[pyo3(get)]
    scalars: Vec<u64>,
    #[pyo3(get)]
    on_chip: bool,
    lent: Mutex<Lent>,
}

/// The task while its function runs, with the thread that it runs on, and the groups that the function asked for.
#[derive(Default)]
struct Lent {
    task: Option<(NonNull<Task<'static>>, ThreadId)>,
    groups: Vec<(Option<String>, Py<Group>)>,
}

// SAFETY: the task is used by the thread that it runs on, which is checked.
unsafe impl Send for Lent {}

impl TaskView {
    fn new(py: Python<'_>, task: &Task<'_>, scalars: &[u64], on_chip: bool) -> PyResult<Self> {
        let tensors = PyList::empty(py);
        for tensor in task.tensors() {
            tensors.append(array_of(py, tensor)?)?;
        }
        let (tensors, scalars) = (tensors.unbind(), scalars.to_vec());
        Ok(Self { tensors, scalars, on_chip, lent: Mutex::default() })
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Safety
    /// `task` is there until [`end`](Self::end).
    unsafe fn lend(&self, task: &Task<'_>) {
        self.lent().task = Some((NonNull::from(task).cast(), std::thread::current().id()));
    }

    fn end(&self) {
        let lent = std::mem::take(&mut *self.lent());
        for (_, group) in lent.groups {
            group.get().end_borrow();
        }
    }

    /// The group of the task (`None`) or of a domain, once.
    fn borrow(&self, py: Python<'_>, domain: Option<&str>) -> PyResult<Py<Group>> {
        let mut lent = self.lent();
        if let Some((_, group)) = lent.groups.iter().find(|(of, _)| of.as_deref() == domain) {
            return Ok(group.clone_ref(py));
        }
        let task = match lent.task {
            Some((task, thread)) if thread == std::thread::current().id() => task,
            Some(_) => {
                return Err(Raise::invalid(
                    "another thread asks for this task's group; ask for it on the thread that runs the task",
                )
                .into());
            }
            None => return Err(Raise::invalid("this task is over; use its group inside its function").into()),
        };
        // SAFETY: `lend` was promised that it is there.
        let task = unsafe { task.as_ref() };
        let coll: &Collectives<'static> = match domain {
            None => task.collectives(),
            Some(domain) => task.collectives_of(domain),
        }
        .map_err(Raise::from)?;
        // SAFETY: the collectives live as long as the task, and `end` ends the loan on this thread before it is over.
        let group = Py::new(py, unsafe { Group::borrowed(coll) })?;
        lent.groups.push((domain.map(str::to_owned), group.clone_ref(py)));
        Ok(group)
    }
}

#[pymethods]
impl TaskView {
    /// The collectives of the chips that this task was submitted to together.
    #[getter]
    fn group(&self, py: Python<'_>) -> PyResult<Py<Group>> {
        self.borrow(py, None)
    }

    /// The collectives of a domain, made with `orch.domain_collectives`.
    fn domain_group(&self, py: Python<'_>, domain: &str) -> PyResult<Py<Group>> {
        self.borrow(py, Some(domain))
    }

    /// Tensor number `index`.
    fn tensor<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        self.tensors.bind(py).get_item(index)
    }

    /// Scalar number `index`.
    fn scalar(&self, index: usize) -> PyResult<u64> {
        let have = self.scalars.len();
        let found = self.scalars.get(index).copied();
        found.ok_or_else(|| {
            Raise::invalid(format!("there is no scalar {index}; the task has {have}, counted from 0")).into()
        })
    }
}

/// Runs a Python function as a task.
pub(super) fn run_task(task: &mut Task<'_>, function: &Py<PyAny>) -> Result<(), Failure> {
    let on_chip = task.chip().is_some();
    in_child(|py| {
        let view = Bound::new(py, TaskView::new(py, task, task.scalars(), on_chip)?)?;
        // SAFETY: `end` is called before this returns.
        unsafe { view.get().lend(task) };
        let called = function.call1(py, (&view,));
        view.get().end();
        called.map(drop)
    })
}

/// Runs a Python function as an orchestration on a Worker below: the last two scalars say which function, and which Worker.
pub(super) fn run_orchestration(orch: &mut Inner<'_>, task: &Task<'_>) -> Result<(), Failure> {
    in_child(|py| {
        let [scalars @ .., number, worker] = task.scalars() else {
            return Err(Raise::invalid("an orchestration without its number").into());
        };
        let found = orchestrations().get(number).cloned();
        let ranges = found.as_ref().and_then(|found| found.ranges.below(*worker as usize));
        let (Some(Orchestration { function, .. }), Some(ranges)) = (found, ranges) else {
            return Err(Raise::invalid("this orchestration is not registered").into());
        };
        let of_task = task.tensors().iter().map(|tensor| (tensor.addr, tensor.size)).collect();
        let view = TaskView::new(py, task, scalars, false)?;
        let lent = Py::new(py, Orchestrator::new(ranges, of_task))?;
        // SAFETY: taken back below, before `orch` is gone.
        unsafe { lent.get().set(Some(orch)) };
        let called = function.call1(py, (lent.clone_ref(py), view, *worker));
        // SAFETY: nothing is lent.
        unsafe { lent.get().set(None) };
        called.map(drop)
    })
}

/// Calls Python in a child process. An exception is the task's failure, with its traceback.
fn in_child(call: impl FnOnce(Python<'_>) -> PyResult<()>) -> Result<(), Failure> {
    Python::attach(|py| {
        let called = fork::not_forking(|| standard_streams(py).and_then(|()| call(py)));
        // The process ends without Python's own end.
        for stream in ["stdout", "stderr"] {
            let _ = py
                .import("sys")
                .and_then(|sys| sys.getattr(stream))
                .and_then(|stream| stream.call_method0("flush"));
        }
        called.map_err(|error| {
            let text = traceback(py, &error).unwrap_or_else(|_| error.to_string());
            Failure::new(ErrorCode::Task, text)
        })
    })
}

/// A child has the standard descriptors and no others, so what the program put in the place of its streams may not work here.
fn standard_streams(py: Python<'_>) -> PyResult<()> {
    let sys = py.import("sys")?;
    sys.setattr("stdout", sys.getattr("__stdout__")?)?;
    sys.setattr("stderr", sys.getattr("__stderr__")?)
}

/// A tensor as an array of this process.
fn array_of<'py>(py: Python<'py>, tensor: &worker_orch::TensorDesc) -> PyResult<Bound<'py, PyAny>> {
    let bad = |error: worker_orch::AbiError| Raise::invalid(error.to_string());
    let (dtype, shape) = (tensor.dtype().map_err(bad)?, tensor.shape().map_err(bad)?);
    let at = tensor.addr + tensor.start_offset * dtype.size();
    let bytes = tensor.extent * dtype.size();
    let at = NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize));
    let at = at.ok_or_else(|| Raise::invalid("a tensor at no address"))?;
    // SAFETY: see the head of the file; host buffers and windows stay as long as this process.
    let memory = unsafe { Bytes::new(at, bytes as usize) };
    let array =
        py.import("numpy")?.call_method1("frombuffer", (Bound::new(py, memory)?, numpy_name(dtype)))?;
    array.call_method1("reshape", (shape.to_vec(),))
}

fn traceback(py: Python<'_>, error: &PyErr) -> PyResult<String> {
    let parts = (error.get_type(py), error.value(py), error.traceback(py));
    let lines: Vec<String> = py.import("traceback")?.call_method1("format_exception", parts)?.extract()?;
    // The last line first: what happened, then where.
    let (last, where_) = lines.split_last().map_or(("", &[][..]), |(last, rest)| (last.as_str(), rest));
    Ok(format!("{}\n{}", last.trim_end(), where_.concat().trim_end()))
}
