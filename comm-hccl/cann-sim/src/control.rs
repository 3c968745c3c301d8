//! The session's shared tables.
//!
//! Everything is an atomic word, so that no process holds a plain reference to bytes that another one writes. Counters are
//! accessed without a lock; the tables of exports and communicators only under the file lock, which the kernel releases when
//! its holder dies. The orderings are therefore relaxed, except for the words that ranks wait on.
//!
//! # Safety
//! The only unsafe code views the mapped file as `Control`, and maps the file.
#![allow(unsafe_code)]

use crate::objects::Kind;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Processes that may ever attach to one session.
pub(crate) const PROCESSES: usize = 1024;
/// Exports alive at once.
const EXPORTS: usize = 1024;
/// Communicators of one session.
const COMMS: usize = 256;
/// Processes that one export can be opened to.
pub const EXPORT_PIDS: usize = 64;
/// Identifies the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"cannsim3");

/// One process of the session.
#[repr(C)]
#[derive(Debug)]
pub struct ProcessSlot {
    /// 0 while the slot is free.
    pub pid: AtomicI32,
    /// -1 while unknown.
    pub rank: AtomicI32,
    /// Start time, so that a reused pid is not taken for this process.
    pub start: AtomicU64,
    /// Vendor calls made so far.
    pub calls: AtomicU64,
    /// Live objects by kind.
    pub live: [AtomicI64; Kind::ALL.len()],
    /// Objects that a reset or the end of the runtime had to clean up.
    pub reclaimed: [AtomicI64; Kind::ALL.len()],
}

/// What an export is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ExportKind {
    /// A 128-byte Fabric handle.
    Fabric = 1,
    /// A 64-bit handle.
    Shareable = 2,
    /// A 65-byte key.
    IpcKey = 3,
}

/// Memory that other processes may open.
#[repr(C)]
#[derive(Debug)]
pub struct ExportSlot {
    /// 0 while the slot is free; otherwise an [`ExportKind`].
    pub kind: AtomicU32,
    /// The secret part of the handle; never reused.
    pub nonce: AtomicU64,
    /// Who exported it.
    pub pid: AtomicI32,
    /// When that process started.
    pub start: AtomicU64,
    /// The host of that process.
    pub host: AtomicU64,
    /// The descriptor in that process.
    pub fd: AtomicI32,
    /// Bytes.
    pub size: AtomicU64,
    /// The device, driver-visible.
    pub device: AtomicU32,
    /// 1: anyone may import.
    pub open_to_all: AtomicU32,
    /// Processes that may import; 0 is none.
    pub pids: [AtomicI32; EXPORT_PIDS],
    /// Processes that have it open, each as often as it has imported it; 0 is none.
    pub importers: [AtomicI32; EXPORT_PIDS],
}

/// A communicator.
#[repr(C)]
#[derive(Debug)]
pub struct CommSlot {
    /// 0 while the slot is free; otherwise a number that is never reused.
    pub nonce: AtomicU64,
    /// Ranks that it waits for; 0 until the first has joined.
    pub ranks: AtomicU32,
    /// 1 when all have joined.
    pub ready: AtomicU32,
    /// One bit a rank that has joined.
    pub joined: AtomicU64,
    /// Ranks in the current barrier.
    pub arrived: AtomicU32,
    /// Barriers passed.
    pub generation: AtomicU32,
    /// Who holds the staging memory of the collectives.
    pub root_pid: AtomicI32,
    /// Its descriptor there.
    pub root_fd: AtomicI32,
}

/// The whole file.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    magic: AtomicU64,
    next_nonce: AtomicU64,
    /// Every process that ever attached.
    pub processes: [ProcessSlot; PROCESSES],
    /// Live exports.
    pub exports: [ExportSlot; EXPORTS],
    /// Communicators.
    pub comms: [CommSlot; COMMS],
}

/// The mapped file and its lock.
#[derive(Debug)]
pub(crate) struct ControlFile {
    file: File,
    map: MmapRaw,
    threads: Mutex<()>,
}

/// The session's lock: no other thread and no other process uses the tables.
#[derive(Debug)]
pub struct ControlLock<'a> {
    file: &'a ControlFile,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for ControlLock<'_> {
    fn drop(&mut self) {
        // SAFETY: unlocking a descriptor that we own cannot touch memory.
        unsafe { libc::flock(self.file.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

impl ControlFile {
    /// Opens the session's tables, and makes them if this is the first process.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("control"))?;
        let size = size_of::<Control>();
        lock(&file)?;
        if file.metadata()?.len() == 0 {
            file.set_len(size as u64)?;
        }
        if file.metadata()?.len() != size as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "control file of another size"));
        }
        let map = MmapOptions::new().len(size).map_raw(&file)?;
        let this = Self { file, map, threads: Mutex::new(()) };
        // Also when the process that made it was killed in between: the magic is written last, and the lock is free again.
        if this.control().magic.load(Relaxed) == 0 {
            this.control().next_nonce.store(shared_memory::nonce(), Relaxed);
            this.control().magic.store(MAGIC, Relaxed);
        }
        // SAFETY: unlocking a descriptor that we own cannot touch memory.
        unsafe { libc::flock(this.file.as_raw_fd(), libc::LOCK_UN) };
        if this.control().magic.load(Relaxed) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "control file of another layout"));
        }
        Ok(this)
    }

    /// The tables. Those of exports and communicators are for holders of the lock.
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: the mapping is page-aligned, as long as `Control`, lives as long as `self`, and `Control`
        // is made of atomic words only, for which any bytes are valid and concurrent writers are allowed.
        unsafe { &*self.map.as_ptr().cast::<Control>() }
    }

    /// Locks the tables.
    pub(crate) fn lock(&self) -> io::Result<ControlLock<'_>> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        lock(&self.file)?;
        Ok(ControlLock { file: self, _threads: threads })
    }
}

impl ControlLock<'_> {
    /// The tables.
    pub fn control(&self) -> &Control {
        self.file.control()
    }

    /// A number that this session has not used before.
    pub fn nonce(&self) -> u64 {
        self.control().next_nonce.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed) | 1
    }
}

fn lock(file: &File) -> io::Result<()> {
    loop {
        // SAFETY: locking a descriptor that the caller owns cannot touch memory.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_a_killed_process_left_unfinished_are_completed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        File::create(&path).unwrap().set_len(size_of::<Control>() as u64).unwrap();
        let first = ControlFile::open(dir.path()).unwrap();
        let nonce = first.control().next_nonce.load(Relaxed);
        assert_ne!(nonce, 0);
        // A process that comes later finds them unchanged.
        let second = ControlFile::open(dir.path()).unwrap();
        assert_eq!(second.control().next_nonce.load(Relaxed), nonce);
        std::fs::write(&path, "something else").unwrap();
        assert!(ControlFile::open(dir.path()).is_err());
    }
}
