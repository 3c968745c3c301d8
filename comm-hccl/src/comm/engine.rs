//! A group's side of HCCL: made, used and released on its vendor thread.

use crate::collective::Buffers;
use crate::device::Device;
use crate::error::DeviceError;
use crate::group::{Group, RootInfo};
use crate::memory::DeviceMemory;
use crate::stream::Stream;
use comm_context::abi::DeviceAddr;
use comm_context::comm::{DeviceCall, DeviceInput, DeviceOutput, DeviceRequest};

/// A communicator and a stream of its own, and memory for what comes from and goes to the host.
#[derive(Debug)]
pub(super) struct Engine {
    device: Device,
    /// `None` once released.
    stream: Option<Stream>,
    group: Option<Group>,
    rank: u32,
    staged_input: Option<DeviceMemory>,
    staged_output: Option<DeviceMemory>,
}

impl Engine {
    pub(super) fn new(device: Device, rank: u32) -> Result<Self, DeviceError> {
        device.bind_thread()?;
        let stream = Some(Stream::create(&device)?);
        Ok(Self { device, stream, group: None, rank, staged_input: None, staged_output: None })
    }

    pub(super) fn root_info(&self) -> Result<RootInfo, DeviceError> {
        RootInfo::open(&self.device)
    }

    pub(super) fn join(&mut self, root: &RootInfo, ranks: u32) -> Result<(), DeviceError> {
        self.group = Some(Group::join(&self.device, root, ranks, self.rank)?);
        Ok(())
    }

    /// Runs a call to its end, and returns what it gave for the host.
    pub(super) fn run(&mut self, request: &DeviceRequest) -> Result<Vec<u8>, DeviceError> {
        let input = match &request.input {
            DeviceInput::Nothing => DeviceAddr(0),
            DeviceInput::Device(at) => *at,
            DeviceInput::Host(bytes) => {
                let memory = staged(&self.device, &mut self.staged_input, bytes.len())?;
                if !bytes.is_empty() {
                    memory.write(0, bytes)?;
                }
                memory.addr()
            }
        };
        let output = match request.output {
            DeviceOutput::Nowhere(0) => DeviceAddr(0),
            DeviceOutput::Device(at) => at,
            DeviceOutput::Nowhere(bytes) | DeviceOutput::Host(bytes) => {
                staged(&self.device, &mut self.staged_output, bytes)?.addr()
            }
        };
        let (Some(group), Some(stream)) = (&self.group, &self.stream) else {
            return Err(DeviceError::Released { what: "communicator" });
        };
        group.enqueue(&request.call, self.rank, Buffers { input, output }, stream)?;
        // The barrier is synchronous, and the vendor forbids to synchronise after it.
        if request.call != DeviceCall::Barrier {
            stream.synchronize()?;
            group.check()?;
        }
        let mut bytes = Vec::new();
        if let (DeviceOutput::Host(len @ 1..), Some(memory)) = (request.output, &self.staged_output) {
            bytes.resize(len, 0);
            memory.read(0, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Releases everything. Returns the first error.
    pub(super) fn release(&mut self) -> Result<(), DeviceError> {
        let staged = [self.staged_input.take(), self.staged_output.take()].into_iter().flatten();
        let freed: Vec<_> = staged.map(DeviceMemory::release).collect();
        let left = self.group.take().map_or(Ok(()), Group::release);
        let closed = self.stream.take().map_or(Ok(()), Stream::release);
        freed.into_iter().collect::<Result<(), _>>().and(left).and(closed)
    }
}

/// Memory of at least so many bytes, and of at least one, so that there is an address.
fn staged<'m>(
    device: &Device,
    place: &'m mut Option<DeviceMemory>,
    bytes: usize,
) -> Result<&'m DeviceMemory, DeviceError> {
    if place.as_ref().is_some_and(|memory| memory.size() < bytes) {
        place.take().map_or(Ok(()), DeviceMemory::release)?;
    }
    if place.is_none() {
        let size = bytes.max(4096).checked_next_power_of_two().unwrap_or(bytes);
        *place = Some(DeviceMemory::allocate(device, size)?);
    }
    place.as_ref().ok_or(DeviceError::Released { what: "staging memory" })
}
