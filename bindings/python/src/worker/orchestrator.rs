//! Submitting tasks inside a run.
//!
//! # Safety
//! Has a pointer to the run's orchestrator, which is there only while the function of the run is called, on its thread.
#![allow(unsafe_code)]

use super::args::{Known, Place, Ranges, Task, args};
use super::buffers::ChipMemory;
use crate::comm::within;
use crate::error::{Raise, Result};
use crate::group::detached;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use worker_orch::{
    CollectivesOptions, DeviceAddr, Domain, Orchestrator as Inner, Program, TaskId as InnerId,
};

/// Submits tasks inside `Worker.run`.
#[pyclass(frozen, module = "chipcomm")]
pub(crate) struct Orchestrator {
    inner: Mutex<Option<(NonNull<Inner<'static>>, ThreadId)>>,
    known: Known,
    /// The domains of the run, by name.
    domains: Mutex<BTreeMap<String, Domain>>,
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
    /// For a run of a Worker with these ranges; `given` are the tensors that it got from the Worker above.
    pub(super) fn new(ranges: Arc<Ranges>, given: Vec<(u64, u64)>) -> Self {
        Self { inner: Mutex::new(None), known: Known { ranges, given }, domains: Mutex::default() }
    }

    /// From now on it submits to `inner`, or, with `None`, nowhere.
    ///
    /// # Safety
    /// `inner` is there until this is called with `None`.
    pub(super) unsafe fn set(&self, inner: Option<&mut Inner<'_>>) {
        let at = inner.map(|inner| (NonNull::from(inner).cast(), std::thread::current().id()));
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn domain(&self, name: &str) -> Result<Domain> {
        let domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        let found = domains.get(name).cloned();
        found.ok_or_else(|| {
            Raise::invalid(format!("there is no domain {name:?} in this run; allocate it first"))
        })
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
            Some(_) => Err(Raise::invalid(
                "another thread uses this orchestrator; use it on the thread that called run",
            )),
            None => Err(Raise::invalid(
                "this run is over; use its orchestrator inside the function that run calls",
            )),
        }
    }
}

#[pymethods]
impl Orchestrator {
    fn submit(&self, py: Python<'_>, program: u32, task: Task<'_>, to: usize) -> PyResult<TaskId> {
        let args = args(&task, &self.known, Place::Chip)?;
        Ok(TaskId(self.with(py, |orch| orch.submit_next_level(Program::from_number(program), &args, to))?))
    }

    fn submit_group(
        &self,
        py: Python<'_>,
        program: u32,
        tasks: Vec<(usize, Task<'_>)>,
    ) -> PyResult<Vec<TaskId>> {
        let members = tasks.iter().map(|(chip, task)| Ok((*chip, args(task, &self.known, Place::Chip)?)));
        let members = members.collect::<PyResult<Vec<_>>>()?;
        let ids = self.with(py, |orch| orch.submit_group(Program::from_number(program), &members))?;
        Ok(ids.into_iter().map(TaskId).collect())
    }

    fn submit_sub(&self, py: Python<'_>, program: u32, task: Task<'_>) -> PyResult<TaskId> {
        let args = args(&task, &self.known, Place::Host)?;
        Ok(TaskId(self.with(py, |orch| orch.submit_sub(Program::from_number(program), &args))?))
    }

    /// Each member to another sub-worker.
    fn submit_sub_group(&self, py: Python<'_>, program: u32, tasks: Vec<Task<'_>>) -> PyResult<Vec<TaskId>> {
        let members = tasks.iter().map(|task| args(task, &self.known, Place::Host));
        let members = members.collect::<PyResult<Vec<_>>>()?;
        let ids = self.with(py, |orch| orch.submit_sub_group(Program::from_number(program), &members))?;
        Ok(ids.into_iter().map(TaskId).collect())
    }

    /// Of some chips, or of all.
    #[pyo3(signature = (chips = None))]
    fn barrier(&self, py: Python<'_>, chips: Option<Vec<usize>>) -> PyResult<()> {
        Ok(self.with(py, |orch| match &chips {
            Some(chips) => orch.barrier_of(chips),
            None => orch.barrier(),
        })?)
    }

    /// Waits for what was submitted to these chips.
    fn settle(&self, py: Python<'_>, chips: Vec<usize>) -> PyResult<()> {
        Ok(self.with(py, |orch| orch.settle_chips(&chips))?)
    }

    /// How many chips or Workers there are.
    fn chips(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.with(py, |orch| Ok(orch.chips()))?)
    }

    fn chip_alloc(&self, py: Python<'_>, chip: usize, bytes: usize) -> PyResult<ChipMemory> {
        let memory = self.with(py, |orch| orch.chip_alloc(chip, bytes))?;
        Ok(ChipMemory::new(memory, self.known.ranges.clone()))
    }

    fn copy_to(&self, py: Python<'_>, chip: usize, to: u64, bytes: &[u8]) -> PyResult<()> {
        Ok(self.with(py, |orch| orch.copy_to(chip, DeviceAddr(to), bytes))?)
    }

    fn copy_from<'py>(
        &self,
        py: Python<'py>,
        chip: usize,
        from: u64,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut into = vec![0; bytes];
        self.with(py, |orch| orch.copy_from(chip, DeviceAddr(from), &mut into))?;
        Ok(PyBytes::new(py, &into))
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

    #[pyo3(signature = (name, pool = CollectivesOptions::POOL, timeout = None))]
    fn domain_collectives(
        &self,
        py: Python<'_>,
        name: &str,
        pool: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let options = CollectivesOptions::new().pool(pool).timeout(within(timeout)?);
        let domain = self.domain(name)?;
        Ok(self.with(py, |orch| orch.domain_collectives(&domain, options))?)
    }

    fn release_domain(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let domain = self.domain(name)?;
        self.with(py, |orch| orch.release_domain(&domain))?;
        self.domains.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
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
            self.known.ranges.add_chip(member.window_base.0, member.window_size);
            let buffers = member.buffers.iter().map(|part| (part.name.clone(), part.addr.0)).collect();
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
        let parts = (domain.name().to_owned(), parts.collect());
        self.domains.lock().unwrap_or_else(PoisonError::into_inner).insert(parts.0.clone(), domain);
        Ok(parts)
    }
}
