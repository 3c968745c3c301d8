//! The windows of the simulation are memory of every rank's process.
//!
//! # Safety
//! One pointer into the group's mapping, at an offset that the allocation table has checked.
#![allow(unsafe_code)]

use crate::comm::SimComm;
use comm_context::abi::DeviceAddr;
use comm_context::comm::{Backend, CommError, HostWindows, Timeout, WordWait};
use std::ptr::NonNull;
use std::sync::PoisonError;

impl HostWindows for SimComm {
    fn host_pointer(&self, addr: DeviceAddr, len: usize) -> Result<NonNull<u8>, CommError> {
        self.allocations().lock().unwrap_or_else(PoisonError::into_inner).check_write(addr, len)?;
        // SAFETY: the range lies in a window, and windows lie in the region, which is mapped as one object.
        Ok(unsafe { self.group().region().base().add(self.offset(addr)) })
    }

    fn has_core_per_rank(&self) -> bool {
        self.group().has_core_per_rank()
    }

    fn generation(&self) -> u32 {
        self.group().kernel_words().generation
    }

    fn wait_on(&self, wait: &WordWait<'_>, ready: &mut dyn FnMut(u64) -> bool) -> Result<(), CommError> {
        self.group().wait_on_word(wait, ready)
    }

    fn check_ranks(&self, ranks: &[u32], since_ns: u64, within: Timeout) -> Result<(), CommError> {
        self.group().check_ranks(ranks, since_ns, within)
    }
}
