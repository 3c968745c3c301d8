//! Host memory in rows of one length: one row for each iteration of a batch.

use comm_context::abi::{DeviceAddr, TensorDesc};
use worker_orch::{Element, Failure, HostBuffer, Worker, flat_tensor};

/// All rows of all chips together take at most about this many bytes.
const MOST_BYTES: usize = 64 << 20;
/// More rows than this do not make a run faster.
const MOST_ROWS: usize = 1024;

/// How many iterations a batch may have when each takes `bytes` of host memory.
pub fn rows_that_fit(bytes: usize) -> u32 {
    (MOST_BYTES / bytes.max(1)).clamp(1, MOST_ROWS) as u32
}

/// Rows of floats.
pub struct Rows {
    buffer: HostBuffer<f32>,
    len: usize,
}

impl Rows {
    /// `rows` rows of `len` floats, all 0.
    pub fn new(worker: &Worker, rows: u32, len: usize) -> Result<Self, Failure> {
        Ok(Self { buffer: worker.host_buffer((rows as usize).saturating_mul(len))?, len })
    }

    /// Fills every row: `value(row, index)`.
    pub fn fill(&self, value: impl Fn(u32, usize) -> f64) -> Result<(), Failure> {
        let all = (0..self.buffer.len()).map(|at| value((at / self.len) as u32, at % self.len) as f32);
        self.buffer.write(&all.collect::<Vec<f32>>())
    }

    /// Fills every element with the same bits.
    pub fn reset(&self, value: f32) -> Result<(), Failure> {
        self.buffer.write(&vec![value; self.buffer.len()])
    }

    /// One row as a tensor of one dimension.
    pub fn tensor(&self, row: u32) -> Result<TensorDesc, Failure> {
        let skipped = row as usize * self.len * size_of::<f32>();
        flat_tensor(DeviceAddr(self.buffer.tensor().addr + skipped as u64), f32::DTYPE, self.len)
    }

    /// All elements, row after row.
    pub fn to_vec(&self) -> Vec<f32> {
        self.buffer.to_vec()
    }
}
