//! Memory of a window, shown to Python through the buffer protocol.
//!
//! # Safety
//! Gives out pointers into windows. A [`Lease`] keeps the communicator, and with it the mapping; who frees the memory sees that there is
//! no lease.
#![allow(unsafe_code)]

use comm_context::comm::Communicator;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A reference to a communicator, which knows the process that made it. In a forked copy the communicator does nothing when it is
/// destroyed or dropped.
pub(crate) struct Kept {
    comm: Arc<Box<dyn Communicator>>,
    pid: u32,
}

impl Kept {
    pub(crate) fn new(comm: Arc<Box<dyn Communicator>>) -> Self {
        Self { comm, pid: std::process::id() }
    }

    pub(crate) fn get(&self) -> &Arc<Box<dyn Communicator>> {
        &self.comm
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// The communicator itself, if this was the last reference.
    pub(crate) fn into_inner(self) -> Option<Box<dyn Communicator>> {
        Arc::into_inner(self.comm)
    }
}

/// What pieces of memory have in common: what keeps them mapped, how many there are, and which are free again.
pub(crate) struct Owner {
    pub(crate) comm: Kept,
    live: AtomicUsize,
    freed: Mutex<Vec<NonNull<u8>>>,
}

// SAFETY: the pointers in `freed` are numbers here; only the group that they came from uses them.
unsafe impl Send for Owner {}
// SAFETY: as above, behind a lock.
unsafe impl Sync for Owner {}

impl Owner {
    pub(crate) fn new(comm: Arc<Box<dyn Communicator>>) -> Arc<Self> {
        Arc::new(Self { comm: Kept::new(comm), live: AtomicUsize::new(0), freed: Mutex::default() })
    }

    /// How many pieces Python has.
    pub(crate) fn live(&self) -> usize {
        // Acquire: pairs with the release of the piece that went last.
        self.live.load(Ordering::Acquire)
    }

    /// The pieces that Python has given back since the last call.
    pub(crate) fn take_freed(&self) -> Vec<NonNull<u8>> {
        std::mem::take(&mut *self.freed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Bytes in a window of this process or of a peer: what numpy arrays in windows stand on.
#[pyclass(frozen, module = "chipcomm")]
pub(crate) struct Memory {
    at: NonNull<u8>,
    bytes: usize,
    /// Whether the group gets it back.
    pooled: bool,
    owner: Arc<Owner>,
}

// SAFETY: a piece of shared memory may be looked at from any thread; what is written there is the caller's business, as with any array.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `bytes` bytes at `at` are mapped as long as the owner's communicator.
    pub(crate) unsafe fn new(at: NonNull<u8>, bytes: usize, pooled: bool, owner: &Arc<Owner>) -> Self {
        // Relaxed: counted before anybody else can see the piece.
        owner.live.fetch_add(1, Ordering::Relaxed);
        Self { at, bytes, pooled, owner: owner.clone() }
    }

    /// The memory as a numpy array, which keeps it.
    pub(crate) fn into_array<'py>(
        self,
        py: Python<'py>,
        dtype: &Bound<'py, PyAny>,
        shape: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = py.import("numpy")?.call_method1("frombuffer", (Bound::new(py, self)?, dtype))?;
        match shape {
            Some(shape) => array.call_method1("reshape", (shape,)),
            None => Ok(array),
        }
    }
}

#[pymethods]
impl Memory {
    /// The address, as kernels and C take it.
    #[getter]
    fn address(&self) -> usize {
        self.at.addr().get()
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    fn __repr__(&self) -> String {
        format!("<chipcomm.Memory: {} bytes at {:#x}>", self.bytes, self.at.addr())
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if slf.get().owner.comm.is_forked() {
            return Err(PyBufferError::new_err(
                "this memory belongs to the process that this one was forked from; make it after the fork",
            ));
        }
        // SAFETY: mapped as long as the owner, which the object keeps.
        unsafe { view_of(slf.as_any(), slf.get().at, slf.get().bytes, view, flags) }
    }
}

/// Fills a view of Python's on `bytes` bytes at `at`.
///
/// # Safety
/// The memory is there as long as `object`, to which the view takes a reference; the view is Python's to fill.
pub(crate) unsafe fn view_of(
    object: &Bound<'_, PyAny>,
    at: NonNull<u8>,
    bytes: usize,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    // SAFETY: the caller's promise.
    match unsafe {
        ffi::PyBuffer_FillInfo(view, object.as_ptr(), at.as_ptr().cast(), bytes as ffi::Py_ssize_t, 0, flags)
    } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(object.py())),
    }
}

/// Bytes that are there as long as this process: a task's tensors, in a child.
#[pyclass(frozen, module = "chipcomm._native")]
pub(crate) struct Bytes {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as `Memory`.
unsafe impl Send for Bytes {}
// SAFETY: as `Memory`.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// # Safety
    /// The bytes are mapped as long as this process.
    pub(crate) unsafe fn new(at: NonNull<u8>, bytes: usize) -> Self {
        Self { at, bytes }
    }
}

#[pymethods]
impl Bytes {
    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: promised to `new`.
        unsafe { view_of(slf.as_any(), slf.get().at, slf.get().bytes, view, flags) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.pooled {
            self.owner.freed.lock().unwrap_or_else(PoisonError::into_inner).push(self.at);
        }
        // Release: pairs with the acquire in `live`; what this process did with the memory is over.
        self.owner.live.fetch_sub(1, Ordering::Release);
    }
}
