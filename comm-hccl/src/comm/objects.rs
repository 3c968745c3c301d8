//! The vendor's objects of a communicator: made, used and released on its vendor thread.

use crate::device::{Device, VendorPid};
use crate::error::DeviceError;
use crate::group::{Group, RootInfo};
use crate::memory::DeviceMemory;
use crate::stream::Stream;
use crate::window::{Importers, LocalWindow, PeerWindow, ShareMode, WindowTicket};
use comm_context::abi::{CommContext, CommContextTail, DeviceAddr, PlacedContext};
use comm_context::comm::{Allocated, Key, Window};
use rendezvous::KernelWords;
use std::collections::BTreeMap;
use std::time::Instant;

/// Bytes of the words that kernels read: a cache line, with the abort word at 0 and the generation at 4.
const WORDS_BYTES: usize = 64;

/// The vendor's objects; [`Objects::release`] defines the order of their release.
#[derive(Debug)]
pub(crate) struct Objects {
    device: Device,
    /// `None` once released.
    stream: Option<Stream>,
    group: Option<Group>,
    windows: BTreeMap<Key, Windows>,
    contexts: Vec<DeviceMemory>,
    /// The words that this rank's kernels read, which every context points at; made with the first context.
    words: Option<DeviceMemory>,
    /// What callers of collectives have allocated.
    allocated: BTreeMap<u64, DeviceMemory>,
    /// What adds to words; made with the first sum.
    adder: Option<Adder>,
}

/// A stream of its own, since that of the barrier must not be synchronised, and the word that is added.
#[derive(Debug)]
struct Adder {
    stream: Stream,
    by: DeviceMemory,
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
            words: None,
            allocated: BTreeMap::new(),
            adder: None,
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

    /// Allocates this rank's window and allows the peers to open it; `None` stands for peers on other hosts.
    pub(crate) fn make(
        &mut self,
        key: Key,
        mode: ShareMode,
        size: usize,
        peers: Option<&[VendorPid]>,
    ) -> Result<WindowTicket, DeviceError> {
        let importers = if peers.is_some() { Importers::Allowed } else { Importers::AnyHost };
        let own = LocalWindow::create_for(&self.device, mode, size, &importers)?;
        if let Some(peers) = peers.filter(|peers| !peers.is_empty()) {
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
        let tail = self.tail()?;
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
        let memory = self.device.place(&PlacedContext { context, tail })?;
        let own = &windows.own;
        let window = Window { context: memory.addr(), base: own.addr(), size: own.size() };
        windows.context = Some(memory);
        Ok(Allocated { window, context })
    }

    /// What follows every context: where the words are that kernels read.
    fn tail(&mut self) -> Result<CommContextTail, DeviceError> {
        let at = match &self.words {
            Some(made) => made.addr(),
            None => {
                let memory = DeviceMemory::allocate(&self.device, WORDS_BYTES)?;
                memory.fill(0)?;
                self.words.insert(memory).addr()
            }
        };
        Ok(CommContextTail::new(at, DeviceAddr(at.0 + 4)))
    }

    /// Writes the words that this rank's kernels read. Returns whether they are there yet.
    pub(crate) fn set_words(&self, words: KernelWords<u32>) -> Result<bool, DeviceError> {
        let Some(memory) = &self.words else { return Ok(false) };
        let [a, b, c, d] = words.abort.to_le_bytes();
        let [e, f, g, h] = words.generation.to_le_bytes();
        memory.write(0, &[a, b, c, d, e, f, g, h])?;
        Ok(true)
    }

    pub(crate) fn is_on_device(&self, addr: DeviceAddr) -> Result<bool, DeviceError> {
        self.device.owns(addr)
    }

    /// Allocates memory until [`free_allocated`](Self::free_allocated) or the end.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<DeviceAddr, DeviceError> {
        let memory = DeviceMemory::allocate(&self.device, bytes)?;
        let addr = memory.addr();
        self.allocated.insert(addr.0, memory);
        Ok(addr)
    }

    pub(crate) fn free_allocated(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        let memory = self.allocated.remove(&addr.0);
        memory.ok_or(DeviceError::NotAllocated { addr, len: 0 })?.release()
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
        let tail = self.tail()?;
        let memory = self.device.place(&PlacedContext { context: *context, tail })?;
        let at = memory.addr();
        self.contexts.push(memory);
        Ok(at)
    }

    /// Copies bytes of a window to the host. The vendor rules out copies between the host and a peer's window, so those go
    /// through memory of this device.
    pub(crate) fn read(&self, from: DeviceAddr, len: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; len];
        if len > 0 && self.is_in_peer(from) {
            let staging = DeviceMemory::allocate(&self.device, len)?;
            self.device.copy(staging.addr(), from, len)?;
            staging.read(0, &mut bytes)?;
            staging.release()?;
        } else {
            self.device.read(from, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Copies bytes of the host to a window; see [`read`](Self::read).
    pub(crate) fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() || !self.is_in_peer(to) {
            return self.device.write(to, bytes);
        }
        let staging = DeviceMemory::allocate(&self.device, bytes.len())?;
        staging.write(0, bytes)?;
        self.device.copy(to, staging.addr(), bytes.len())?;
        staging.release()
    }

    /// Adds to a word of a window. The sum is there when this returns.
    pub(crate) fn add_word(&mut self, to: DeviceAddr, by: u32) -> Result<(), DeviceError> {
        let adder = match &mut self.adder {
            Some(adder) => adder,
            none => {
                let by = DeviceMemory::allocate(&self.device, size_of::<u32>())?;
                none.insert(Adder { stream: Stream::create(&self.device)?, by })
            }
        };
        adder.by.write(0, &by.to_le_bytes())?;
        adder.stream.add_word(to, adder.by.addr())?;
        adder.stream.synchronize()
    }

    fn is_in_peer(&self, addr: DeviceAddr) -> bool {
        let mut peers = self.windows.values().flat_map(|windows| &windows.peers);
        peers.any(|peer| addr.0.checked_sub(peer.addr().0).is_some_and(|offset| offset < peer.size() as u64))
    }

    /// Closes the peers' windows of all allocations. Returns the first error.
    pub(crate) fn close_all_peers(&mut self) -> Result<(), DeviceError> {
        let closed: Vec<_> = self.windows.values_mut().map(Windows::close_peers).collect();
        closed.into_iter().collect()
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
        std::mem::take(&mut self.allocated).into_values().for_each(|memory| keep(memory.release()));
        keep(self.words.take().map_or(Ok(()), DeviceMemory::release));
        if let Some(Adder { stream, by }) = self.adder.take() {
            keep(stream.release());
            keep(by.release());
        }
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
    fn place(&self, placed: &PlacedContext) -> Result<DeviceMemory, DeviceError> {
        let memory = DeviceMemory::allocate(self, size_of::<PlacedContext>())?;
        memory.write(0, placed.as_bytes())?;
        Ok(memory)
    }
}
