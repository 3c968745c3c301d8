//! Where the windows of the peers are.
//!
//! # Safety
//! References to words of windows, by pointers that the communicator gave for whole windows. Base windows stay while the
//! communicator lives, which [`Signals`](super::Signals) keeps; domains by the promise of
//! [`Signals::add_domain`](super::Signals::add_domain).
#![allow(unsafe_code)]

use super::{Domain, SignalError};
use comm_context::abi::{CommContext, DType, DeviceAddr, TensorDesc};
use comm_context::comm::{CommError, Communicator, Window};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use shared_memory::Region;
use std::collections::BTreeMap;

/// A named part of every window of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBuffer {
    /// Its name.
    pub name: String,
    /// Where it starts, in bytes.
    pub offset: u64,
    /// How many elements it has.
    pub count: u64,
    /// How many bytes an element has.
    pub element: u64,
}

/// For each domain: who its members are and where their windows lie, as this chip reaches them.
///
/// The [`CommContext`] is its face in C.
#[derive(Debug, Default)]
pub struct RemoteAddressTable {
    domains: Vec<Entry>,
    /// Whether the first of them is a base window.
    has_base: bool,
}

#[derive(Debug)]
struct Entry {
    name: String,
    context: DeviceAddr,
    /// Ranks of the communicator.
    members: Box<[u32]>,
    /// This chip's rank in the domain.
    me: u32,
    size: u64,
    windows: Box<[NonNull<u8>]>,
    buffers: BTreeMap<String, NamedBuffer>,
}

// SAFETY: the pointers lead to memory that processes share; it is accessed as atomics only.
unsafe impl Send for RemoteAddressTable {}
// SAFETY: as above.
unsafe impl Sync for RemoteAddressTable {}

impl RemoteAddressTable {
    pub(super) fn add_base(&mut self, comm: &dyn Communicator, window: Window) -> Result<(), SignalError> {
        let members: Vec<u32> = (0..comm.nranks()).collect();
        self.has_base = true;
        self.add("base", comm, window.context, &members).map(drop)
    }

    pub(super) fn add(
        &mut self,
        name: &str,
        comm: &dyn Communicator,
        context: DeviceAddr,
        members: &[u32],
    ) -> Result<Domain, SignalError> {
        let mut bytes = [0; size_of::<CommContext>()];
        comm.read(context, &mut bytes)?;
        let decoded = CommContext::decode(&bytes).map_err(CommError::impossible)?;
        let host = comm.host_windows().ok_or(SignalError::NoWindow { domain: Domain::BASE })?;
        let nranks = decoded.nranks();
        if members.len() != nranks as usize {
            let (rank, window) = (members.len() as u32, name.to_owned());
            return Err(SignalError::NoSuchRank { rank, nranks, window });
        }
        let windows = decoded.windows_in[..members.len()]
            .iter()
            .map(|at| host.host_pointer(DeviceAddr(*at), decoded.win_size as usize))
            .collect::<Result<_, _>>()?;
        if !self.has_base && self.domains.is_empty() {
            self.domains.push(Entry::none());
        }
        self.domains.push(Entry {
            name: name.to_owned(),
            context,
            members: members.into(),
            me: decoded.rank(),
            size: decoded.win_size,
            windows,
            buffers: BTreeMap::new(),
        });
        Ok(Domain(self.domains.len() as u32 - 1))
    }

    /// The base windows of chips in one process, one after the other. The region outlives the table.
    pub(super) fn add_in_region(&mut self, region: &Region, first: usize, size: usize, chips: u32, me: u32) {
        let at = |rank: u32| {
            let offset = first + rank as usize * size;
            assert!(offset + size <= region.len());
            // SAFETY: inside the region, as just checked.
            unsafe { region.base().add(offset) }
        };
        self.has_base = true;
        self.domains.push(Entry {
            name: "base".into(),
            context: DeviceAddr::NULL,
            members: (0..chips).collect(),
            me,
            size: size as u64,
            windows: (0..chips).map(at).collect(),
            buffers: BTreeMap::new(),
        });
    }

    pub(super) fn forget_domains(&mut self) {
        self.domains.truncate(usize::from(self.has_base));
    }

    pub(super) fn name_buffer(&mut self, domain: Domain, buffer: NamedBuffer) -> Result<(), SignalError> {
        let end = buffer.count.checked_mul(buffer.element).and_then(|bytes| bytes.checked_add(buffer.offset));
        let entry = self.entry_mut(domain)?;
        if end.is_none_or(|end| end > entry.size) {
            let (offset, size, window) = (end.unwrap_or(u64::MAX), entry.size, entry.name.clone());
            return Err(SignalError::OutsideWindow { offset, size, window });
        }
        entry.buffers.insert(buffer.name.clone(), buffer);
        Ok(())
    }

    /// The domain whose `CommContext` is at `context`.
    pub fn domain(&self, context: DeviceAddr) -> Option<Domain> {
        let at = self.domains.iter().position(|entry| !context.is_null() && entry.context == context)?;
        Some(Domain(at as u32))
    }

    /// The domain called `name`; the base window is `base`.
    pub fn domain_named(&self, name: &str) -> Option<Domain> {
        self.domains.iter().position(|entry| entry.name == name).map(|at| Domain(at as u32))
    }

    /// The name of a domain.
    pub fn name(&self, domain: Domain) -> &str {
        self.domains.get(domain.0 as usize).map_or("?", |entry| &entry.name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(|entry| &*entry.name)
    }

    /// This chip's rank in a domain, and how many it has.
    pub fn place(&self, domain: Domain) -> Result<(u32, u32), SignalError> {
        let entry = self.entry(domain)?;
        Ok((entry.me, entry.members.len() as u32))
    }

    /// Whether these bytes lie in one window.
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        let inside = |entry: &Entry, window: &NonNull<u8>| {
            let offset = addr.checked_sub(window.addr().get() as u64);
            offset.and_then(|offset| offset.checked_add(len)).is_some_and(|end| end <= entry.size)
        };
        self.domains.iter().any(|entry| entry.windows.iter().any(|window| inside(entry, window)))
    }

    /// All windows, each as a tensor of bytes.
    pub fn windows(&self) -> impl Iterator<Item = TensorDesc> {
        let bytes = |entry: &Entry, window: &NonNull<u8>| {
            let (at, len) = (DeviceAddr(window.addr().get() as u64), entry.size);
            TensorDesc::builder(at, len, DType::Uint8, &[u32::try_from(len).unwrap_or(u32::MAX)]).build().ok()
        };
        self.domains
            .iter()
            .flat_map(move |entry| entry.windows.iter().filter_map(move |window| bytes(entry, window)))
    }

    /// Element `index` of a named buffer in the window of `rank`: inside the buffer, and aligned as its elements are.
    pub fn address(
        &self,
        domain: Domain,
        rank: u32,
        name: &str,
        index: u64,
    ) -> Result<DeviceAddr, SignalError> {
        let entry = self.entry(domain)?;
        let known = || entry.buffers.keys().cloned().collect();
        let missing = || SignalError::NoSuchBuffer { name: name.to_owned(), known: known() };
        let buffer = entry.buffers.get(name).ok_or_else(missing)?;
        if index >= buffer.count {
            return Err(SignalError::NoSuchElement { name: name.to_owned(), index, count: buffer.count });
        }
        // Inside the window: checked when the buffer was named.
        let window = entry.window(rank)?;
        Ok(DeviceAddr(window.addr().get() as u64 + buffer.offset + index * buffer.element))
    }

    /// The rank of the communicator that is `rank` of the domain.
    pub(crate) fn member(&self, domain: Domain, rank: u32) -> Result<u32, SignalError> {
        let entry = self.entry(domain)?;
        entry.members.get(rank as usize).copied().ok_or_else(|| entry.no_rank(rank))
    }

    /// A word of the window of `rank`.
    pub(super) fn word(&self, domain: Domain, rank: u32, offset: u64) -> Result<&AtomicU32, SignalError> {
        let entry = self.entry(domain)?;
        let size = entry.size;
        if offset.checked_add(4).is_none_or(|end| end > size) {
            return Err(SignalError::OutsideWindow { offset, size, window: entry.name.clone() });
        }
        if !offset.is_multiple_of(4) {
            return Err(SignalError::NotAligned { at: offset });
        }
        let window = entry.window(rank)?;
        // SAFETY: inside the window and aligned, as just checked (windows start at pages); it stays as the top of the file says, and
        // others access it as an atomic too.
        Ok(unsafe { window.add(offset as usize).cast::<AtomicU32>().as_ref() })
    }

    /// A word of this chip's window.
    pub(super) fn own_word(&self, domain: Domain, offset: u64) -> Result<&AtomicU32, SignalError> {
        self.word(domain, self.entry(domain)?.me, offset)
    }

    fn entry(&self, domain: Domain) -> Result<&Entry, SignalError> {
        let entry = self.domains.get(domain.0 as usize).filter(|entry| !entry.windows.is_empty());
        entry.ok_or(SignalError::NoWindow { domain })
    }

    fn entry_mut(&mut self, domain: Domain) -> Result<&mut Entry, SignalError> {
        let entry = self.domains.get_mut(domain.0 as usize).filter(|entry| !entry.windows.is_empty());
        entry.ok_or(SignalError::NoWindow { domain })
    }
}

impl Entry {
    /// In place of a base window that does not exist.
    fn none() -> Self {
        Self {
            name: String::new(),
            context: DeviceAddr::NULL,
            members: Box::default(),
            me: 0,
            size: 0,
            windows: Box::default(),
            buffers: BTreeMap::new(),
        }
    }

    fn window(&self, rank: u32) -> Result<NonNull<u8>, SignalError> {
        self.windows.get(rank as usize).copied().ok_or_else(|| self.no_rank(rank))
    }

    fn no_rank(&self, rank: u32) -> SignalError {
        SignalError::NoSuchRank { rank, nranks: self.members.len() as u32, window: self.name.clone() }
    }
}
