//! The arguments of a task.

use crate::task_id::TaskId;
use comm_context::abi::TensorDesc;
use comm_context::comm::Timeout;
use std::ops::Range;
use worker_errors::{ErrorCode, Failure};

/// A tensor's descriptor in a frame.
pub(crate) const TENSOR_BYTES: usize = size_of::<TensorDesc>();

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
#[derive(Clone, Debug)]
pub struct Args {
    tensors: Vec<TensorDesc>,
    accesses: Vec<Access>,
    scalars: Vec<u64>,
    after: Vec<TaskId>,
    blocks: u32,
    within: Option<Timeout>,
}

impl Default for Args {
    fn default() -> Self {
        let (tensors, accesses, scalars, after) = Default::default();
        Self { tensors, accesses, scalars, after, blocks: 1, within: None }
    }
}

impl Args {
    /// The most tensors of a task.
    pub const MAX_TENSORS: usize = 32;
    /// The most scalars of a task.
    pub const MAX_SCALARS: usize = 16;
    /// The most blocks of a task.
    pub const MAX_BLOCKS: u32 = chip_bootstrap::MAX_BLOCKS;

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

    /// The task waits for `tasks`, whatever memory they touch, and does not run when one of them fails.
    ///
    /// They are tasks of the run that these arguments are used in, or of one in flight with it, whichever chip or sub-worker they run on.
    /// Tasks of a run that is over, or of another Worker, are refused when the task is submitted.
    pub fn after(mut self, tasks: &[TaskId]) -> Self {
        self.after.extend_from_slice(tasks);
        self
    }

    /// A kernel runs on `count` blocks, 1 unless this is called and at most [`MAX_BLOCKS`](Self::MAX_BLOCKS): once for
    /// each, with a `LocalContext` (argument 48) that says which block it is, and of how many. The task is done when all
    /// of them are.
    ///
    /// On a chip blocks run on its cores, as many at the same time as it has cores. On the simulation they run one after the other
    /// in the chip's process, so a block must not wait for another one of its task. A Rust function runs once, and more
    /// blocks are refused when the task is submitted.
    pub fn blocks(mut self, count: u32) -> Self {
        self.blocks = count;
        self
    }

    /// The task may take this long, from when it begins. One that takes longer ends its run as a run ends that takes too long: what waits
    /// returns, and a process that does not come back is ended.
    pub fn within(mut self, limit: Timeout) -> Self {
        self.within = Some(limit);
        self
    }

    pub(crate) fn limit(&self) -> Option<Timeout> {
        self.within
    }

    /// The tensors.
    pub fn tensors(&self) -> &[TensorDesc] {
        &self.tensors
    }

    /// The scalars.
    pub fn scalars(&self) -> &[u64] {
        &self.scalars
    }

    /// The tasks to wait for.
    pub(crate) fn prerequisites(&self) -> &[TaskId] {
        &self.after
    }

    /// The number of blocks.
    pub(crate) fn block_count(&self) -> u32 {
        self.blocks
    }

    /// Whether there is neither a tensor nor a task to wait for.
    pub(crate) fn names_nothing(&self) -> bool {
        self.tensors.is_empty() && self.after.is_empty()
    }

    /// Whether there are no more scalars than any task takes, and one block.
    pub(crate) fn is_small(&self) -> bool {
        self.scalars.len() <= Self::MAX_SCALARS && self.blocks == 1
    }

    /// Refuses more than any task takes, whatever else is under way (WO-10).
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let (tensors, scalars) = (self.tensors.len(), self.scalars.len());
        if !(1..=Self::MAX_BLOCKS).contains(&self.blocks) {
            let text = format!(
                "a task with {} blocks; it has 1 to {}: give each block more of the work",
                self.blocks,
                Self::MAX_BLOCKS
            );
            return Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"));
        }
        if tensors <= Self::MAX_TENSORS && scalars <= Self::MAX_SCALARS {
            return self.check_tensors();
        }
        let text = format!(
            "a task with {tensors} tensors and {scalars} scalars; it takes at most {} tensors and {} scalars: \
             join tensors that lie side by side, or pass scalars in a tensor",
            Self::MAX_TENSORS,
            Self::MAX_SCALARS
        );
        Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"))
    }

    /// Refuses a descriptor that contradicts itself, which a chip would not take for a task.
    fn check_tensors(&self) -> Result<(), Failure> {
        for (index, tensor) in self.tensors.iter().enumerate() {
            if let Err(why) = tensor.check() {
                let text = format!(
                    "tensor {index} of the task is malformed: {why}; make it with flat_tensor or TensorDesc::builder, and \
                     change no field of it"
                );
                return Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"));
            }
        }
        Ok(())
    }

    /// The tensors, each with its access.
    pub(crate) fn tensors_by_access(&self) -> impl Iterator<Item = (&TensorDesc, Access)> {
        self.tensors.iter().zip(self.accesses.iter().copied())
    }

    /// The byte ranges that the tensors really cover, each with its access.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Range<u64>, Access)> + Clone {
        self.tensors.iter().zip(&self.accesses).map(|(tensor, access)| (extent(tensor), *access))
    }
}

/// From the first byte to the last that a tensor's elements touch.
fn extent(tensor: &TensorDesc) -> Range<u64> {
    let size = tensor.dtype().map_or(1, |dtype| dtype.size());
    let start = tensor.addr.saturating_add(tensor.start_offset.saturating_mul(size));
    start..start.saturating_add(tensor.extent.saturating_mul(size))
}
