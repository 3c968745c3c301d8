//! Errors as exceptions: the classes are in `chipcomm/errors.py`.

use crate::interrupt;
use collectives::CollError;
use comm_context::comm::{ArgumentError, CommError};
use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use worker_errors::{ErrorCode, Failure};

/// A failure on its way to Python.
#[derive(Debug)]
pub(crate) struct Raise(pub(crate) Failure);

pub(crate) type Result<T> = core::result::Result<T, Raise>;

impl Raise {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self(Failure::new(ErrorCode::Invalid, text))
    }

    pub(crate) fn closed(what: &str) -> Self {
        Self(Failure::new(ErrorCode::Closed, format!("this {what} is closed; make a new one")))
    }

    pub(crate) fn forked(what: &str) -> Self {
        Self::invalid(format!(
            "this {what} belongs to the process that made it, and this is a forked copy; make it after the fork, \
             or start processes with `python -m chipcomm.launch` or multiprocessing's \"spawn\""
        ))
    }
}

impl From<Failure> for Raise {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl From<CollError> for Raise {
    fn from(error: CollError) -> Self {
        Self(error.into())
    }
}

impl From<CommError> for Raise {
    fn from(error: CommError) -> Self {
        Self(Failure::from(&error))
    }
}

impl From<ArgumentError> for Raise {
    fn from(error: ArgumentError) -> Self {
        Self(Failure::from(&CommError::from(error)))
    }
}

impl From<Raise> for PyErr {
    fn from(Raise(failure): Raise) -> Self {
        Python::attach(|py| {
            let error = exception(py, &failure)
                .unwrap_or_else(|problem| PyRuntimeError::new_err(format!("{failure} (and {problem})")));
            match interrupt::raised() {
                // What the handler raised is what the user asked for; the failure is what came of it.
                Some(raised) => {
                    raised.set_cause(py, Some(error));
                    raised
                }
                None => error,
            }
        })
    }
}

fn exception(py: Python<'_>, failure: &Failure) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.get_or_try_init(py, || {
        let errors = py.import("chipcomm.errors")?;
        Ok::<_, PyErr>(errors.getattr("_from_native")?.unbind())
    })?;
    let links: Vec<_> = failure
        .chain()
        .map(|link| {
            let (code, phase) = (link.code.as_i32(), link.phase.as_ref());
            (code, phase, link.rank, link.device, link.pid, link.message.as_str())
        })
        .collect();
    Ok(PyErr::from_value(make.call1(py, (failure.to_string(), links))?.into_bound(py)))
}
