//! Python functions as tasks: the table of functions, and what runs one in a child process.
//!
//! # Safety
//! Shows the memory of a task's tensors to the function as arrays. The parent has checked that each lies in a host buffer or a window, and
//! these have the same address in every process of a Worker.
#![allow(unsafe_code)]

use crate::group::Group;
use crate::memory::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use worker_orch::{DType, ErrorCode, Failure, Task};

/// The functions of all Workers of this process. A child has those that were there when it was forked. Locked only with the
/// interpreter's lock held, so that no other thread has it at a fork.
static FUNCTIONS: Mutex<Vec<Arc<Py<PyAny>>>> = Mutex::new(Vec::new());

/// Adds a function and returns its number.
pub(super) fn add(function: Py<PyAny>) -> u64 {
    let mut all = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Arc::new(function));
    all.len() as u64 - 1
}

/// How many there are.
pub(super) fn count() -> u64 {
    FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
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
    group: Mutex<Option<Py<Group>>>,
}

#[pymethods]
impl TaskView {
    /// The collectives of the chips that this task was submitted to together.
    #[getter]
    fn group(&self, py: Python<'_>) -> PyResult<Py<Group>> {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.as_ref().map(|group| group.clone_ref(py)).ok_or_else(|| {
            let text = "this task has no collectives; make them with orch.collectives(chips), and submit it with \
                        orch.submit_next_level_group to exactly these chips";
            crate::error::Raise::invalid(text).into()
        })
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
            crate::error::Raise::invalid(format!("there is no scalar {index}; the task has {have}")).into()
        })
    }
}

/// The task of every Python function. Its last scalar says which.
pub(super) fn run_python(task: &mut Task<'_>) -> Result<(), Failure> {
    Python::attach(|py| {
        let called = standard_streams(py).and_then(|()| call(py, task));
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

fn call(py: Python<'_>, task: &mut Task<'_>) -> PyResult<()> {
    let Some((number, scalars)) = task.scalars().split_last() else { return Ok(()) };
    let functions = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let function = functions.get(*number as usize).cloned();
    drop(functions);
    let unknown = || {
        crate::error::Raise::invalid(
            "this function was registered after init; close the Worker and init it again",
        )
    };
    let function = function.ok_or_else(unknown)?;
    let tensors = PyList::empty(py);
    let on_chip = {
        for tensor in task.tensors() {
            tensors.append(array_of(py, tensor)?)?;
        }
        let scalars = scalars.to_vec();
        let on_chip = task.chip().is_some();
        (on_chip, scalars)
    };
    let group = match task.collectives() {
        // SAFETY: the collectives live as long as the task, and the group is closed below, before it ends.
        Ok(coll) => Some(Py::new(py, unsafe { Group::borrowed(coll) })?),
        Err(_) => None,
    };
    let kept = group.as_ref().map(|group| group.clone_ref(py));
    let view = TaskView {
        tensors: tensors.unbind(),
        scalars: on_chip.1,
        on_chip: on_chip.0,
        group: Mutex::new(group),
    };
    let called = function.call1(py, (view,));
    if let Some(group) = kept {
        group.get().end_borrow();
    }
    called.map(drop)
}

/// A tensor as an array of this process.
fn array_of<'py>(py: Python<'py>, tensor: &worker_orch::TensorDesc) -> PyResult<Bound<'py, PyAny>> {
    let bad = |error: worker_orch::AbiError| crate::error::Raise::invalid(error.to_string());
    let (dtype, shape) = (tensor.dtype().map_err(bad)?, tensor.shape().map_err(bad)?);
    let at = tensor.addr + tensor.start_offset * dtype.size();
    let bytes = tensor.extent * dtype.size();
    let at = NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize));
    let at = at.ok_or_else(|| crate::error::Raise::invalid("a tensor at no address"))?;
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
