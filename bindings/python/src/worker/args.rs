//! The arguments of tasks: arrays in host buffers, parts of windows, and scalars.

use super::orchestrator::TaskId;
use crate::array::{Array, Use};
use crate::error::{Raise, Result};
use collectives::DType as ArrayType;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use worker_orch::{Access, Args, DType, DeviceAddr, TensorDesc};

/// Tensors with their access, scalars, tasks to wait for, blocks. A tensor is an array, or an address with type and shape.
pub(crate) type Task<'py> = (Vec<(Bound<'py, PyAny>, u8)>, Vec<u64>, Vec<Py<TaskId>>, u32);

/// Where a task runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Chip,
    Host,
}

/// The memory that tasks of a Worker may touch: host buffers, and windows and memory of its chips.
#[derive(Default)]
pub(crate) struct Ranges {
    host: Mutex<BTreeMap<u64, u64>>,
    chips: Mutex<BTreeMap<u64, u64>>,
    /// Those of the Workers below.
    below: Mutex<Vec<Arc<Ranges>>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn holds(ranges: &Mutex<BTreeMap<u64, u64>>, at: u64, bytes: u64) -> bool {
    locked(ranges).range(..=at).next_back().is_some_and(|(base, size)| inside((*base, *size), at, bytes))
}

fn inside((base, size): (u64, u64), at: u64, bytes: u64) -> bool {
    at.checked_sub(base).and_then(|start| start.checked_add(bytes)).is_some_and(|end| end <= size)
}

impl Ranges {
    pub(super) fn add_host(&self, at: u64, bytes: usize) {
        locked(&self.host).insert(at, bytes as u64);
    }

    pub(super) fn remove_host(&self, at: u64) {
        locked(&self.host).remove(&at);
    }

    /// A window, or memory that was allocated on a chip. What was there before, a domain of an earlier run, is gone.
    pub(super) fn add_chip(&self, at: u64, bytes: usize) {
        let mut chips = locked(&self.chips);
        let end = at + bytes as u64;
        chips.retain(|base, size| *base >= end || base + *size <= at);
        chips.insert(at, bytes as u64);
    }

    pub(super) fn remove_chip(&self, at: u64) {
        locked(&self.chips).remove(&at);
    }

    pub(super) fn forget_chips(&self) {
        locked(&self.chips).clear();
    }

    pub(super) fn add_below(&self, ranges: Arc<Ranges>) {
        locked(&self.below).push(ranges);
    }

    pub(super) fn below(&self, worker: usize) -> Option<Arc<Ranges>> {
        locked(&self.below).get(worker).cloned()
    }
}

/// What a run may pass to its tasks: memory of its Worker, and the tensors that it was given by the Worker above, as address and bytes.
pub(super) struct Known {
    pub(super) ranges: Arc<Ranges>,
    pub(super) given: Vec<(u64, u64)>,
}

impl Known {
    fn holds(&self, at: u64, bytes: u64, place: Place) -> bool {
        holds(&self.ranges.host, at, bytes)
            || (place == Place::Chip && holds(&self.ranges.chips, at, bytes))
            || self.given.iter().any(|range| inside(*range, at, bytes))
    }
}

/// The type in tensors that a caller names, by its numpy name.
pub(super) fn tensor_type(name: &str) -> Result<DType> {
    Ok(match name {
        "float32" => DType::Float32,
        "float16" => DType::Float16,
        "bfloat16" => DType::Bfloat16,
        "int8" => DType::Int8,
        "uint8" | "bool" => DType::Uint8,
        "int16" => DType::Int16,
        "uint16" => DType::Uint16,
        "int32" => DType::Int32,
        "uint32" => DType::Uint32,
        "int64" => DType::Int64,
        "uint64" => DType::Uint64,
        _ => {
            return Err(Raise::invalid(format!(
                "kernels have no tensors of {name}; use float32, float16, bfloat16 or integers"
            )));
        }
    })
}

fn of_array(dtype: ArrayType) -> Result<DType> {
    match dtype {
        ArrayType::F64 => tensor_type("float64"),
        ArrayType::Bool => Ok(DType::Uint8),
        other => DType::from_code(other as u8).map_err(|error| Raise::invalid(error.to_string())),
    }
}

pub(super) fn access(code: u8) -> Result<Access> {
    Ok(match code {
        0 => Access::Input,
        1 => Access::Output,
        2 => Access::InOut,
        3 => Access::OutputExisting,
        4 => Access::NoDependency,
        _ => return Err(Raise::invalid(format!("there is no access {code}"))),
    })
}

/// Checks and translates the arguments of a task.
pub(super) fn args(task: &Task<'_>, known: &Known, place: Place) -> PyResult<Args> {
    let (tensors, scalars, after, blocks) = task;
    let mut args = Args::new().blocks(*blocks);
    for (index, (tensor, code)) in tensors.iter().enumerate() {
        let access = access(*code)?;
        args = args.tensor(&descriptor(tensor, index, access, known, place)?, access);
    }
    for scalar in scalars {
        args = args.scalar(*scalar);
    }
    let after: Vec<_> = after.iter().map(|id| id.get().0).collect();
    Ok(args.after(&after))
}

fn descriptor(
    tensor: &Bound<'_, PyAny>,
    index: usize,
    access: Access,
    known: &Known,
    place: Place,
) -> PyResult<TensorDesc> {
    let bad = |text: String| Raise::invalid(format!("tensor {index}: {text}"));
    let (at, dtype, shape) = match tensor.extract::<(u64, String, Vec<u32>)>() {
        Ok((at, dtype, shape)) => (at, tensor_type(&dtype)?, shape),
        Err(_) => {
            let uses = if access == Access::Input { Use::Reads } else { Use::Writes };
            let array = Array::new(tensor, "the array", uses, None)?;
            (array.at().addr() as u64, of_array(array.dtype)?, array.shape()?)
        }
    };
    let count = shape.iter().try_fold(1_u64, |count, one| count.checked_mul(u64::from(*one)));
    let bytes = count.and_then(|count| count.checked_mul(dtype.size())).filter(|bytes| *bytes > 0);
    let bytes = bytes.ok_or_else(|| {
        bad(format!("shape {shape:?} has no elements, or more than memory; make every length at least 1"))
    })?;
    if !known.holds(at, bytes, place) {
        let text = match place {
            Place::Chip => {
                "the array is neither in a host buffer of this Worker nor in memory of a chip; make it with worker.empty(shape, dtype)"
            }
            Place::Host => {
                "sub-workers reach host buffers only; make the array with worker.empty(shape, dtype)"
            }
        };
        return Err(bad(text.to_owned()).into());
    }
    let made = TensorDesc::builder(DeviceAddr(at), bytes, dtype, &shape).build();
    Ok(made.map_err(|error| bad(error.to_string()))?)
}
