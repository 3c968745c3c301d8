//! The vendor's objects of a communicator: made, used and released on its vendor thread.

use crate::device::{Device, VendorPid};
use crate::error::DeviceError;
use crate::group::{Group, RootInfo};
use crate::memory::DeviceMemory;
use crate::stream::Stream;
use crate::window::{LocalWindow, PeerWindow, ShareMode, WindowTicket};
use comm_context::abi::{CommContext, CommWorkspace, DeviceAddr};
use comm_context::comm::{Allocated, Key, Window};
use std::collections::BTreeMap;
use std::time::Instant;

/// The vendor's objects; [`Objects::release`] defines the order of their release.
#[derive(Debug)]
pub(crate) struct Objects {
    device: Device,
    /// `None` once released.
    stream: Option<Stream>,
    group: Option<Group>,
    windows: BTreeMap<Key, Windows>,
    contexts: Vec<DeviceMemory>,
    /// What every context of this rank points at; made with the first context.
    workspace: Option<DeviceMemory>,
}

/// One allocation: this rank's window, the peers' windows as this rank reaches them, and the context that describes all.
#[derive(Debug)]
struct Windows {
    own: LocalWindow,
    peers: Vec<PeerWindow>,
    context: Option<DeviceMemory>,
}

impl Objects {
    pub(crate) fn new(device: Device, stream: Stream) -> Self {
        Self {
            device,
            stream: Some(stream),
            group: None,
            windows: BTreeMap::new(),
            contexts: Vec::new(),
            workspace: None,
        }
    }

    pub(crate) fn join(&mut self, root: &RootInfo, ranks: u32, rank: u32) -> Result<(), DeviceError> {
        self.group = Some(Group::join(&self.device, root, ranks, rank)?);
        Ok(())
    }

    pub(crate) fn root_info(&self) -> Result<RootInfo, DeviceError> {
        RootInfo::open(&self.device)
    }

    pub(crate) fn barrier(&self) -> Result<(), DeviceError> {
        match (&self.group, &self.stream) {
            (Some(group), Some(stream)) => group.barrier(stream),
            _ => Err(DeviceError::Released { what: "communicator" }),
        }
    }

    /// Allocates this rank's window and allows the peers to open it.
    pub(crate) fn make(
        &mut self,
        key: Key,
        mode: ShareMode,
        size: usize,
        peers: &[VendorPid],
    ) -> Result<WindowTicket, DeviceError> {
        let own = LocalWindow::create(&self.device, mode, size)?;
        if !peers.is_empty() {
            own.allow(peers)?;
        }
        let ticket = *own.ticket();
        self.windows.insert(key, Windows { own, peers: Vec::new(), context: None });
        Ok(ticket)
    }

    /// Opens the peers' windows (`None` stands for this rank's own, at position `me`) and copies the context to the device.
    pub(crate) fn open(
        &mut self,
        key: Key,
        me: u32,
        tickets: &[Option<WindowTicket>],
        until: Instant,
    ) -> Result<Allocated, DeviceError> {
        let workspace = self.workspace()?;
        let windows = self.windows.get_mut(&key).ok_or(DeviceError::Released { what: "window" })?;
        let mut bases = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            bases.push(match ticket {
                None => windows.own.addr(),
                Some(ticket) => {
                    let peer = PeerWindow::open(&self.device, ticket, until)?;
                    let at = peer.addr();
                    windows.peers.push(peer);
                    at
                }
            });
        }
        let context = CommContext::new(me, &bases, windows.own.size() as u64).map_err(|_| {
            DeviceError::Unexpected { function: "aclrtMapMem", what: "an impossible address" }
        })?;
        let context = context.with_workspace(workspace);
        let memory = self.device.place(&context)?;
        let own = &windows.own;
        let window = Window { context: memory.addr(), base: own.addr(), size: own.size() };
        windows.context = Some(memory);
        Ok(Allocated { window, context })
    }

    fn workspace(&mut self) -> Result<DeviceAddr, DeviceError> {
        if let Some(made) = &self.workspace {
            return Ok(made.addr());
        }
        let memory = DeviceMemory::allocate(&self.device, size_of::<CommWorkspace>())?;
        memory.fill(0)?;
        Ok(self.workspace.insert(memory).addr())
    }

    /// Writes the abort word that this rank's kernels poll. Returns whether there is one yet.
    pub(crate) fn set_abort(&self, word: u32) -> Result<bool, DeviceError> {
        let Some(workspace) = &self.workspace else { return Ok(false) };
        workspace.write(std::mem::offset_of!(CommWorkspace, abort), &word.to_le_bytes())?;
        Ok(true)
    }

    /// Closes the peers' windows; their owners may then free them.
    pub(crate) fn close_peers(&mut self, key: Key) -> Result<(), DeviceError> {
        let Some(windows) = self.windows.get_mut(&key) else { return Ok(()) };
        windows.close_peers()
    }

    /// Frees this rank's window and its context.
    pub(crate) fn free(&mut self, key: Key) -> Result<(), DeviceError> {
        match self.windows.remove(&key) {
            Some(windows) => windows.free(),
            None => Ok(()),
        }
    }

    /// Copies a further context to the device.
    pub(crate) fn place(&mut self, context: &CommContext) -> Result<DeviceAddr, DeviceError> {
        let memory = self.device.place(context)?;
        let at = memory.addr();
        self.contexts.push(memory);
        Ok(at)
    }

    pub(crate) fn read(&self, from: DeviceAddr, len: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; len];
        self.device.read(from, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(to, bytes)
    }

    /// Releases everything, the peers' windows first. Returns the first error.
    pub(crate) fn release(&mut self) -> Result<(), DeviceError> {
        let mut first = Ok(());
        let mut keep = |result: Result<(), DeviceError>| {
            if first.is_ok() {
                first = result;
            }
        };
        self.windows.values_mut().for_each(|windows| keep(windows.close_peers()));
        self.contexts.drain(..).for_each(|context| keep(context.release()));
        std::mem::take(&mut self.windows).into_values().for_each(|windows| keep(windows.free()));
        keep(self.workspace.take().map_or(Ok(()), DeviceMemory::release));
        keep(self.group.take().map_or(Ok(()), Group::release));
        keep(self.stream.take().map_or(Ok(()), Stream::release));
        first
    }
}

impl Windows {
    fn close_peers(&mut self) -> Result<(), DeviceError> {
        let closed: Vec<_> = self.peers.drain(..).map(PeerWindow::release).collect();
        closed.into_iter().collect()
    }

    fn free(mut self) -> Result<(), DeviceError> {
        let closed = self.close_peers();
        let placed = self.context.take().map_or(Ok(()), DeviceMemory::release);
        closed.and(placed).and(self.own.release())
    }
}

impl Device {
    fn place(&self, context: &CommContext) -> Result<DeviceMemory, DeviceError> {
        let memory = DeviceMemory::allocate(self, size_of::<CommContext>())?;
        memory.write(0, context.as_bytes())?;
        Ok(memory)
    }
}
