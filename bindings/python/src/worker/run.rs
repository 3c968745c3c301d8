//! Runs: the function that submits tasks, and runs that are in flight.
//!
//! # Safety
//! Lends the run's orchestrator to Python, and takes it back before it is gone.
#![allow(unsafe_code)]

use super::orchestrator::Orchestrator;
use super::{Worker, fork};
use crate::comm::within;
use crate::error::Raise;
use crate::group::detached;
use pyo3::prelude::*;
use worker_orch::{
    ErrorCode, Failure, Orchestrator as Inner, Run as InnerRun, RunState, Worker as InnerWorker,
};

impl Worker {
    /// Calls `body` as the function of a run that `go` makes. Returns what both returned.
    fn lend<T>(
        &self,
        py: Python<'_>,
        body: &Py<PyAny>,
        go: impl FnOnce(
            &mut InnerWorker,
            &mut dyn FnMut(&mut Inner<'_>) -> Result<(), Failure>,
        ) -> Result<T, Failure>,
    ) -> PyResult<(Py<PyAny>, T)> {
        let mut state = self.enter()?;
        let worker = state.open()?;
        let orchestrator = Py::new(py, Orchestrator::new(self.ranges.clone(), Vec::new()))?;
        let (mut returned, mut raised) = (None, None);
        let mut submit = |orch: &mut Inner<'_>| {
            // SAFETY: taken back below, before `orch` is gone.
            unsafe { orchestrator.get().set(Some(orch)) };
            let called =
                fork::not_forking(|| Python::attach(|py| body.call1(py, (orchestrator.clone_ref(py),))));
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
        };
        let ran = detached(py, || fork::forking(self.levels(), || go(worker, &mut submit)));
        match (raised, ran) {
            // What the function raised is the cause, unless it is the failure of a task that a submit told it.
            (Some(error), _) => Err(error),
            (None, Err(failure)) => Err(Raise::from(failure).into()),
            (None, Ok(made)) => Ok((returned.unwrap_or_else(|| py.None()), made)),
        }
    }
}

#[pymethods]
impl Worker {
    /// Runs what `body` submits. Returns what it returned.
    fn run(&self, py: Python<'_>, body: Py<PyAny>) -> PyResult<Py<PyAny>> {
        Ok(self.lend(py, &body, |worker, submit| worker.run(submit))?.0)
    }

    /// Submits what `body` submits, and does not wait. Returns what it returned, and the run.
    fn submit_run(slf: &Bound<'_, Self>, body: Py<PyAny>) -> PyResult<(Py<PyAny>, Run)> {
        let (returned, ((), run)) =
            slf.get().lend(slf.py(), &body, |worker, submit| worker.submit_run(submit))?;
        Ok((returned, Run { worker: slf.clone().unbind(), run }))
    }
}

/// A run that is in flight, or over.
#[pyclass(frozen, module = "chipcomm._native")]
pub(crate) struct Run {
    worker: Py<Worker>,
    run: InnerRun,
}

#[pymethods]
impl Run {
    /// Waits until it is over, and says whether it is.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let within = within(timeout)?;
        let state = self.worker.get().command(py, |worker| self.run.wait(worker, within))?;
        Ok(state == RunState::Done)
    }

    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.worker.get().command(py, |worker| Ok(self.run.is_done(worker)))?)
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.worker.get().command(py, |worker| self.run.cancel(worker))?)
    }
}
