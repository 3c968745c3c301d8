//! Collectives that run on the devices, by an engine of their own.

use super::{CommError, Timeout};
use crate::abi::{DType, DeviceAddr};
use std::time::Duration;

/// A communicator whose devices have an engine for collectives. Its windows are on the devices, where this process cannot reach them.
pub trait DeviceCollectives: Send + Sync {
    /// Makes a group of some ranks, in this order: collective among them. `id` keeps groups of the same ranks apart.
    fn device_group(
        &self,
        ranks: &[u32],
        id: u64,
        within: Timeout,
    ) -> Result<Box<dyn DeviceGroup + '_>, CommError>;
}

/// One rank's end of a group.
pub trait DeviceGroup: Send {
    /// Starts a call, behind those that were started before. What it reads on the host is in the request.
    fn start(&self, request: DeviceRequest) -> Result<Box<dyn DeviceCallUnderWay>, CommError>;

    /// Waits for a call, and returns what it gave for the host. All waits of a call share one deadline, from `since_ns` on the
    /// monotonic clock.
    fn wait(
        &self,
        call: &mut dyn DeviceCallUnderWay,
        since_ns: u64,
        within: Timeout,
    ) -> Result<Vec<u8>, CommError>;

    /// What a wait for the other ranks would end with now: for callers that poll.
    fn check_members(&self, since_ns: u64, within: Timeout) -> Result<(), CommError>;

    /// Refuses a call that the engine has not, with what it has.
    fn check(&self, call: &DeviceCall) -> Result<(), String>;

    /// Whether an address is memory of the device.
    fn is_on_device(&self, addr: DeviceAddr, within: Timeout) -> Result<bool, CommError>;

    /// Allocates memory of the device, until it is freed or the group is closed.
    fn allocate(&self, bytes: usize, within: Timeout) -> Result<DeviceAddr, CommError>;

    /// Frees it.
    fn free(&self, addr: DeviceAddr, within: Timeout) -> Result<(), CommError>;

    /// Leaves the group. With [`Leaving::Together`] collective: no rank leaves before all have come.
    fn close(self: Box<Self>, leaving: Leaving, within: Timeout) -> Result<(), CommError>;
}

/// How a rank leaves a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// With all others.
    Together,
    /// At once: a call has failed, or the rank is about to leave its communicator.
    Alone,
}

/// A call that was started.
pub trait DeviceCallUnderWay: Send {
    /// Waits for so long at most. Returns whether the call is over.
    fn wait_for(&mut self, at_most: Duration) -> bool;

    /// What the call gave, once, when it is over.
    fn take(&mut self) -> Option<Result<Vec<u8>, CommError>>;
}

/// A call with its buffers.
#[derive(Clone, Debug)]
pub struct DeviceRequest {
    /// What to do.
    pub call: DeviceCall,
    /// What this rank gives.
    pub input: DeviceInput,
    /// Where the result goes.
    pub output: DeviceOutput,
}

/// What a device is asked to do. Lengths are bytes where nothing is reduced, and elements where something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceCall {
    /// Waits for all ranks.
    Barrier,
    /// Combines the inputs of all ranks, for all.
    AllReduce(Reduction),
    /// Combines the inputs of all ranks; each gets a block of [`Reduction::count`].
    ReduceScatter(Reduction),
    /// The same with an own number of elements for each rank.
    ReduceScatterV(Reduction, Vec<u64>),
    /// Combines the inputs of all ranks, for the root.
    Reduce(Reduction, u32),
    /// Copies so many bytes of the root to all. Input on the root, output on the others.
    Broadcast(u32, u64),
    /// Collects so many bytes of each rank, for all.
    AllGather(u64),
    /// The same with an own length for each rank.
    AllGatherV(Vec<u64>),
    /// Sends so many bytes to each rank.
    AllToAll(u64),
    /// The same with lengths of what is sent to, and received from, each rank.
    AllToAllV(Vec<u64>, Vec<u64>),
    /// Sends each rank so many bytes of what the root has.
    Scatter(u32, u64),
    /// Sends so many bytes to a rank.
    Send(u32, u64),
    /// Receives so many bytes from a rank.
    Receive(u32, u64),
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Their type.
    pub dtype: DType,
    /// The operation.
    pub op: ReduceOp,
    /// How many elements: of the result of one rank.
    pub count: u64,
}

/// The operations that devices know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Largest.
    Max,
    /// Smallest.
    Min,
}

/// What a rank gives to a call.
#[derive(Clone, Debug)]
pub enum DeviceInput {
    /// Nothing.
    Nothing,
    /// Bytes of the host, which are copied to the device first.
    Host(Vec<u8>),
    /// Memory of the device.
    Device(DeviceAddr),
}

/// Where the result of a call goes.
#[derive(Clone, Copy, Debug)]
pub enum DeviceOutput {
    /// Nowhere. The device may need so many bytes all the same.
    Nowhere(usize),
    /// To the host: so many bytes, copied from the device afterwards.
    Host(usize),
    /// To memory of the device.
    Device(DeviceAddr),
}
