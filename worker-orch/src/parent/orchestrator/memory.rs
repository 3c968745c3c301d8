//! Memory of chips inside a run.

use super::Orchestrator;
use crate::args::Access;
use crate::parent::up::{ChipMemory, CommandOf};
use comm_context::abi::DeviceAddr;
use fault_points::fault_point;
use worker_errors::Failure;

impl Orchestrator<'_> {
    /// Allocates memory on a chip, as [`Worker::chip_alloc`](crate::Worker::chip_alloc) does. When it is dropped during the run, it is freed
    /// after the run.
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

    fn command_of(&self, name: &'static str) -> CommandOf {
        CommandOf { run: self.run, deadline: self.deadline, name }
    }

    /// Nothing is done after a failure.
    fn still_well(&self) -> Result<(), Failure> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}
