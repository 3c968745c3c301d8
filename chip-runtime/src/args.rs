//! What a task is given.

use crate::signals::{Signal, Wait};
use crate::task::TaskId;
use crate::tensor::Create;
use comm_context::abi::{TENSOR_MAX_DIMS, TensorDesc};

/// A tensor of a task, and what the task does with it.
// The largest variant is the one that nearly all have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TensorArg {
    /// Reads it.
    Input(TensorDesc),
    /// Makes it.
    Output(Create),
    /// Reads and writes it.
    InOut(TensorDesc),
    /// Writes it; what it held before is not read.
    OutputExisting(TensorDesc),
    /// Uses it, and no dependency follows from that.
    NoDep(TensorDesc),
}

impl TensorArg {
    pub(crate) fn writes(&self) -> bool {
        matches!(self, Self::Output(_) | Self::InOut(_) | Self::OutputExisting(_))
    }

    /// The descriptor of a tensor that exists, to be changed.
    #[cfg(feature = "ascend")]
    pub(crate) fn existing_mut(&mut self) -> Option<&mut TensorDesc> {
        match self {
            Self::Output(_) => None,
            Self::Input(desc) | Self::InOut(desc) | Self::OutputExisting(desc) | Self::NoDep(desc) => {
                Some(desc)
            }
        }
    }
}

/// How a predicate compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater.
    Gt,
    /// Less.
    Lt,
    /// Greater or equal.
    Ge,
    /// Less or equal.
    Le,
}

/// Runs a task only if an element compares so when the task is ready; otherwise it completes without a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicate {
    /// The tensor.
    pub tensor: TensorDesc,
    /// How many dimensions the index has.
    pub ndims: usize,
    /// Which element.
    pub index: [u32; TENSOR_MAX_DIMS],
    /// How it is compared.
    pub compare: Compare,
    /// With what.
    pub target: i64,
}

impl Predicate {
    /// The element at `index` of `tensor`, compared with `target`.
    ///
    /// # Panics
    /// If the index has more than five dimensions.
    pub fn new(tensor: &impl AsRef<TensorDesc>, index: &[u32], compare: Compare, target: i64) -> Self {
        assert!(index.len() <= TENSOR_MAX_DIMS, "an index has at most {TENSOR_MAX_DIMS} dimensions");
        let mut whole = [0; TENSOR_MAX_DIMS];
        whole[..index.len()].copy_from_slice(index);
        Self { tensor: *tensor.as_ref(), ndims: index.len(), index: whole, compare, target }
    }
}

/// What a task is given: tensors and scalars, which its kernels see in this order, and how it is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskArgs {
    pub(crate) tensors: Vec<TensorArg>,
    pub(crate) scalars: Vec<u64>,
    pub(crate) blocks: u32,
    pub(crate) sync_start: bool,
    pub(crate) predicate: Option<Predicate>,
    pub(crate) after: Vec<TaskId>,
    pub(crate) retained: Vec<TaskId>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) signals: Vec<Signal>,
}

impl Default for TaskArgs {
    fn default() -> Self {
        Self::new()
    }
}

impl TaskArgs {
    /// Nothing, in one block.
    pub fn new() -> Self {
        Self {
            tensors: Vec::new(),
            scalars: Vec::new(),
            blocks: 1,
            sync_start: false,
            predicate: None,
            after: Vec::new(),
            retained: Vec::new(),
            waits: Vec::new(),
            signals: Vec::new(),
        }
    }

    /// As new, with the memory kept, for an orchestration that submits many tasks.
    pub fn clear(&mut self) {
        self.tensors.clear();
        self.scalars.clear();
        (self.blocks, self.sync_start, self.predicate) = (1, false, None);
        self.after.clear();
        self.retained.clear();
        self.waits.clear();
        self.signals.clear();
    }

    /// Adds a tensor.
    pub fn push(&mut self, tensor: TensorArg) {
        self.tensors.push(tensor);
    }

    /// Adds a tensor that the task reads.
    pub fn input(mut self, tensor: &impl AsRef<TensorDesc>) -> Self {
        self.push(TensorArg::Input(*tensor.as_ref()));
        self
    }

    /// Adds a tensor that the task makes.
    pub fn output(mut self, create: Create) -> Self {
        self.push(TensorArg::Output(create));
        self
    }

    /// Adds a tensor that the task reads and writes.
    pub fn inout(mut self, tensor: &impl AsRef<TensorDesc>) -> Self {
        self.push(TensorArg::InOut(*tensor.as_ref()));
        self
    }

    /// Adds a tensor that exists and that the task writes without reading it.
    pub fn output_existing(mut self, tensor: &impl AsRef<TensorDesc>) -> Self {
        self.push(TensorArg::OutputExisting(*tensor.as_ref()));
        self
    }

    /// Adds a tensor from which no dependency follows.
    pub fn no_dep(mut self, tensor: &impl AsRef<TensorDesc>) -> Self {
        self.push(TensorArg::NoDep(*tensor.as_ref()));
        self
    }

    /// Adds a scalar; kernels see all scalars after all tensors.
    pub fn scalar(mut self, value: u64) -> Self {
        self.scalars.push(value);
        self
    }

    /// Runs in so many blocks.
    pub fn blocks(mut self, blocks: u32) -> Self {
        self.blocks = blocks;
        self
    }

    /// Starts all blocks together.
    pub fn sync_start(mut self) -> Self {
        self.sync_start = true;
        self
    }

    /// Runs only if the predicate holds when the task is ready.
    ///
    /// ```
    /// use chip_runtime::{Buffer, Compare, FrontEnd, Kernels, Limits, Predicate, Runtime, TaskArgs};
    /// # let soon = deadline::Deadline::after(std::time::Duration::from_secs(10))?;
    ///
    /// let mut runtime = Runtime::new(Limits::default())?;
    /// let double = runtime.kernel("double", |block| Ok(block.write(0, &[2 * block.read::<i32>(0)?[0]])?));
    /// let (mut x, mut steps) = (Buffer::of(&[21]), Buffer::of(&[1i32]));
    /// runtime.run(FrontEnd::Inferred, soon, |graph| {
    ///     let (x, steps) = (graph.import(&mut x)?, graph.import(&mut steps)?);
    ///     let more_than = |least| Predicate::new(&steps, &[0], Compare::Gt, least);
    ///     let args = || TaskArgs::new().inout(&x);
    ///     graph.submit(Kernels::aiv(double), &args().when(more_than(0)))?;
    ///     graph.submit(Kernels::aiv(double), &args().when(more_than(1)))?; // completes without its kernel
    ///     Ok(())
    /// })?;
    /// assert_eq!(x.to_vec()?, [42]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn when(mut self, predicate: Predicate) -> Self {
        self.predicate = Some(predicate);
        self
    }

    /// Runs after `task`.
    pub fn after(mut self, task: TaskId) -> Self {
        self.after.push(task);
        self
    }

    /// Keeps the tensors that `task` made until this one has ended, also after their scope. Nothing follows for the order of
    /// the two.
    pub fn retain(mut self, task: TaskId) -> Self {
        self.retained.push(task);
        self
    }

    /// Runs when this wait is met.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.waits.push(wait);
        self
    }

    /// Sends this signal when it completes.
    pub fn signal(mut self, signal: Signal) -> Self {
        self.signals.push(signal);
        self
    }
}
