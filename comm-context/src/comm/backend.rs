//! The parts of a communicator in which backends differ, and the communicator that follows from them.

use super::{
    Allocated, AllocationId, AllocationTable, CommError, Communicator, DeviceCollectives, DeviceWords,
    DomainSpec, HostWindows, Key, Membership, Phase, Released, SubsetView, Timeout, Window, validate,
};
use crate::abi::{CommContext, DeviceAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A window that its members allocate together.
#[derive(Clone, Copy, Debug)]
pub struct WindowRequest<'a> {
    /// The base window or a domain.
    pub key: Key,
    /// The members, in the order in which the context numbers them.
    pub members: &'a [u32],
    /// The position of the calling rank among the members.
    pub position: u32,
    /// How many bytes each member's window has at least.
    pub size: usize,
}

impl WindowRequest<'_> {
    /// The call that the request belongs to.
    pub fn phase(&self) -> Phase {
        match self.key {
            None => Phase::AllocWindows,
            Some(_) => Phase::AllocDomain,
        }
    }
}

/// What a backend supplies. Every `Backend` is a [`Communicator`]: that implementation checks arguments and keeps the
/// [`AllocationTable`], so that a backend sees valid requests only.
pub trait Backend: Send + Sync {
    /// This rank and the size of its group.
    fn membership(&self) -> Membership;

    /// What this rank has allocated. Locked for single accesses only, never during a call of this trait.
    fn allocations(&self) -> &Mutex<AllocationTable>;

    /// Fails with the first cause when the communicator is broken.
    fn check_usable(&self) -> Result<(), CommError>;

    /// Allocates a zeroed window on every member, or on none. Collective among the members.
    fn allocate(&self, request: &WindowRequest<'_>, within: Timeout) -> Result<Allocated, CommError>;

    /// Copies a context to device memory, where it stays until the communicator is destroyed.
    fn place_context(&self, context: &CommContext) -> Result<DeviceAddr, CommError>;

    /// Frees this rank's window of a domain once no member uses it any more. Collective among the members; the window
    /// is freed even when the call fails.
    fn free_domain(&self, id: AllocationId, domain: &Released, within: Timeout) -> Result<(), CommError>;

    /// Waits for every rank.
    fn wait_for_all(&self, within: Timeout) -> Result<(), CommError>;

    /// Copies from a range that lies in one window or one context of this rank. It is not empty.
    fn copy_from_device(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), CommError>;

    /// Copies to a range that lies in one window of this rank or of a peer. It is not empty.
    fn copy_to_device(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError>;

    /// See [`Communicator::relay_abort`].
    fn relay_kernel_abort(&self) -> Result<(), CommError> {
        Ok(())
    }

    /// See [`Communicator::host_windows`].
    fn windows_in_process(&self) -> Option<&dyn HostWindows> {
        None
    }

    /// See [`Communicator::device_collectives`].
    fn device_engine(&self) -> Option<&dyn DeviceCollectives> {
        None
    }

    /// See [`Communicator::device_words`].
    fn words_on_device(&self) -> Option<&dyn DeviceWords> {
        None
    }

    /// Leaves the group and releases everything; see [`Communicator::destroy`].
    fn leave(self: Box<Self>, within: Timeout) -> Result<(), CommError>;
}

fn table<B: Backend>(backend: &B) -> MutexGuard<'_, AllocationTable> {
    backend.allocations().lock().unwrap_or_else(PoisonError::into_inner)
}

fn allocate<B: Backend>(
    backend: &B,
    request: &WindowRequest<'_>,
    within: Timeout,
) -> Result<Window, CommError> {
    table(backend).begin(request.key)?;
    let made = backend.allocate(request, within);
    table(backend).end(request.key, request.members, made)
}

impl<B: Backend> Communicator for B {
    fn rank(&self) -> u32 {
        self.membership().rank()
    }

    fn nranks(&self) -> u32 {
        self.membership().nranks()
    }

    fn alloc_windows(&self, size: usize, within: Timeout) -> Result<Window, CommError> {
        self.check_usable()?;
        validate::window_size("win_size", size)?;
        let members: Vec<u32> = (0..self.nranks()).collect();
        allocate(self, &WindowRequest { key: None, members: &members, position: self.rank(), size }, within)
    }

    fn window(&self) -> Result<Window, CommError> {
        table(self).base()
    }

    fn derive_context(&self, view: &SubsetView<'_>) -> Result<DeviceAddr, CommError> {
        self.check_usable()?;
        let context = table(self).derive(self.membership(), view)?;
        let at = self.place_context(&context)?;
        table(self).add_context(at);
        Ok(at)
    }

    fn alloc_domain(&self, spec: &DomainSpec<'_>, within: Timeout) -> Result<Window, CommError> {
        self.check_usable()?;
        validate::domain(self.membership(), spec)?;
        let DomainSpec { id, ranks: members, domain_rank: position, window_size: size } = *spec;
        allocate(self, &WindowRequest { key: Some(id), members, position, size }, within)
    }

    fn release_domain(&self, id: AllocationId, within: Timeout) -> Result<(), CommError> {
        let domain = table(self).release(id)?;
        let freed = self.free_domain(id, &domain, within);
        table(self).forget(id);
        freed
    }

    fn barrier(&self, within: Timeout) -> Result<(), CommError> {
        self.wait_for_all(within)
    }

    fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), CommError> {
        if into.is_empty() {
            return Ok(());
        }
        table(self).check_read(from, into.len())?;
        self.copy_from_device(from, into)
    }

    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError> {
        if bytes.is_empty() {
            return Ok(());
        }
        table(self).check_write(to, bytes.len())?;
        self.copy_to_device(to, bytes)
    }

    fn relay_abort(&self) -> Result<(), CommError> {
        self.relay_kernel_abort()
    }

    fn host_windows(&self) -> Option<&dyn HostWindows> {
        self.windows_in_process()
    }

    fn device_collectives(&self) -> Option<&dyn DeviceCollectives> {
        self.device_engine()
    }

    fn device_words(&self) -> Option<&dyn DeviceWords> {
        self.words_on_device()
    }

    fn destroy(self: Box<Self>, within: Timeout) -> Result<(), CommError> {
        self.leave(within)
    }
}
