//! The arguments of a task.

use comm_context::abi::TensorDesc;
use std::ops::Range;

/// What a task does with a tensor; the order of tasks follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Input,
    /// Writes it, whatever was there.
    Output,
    /// Reads and writes it.
    InOut,
    /// Writes into a buffer that exists and keeps what it does not write.
    OutputExisting,
    /// The caller takes care of the order.
    NoDependency,
}

/// Tensors, each with its access, then raw scalars: what a kernel finds in its argument list, in this order.
///
/// ```
/// use comm_context::abi::{DType, DeviceAddr};
/// use worker_orch::{Access, Args, flat_tensor};
///
/// let x = flat_tensor(DeviceAddr(0x1000), DType::Float32, 256)?;
/// let args = Args::new().tensor(&x, Access::InOut).scalar(7);
/// assert_eq!((args.tensors().len(), args.scalars()), (1, &[7][..]));
/// # Ok::<_, worker_errors::Failure>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Args {
    tensors: Vec<TensorDesc>,
    accesses: Vec<Access>,
    scalars: Vec<u64>,
}

impl Args {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more tensor.
    pub fn tensor(mut self, tensor: &TensorDesc, access: Access) -> Self {
        self.tensors.push(*tensor);
        self.accesses.push(access);
        self
    }

    /// One more scalar, passed on bit for bit: device pointers, contexts, integers.
    pub fn scalar(mut self, value: u64) -> Self {
        self.scalars.push(value);
        self
    }

    /// The tensors.
    pub fn tensors(&self) -> &[TensorDesc] {
        &self.tensors
    }

    /// The scalars.
    pub fn scalars(&self) -> &[u64] {
        &self.scalars
    }

    /// The byte ranges that the tensors really cover, each with its access.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Range<u64>, Access)> {
        self.tensors.iter().zip(&self.accesses).map(|(tensor, access)| (extent(tensor), *access))
    }
}

/// From the first byte to the last that a tensor's elements touch.
fn extent(tensor: &TensorDesc) -> Range<u64> {
    let size = tensor.dtype().map_or(1, |dtype| dtype.size());
    let start = tensor.addr.saturating_add(tensor.start_offset.saturating_mul(size));
    start..start.saturating_add(tensor.extent.saturating_mul(size))
}
