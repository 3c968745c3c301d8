//! Host memory that a chip's process shares with its parent.

use shared_memory::{Region, RegionError};
use std::ops::Range;
use std::sync::Arc;

/// A range of shared host memory: where inputs are staged from and outputs are stored to.
#[derive(Clone, Debug)]
pub struct HostSpan {
    region: Arc<Region>,
    range: Range<usize>,
}

impl HostSpan {
    /// The bytes `range` of `region`.
    pub fn new(region: Arc<Region>, range: Range<usize>) -> Result<Self, RegionError> {
        let (start, end, len) = (range.start, range.end, region.len());
        if start > end || end > len {
            return Err(RegionError::OutOfBounds { start, end, len });
        }
        Ok(Self { region, range })
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The address of the bytes, in every process that inherited the region.
    pub fn addr(&self) -> u64 {
        self.region.base().as_ptr() as u64 + self.range.start as u64
    }

    /// The memory behind it.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Copies the bytes from `offset` on out.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RegionError> {
        self.region.read(self.at(offset, into.len())?, into)
    }

    /// Copies bytes in from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.region.write(self.at(offset, bytes.len())?, bytes)
    }

    fn at(&self, offset: usize, len: usize) -> Result<usize, RegionError> {
        let end = offset.saturating_add(len);
        if end <= self.len() {
            Ok(self.range.start + offset)
        } else {
            Err(RegionError::OutOfBounds { start: offset, end, len: self.len() })
        }
    }
}
