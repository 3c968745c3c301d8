//! A group of ranks that make collective calls, and the calls that were started.
//!
//! # Safety
//! Calls [`Collectives`] with raw pointers. What makes them valid: an [`Array`] keeps its buffer, and a started call's arrays are kept in
//! the group until the call is over. One thread at a time is in a group: the lock of its state is held through every call.
#![allow(unsafe_code)]

use crate::array::Array;
use crate::error::{Raise, Result};
use crate::memory::{Memory, Owner};
use collectives::{Collectives, Op, Request as Call, Ticket};
use pyo3::prelude::*;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

/// A group of ranks that make collective calls. Made by `Communicator.group`.
#[pyclass(frozen, module = "chipcomm")]
pub(crate) struct Group {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    members: Box<[u32]>,
    /// None for a task's group, which has no arrays in its window.
    owner: Option<Arc<Owner>>,
    shared: Arc<Shared>,
}

/// What the communicator can end.
pub(crate) struct Shared {
    state: Mutex<State>,
}

pub(crate) struct State {
    coll: Option<Coll>,
    started: Vec<Started>,
    /// The thread that started them; any, where a progress thread works on them.
    thread: Option<ThreadId>,
    has_progress_thread: bool,
    numbers: u64,
}

/// The group's own, or a task's, which the child process keeps.
enum Coll {
    Own(Box<Collectives<'static>>),
    Lent(NonNull<Collectives<'static>>),
}

// SAFETY: a lent group is used and given back by the thread of its task, which is the only one that can enter the state meanwhile.
unsafe impl Send for Coll {}

impl Coll {
    #[inline]
    fn get(&self) -> &Collectives<'static> {
        match self {
            Self::Own(coll) => coll,
            // SAFETY: `Group::borrowed` was promised that it is there until `end_borrow`.
            Self::Lent(coll) => unsafe { coll.as_ref() },
        }
    }

    /// Ends it here, without the others; a task's is not ours to end.
    fn abandon(self) {
        if let Self::Own(coll) = self {
            coll.abandon();
        }
    }
}

/// A started call, with what it uses.
struct Started {
    number: u64,
    ticket: Ticket,
    _arrays: [Option<Array>; 2],
    _counts: [Box<[usize]>; 2],
}

/// Lets a closure that is called at once, on this thread, leave the interpreter's lock.
struct Here<T>(T);

// SAFETY: `Python::detach` calls the closure on the thread that it was made on.
unsafe impl<T> Send for Here<T> {}

/// Runs `call` without the interpreter's lock.
#[inline]
pub(crate) fn detached<T>(py: Python<'_>, call: impl FnOnce() -> T) -> T {
    let call = Here(call);
    py.detach(move || {
        let call = call;
        Here((call.0)())
    })
    .0
}

impl Shared {
    /// The state, unless another thread is inside a call.
    #[inline]
    fn enter(&self) -> Result<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(state)) => Ok(state.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text = "another thread is inside a call on this group, which takes one at a time; give each thread a group of its own";
                Err(Raise::invalid(text))
            }
        }
    }

    /// Ends the group without the others.
    pub(crate) fn abandon(&self) -> Result<()> {
        let mut state = self.enter()?;
        if let Some(coll) = state.coll.take() {
            coll.abandon();
        }
        state.started.clear();
        Ok(())
    }
}

impl State {
    #[inline]
    fn open(&self) -> Result<&Collectives<'static>> {
        self.coll.as_ref().map(Coll::get).ok_or_else(|| Raise::closed("group"))
    }

    /// Started calls go on in the thread that started them, unless a progress thread works on them.
    #[inline]
    fn check_thread(&self) -> Result<()> {
        if self.started.is_empty()
            || self.has_progress_thread
            || self.thread == Some(std::thread::current().id())
        {
            return Ok(());
        }
        let text = "another thread has started calls on this group that are not over; wait for them there, \
                    or make the group with progress_thread=True";
        Err(Raise::invalid(text))
    }

    fn take(&mut self, number: u64) -> Option<Started> {
        let at = self.started.iter().position(|started| started.number == number)?;
        Some(self.started.swap_remove(at))
    }
}

impl Group {
    pub(crate) fn new(coll: Collectives<'static>, owner: Arc<Owner>, has_progress_thread: bool) -> Self {
        let (rank, size, members) = (coll.rank(), coll.nranks(), coll.members().into());
        let coll = Some(Coll::Own(Box::new(coll)));
        let state = State { coll, started: Vec::new(), thread: None, has_progress_thread, numbers: 0 };
        Self {
            rank,
            size,
            members,
            owner: Some(owner),
            shared: Arc::new(Shared { state: Mutex::new(state) }),
        }
    }

    /// The collectives of a task.
    ///
    /// # Safety
    /// They are there until [`end_borrow`](Self::end_borrow), which is called on this thread.
    pub(crate) unsafe fn borrowed(coll: &Collectives<'static>) -> Self {
        let (rank, size, members) = (coll.rank(), coll.nranks(), coll.members().into());
        let coll = Some(Coll::Lent(NonNull::from(coll)));
        let state = State { coll, started: Vec::new(), thread: None, has_progress_thread: false, numbers: 0 };
        Self { rank, size, members, owner: None, shared: Arc::new(Shared { state: Mutex::new(state) }) }
    }

    /// The task is over: waits for what it started and did not wait for.
    pub(crate) fn end_borrow(&self) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(coll) = state.coll.take() {
            for started in state.started.drain(..) {
                // A failure breaks the group, which the next call reports.
                let _ = coll.get().wait_raw(started.ticket);
            }
        }
    }

    fn owner(&self) -> Result<&Arc<Owner>> {
        self.owner.as_ref().ok_or_else(|| {
            Raise::invalid("a task's group has no empty, memory, split or close: its Worker makes and closes it; use the task's tensors")
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Runs a call to its end.
    ///
    /// # Safety
    /// Its pointers are valid for what it reads and writes until this returns.
    #[inline]
    pub(crate) unsafe fn run(&self, py: Python<'_>, call: Call) -> Result<()> {
        let state = self.shared.enter()?;
        state.check_thread()?;
        let coll = state.open()?;
        // SAFETY: the caller's promise. Memory of the pool that Python shows is bytes, whoever writes it.
        Ok(detached(py, || unsafe { coll.run_raw(call) })?)
    }

    /// Starts what `begin` starts, and keeps its arrays and counts until it is over.
    pub(crate) fn start(
        &self,
        arrays: [Option<Array>; 2],
        counts: [Box<[usize]>; 2],
        begin: impl FnOnce(&Collectives<'static>) -> core::result::Result<Ticket, collectives::CollError>,
    ) -> Result<u64> {
        let mut state = self.shared.enter()?;
        state.check_thread()?;
        let ticket = begin(state.open()?)?;
        state.numbers += 1;
        let number = state.numbers;
        state.thread = Some(std::thread::current().id());
        state.started.push(Started { number, ticket, _arrays: arrays, _counts: counts });
        Ok(number)
    }

    /// A message: started, and waited for unless `number` is asked for.
    pub(crate) fn wait(&self, py: Python<'_>, number: u64) -> Result<()> {
        let mut state = self.shared.enter()?;
        state.check_thread()?;
        // Unknown: it is over, and somebody has asked before.
        let Some(at) = state.started.iter().position(|started| started.number == number) else {
            return Ok(());
        };
        let (coll, ticket) = (state.open()?, state.started[at].ticket);
        let waited = detached(py, || coll.wait_raw(ticket));
        state.take(number);
        Ok(waited?)
    }

    pub(crate) fn test(&self, number: u64) -> Result<bool> {
        let mut state = self.shared.enter()?;
        state.check_thread()?;
        let Some(at) = state.started.iter().position(|started| started.number == number) else {
            return Ok(true);
        };
        let over = state.open()?.test_raw(state.started[at].ticket);
        if !matches!(over, Ok(false)) {
            state.take(number);
        }
        Ok(over?)
    }
}

#[pymethods]
impl Group {
    /// This rank in the group.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the group has.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// The communicator's ranks of the members, in the order of the group.
    #[getter]
    fn members(&self) -> Vec<u32> {
        self.members.to_vec()
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.state.try_lock().is_ok_and(|state| state.coll.is_none())
    }

    /// A zeroed numpy array in this rank's window: peers read and write it where it stands, without a copy.
    #[pyo3(signature = (shape, dtype = None))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        let default = numpy.getattr("float32")?;
        let dtype = numpy.call_method1("dtype", (dtype.unwrap_or(&default),))?;
        let size: usize = dtype.getattr("itemsize")?.extract()?;
        // numpy's own checks of a shape, at no memory.
        let count: usize = numpy.call_method1("broadcast_to", (0, shape))?.getattr("size")?.extract()?;
        let bytes = count.checked_mul(size).ok_or_else(|| {
            Raise::invalid("the array would be larger than memory; ask for a smaller shape")
        })?;
        let memory = self.memory(bytes)?;
        // frombuffer refuses no bytes.
        if bytes == 0 {
            return numpy.call_method1("empty", (shape, dtype));
        }
        memory.into_array(py, &dtype, Some(shape))
    }

    /// Bytes in this rank's window, zeroed.
    fn memory(&self, bytes: usize) -> PyResult<Memory> {
        let state = self.shared.enter()?;
        let coll = state.open()?;
        let owner = self.owner()?;
        for freed in owner.take_freed() {
            // SAFETY: Python dropped the piece, so nothing shows it any more.
            let _ = unsafe { coll.free_raw(freed) };
        }
        let at = coll.alloc_raw(bytes).map_err(Raise::from)?;
        // SAFETY: `bytes` bytes of the pool, which are ours alone until they are freed.
        unsafe { at.as_ptr().write_bytes(0, bytes) };
        // SAFETY: in the window, which the owner's communicator keeps.
        Ok(unsafe { Memory::new(at, bytes, true, owner) })
    }

    /// Makes a group of the ranks that pass the same color, in the order of their keys. Collective; without a color there is none.
    #[pyo3(signature = (color, key = 0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let owner = self.owner()?;
        let state = self.shared.enter()?;
        state.check_thread()?;
        let coll = state.open()?;
        let made = detached(py, || coll.split(color, key)).map_err(Raise::from)?;
        Ok(made.map(|coll| Self::new(coll, Owner::new(owner.comm.get().clone()), state.has_progress_thread)))
    }

    /// Finishes what was started, and closes the group. Collective. Arrays in its window stay readable.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let owner = self.owner()?;
        let mut state = self.shared.enter()?;
        state.check_thread()?;
        if owner.comm.is_forked() {
            std::mem::forget(state.coll.take());
            return Ok(());
        }
        let tickets: Vec<Ticket> = state.started.iter().map(|started| started.ticket).collect();
        let Some(Coll::Own(coll)) = state.coll.take() else { return Ok(()) };
        let live = u8::from(owner.live() > 0);
        let closed = detached(py, move || {
            tickets.into_iter().try_for_each(|ticket| coll.wait_raw(ticket))?;
            let mut any_live = [live];
            coll.all_reduce(&mut any_live, Op::Max)?;
            if any_live == [0] {
                return coll.close();
            }
            // On all ranks alike: the window stays with the communicator, because arrays show it.
            coll.abandon();
            Ok(())
        });
        state.started.clear();
        Ok(closed.map_err(Raise::from)?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// After an exception the others learn of it, and are not waited for.
    #[pyo3(signature = (kind, *_rest))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _rest: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        if kind.is_none() {
            return self.close(py);
        }
        let why = format!("{} was raised", kind.getattr("__name__")?);
        let mut state = self.shared.enter()?;
        if let Some(coll) = state.coll.take() {
            coll.get().give_up(&why);
            coll.abandon();
        }
        state.started.clear();
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<chipcomm.Group: rank {} of {:?}>", self.rank, self.members)
    }
}

/// A call that was started. `wait` returns when it is over.
#[pyclass(frozen, module = "chipcomm")]
pub(crate) struct Request {
    pub(crate) group: Py<Group>,
    pub(crate) number: u64,
}

#[pymethods]
impl Request {
    /// Waits until the call is over.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.group.get().wait(py, self.number)?)
    }

    /// Whether the call is over. Does not wait.
    fn test(&self) -> PyResult<bool> {
        Ok(self.group.get().test(self.number)?)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nobody closed it: the others are not waited for, because Python decides when this runs.
        if let Some(coll) = state.coll.take() {
            coll.abandon();
        }
    }
}
