//! Memory inside a run: of chips and of the host, and scopes that end it.

use super::Orchestrator;
use crate::args::Access;
use crate::chip_context::ChipContext;
use crate::host_buffer::{Element, HostBuffer};
use crate::parent::up::{ChipMemory, CommandOf};
use comm_context::abi::DeviceAddr;
use fault_points::fault_point;
use worker_errors::Failure;

impl<'w> Orchestrator<'w> {
    /// The chips of this Worker; none where it is a Worker of Workers. An orchestration finds its chips' windows and buffers here.
    pub fn chip_contexts(&self) -> &'w [ChipContext] {
        self.memories.contexts()
    }

    /// Makes a host buffer, as [`Worker::host_buffer`](crate::Worker::host_buffer) does, for what passes from one task to another. When it is
    /// dropped during the run, it is freed after the run, or at the end of a [scope](Self::scope).
    pub fn host_buffer<T: Element>(&self, len: usize) -> Result<HostBuffer<T>, Failure> {
        HostBuffer::new(self.memories.heap(), len)
    }

    /// Submits tasks with memory that ends before the run does: when this returns, all tasks that were submitted before are done, host buffers and
    /// chip memory that were dropped are free, and the domains that `body` made are released. So a long run needs no more memory than the
    /// largest of its scopes.
    ///
    /// Scopes may be inside each other. A tensor of memory that was dropped in a scope must not be used after it. When `body` or a task
    /// fails, the memory is freed with the run.
    ///
    /// ```
    /// use worker_orch::{Access, Args, Failure, Task, Worker};
    ///
    /// fn add_one(task: &mut Task<'_>) -> Result<(), Failure> {
    ///     task.write(1, &task.read::<f32>(0)?.iter().map(|x| x + 1.0).collect::<Vec<_>>())
    /// }
    ///
    /// let mut worker = Worker::builder().devices(&[0, 1]).build()?;
    /// let add_one = worker.register_function("add_one", add_one);
    /// let x = worker.host_buffer::<f32>(4)?;
    /// worker.init()?;
    /// let step = |from: &_, to: &_| Args::new().tensor(from, Access::Input).tensor(to, Access::Output);
    /// worker.run(|orch| {
    ///     for _ in 0..3 {
    ///         orch.scope(|orch| {
    ///             let between = orch.host_buffer::<f32>(4)?.tensor();
    ///             orch.submit_next_level(add_one, &step(&x.tensor(), &between), 0)?;
    ///             orch.submit_next_level(add_one, &step(&between, &x.tensor()), 1)
    ///         })?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(x.to_vec(), [6.0; 4]);
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn scope<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        let before = self.last_domain();
        let value = body(self)?;
        self.still_well()?;
        fault_point!("worker.scope.end");
        let all: Vec<usize> = (0..self.children.len()).collect();
        self.settle(&all)?;
        self.release_domains_after(before)?;
        fault_point!("worker.scope.free");
        self.memories.heap().free_all_dropped();
        let call = self.command_of("scope");
        self.memories.free_dropped(self.children, call)?;
        Ok(value)
    }

    /// Allocates memory on a chip, as [`Worker::chip_alloc`](crate::Worker::chip_alloc) does. When it is dropped during the run, it is freed
    /// after the run, or at the end of a [scope](Self::scope).
    pub fn chip_alloc(&mut self, chip: usize, bytes: usize) -> Result<ChipMemory, Failure> {
        self.still_well()?;
        let call = self.command_of("chip_alloc");
        self.memories.chip_alloc(self.children, chip, bytes, call)
    }

    /// Copies bytes to a chip: into memory made by `chip_alloc`, its window, or its window of a domain of this run.
    ///
    /// Waits first for the tasks that read or write these bytes, by their tensors, and for all earlier tasks of this chip: what is submitted
    /// later finds the bytes. Tasks of other chips that reach this chip's window without a tensor are not waited for; put a
    /// [`settle_chips`](Self::settle_chips) of them before.
    pub fn copy_to(&mut self, chip: usize, to: DeviceAddr, bytes: &[u8]) -> Result<(), Failure> {
        let call = self.before_copy(chip, to, bytes.len(), Access::Output, "copy_to")?;
        self.memories.copy_to(self.children, chip, to, bytes, call)
    }

    /// Copies bytes from a chip, from where [`copy_to`](Self::copy_to) copies to, after the same wait: what earlier tasks wrote is there.
    pub fn copy_from(&mut self, chip: usize, from: DeviceAddr, into: &mut [u8]) -> Result<(), Failure> {
        let call = self.before_copy(chip, from, into.len(), Access::Input, "copy_from")?;
        self.memories.copy_from(self.children, chip, from, into, call)
    }

    /// Waits until these chips (or Workers) have done what was submitted to them. Fails when one of these tasks has failed.
    pub fn settle_chips(&mut self, chips: &[usize]) -> Result<(), Failure> {
        chips.iter().try_for_each(|chip| self.check_chip(*chip, "settle_chips"))?;
        self.still_well()?;
        fault_point!("worker.run.settle");
        self.settle(chips)
    }

    fn before_copy(
        &mut self,
        chip: usize,
        at: DeviceAddr,
        len: usize,
        access: Access,
        name: &'static str,
    ) -> Result<CommandOf, Failure> {
        self.still_well()?;
        self.memories.check(chip, at, len, name, |chip, bytes| self.domains.hold(chip, bytes))?;
        let mut needs = Vec::new();
        // It does not go beyond the last address: it is inside memory.
        let range = at.0..at.0.saturating_add(len as u64);
        self.tracker.needs(&self.spaces.globally(range, chip), access, &mut needs);
        for need in needs {
            let child = usize::from(need.child);
            self.children.await_done(child, need.seq, self.deadline)?;
            self.check_child(child)?;
        }
        self.settle(&[chip])?;
        fault_point!("worker.run.copy");
        Ok(self.command_of(name))
    }

    pub(super) fn command_of(&self, name: &'static str) -> CommandOf {
        CommandOf { run: self.run, deadline: self.deadline, name }
    }

    /// Nothing is done after a failure.
    fn still_well(&self) -> Result<(), Failure> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}
