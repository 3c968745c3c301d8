//! The communicator: one rank of a group of processes.
//!
//! # Safety
//! Turns addresses of windows into memory of Python; the communicator has checked them.
#![allow(unsafe_code)]

use crate::error::{Raise, Result};
use crate::group::{Group, Shared};
use crate::memory::{Kept, Memory, Owner};
use collectives::{Collectives, Options};
use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::{
    AllocationId, Communicator as Backend, DomainSpec, Membership, SubsetView, Timeout, Window,
};
use comm_sim::SimComm;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A time limit in seconds, or the one of the environment.
pub(crate) fn within(seconds: Option<f64>) -> Result<Timeout> {
    let Some(seconds) = seconds else { return Ok(Timeout::from_env(Timeout::ENV)?) };
    let duration = Duration::try_from_secs_f64(seconds);
    let duration = duration
        .map_err(|_| Raise::invalid(format!("timeout is {seconds}; it is a number of seconds above 0")))?;
    Ok(Timeout::new(duration)?)
}

/// One rank of a group of processes that share memory. Made by `chipcomm.init`.
#[pyclass(frozen, weakref, module = "chipcomm")]
pub(crate) struct Communicator {
    rank: u32,
    size: u32,
    within: Timeout,
    state: Mutex<State>,
}

struct State {
    comm: Option<Kept>,
    groups: Vec<Weak<Shared>>,
    /// Who has memory of the base window (`None`) and of domains, each with its members.
    windows: BTreeMap<Option<u64>, Arc<Owner>>,
}

impl Communicator {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) -> Result<Arc<Box<dyn Backend>>> {
        let state = self.state();
        let kept = state.comm.as_ref().ok_or_else(|| Raise::closed("communicator"))?;
        if kept.is_forked() { Err(Raise::forked("communicator")) } else { Ok(kept.get().clone()) }
    }

    fn alloc_domain(
        &self,
        py: Python<'_>,
        comm: &Arc<Box<dyn Backend>>,
        id: u64,
        ranks: &[u32],
        bytes: usize,
    ) -> Result<Window> {
        let position = ranks.iter().position(|rank| *rank == self.rank);
        let position = position.ok_or_else(|| {
            Raise::invalid(format!(
                "ranks {ranks:?} do not name this rank, {}; only members make this call",
                self.rank
            ))
        })?;
        let (id, domain_rank) = (AllocationId(id), position as u32);
        let spec = DomainSpec { id, ranks, domain_rank, window_size: bytes };
        Ok(py.detach(|| comm.alloc_domain(&spec, self.within))?)
    }

    /// Every member's part of a window.
    fn parts(
        &self,
        comm: &Arc<Box<dyn Backend>>,
        key: Option<u64>,
        window: Window,
        members: usize,
    ) -> Result<Vec<Memory>> {
        let no_memory = || Raise::invalid("the windows of this communicator are not memory of this process");
        let host = comm.host_windows().ok_or_else(no_memory)?;
        let mut bytes = [0; size_of::<CommContext>()];
        comm.read(window.context, &mut bytes)?;
        let context = CommContext::decode(&bytes).map_err(|error| Raise::invalid(error.to_string()))?;
        let mut state = self.state();
        let owner = state.windows.entry(key).or_insert_with(|| Owner::new(comm.clone()));
        let parts = context.windows_in[..members].iter().map(|base| {
            let at = host.host_pointer(DeviceAddr(*base), window.size)?;
            // SAFETY: the communicator says that the window lies there, and the owner keeps it.
            Ok(unsafe { Memory::new(at, window.size, false, owner) })
        });
        parts.collect()
    }
}

#[pymethods]
impl Communicator {
    /// Joins the other ranks at `path` and waits for them.
    #[new]
    #[pyo3(signature = (path, rank, size, timeout = None))]
    fn new(py: Python<'_>, path: PathBuf, rank: u32, size: u32, timeout: Option<f64>) -> PyResult<Self> {
        let within = within(timeout)?;
        let me = Membership::new(rank, size).map_err(Raise::from)?;
        let joined = py.detach(|| SimComm::rendezvous(&path, me, within)).map_err(Raise::from)?;
        let comm: Arc<Box<dyn Backend>> = Arc::new(Box::new(joined));
        let state = State { comm: Some(Kept::new(comm)), groups: Vec::new(), windows: BTreeMap::new() };
        Ok(Self { rank, size, within, state: Mutex::new(state) })
    }

    /// This rank, from 0.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state().comm.is_none()
    }

    /// Returns when every rank has come here.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let comm = self.open()?;
        Ok(py.detach(|| comm.barrier(self.within)).map_err(Raise::from)?)
    }

    /// Makes a group for collective calls, of all ranks or of some in their order. Collective among them.
    #[pyo3(signature = (ranks = None, *, pool = Options::POOL, timeout = None, progress_thread = false))]
    fn group(
        &self,
        py: Python<'_>,
        ranks: Option<Vec<u32>>,
        pool: usize,
        timeout: Option<f64>,
        progress_thread: bool,
    ) -> PyResult<Group> {
        let comm = self.open()?;
        let within = match timeout {
            None => self.within,
            Some(_) => within(timeout)?,
        };
        let ranks = ranks.unwrap_or_else(|| (0..self.size).collect());
        let mut options = Options::new().pool(pool).timeout(within);
        if progress_thread {
            options = options.progress_thread();
        }
        let made = py.detach(|| Collectives::over(comm.clone(), &ranks, options)).map_err(Raise::from)?;
        let group = Group::new(made, Owner::new(comm), progress_thread);
        let mut state = self.state();
        state.groups.retain(|group| group.strong_count() > 0);
        state.groups.push(Arc::downgrade(group.shared()));
        Ok(group)
    }

    /// Allocates the base window of every rank, zeroed: the memory of each rank, this one's at `[rank]`. Collective, once.
    fn windows(&self, py: Python<'_>, bytes: usize) -> PyResult<Vec<Memory>> {
        let comm = self.open()?;
        let window = py.detach(|| comm.alloc_windows(bytes, self.within)).map_err(Raise::from)?;
        Ok(self.parts(&comm, None, window, self.size as usize)?)
    }

    /// Allocates a window for some of the ranks, named by a number that they agree on. Collective among them.
    fn allocate_domain(
        &self,
        py: Python<'_>,
        id: u64,
        ranks: Vec<u32>,
        bytes: usize,
    ) -> PyResult<Vec<Memory>> {
        let comm = self.open()?;
        let window = self.alloc_domain(py, &comm, id, &ranks, bytes)?;
        Ok(self.parts(&comm, Some(id), window, ranks.len())?)
    }

    /// The same as addresses, for kernels and for the Python half: `(context, base of this rank's window, its size)`. Without ranks it is
    /// the base window.
    #[pyo3(signature = (bytes, id = None, ranks = None))]
    fn _alloc(
        &self,
        py: Python<'_>,
        bytes: usize,
        id: Option<u64>,
        ranks: Option<Vec<u32>>,
    ) -> PyResult<(u64, u64, usize)> {
        let comm = self.open()?;
        let window = match (id, ranks) {
            (Some(id), Some(ranks)) => self.alloc_domain(py, &comm, id, &ranks, bytes)?,
            _ => py.detach(|| comm.alloc_windows(bytes, self.within)).map_err(Raise::from)?,
        };
        Ok((window.context.0, window.base.0, window.size))
    }

    /// A context for some ranks on a slice of the base window, at `offset` bytes of each rank's. Not collective.
    fn _derive_context(
        &self,
        ranks: Vec<u32>,
        domain_rank: u32,
        offset: usize,
        bytes: usize,
    ) -> PyResult<u64> {
        let view = SubsetView { ranks: &ranks, domain_rank, offset, size: bytes };
        Ok(self.open()?.derive_context(&view).map_err(Raise::from)?.0)
    }

    /// Copies bytes out of a window.
    fn _read<'py>(&self, py: Python<'py>, address: u64, bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        let mut into = vec![0; bytes];
        self.open()?.read(DeviceAddr(address), &mut into).map_err(Raise::from)?;
        Ok(PyBytes::new(py, &into))
    }

    /// Copies bytes into a window.
    fn _write(&self, address: u64, bytes: &[u8]) -> PyResult<()> {
        Ok(self.open()?.write(DeviceAddr(address), bytes).map_err(Raise::from)?)
    }

    /// Releases a domain. Collective among its members. Arrays on its memory must be gone.
    fn release_domain(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        let comm = self.open()?;
        let live = self.state().windows.get(&Some(id)).map_or(0, |owner| owner.live());
        if live > 0 {
            let text = format!(
                "{live} pieces of memory of domain {id} are still in use; delete them, and the arrays on them, first"
            );
            return Err(Raise::invalid(text).into());
        }
        self.state().windows.remove(&Some(id));
        Ok(py.detach(|| comm.release_domain(AllocationId(id), self.within)).map_err(Raise::from)?)
    }

    /// Leaves the group of processes. Groups that are still open end here without the others, so close them before. Memory that arrays
    /// show stays until the last of them is gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (kept, groups, windows) = {
            let mut state = self.state();
            let Some(kept) = state.comm.take() else { return Ok(()) };
            (kept, std::mem::take(&mut state.groups), std::mem::take(&mut state.windows))
        };
        for group in groups.iter().filter_map(Weak::upgrade) {
            group.abandon()?;
        }
        drop(windows);
        let Some(comm) = kept.into_inner() else { return Ok(()) };
        let left = py.detach(|| comm.destroy(self.within));
        // A communicator that was broken before has already said so.
        match left.map_err(|error| (error.code(), Raise::from(error))) {
            Err((worker_errors::ErrorCode::System, raise)) => Err(raise.into()),
            _ => Ok(()),
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(&self, py: Python<'_>, _why: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<chipcomm.Communicator: rank {} of {}{closed}>", self.rank, self.size)
    }
}
