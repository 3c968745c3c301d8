//! The builder that an orchestration is given.

use crate::args::TaskArgs;
use crate::buffer::Buffer;
use crate::engine::{Engine, Work};
use crate::error::{ErrorKind, RuntimeError};
use crate::limits::{FrontEnd, Limits, ScopeMode};
use crate::signals::Domain;
use crate::task::{Kernels, Site, Submitted, TaskId};
use crate::tensor::{Create, Element, Tensor};
use comm_context::abi::{DeviceAddr, TensorDesc};
use deadline::Deadline;
use std::panic::Location;
use std::sync::Arc;

/// A graph while it is built.
///
/// A call that fails leaves the graph as it was, except where the error says that the graph has failed: after a task
/// failed or the time was over every call returns that error.
#[derive(Debug)]
pub struct Graph<'r> {
    engine: &'r Arc<Engine>,
    limits: &'r Limits,
    front_end: FrontEnd,
    deadline: Deadline,
    site: Option<Site>,
}

impl<'r> Graph<'r> {
    pub(crate) fn new(
        engine: &'r Arc<Engine>,
        limits: &'r Limits,
        front_end: FrontEnd,
        deadline: Deadline,
    ) -> Self {
        Self { engine, limits, front_end, deadline, site: None }
    }

    /// Submits a task that runs these kernels.
    #[track_caller]
    pub fn submit(&mut self, kernels: Kernels, args: &TaskArgs) -> Result<Submitted, RuntimeError> {
        self.engine.submit(Work::Run(kernels), args, self.here(), self.deadline)
    }

    /// Submits a task without a kernel, which only orders others.
    #[track_caller]
    pub fn submit_dummy(&mut self, args: &TaskArgs) -> Result<Submitted, RuntimeError> {
        self.engine.submit(Work::Order, args, self.here(), self.deadline)
    }

    /// Makes tensors that live as long as the scope. They are there at once.
    #[track_caller]
    pub fn allocate(&mut self, tensors: &[Create]) -> Result<Submitted, RuntimeError> {
        let mut args = TaskArgs::new();
        tensors.iter().for_each(|create| args.push(crate::TensorArg::Output(*create)));
        self.engine.submit(Work::Allocate, &args, self.here(), self.deadline)
    }

    /// The domain of a `CommContext`, for waits and signals. Every chip numbers its domains for itself.
    pub fn domain(&self, context: DeviceAddr) -> Result<Domain, RuntimeError> {
        Ok(self.engine.domain(context)?)
    }

    /// Runs `body` in a scope of its own: what its tasks make lives until it ends and the tasks that use it have ended.
    ///
    /// A scope in each round of a loop lets a small heap serve any number of rounds.
    ///
    /// ```
    /// use chip_runtime::{Buffer, Create, FrontEnd, Kernels, Limits, Runtime, ScopeMode, TaskArgs};
    /// # let soon = deadline::Deadline::after(std::time::Duration::from_secs(10))?;
    ///
    /// let mut runtime = Runtime::new(Limits { slots: 16, heap: 8 << 10, ..Limits::default() })?;
    /// let copy = runtime.kernel("copy", |block| Ok(block.write(1, &block.read::<i32>(0)?)?));
    /// let add = runtime.kernel("add", |block| {
    ///     let sum = block.read::<i32>(0)?[0] + block.read::<i32>(1)?[0];
    ///     Ok(block.write(1, &[sum])?)
    /// });
    /// let (mut one, mut sum) = (Buffer::of(&[1]), Buffer::of(&[0]));
    /// runtime.run(FrontEnd::Inferred, soon, |graph| {
    ///     let (one, sum) = (graph.import(&mut one)?, graph.import(&mut sum)?);
    ///     for _ in 0..100 {
    ///         graph.scope(ScopeMode::Auto, |graph| {
    ///             let args = TaskArgs::new().input(&one).output(Create::of::<i32>(&[1]));
    ///             let copied = graph.submit(Kernels::aiv(copy), &args)?.tensor::<i32>(0)?;
    ///             graph.submit(Kernels::aiv(add), &TaskArgs::new().input(&copied).inout(&sum))
    ///         })?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(sum.to_vec()?, [100]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn scope<T, E: From<RuntimeError>>(
        &mut self,
        mode: ScopeMode,
        body: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.scope_begin(mode)?;
        let value = body(self)?;
        self.scope_end()?;
        Ok(value)
    }

    /// Opens a scope.
    #[track_caller]
    pub fn scope_begin(&mut self, mode: ScopeMode) -> Result<(), RuntimeError> {
        self.engine.scope_begin(mode, self.here(), self.deadline)
    }

    /// Closes the scope that was opened last.
    #[track_caller]
    pub fn scope_end(&mut self) -> Result<(), RuntimeError> {
        let here = self.here();
        self.engine.scope_end(self.deadline).map_err(|error| error.at_site(Some(here)))
    }

    /// Lets a task start when its prerequisites are met, before its scope closes. For the explicit front end; in the
    /// others tasks are published by themselves.
    #[track_caller]
    pub fn publish(&mut self, task: TaskId) -> Result<(), RuntimeError> {
        if self.front_end == FrontEnd::Prebuilt {
            return Ok(());
        }
        let here = self.here();
        self.engine.publish(task, self.deadline).map_err(|error| error.at_site(Some(here)))
    }

    /// Makes `after`, which is not published, wait for `before`.
    ///
    /// ```
    /// use chip_runtime::{Buffer, FrontEnd, Kernels, Limits, Runtime, TaskArgs};
    /// # let soon = deadline::Deadline::after(std::time::Duration::from_secs(10))?;
    ///
    /// let mut runtime = Runtime::new(Limits::default())?;
    /// let set = runtime.kernel("set", |block| Ok(block.write(0, &[block.scalar(0)? as i32])?));
    /// let mut x = Buffer::of(&[0]);
    /// // The explicit front end infers nothing: without the edge either could be the last.
    /// runtime.run(FrontEnd::Explicit, soon, |graph| {
    ///     let x = graph.import(&mut x)?;
    ///     let mut submit = |value| graph.submit(Kernels::aiv(set), &TaskArgs::new().inout(&x).scalar(value));
    ///     let (last, first) = (submit(2)?.task, submit(1)?.task);
    ///     graph.add_dependency(last, first)
    /// })?;
    /// assert_eq!(x.to_vec()?, [2]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn add_dependency(&mut self, after: TaskId, before: TaskId) -> Result<(), RuntimeError> {
        let here = self.here();
        self.engine.add_edge(before, after, self.deadline).map_err(|error| error.at_site(Some(here)))
    }

    /// The bits of one element, in the low bytes. In the inferred front end it waits for the tasks that write the
    /// tensor.
    #[track_caller]
    pub fn get_element(
        &mut self,
        tensor: &impl AsRef<TensorDesc>,
        index: &[u32],
    ) -> Result<u64, RuntimeError> {
        let here = self.here();
        let bits = self.engine.get_element(tensor.as_ref(), index, self.deadline);
        bits.map_err(|error| error.at_site(Some(here)))
    }

    /// Replaces one element. In the inferred front end it waits for the tasks that use the tensor.
    #[track_caller]
    pub fn set_element(
        &mut self,
        tensor: &impl AsRef<TensorDesc>,
        index: &[u32],
        bits: u64,
    ) -> Result<(), RuntimeError> {
        let here = self.here();
        let done = self.engine.set_element(tensor.as_ref(), index, bits, self.deadline);
        done.map_err(|error| error.at_site(Some(here)))
    }

    /// One element of a typed tensor.
    #[track_caller]
    pub fn get<T: Element>(&mut self, tensor: &Tensor<T>, index: &[u32]) -> Result<T, RuntimeError> {
        let bits = self.get_element(tensor, index)?.to_le_bytes();
        Ok(bytemuck::pod_read_unaligned(&bits[..size_of::<T>()]))
    }

    /// Replaces one element of a typed tensor.
    #[track_caller]
    pub fn set<T: Element>(
        &mut self,
        tensor: &Tensor<T>,
        index: &[u32],
        value: T,
    ) -> Result<(), RuntimeError> {
        let mut bits = [0; 8];
        bits[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        self.set_element(tensor, index, u64::from_le_bytes(bits))
    }

    /// Lets the graph use a buffer, until the end of the run.
    pub fn import<T: Element>(&mut self, buffer: &mut Buffer<T>) -> Result<Tensor<T>, RuntimeError> {
        let tensor = buffer.tensor()?;
        self.engine.give(buffer.memory().range(), Some(buffer.memory().clone()));
        Ok(tensor)
    }

    /// How many clusters the chip has.
    pub fn cluster_count(&self) -> usize {
        self.limits.clusters
    }

    /// How many vector cores it has.
    pub fn aiv_count(&self) -> usize {
        2 * self.limits.clusters
    }

    /// The front end.
    pub fn front_end(&self) -> FrontEnd {
        self.front_end
    }

    /// When the run ends at the latest.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Whether the graph has failed, so that nothing more will start.
    pub fn is_failed(&self) -> bool {
        self.engine.error().is_some()
    }

    /// The [code](RuntimeError::code) of its failure; 0 if it has none.
    pub fn failure_code(&self) -> i32 {
        self.engine.error().map_or(0, |error| error.code())
    }

    /// Ends the graph with a failure of the orchestration's own.
    #[track_caller]
    pub fn fail(&mut self, code: i32, text: impl Into<String>) -> RuntimeError {
        let error =
            RuntimeError::from(ErrorKind::Reported { code, text: text.into() }).at_site(Some(self.here()));
        self.engine.fail(error.clone());
        error
    }

    /// The place that was set.
    pub fn site(&self) -> Option<Site> {
        self.site
    }

    /// The place that the next calls are at, instead of the caller's; for orchestrations that are not in Rust.
    pub fn set_site(&mut self, site: Option<Site>) {
        self.site = site;
    }

    #[track_caller]
    fn here(&self) -> Site {
        // Not in a closure, which would be the caller.
        let caller = Site::of(Location::caller());
        self.site.unwrap_or(caller)
    }
}

mod raw {
    //! # Safety
    //! Memory that the caller answers for.
    #![allow(unsafe_code)]

    use super::{Graph, TensorDesc};

    impl Graph<'_> {
        /// Lets the graph use the buffer of a tensor that is not a [`Buffer`](crate::Buffer)'s: a window, or memory of
        /// another owner.
        ///
        /// # Safety
        /// The bytes of the buffer are mapped and initialized until every kernel of the run has returned, also when the
        /// run ends with an error, and nobody has a Rust reference to them.
        pub unsafe fn import_raw(&mut self, desc: &TensorDesc) {
            self.engine.give(desc.addr..desc.addr.saturating_add(desc.size), None);
        }
    }
}
