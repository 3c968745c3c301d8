//! Submitting tasks inside a run.
//!
//! # Safety
//! Has a pointer to the run's orchestrator, which is there only while the function of the run is called, on its thread.
#![allow(unsafe_code)]

use super::args::{Place, Ranges, Task, args};
use crate::comm::within;
use crate::error::{Raise, Result};
use crate::group::detached;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use worker_orch::{CollectivesOptions, Domain, Orchestrator as Inner, Program, TaskId as InnerId};

/// Submits tasks inside `Worker.run`.
#[pyclass(frozen, module = "chipcomm")]
pub(crate) struct Orchestrator {
    inner: Mutex<Option<(NonNull<Inner<'static>>, ThreadId)>>,
    ranges: Arc<Ranges>,
}

// SAFETY: the pointer is used by the thread that it belongs to, which is checked.
unsafe impl Send for Orchestrator {}
// SAFETY: as above.
unsafe impl Sync for Orchestrator {}

/// A submitted task.
#[pyclass(frozen, module = "chipcomm")]
#[derive(Clone)]
pub(crate) struct TaskId(pub(crate) InnerId);

/// A domain: `(name, [(chip, rank, nranks, device_ctx, window_base, window_size, {name: address})])`.
type DomainParts = (String, Vec<(usize, u32, u32, u64, u64, usize, BTreeMap<String, u64>)>);

impl Orchestrator {
    pub(super) fn new(ranges: Arc<Ranges>) -> Self {
        Self { inner: Mutex::new(None), ranges }
    }

    /// From now on it submits to `inner`, or, with `None`, nowhere.
    ///
    /// # Safety
    /// `inner` is there until this is called with `None`.
    pub(super) unsafe fn set(&self, inner: Option<&mut Inner<'_>>) {
        let at = inner.map(|inner| (NonNull::from(inner).cast(), std::thread::current().id()));
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Does something with it, without the interpreter's lock: a full ring makes a submit wait.
    fn with<T>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Inner<'static>) -> core::result::Result<T, worker_orch::Failure>,
    ) -> Result<T> {
        let inner = *self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner {
            Some((mut inner, thread)) if thread == std::thread::current().id() => {
                // SAFETY: `set` promised that it is there; only this thread uses it, and `act` calls nothing of Python's.
                Ok(detached(py, || act(unsafe { inner.as_mut() }))?)
            }
            Some(_) => Err(Raise::invalid("submit from the thread that called run")),
            None => Err(Raise::invalid("this run is over; submit inside the function that run calls")),
        }
    }
}

#[pymethods]
impl Orchestrator {
    fn submit(&self, py: Python<'_>, program: u32, task: Task<'_>, to: usize) -> PyResult<TaskId> {
        let args = args(&task, &self.ranges, Place::Chip)?;
        Ok(TaskId(self.with(py, |orch| orch.submit_next_level(Program::from_number(program), &args, to))?))
    }

    fn submit_group(
        &self,
        py: Python<'_>,
        program: u32,
        tasks: Vec<(usize, Task<'_>)>,
    ) -> PyResult<Vec<TaskId>> {
        let members = tasks.iter().map(|(chip, task)| Ok((*chip, args(task, &self.ranges, Place::Chip)?)));
        let members = members.collect::<PyResult<Vec<_>>>()?;
        let ids = self.with(py, |orch| orch.submit_group(Program::from_number(program), &members))?;
        Ok(ids.into_iter().map(TaskId).collect())
    }

    fn submit_sub(&self, py: Python<'_>, program: u32, task: Task<'_>) -> PyResult<TaskId> {
        let args = args(&task, &self.ranges, Place::Host)?;
        Ok(TaskId(self.with(py, |orch| orch.submit_sub(Program::from_number(program), &args))?))
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.with(py, |orch| orch.barrier().map(drop))?)
    }

    #[pyo3(signature = (chips, pool = CollectivesOptions::POOL, timeout = None))]
    fn collectives(
        &self,
        py: Python<'_>,
        chips: Vec<usize>,
        pool: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let options = CollectivesOptions::new().pool(pool).timeout(within(timeout)?);
        Ok(self.with(py, |orch| orch.collectives(&chips, options))?)
    }

    fn allocate_domain(
        &self,
        py: Python<'_>,
        name: &str,
        chips: Vec<usize>,
        window_size: usize,
        buffers: Vec<(String, String, usize)>,
    ) -> PyResult<DomainParts> {
        let typed = buffers
            .iter()
            .map(|(name, dtype, count)| Ok((name.as_str(), super::args::tensor_type(dtype)?, *count)));
        let typed = typed.collect::<Result<Vec<_>>>()?;
        let domain: Domain = self.with(py, |orch| orch.allocate_domain(name, &chips, window_size, &typed))?;
        let parts = domain.contexts().iter().map(|member| {
            self.ranges.add_window(member.window_base.0, member.window_size);
            let buffers = member.buffers.iter().map(|(name, at)| (name.clone(), at.0)).collect();
            (
                member.chip,
                member.rank,
                member.nranks,
                member.device_ctx.0,
                member.window_base.0,
                member.window_size,
                buffers,
            )
        });
        Ok((domain.name().to_owned(), parts.collect()))
    }
}
