//! An Ascend device, driven through the vendor's public calls. Nothing here has run on hardware; it is tested
//! on the vendor double.
//!
//! # What is assumed of kernels
//! A kernel binary is what `aclrtBinaryLoadFromFile` takes, and the type of the kernel is known
//! ([`KernelType`](comm_hccl::KernelType)). A launch has one parameter for all its blocks: the device address of the
//! argument list of block 0. The lists of the other blocks follow it at `KERNEL_ARGS_STRIDE` words, and the device entry
//! picks the list of its block, by the index that the core knows. Lists are in device memory with everything that they
//! point at. Arguments are those of the simulation: for each tensor the address of its descriptor, then the scalars,
//! and at the end the addresses of LocalContext and GlobalContext. The descriptors and contexts are copied to
//! device memory first, so their addresses are the device's. A tensor in host
//! memory is staged: its bytes are copied to the device before the launch, and the bytes that the kernel
//! changed are copied back after it.
//!
//! Closing a device resets it and leaves the vendor's runtime initialised until the process ends: it cannot
//! be started a second time in a process, and a process may bring a chip up again.

use crate::device::{ChipMemory, Device, Entry, Kernel, Launch, check_completion};
use crate::error::{ChipError, KernelError};
use comm_context::abi::{AbiError, DeviceAddr, TensorDesc};
use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use comm_hccl::{
    Arguments, Device as Opened, DeviceError, DeviceMemory, HcclComm, KernelBinary, LaunchSpec,
    LogicalDevice, NotStarted, Runtime, Stream, Vendor, VendorThread, VisibleDevices,
};
use deadline::{Deadline, LONGEST_WAIT};
use shared_memory::{Region, RegionError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long closing a device waits for vendor calls that have not returned.
const LEFT_BEHIND: Duration = Duration::from_secs(3);

/// A device, opened, used and closed on a lane of its own.
pub(crate) struct AscendDevice {
    lane: VendorThread<Held>,
    /// `None` once closed.
    device: Option<Opened>,
    kernels: Vec<(PathBuf, String)>,
    within: Timeout,
}

/// What lives on the lane.
struct Held {
    /// `None` once closed.
    device: Option<Opened>,
    stream: Option<Stream>,
    /// In the order of the kernels; a binary is loaded once for each of its symbols.
    binaries: Vec<(KernelBinary, String)>,
    memory: BTreeMap<u64, DeviceMemory>,
}

impl AscendDevice {
    /// Loads the vendor's libraries, in this process, and opens the device.
    pub(crate) fn open(device: LogicalDevice, within: Timeout) -> Result<Self, ChipError> {
        let lane =
            VendorThread::start(deadline(within.get())?, move || Held::open(device)).map_err(|error| {
                match error {
                    NotStarted::State(error) => error,
                    NotStarted::Overrun(overrun) => ChipError::Stuck(overrun),
                    NotStarted::Thread(error) => ChipError::Thread(error),
                }
            })?;
        let opened = lane.run(deadline(within.get())?, |held| held.device.clone());
        let device = opened.map_err(ChipError::Stuck)?;
        Ok(Self { lane, device, kernels: Vec::new(), within })
    }

    fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        job: impl FnOnce(&mut Held) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, ChipError> {
        self.run_meanwhile(limit, &|| (), job)
    }

    fn run_meanwhile<T: Send + 'static>(
        &self,
        limit: Duration,
        meanwhile: &dyn Fn(),
        job: impl FnOnce(&mut Held) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, ChipError> {
        let answer = self.lane.run_meanwhile(deadline(limit)?, meanwhile, job);
        Ok(answer.map_err(ChipError::Stuck)??)
    }
}

impl Held {
    fn open(logical: LogicalDevice) -> Result<Self, ChipError> {
        let runtime = Runtime::start(Vendor::load(None)?)?;
        let list = VisibleDevices::from_env().map_err(DeviceError::from)?;
        let device = Opened::open(runtime, logical, &list)?;
        let stream = Stream::create(&device)?;
        Ok(Self { device: Some(device), stream: Some(stream), binaries: Vec::new(), memory: BTreeMap::new() })
    }

    fn device(&self) -> Result<&Opened, DeviceError> {
        self.device.as_ref().ok_or(DeviceError::Released { what: "device" })
    }

    fn load(&mut self, path: &Path, symbol: &str) -> Result<(), DeviceError> {
        let binary = KernelBinary::load(self.device()?, path, symbol)?;
        binary.kernel(symbol)?;
        self.binaries.push((binary, symbol.to_owned()));
        Ok(())
    }

    /// Launches a kernel, waits for its end, and returns what it left.
    fn launch(
        &mut self,
        kernel: usize,
        mut tensors: Vec<TensorDesc>,
        scalars: &[u64],
        staged: &[Staged],
        spec: LaunchSpec,
    ) -> Result<Left, DeviceError> {
        let device = self.device()?.clone();
        let stream = self.stream.as_ref().ok_or(DeviceError::Released { what: "stream" })?;
        let (binary, symbol) = self.binaries.get(kernel).ok_or(DeviceError::Released { what: "kernel" })?;
        let mut copies: BTreeMap<(u64, u64), DeviceMemory> = BTreeMap::new();
        for part in staged {
            let buffer = (tensors[part.tensor].addr, tensors[part.tensor].size);
            // Two tensors over one buffer stay over one buffer.
            let memory = match copies.entry(buffer) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    new.insert(DeviceMemory::allocate(&device, buffer.1 as usize)?)
                }
            };
            memory.write(part.offset, &part.bytes)?;
        }
        let mut back = Vec::with_capacity(staged.len());
        let slots: Vec<(u64, u64)> =
            staged.iter().map(|part| (tensors[part.tensor].addr, tensors[part.tensor].size)).collect();
        for (part, slot) in staged.iter().zip(&slots) {
            tensors[part.tensor].addr = copies[slot].addr().0;
        }
        let args = Arguments::place(&device, &tensors, scalars, spec.blocks)?;
        binary.kernel(symbol)?.run(stream, &spec, args.list())?;
        for (part, slot) in staged.iter().zip(&slots) {
            let mut bytes = vec![0; part.bytes.len()];
            copies[slot].read(part.offset, &mut bytes)?;
            back.push(bytes);
        }
        Ok(Left { staged: back, completions: args.completions()? })
    }

    fn holding(&self, addr: DeviceAddr, len: usize) -> Result<(&DeviceMemory, usize), DeviceError> {
        let found = self.memory.range(..=addr.0).next_back().map(|(_, memory)| memory);
        let offset = |memory: &DeviceMemory| (addr.0 - memory.addr().0) as usize;
        match found {
            Some(memory) if offset(memory).checked_add(len).is_some_and(|end| end <= memory.size()) => {
                Ok((memory, offset(memory)))
            }
            _ => Err(DeviceError::NotAllocated { addr, len }),
        }
    }

    /// Releases everything in order, waits for calls that have not returned, and returns the first error.
    fn close(&mut self, until: Deadline) -> Result<(), DeviceError> {
        let mut first = Ok(());
        let mut keep = |result: Result<(), DeviceError>| {
            if first.is_ok() {
                first = result;
            }
        };
        std::mem::take(&mut self.memory).into_values().for_each(|memory| keep(memory.release()));
        self.binaries.drain(..).for_each(|(binary, _)| keep(binary.release()));
        keep(self.stream.take().map_or(Ok(()), Stream::release));
        keep(self.device.take().map_or(Ok(()), |device| device.close_within(until)));
        first
    }
}

/// What the host gets of a kernel that has ended.
struct Left {
    /// The bytes of the staged tensors.
    staged: Vec<Vec<u8>>,
    /// Count and error in the completion slab of each block.
    completions: Vec<(u32, i32)>,
}

/// The elements of a tensor in host memory, to be copied to the device.
struct Staged {
    tensor: usize,
    /// Where its elements start in the buffer under it.
    offset: usize,
    bytes: Vec<u8>,
}

/// Where a staged tensor's elements lie in host memory.
struct HostSlot<'a> {
    region: &'a Region,
    at: usize,
}

/// The slot of these bytes, if a region holds them.
fn in_host(host: &[Arc<Region>], addr: u64, len: usize) -> Option<HostSlot<'_>> {
    host.iter().find_map(|region| {
        let at = addr.checked_sub(region.base().as_ptr() as u64)? as usize;
        (at.checked_add(len)? <= region.len()).then_some(HostSlot { region, at })
    })
}

/// Copies the tensors that lie in host memory out, and says where they lie.
fn stage<'a>(
    tensors: &[TensorDesc],
    host: &'a [Arc<Region>],
) -> Result<(Vec<Staged>, Vec<HostSlot<'a>>), ChipError> {
    let (mut staged, mut slots) = (Vec::new(), Vec::new());
    for (tensor, desc) in tensors.iter().enumerate() {
        // A tensor's buffer is in host memory as a whole or not at all.
        if in_host(host, desc.addr, desc.size as usize).is_none() {
            continue;
        }
        let wrong = |source| ChipError::Tensor { tensor, source };
        let element = desc.dtype().map_err(wrong)?.size();
        let offset = desc.start_offset.saturating_mul(element) as usize;
        let len = desc.extent.saturating_mul(element) as usize;
        let need = offset.saturating_add(len) as u64;
        let slot = in_host(host, desc.addr.saturating_add(offset as u64), len)
            .filter(|_| need <= desc.size)
            .ok_or(AbiError::BeyondBuffer { need, have: desc.size })
            .map_err(wrong)?;
        let mut bytes = vec![0; len];
        slot.region.read(slot.at, &mut bytes).map_err(|source| host_failed("before the launch", source))?;
        if len > 0 {
            staged.push(Staged { tensor, offset, bytes });
            slots.push(slot);
        }
    }
    Ok((staged, slots))
}

/// Writes back the bytes that the kernel changed, and no others: another task may be reading them.
fn write_back(slot: &HostSlot<'_>, before: &[u8], after: &[u8]) -> Result<(), ChipError> {
    let differs = |at: &usize| before[*at] != after[*at];
    let mut at = 0;
    while let Some(start) = (at..after.len()).find(differs) {
        let end = (start..after.len()).find(|at| !differs(at)).unwrap_or(after.len());
        let written = slot.region.write(slot.at + start, &after[start..end]);
        written.map_err(|source| host_failed("after the launch", source))?;
        at = end;
    }
    Ok(())
}

impl Device for AscendDevice {
    fn communicator(
        &self,
        entry: &Entry,
        me: Membership,
        within: Timeout,
    ) -> Result<Box<dyn Communicator>, CommError> {
        let device = self.device.as_ref().ok_or(CommError::Closed)?;
        let comm = match entry {
            Entry::Forked(group) => HcclComm::join(device, &group.prepared, me.rank(), within)?,
            Entry::Path(path) => HcclComm::rendezvous(device, path, me, within)?,
        };
        Ok(Box::new(comm))
    }

    fn load(&mut self, path: &Path, symbol: &str) -> Result<Kernel, ChipError> {
        let known = self.kernels.iter().position(|(file, name)| file == path && name == symbol);
        if let Some(known) = known {
            return Ok(Kernel(known));
        }
        let (file, name) = (path.to_owned(), symbol.to_owned());
        let loaded = self.run(self.within.get(), move |held| held.load(&file, &name));
        loaded.map_err(|source| KernelError::Device {
            path: path.to_owned(),
            symbol: symbol.to_owned(),
            source: Box::new(source),
        })?;
        self.kernels.push((path.to_owned(), symbol.to_owned()));
        Ok(Kernel(self.kernels.len() - 1))
    }

    /// The device ends a kernel a little after the limit: until then its parent may have stopped it, and said why.
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), ChipError> {
        let &Launch { kernel, blocks, tensors, scalars, host, meanwhile, limit } = launch;
        let spec = LaunchSpec { blocks, limit: limit.map(|limit| limit.saturating_add(LEFT_BEHIND)) };
        let (staged, slots) = stage(tensors, host)?;
        let before: Vec<Vec<u8>> = staged.iter().map(|part| part.bytes.clone()).collect();
        let (tensors, scalars) = (tensors.to_vec(), scalars.to_vec());
        let job = move |held: &mut Held| held.launch(kernel.0, tensors, &scalars, &staged, spec);
        let left = self.run_meanwhile(LONGEST_WAIT, meanwhile, job)?;
        slots
            .iter()
            .zip(&before)
            .zip(&left.staged)
            .try_for_each(|((slot, before), after)| write_back(slot, before, after))?;
        left.completions.into_iter().try_for_each(|(count, error)| check_completion(count, error))
    }

    fn memory(&self) -> Option<&dyn ChipMemory> {
        Some(self)
    }

    fn ascend(&self) -> Option<Opened> {
        self.device.clone()
    }

    fn close(&mut self) -> Result<(), ChipError> {
        self.device = None;
        let until = deadline(LEFT_BEHIND)?;
        self.run(self.within.get().max(2 * LEFT_BEHIND), move |held| held.close(until))
    }
}

impl ChipMemory for AscendDevice {
    fn allocate(&self, bytes: usize) -> Result<DeviceAddr, ChipError> {
        self.run(self.within.get(), move |held| {
            let memory = DeviceMemory::allocate(held.device()?, bytes)?;
            let addr = memory.addr();
            held.memory.insert(addr.0, memory);
            Ok(addr)
        })
    }

    fn free(&self, addr: DeviceAddr) -> Result<(), ChipError> {
        self.run(self.within.get(), move |held| {
            let memory =
                held.memory.remove(&addr.0).ok_or(DeviceError::Released { what: "device memory" })?;
            memory.release()
        })
    }

    fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), ChipError> {
        let len = into.len();
        let bytes = self.run(self.within.get(), move |held| {
            let (memory, offset) = held.holding(from, len)?;
            let mut bytes = vec![0; len];
            memory.read(offset, &mut bytes)?;
            Ok(bytes)
        })?;
        into.copy_from_slice(&bytes);
        Ok(())
    }

    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), ChipError> {
        let bytes = bytes.to_vec();
        self.run(self.within.get(), move |held| {
            let (memory, offset) = held.holding(to, bytes.len())?;
            memory.write(offset, &bytes)
        })
    }
}

fn deadline(limit: Duration) -> Result<Deadline, ChipError> {
    Ok(Deadline::after(limit)?)
}

fn host_failed(during: &'static str, source: RegionError) -> ChipError {
    ChipError::Host { during, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::abi::DType;

    fn host(bytes: &[u8]) -> Arc<Region> {
        let region = Region::create("host", 4096).unwrap();
        region.write(0, bytes).unwrap();
        Arc::new(region)
    }

    #[test]
    fn only_the_elements_of_tensors_in_host_memory_are_staged() {
        let region = host(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let base = DeviceAddr(region.base().as_ptr() as u64);
        let inside = TensorDesc::builder(base, 8, DType::Uint8, &[3]).start_offset(2).build().unwrap();
        let elsewhere = TensorDesc::builder(DeviceAddr(4096), 8, DType::Uint8, &[8]).build().unwrap();
        let regions = [region];
        let (staged, slots) = stage(&[elsewhere, inside], &regions).unwrap();
        assert_eq!((staged.len(), slots[0].at), (1, 2));
        assert_eq!((staged[0].tensor, staged[0].offset, staged[0].bytes.as_slice()), (1, 2, &[3, 4, 5][..]));
    }

    #[test]
    fn bytes_that_the_kernel_did_not_change_are_not_written() {
        let region = host(&[9, 9, 9, 9, 9]);
        let slot = HostSlot { region: &region, at: 0 };
        // Another task has written nines meanwhile. This kernel read ones and changed the second and the
        // last.
        write_back(&slot, &[1, 1, 1, 1, 1], &[1, 2, 1, 1, 3]).unwrap();
        let mut now = [0; 5];
        region.read(0, &mut now).unwrap();
        assert_eq!(now, [9, 2, 9, 9, 3]);
    }
}
