//! Tensors whose shards lie on the ranks of a group.

use super::work::Pending;
use super::{DATA_LIMIT, DistError, PAGE, ProcessGroup, at_most};
use crate::config::DType;
use crate::data;
use crate::placement::{Part, Placement};

/// A tensor of two dimensions, one shard per rank.
pub struct Tensor {
    rows: u64,
    cols: u64,
    pub(super) dtype: DType,
    parts: Vec<Part>,
    /// Where each shard starts, in a memory that all shards share.
    addresses: Vec<u64>,
    memory: Vec<u8>,
    /// Collectives that have been started on it and not been waited for.
    pub(super) pending: Vec<Pending>,
}

impl Tensor {
    /// All zero, placed over the ranks of a group.
    pub fn zeros(
        group: &ProcessGroup,
        rows: u64,
        cols: u64,
        dtype: DType,
        placement: &Placement,
    ) -> Result<Tensor, DistError> {
        let parts = placement.parts(&group.places(), group.world_size, rows, cols)?;
        let mut addresses = Vec::with_capacity(parts.len());
        let mut end = 0;
        for part in &parts {
            addresses.push(end);
            end = (end + part.rows * part.cols * dtype.bytes()).next_multiple_of(PAGE);
        }
        let tensor = Tensor { rows, cols, dtype, parts, addresses, memory: Vec::new(), pending: Vec::new() };
        at_most("bytes of memory", end, DATA_LIMIT)?;
        Ok(Tensor { memory: vec![0; end as usize], ..tensor })
    }

    /// Elements of a shard; all shards have as many.
    pub fn shard_len(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.rows * part.cols)
    }

    fn range(&self, rank: u32) -> std::ops::Range<usize> {
        let start = self.addresses[rank as usize] as usize;
        start..start + (self.shard_len() * self.dtype.bytes()) as usize
    }

    /// The bytes of a rank's shard.
    pub fn shard(&self, rank: u32) -> &[u8] {
        &self.memory[self.range(rank)]
    }

    pub(super) fn shard_mut(&mut self, rank: u32) -> &mut [u8] {
        let range = self.range(rank);
        &mut self.memory[range]
    }

    /// The numbers of a rank's shard.
    pub fn values(&self, rank: u32) -> Vec<f32> {
        data::decode(self.dtype, self.shard(rank))
    }

    /// A tensor from host data, row by row, as `from_numpy` makes one of an array.
    pub fn from_host(
        group: &ProcessGroup,
        (rows, cols): (u64, u64),
        dtype: DType,
        placement: &Placement,
        host: &[f32],
    ) -> Result<Tensor, DistError> {
        let mut tensor = Tensor::zeros(group, rows, cols, dtype, placement)?;
        tensor.copy_(host)?;
        Ok(tensor)
    }

    /// Scatters host data, row by row, into the shards; not while a collective is under way on it.
    pub fn copy_(&mut self, host: &[f32]) -> Result<(), DistError> {
        if !self.pending.is_empty() {
            return Err(DistError::Busy);
        }
        if host.len() as u64 != self.rows * self.cols {
            return Err(DistError::HostSize { given: host.len(), rows: self.rows, cols: self.cols });
        }
        for rank in 0..self.parts.len() as u32 {
            let part = self.parts[rank as usize];
            let rows = part.row..part.row + part.rows;
            let values: Vec<f32> = rows
                .flat_map(|row| &host[(row * self.cols + part.col) as usize..][..part.cols as usize])
                .copied()
                .collect();
            let bytes = data::encode(self.dtype, &values);
            self.shard_mut(rank).copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// The whole tensor on the host, row by row; where shards are replicas, the first one counts.
    pub fn gather(&self) -> Vec<f32> {
        let mut host = vec![0.0; (self.rows * self.cols) as usize];
        for rank in (0..self.parts.len() as u32).rev() {
            let part = self.parts[rank as usize];
            for (i, row) in self.values(rank).chunks(part.cols.max(1) as usize).enumerate() {
                let start = ((part.row + i as u64) * self.cols + part.col) as usize;
                host[start..start + row.len()].copy_from_slice(row);
            }
        }
        host
    }
}
