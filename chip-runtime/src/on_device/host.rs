//! Tensors in host memory that tasks on a device use: copied to the device when the graph is complete, before anything starts, and what
//! tasks write copied back when the run has ended.
//!
//! A host address is never one of a device: the driver itself tells the two apart by the address (`aclrtPointerGetAttributes`).
//!
//! # Safety
//! Reads and writes memory that the graph was given: that of a [`Buffer`](crate::Buffer), which is in use until this value is dropped, or
//! by the promise of [`DeviceGraph::import_host_raw`](super::DeviceGraph::import_host_raw).
#![allow(unsafe_code)]

use super::OnDeviceError;
use crate::buffer::Memory;
use crate::element;
use crate::task::Site;
use comm_context::abi::TensorDesc;
use comm_hccl::{Device, DeviceError, DeviceMemory};
use shared_memory::{copy_from_shared, copy_to_shared};
use std::ops::Range;
use std::sync::Arc;

/// What is copied at once.
const PIECE: usize = 1 << 20;

/// The host memory that a graph was given.
#[derive(Debug, Default)]
pub(super) struct HostTensors {
    parts: Vec<Part>,
    buffers: Vec<Arc<Memory>>,
}

/// A range that overlaps no other.
#[derive(Debug)]
struct Part {
    range: Range<u64>,
    /// Room for its copy on the device, if a task uses it, with the place of the first that does.
    copy: Option<(DeviceMemory, Site)>,
    /// What tasks write of it, with the place of the first that does.
    written: Vec<(TensorDesc, Site)>,
}

impl HostTensors {
    /// Lets tasks use the memory of a buffer.
    pub(super) fn give_buffer(&mut self, memory: &Arc<Memory>, site: Site) -> Result<(), OnDeviceError> {
        self.give(memory.range(), site)?;
        memory.begin_use();
        self.buffers.push(memory.clone());
        Ok(())
    }

    /// Lets tasks use this memory. What overlaps is one part, with one copy.
    pub(super) fn give(&mut self, range: Range<u64>, site: Site) -> Result<(), OnDeviceError> {
        let holds =
            |part: &Part| part.range.start <= range.start && range.end <= part.range.end && !range.is_empty();
        if range.is_empty() || self.parts.iter().any(holds) {
            return Ok(());
        }
        let overlaps = |part: &Part| part.range.start < range.end && range.start < part.range.end;
        if self.parts.iter().any(|part| overlaps(part) && part.copy.is_some()) {
            let (addr, bytes) = (range.start, range.end - range.start);
            return Err(OnDeviceError::HostOverlap { addr, bytes, site });
        }
        let (joined, apart): (Vec<Part>, _) = std::mem::take(&mut self.parts).into_iter().partition(overlaps);
        let start = joined.iter().map(|part| part.range.start).fold(range.start, u64::min);
        let end = joined.iter().map(|part| part.range.end).fold(range.end, u64::max);
        self.parts = apart;
        self.parts.push(Part { range: start..end, copy: None, written: Vec::new() });
        Ok(())
    }

    /// Whether a tensor lies in it.
    pub(super) fn holds(&self, desc: &TensorDesc) -> bool {
        self.parts.iter().any(|part| part.holds(desc))
    }

    /// The tensor as it will be on the device, if it is one of the host's.
    pub(super) fn on_device(
        &mut self,
        device: &Device,
        desc: &TensorDesc,
        site: Site,
    ) -> Result<Option<TensorDesc>, OnDeviceError> {
        let Some(part) = self.part(desc) else { return Ok(None) };
        if part.copy.is_none() {
            let room = DeviceMemory::allocate(device, (part.range.end - part.range.start) as usize);
            part.copy =
                Some((room.map_err(|source| part.failed("copied to the device", site, source))?, site));
        }
        let copy = part.copy.as_ref().map_or(0, |(copy, _)| copy.addr().0);
        Ok(Some(TensorDesc { addr: copy + (desc.addr - part.range.start), ..*desc }))
    }

    /// A task writes this tensor, or may.
    pub(super) fn writes(&mut self, desc: &TensorDesc, site: Site) {
        if let Some(part) = self.part(desc)
            && !part.written.iter().any(|(known, _)| known == desc)
        {
            part.written.push((*desc, site));
        }
    }

    fn part(&mut self, desc: &TensorDesc) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.holds(desc))
    }

    /// The graph is complete: copies what its tasks use.
    pub(super) fn copy_in(&self) -> Result<(), OnDeviceError> {
        for part in &self.parts {
            let Some((copy, site)) = &part.copy else { continue };
            let copied = copy_to_device(copy, &part.range);
            copied.map_err(|source| part.failed("copied to the device", *site, source))?;
        }
        Ok(())
    }

    /// The bits of an element of a tensor that lies in it, in the low bytes.
    pub(super) fn load(&self, desc: &TensorDesc, (addr, size): (u64, usize)) -> Option<u64> {
        // SAFETY: an element of a tensor in memory that the graph was given, see the head of the file.
        self.holds(desc).then(|| unsafe { element::load(addr, size) })
    }

    /// Replaces an element of a tensor that lies in it. False when it does not.
    pub(super) fn store(&self, desc: &TensorDesc, (addr, size): (u64, usize), bits: u64) -> bool {
        let is_here = self.holds(desc);
        if is_here {
            // SAFETY: as in `load`.
            unsafe { element::store(addr, size, bits) };
        }
        is_here
    }

    /// The run has ended well: copies back what tasks wrote, and nothing beside it.
    pub(super) fn copy_back(&self) -> Result<(), OnDeviceError> {
        for part in &self.parts {
            let Some((copy, _)) = &part.copy else { continue };
            for (desc, site) in &part.written {
                let failed = |source| part.failed("copied back", *site, source);
                copy_back(copy, part.range.start, desc).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Drop for HostTensors {
    fn drop(&mut self) {
        self.buffers.iter().for_each(|memory| memory.end_use());
    }
}

impl Part {
    fn holds(&self, desc: &TensorDesc) -> bool {
        let end = desc.addr.checked_add(desc.size);
        desc.size > 0 && self.range.start <= desc.addr && end.is_some_and(|end| end <= self.range.end)
    }

    fn failed(&self, what: &'static str, site: Site, source: DeviceError) -> OnDeviceError {
        let Range { start, end } = self.range;
        OnDeviceError::Host { addr: start, bytes: end - start, what, site, source: Box::new(source) }
    }
}

fn copy_to_device(copy: &DeviceMemory, range: &Range<u64>) -> Result<(), DeviceError> {
    let len = copy.size();
    let mut piece = vec![0; len.min(PIECE)];
    for at in (0..len).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(len - at)];
        // SAFETY: inside memory that the graph was given, see the head of the file.
        unsafe { copy_from_shared((range.start as usize + at) as *const u8, piece) };
        copy.write(at, piece)?;
    }
    Ok(())
}

/// Copies the elements of a tensor back, from the copy of the memory at `start`.
fn copy_back(copy: &DeviceMemory, start: u64, desc: &TensorDesc) -> Result<(), DeviceError> {
    let size = desc.dtype().map_or(1, |dtype| dtype.size());
    let first = (desc.addr - start + desc.start_offset * size) as usize;
    let mut bytes = vec![0; (desc.extent * size) as usize];
    copy.read(first, &mut bytes)?;
    for run in runs(desc) {
        let Range { start: from, end } = (run.start * size) as usize..(run.end * size) as usize;
        let to = start + (first + from) as u64;
        // SAFETY: a tensor that was checked lies in its memory, which the graph was given: see the head of the file.
        unsafe { copy_to_shared(&bytes[from..end], to as *mut u8) };
    }
    Ok(())
}

/// The elements of a tensor that lie side by side, counted from its first.
fn runs(desc: &TensorDesc) -> Vec<Range<u64>> {
    let ndims = (desc.ndims as usize).min(desc.shapes.len());
    let (mut runs, mut len) = (vec![0], 1);
    for (count, stride) in desc.shapes[..ndims].iter().zip(&desc.strides).rev() {
        let (count, stride) = (u64::from(*count), u64::from(*stride));
        if runs.len() == 1 && stride == len {
            // This dimension goes on where the inner ones end.
            len *= count;
        } else {
            runs = (0..count).flat_map(|at| runs.iter().map(move |run| run + at * stride)).collect();
        }
    }
    if len == 0 { Vec::new() } else { runs.into_iter().map(|run| run..run + len).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::abi::{DType, DeviceAddr};

    fn of(shape: &[u32], strides: &[u32]) -> Vec<Range<u64>> {
        let desc = TensorDesc::builder(DeviceAddr(64), 4096, DType::Float32, shape).strides(strides);
        runs(&desc.build().unwrap())
    }

    #[test]
    fn elements_side_by_side_are_copied_at_once_and_nothing_between_them() {
        assert_eq!((of(&[3, 4], &[4, 1]).len(), of(&[3, 4], &[4, 1])[0].clone()), (1, 0..12));
        assert_eq!(of(&[3, 2], &[4, 1]), [0..2, 4..6, 8..10]);
        assert_eq!(of(&[2, 3], &[1, 10]), [0..1, 10..11, 20..21, 1..2, 11..12, 21..22]);
        assert_eq!(of(&[2, 2, 2], &[100, 2, 1]), [0..4, 100..104]);
        assert!(of(&[0], &[1]).is_empty() && of(&[2, 0], &[5, 1]).is_empty());
    }

    #[test]
    fn memory_that_overlaps_is_one_part() {
        let site = Site { file: "here.rs", line: 1 };
        let mut host = HostTensors::default();
        for range in [0..10, 20..30, 40..50, 22..24, 8..25, 60..60] {
            host.give(range, site).unwrap();
        }
        let mut ranges: Vec<_> = host.parts.iter().map(|part| part.range.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        assert_eq!(ranges, [0..30, 40..50]);
    }
}
