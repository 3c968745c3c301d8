//! A chip that is up: communicator, window, buffers, kernels.

use crate::config::{ChipConfig, PartKind};
use crate::device::{ChipMemory, Device, Entry, Kernel, Launch, MAX_BLOCKS};
use crate::error::ChipError;
use crate::host::HostSpan;
use comm_context::abi::{DeviceAddr, KERNEL_LOCAL_CONTEXT_ARG, TensorDesc};
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec, Membership, Timeout, Window};
use fault_points::fault_point;
use shared_memory::Region;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A named part of a chip's window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its name in the configuration.
    pub name: String,
    /// What it holds.
    pub kind: PartKind,
    /// Where it starts.
    pub addr: DeviceAddr,
    /// How many bytes it has.
    pub bytes: usize,
}

/// A chip that is up, inside its own process.
///
/// Torn down by [`tear_down`](Self::tear_down) or when dropped: communicator first, then device.
pub struct Chip {
    pub(crate) id: i32,
    pub(crate) device: Box<dyn Device>,
    pub(crate) comm: Option<Arc<Box<dyn Communicator>>>,
    pub(crate) window: Option<Window>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) stores: Vec<(DeviceAddr, HostSpan)>,
    pub(crate) within: Timeout,
    pub(crate) kernel_limit: Option<Duration>,
    pub(crate) down: bool,
}

impl Chip {
    /// The device.
    pub fn device_id(&self) -> i32 {
        self.id
    }

    /// The communicator, if it has one.
    pub fn comm(&self) -> Option<&dyn Communicator> {
        self.comm.as_deref().map(AsRef::as_ref)
    }

    /// The communicator, for groups that are made over it. They are gone before the chip is torn down.
    pub fn shared_comm(&self) -> Option<Arc<Box<dyn Communicator>>> {
        self.comm.clone()
    }

    /// The window, if it has one.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// All buffers and regions, in the order of the configuration.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The buffer or region called `name`.
    pub fn buffer(&self, name: &str) -> Option<&Buffer> {
        self.buffers.iter().find(|buffer| buffer.name == name)
    }

    /// Makes the chip a rank of a group, unless it is one already.
    pub fn ensure_communicator(
        &mut self,
        entry: &Entry,
        me: Membership,
    ) -> Result<&dyn Communicator, ChipError> {
        if self.comm.is_none() {
            self.comm = Some(Arc::new(self.device.communicator(entry, me, self.within)?));
        }
        self.comm().ok_or(ChipError::NoCommunicator)
    }

    /// Allocates a domain's window, collectively with the other members.
    pub fn alloc_domain(&self, spec: &DomainSpec<'_>) -> Result<Window, ChipError> {
        self.member(|comm| comm.alloc_domain(spec, self.within))
    }

    /// Releases a domain, collectively with the other members.
    pub fn release_domain(&self, id: AllocationId) -> Result<(), ChipError> {
        self.member(|comm| comm.release_domain(id, self.within))
    }

    /// Copies bytes out of this chip: from a window, or from its own memory.
    pub fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), ChipError> {
        let len = into.len();
        match (self.member(|comm| comm.read(from, into)), self.device.memory()) {
            (Err(error), Some(memory)) if not_in_a_window(&error) => memory.read(from, into),
            (done, _) => done.map_err(|error| self.foreign(error, from, len)),
        }
    }

    /// Copies bytes to this chip: into a window, or into its own memory.
    pub fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), ChipError> {
        match (self.member(|comm| comm.write(to, bytes)), self.device.memory()) {
            (Err(error), Some(memory)) if not_in_a_window(&error) => memory.write(to, bytes),
            (done, _) => done.map_err(|error| self.foreign(error, to, bytes.len())),
        }
    }

    /// Without a communicator the chip has no memory that an address could be in. That it has no communicator is not
    /// what is wrong.
    fn foreign(&self, error: ChipError, addr: DeviceAddr, len: usize) -> ChipError {
        match error {
            ChipError::NoCommunicator => ChipError::ForeignMemory { device: self.id, addr: addr.0, len },
            other => other,
        }
    }

    fn member<T>(
        &self,
        call: impl FnOnce(&dyn Communicator) -> Result<T, CommError>,
    ) -> Result<T, ChipError> {
        Ok(call(self.comm().ok_or(ChipError::NoCommunicator)?)?)
    }

    /// Loads a kernel, once.
    pub fn load(&mut self, path: &Path, symbol: &str) -> Result<Kernel, ChipError> {
        self.device.load(path, symbol)
    }

    /// Unloads a kernel: a later [`load`](Self::load) reads its file again. On a device it stays until the chip is torn down.
    pub fn unload(&mut self, kernel: Kernel) {
        self.device.unload(kernel);
    }

    /// Runs all blocks of a kernel to completion, at most [`MAX_BLOCKS`]. Its tensors may lie in windows, in memory of
    /// the device, and in the regions `host`. Tensors and scalars together are at most [`KERNEL_LOCAL_CONTEXT_ARG`].
    pub fn launch(
        &mut self,
        kernel: Kernel,
        blocks: u32,
        tensors: &[TensorDesc],
        scalars: &[u64],
        host: &[Arc<Region>],
    ) -> Result<(), ChipError> {
        if tensors.len() + scalars.len() > KERNEL_LOCAL_CONTEXT_ARG {
            return Err(ChipError::TooManyArguments { tensors: tensors.len(), scalars: scalars.len() });
        }
        if !(1..=MAX_BLOCKS).contains(&blocks) {
            return Err(ChipError::Blocks { blocks });
        }
        let comm = self.comm.clone();
        let relay = || comm.as_ref().map_or(Ok(()), |comm| comm.relay_abort());
        relay()?;
        // When the relay fails while the kernel runs, the parent's deadline ends the kernel.
        let meanwhile = || drop(relay());
        let limit = self.kernel_limit;
        self.device.launch(&Launch { kernel, blocks, tensors, scalars, host, meanwhile: &meanwhile, limit })
    }

    /// Has the device end kernels that run longer than this, from the next launch on. Where kernels run in this process,
    /// nothing but the end of the process ends one that does not poll the abort word.
    pub fn limit_kernels(&mut self, limit: Option<Duration>) {
        self.kernel_limit = limit;
    }

    /// The device's own memory; `None` where chips use host memory.
    pub fn memory(&self) -> Option<&dyn ChipMemory> {
        self.device.memory()
    }

    /// The Ascend device, for vendor calls of the caller's own; `None` on a chip that is simulated. What is made with it is released
    /// before the chip is torn down. Vendor calls need [`bind_thread`](comm_hccl::Device::bind_thread) on their thread, and have no limit.
    #[cfg(feature = "ascend")]
    pub fn ascend_device(&self) -> Option<comm_hccl::Device> {
        self.device.ascend()
    }

    /// Copies every part with `store_to` to its host buffer. To be called after a task, before it counts as
    /// done.
    pub fn flush_outputs(&self) -> Result<(), ChipError> {
        for (from, host) in &self.stores {
            let mut bytes = vec![0; host.len()];
            self.read(*from, &mut bytes)?;
            fault_point!("chip.flush");
            host.write(0, &bytes)
                .map_err(|source| ChipError::Host { during: "while outputs were stored", source })?;
        }
        Ok(())
    }

    /// Fills every part with `load_from` from its host buffer.
    pub(crate) fn stage_inputs(&self, config: &ChipConfig) -> Result<(), ChipError> {
        for (part, buffer) in config.parts().iter().zip(&self.buffers) {
            if let Some(host) = &part.load {
                let mut bytes = vec![0; host.len()];
                host.read(0, &mut bytes)
                    .map_err(|source| ChipError::Host { during: "while inputs were staged", source })?;
                self.write(buffer.addr, &bytes)?;
                fault_point!("chip.staged");
            }
        }
        Ok(())
    }

    /// Leaves the group, then closes the device. Does nothing the second time. Everything is released even
    /// when a step fails; the first error is returned.
    pub fn tear_down(&mut self) -> Result<(), ChipError> {
        if std::mem::replace(&mut self.down, true) {
            return Ok(());
        }
        fault_point!("chip.teardown");
        let left = match self.comm.take().map(Arc::try_unwrap) {
            None => Ok(()),
            Some(Ok(comm)) => comm.destroy(self.within).map_err(ChipError::from),
            Some(Err(_)) => Err(ChipError::CommunicatorInUse),
        };
        fault_point!("chip.left");
        let closed = self.device.close();
        fault_point!("chip.down");
        left.and(closed)
    }
}

impl Drop for Chip {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.tear_down();
    }
}

/// Whether the address may still lie in the device's own memory.
fn not_in_a_window(error: &ChipError) -> bool {
    matches!(error, ChipError::NoCommunicator | ChipError::Comm(CommError::Argument(_) | CommError::Closed))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Weak;

    /// A device that knows whether the communicator is still there when it is closed, and counts how often it is.
    struct Closed {
        comm: Weak<Box<dyn Communicator>>,
        times: Rc<Cell<u32>>,
    }

    impl Device for Closed {
        fn communicator(
            &self,
            _: &Entry,
            _: Membership,
            _: Timeout,
        ) -> Result<Box<dyn Communicator>, CommError> {
            Err(CommError::Closed)
        }

        fn load(&mut self, _: &Path, _: &str) -> Result<Kernel, ChipError> {
            Ok(Kernel(0))
        }

        fn launch(&mut self, _: &Launch<'_>) -> Result<(), ChipError> {
            Ok(())
        }

        fn memory(&self) -> Option<&dyn ChipMemory> {
            None
        }

        fn close(&mut self) -> Result<(), ChipError> {
            assert_eq!(self.comm.strong_count(), 0, "the communicator is still there");
            self.times.set(self.times.get() + 1);
            Ok(())
        }
    }

    /// A chip that is the only rank of its group, and how often its device was closed.
    fn chip() -> (Chip, Rc<Cell<u32>>) {
        let (folder, within) = (tempfile::tempdir().unwrap(), Timeout::DEFAULT);
        let me = Membership::new(0, 1).unwrap();
        let comm = comm_sim::SimComm::rendezvous(&folder.path().join("group"), me, within).unwrap();
        let comm: Arc<Box<dyn Communicator>> = Arc::new(Box::new(comm));
        let times = Rc::new(Cell::new(0));
        let device = Box::new(Closed { comm: Arc::downgrade(&comm), times: times.clone() });
        let chip = Chip {
            id: 0,
            device,
            comm: Some(comm),
            window: None,
            buffers: Vec::new(),
            stores: Vec::new(),
            within,
            kernel_limit: None,
            down: false,
        };
        (chip, times)
    }

    #[test]
    fn cb_4_the_communicator_goes_before_the_device_and_the_second_time_does_nothing() {
        let (mut chip, closed) = chip();
        chip.tear_down().unwrap();
        assert_eq!(closed.get(), 1);
        chip.tear_down().unwrap();
        drop(chip);
        assert_eq!(closed.get(), 1);
    }

    #[test]
    fn cb_3_a_chip_that_nobody_tore_down_leaves_nothing() {
        // As one whose bring-up failed half-way.
        let (chip, closed) = chip();
        drop(chip);
        assert_eq!(closed.get(), 1);
    }
}
