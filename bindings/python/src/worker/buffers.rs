//! Memory that tasks of a Worker use: host buffers, and memory that was allocated on a chip.
//!
//! # Safety
//! Shows host buffers to Python, which keeps them as long as it shows them.
#![allow(unsafe_code)]

use super::args::Ranges;
use crate::error::{Raise, Result};
use crate::memory::view_of;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use worker_orch::{ChipMemory as Allocated, HostBuffer as Buffer};

/// Host memory that all chips of a Worker see at one address: what arrays of `Worker.empty` stand on.
#[pyclass(frozen, weakref, module = "chipcomm._native")]
pub(crate) struct HostBuffer {
    at: NonNull<u8>,
    bytes: usize,
    buffer: Option<Buffer<u64>>,
    ranges: Arc<Ranges>,
}

// SAFETY: shared memory, which may be looked at from any thread.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    pub(super) fn new(buffer: Buffer<u64>, bytes: usize, ranges: Arc<Ranges>) -> Result<Self> {
        let span = buffer.span();
        let at = NonNull::new(std::ptr::with_exposed_provenance_mut(span.addr() as usize));
        let at = at.ok_or_else(|| Raise::invalid("a host buffer at no address"))?;
        ranges.add_host(span.addr(), span.len());
        Ok(Self { at, bytes, buffer: Some(buffer), ranges })
    }

    pub(super) fn span(&self) -> Result<worker_orch::HostSpan> {
        let span = self.buffer.as_ref().map(Buffer::span).ok_or_else(|| Raise::closed("host buffer"))?;
        let (region, start) = (span.region().clone(), span.addr() - span.region().base().as_ptr() as u64);
        let range = start as usize..start as usize + self.bytes;
        worker_orch::HostSpan::new(region, range).map_err(|error| Raise::invalid(error.to_string()))
    }
}

#[pymethods]
impl HostBuffer {
    #[getter]
    fn address(&self) -> usize {
        self.at.addr().get()
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: the buffer is mapped as long as the object, and in children as long as they live.
        unsafe { view_of(slf.as_any(), slf.get().at, slf.get().bytes, view, flags) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.ranges.remove_host(self.at.addr().get() as u64);
    }
}

/// Memory of one chip, which is freed when this is gone or with `free`.
#[pyclass(frozen, module = "chipcomm._native")]
pub(crate) struct ChipMemory {
    #[pyo3(get)]
    address: u64,
    #[pyo3(get)]
    chip: usize,
    memory: Mutex<Option<Allocated>>,
    pid: u32,
    ranges: Arc<Ranges>,
}

impl ChipMemory {
    pub(super) fn new(memory: Allocated, ranges: Arc<Ranges>) -> Self {
        let (address, chip) = (memory.addr().0, memory.chip());
        ranges.add_chip(address, memory.len());
        Self { address, chip, memory: Mutex::new(Some(memory)), pid: std::process::id(), ranges }
    }
}

#[pymethods]
impl ChipMemory {
    /// Frees it, in the process that allocated it. Once more does nothing.
    fn free(&self) {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(memory) = memory else { return };
        if self.pid == std::process::id() {
            self.ranges.remove_chip(self.address);
        } else {
            // A forked copy.
            std::mem::forget(memory);
        }
    }
}

impl Drop for ChipMemory {
    fn drop(&mut self) {
        self.free();
    }
}
