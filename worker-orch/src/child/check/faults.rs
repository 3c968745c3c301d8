//! Accesses to pages that a task must not touch, or not yet: they are recorded, and then happen.
//!
//! # Safety
//! Installs a handler of SIGSEGV, and changes what this process may do with pages. The handler uses atomic words and `mprotect` alone, which a
//! signal handler may. It changes no page but those of [`watch`], which are in memory that this process shares with its parent. A fault
//! elsewhere is not its business: the handler that was there before gets it.
//!
//! The words of the table are for the thread that runs tasks, which writes them between tasks, and for threads that a kernel starts, which
//! are ordered after that by their start; so the accesses are relaxed but for `used` and `hit`, which stand for the others.
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{ProtFlags, mprotect};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use shared_memory::PAGE;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Why a page is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Beside a buffer: nothing may access it.
    Guard = 1,
    /// An input: the task may read it.
    ReadOnly = 2,
    /// An output that nobody has written: the first access must be a write.
    Unwritten = 3,
}

/// The most ranges that are watched; of more, the last are not.
pub(super) const MOST: usize = 1024;

/// Ranges of pages, as the handler finds them. Written while no task runs.
struct Table {
    used: AtomicUsize,
    ranges: [Entry; MOST],
    /// The index of the range of the first fault that counts, plus 1.
    hit: AtomicUsize,
    hit_addr: AtomicUsize,
    /// 1 for a read, 2 for a write, 0 when the processor does not say.
    hit_access: AtomicU32,
}

struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    kind: AtomicU32,
}

static TABLE: Table = Table {
    used: AtomicUsize::new(0),
    ranges: [const { Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), kind: AtomicU32::new(0) } };
        MOST],
    hit: AtomicUsize::new(0),
    hit_addr: AtomicUsize::new(0),
    hit_access: AtomicU32::new(0),
};

/// What was there before; the handler that gets the faults of others.
static BEFORE: OnceLock<SigAction> = OnceLock::new();

/// The first access that a task must not have made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    /// Which of the watched ranges.
    pub(super) range: usize,
    pub(super) addr: u64,
    /// `None` when the processor does not say.
    pub(super) write: Option<bool>,
}

/// Installs the handler, once for each process.
pub(super) fn install() -> Result<(), Errno> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK;
    let action = SigAction::new(SigHandler::SigAction(handle), flags, SigSet::empty());
    // SAFETY: the handler keeps to what a signal handler may do; see the head of this file.
    let before = unsafe { sigaction(Signal::SIGSEGV, &action) }?;
    let _ = BEFORE.set(before);
    Ok(())
}

/// Watches these pages until [`release`]: whole pages of memory that is shared with the parent. Says how many of them are watched.
pub(super) fn watch(ranges: &[(Range<u64>, Kind)]) -> usize {
    let mut used = 0;
    for (range, kind) in ranges.iter().take(MOST) {
        let entry = &TABLE.ranges[used];
        entry.start.store(range.start as usize, Ordering::Relaxed);
        entry.end.store(range.end as usize, Ordering::Relaxed);
        entry.kind.store(*kind as u32, Ordering::Relaxed);
        used += 1;
    }
    TABLE.hit.store(0, Ordering::Relaxed);
    // Release: a thread that a task starts sees the entries with their number.
    TABLE.used.store(used, Ordering::Release);
    for (range, kind) in &ranges[..used] {
        let access = if *kind == Kind::ReadOnly { ProtFlags::PROT_READ } else { ProtFlags::PROT_NONE };
        // Without it a fault is missed, and nothing else is wrong.
        let _ = protect(range.start as usize..range.end as usize, access);
    }
    used
}

/// Nothing is watched any more. Returns the first access that must not have been.
pub(super) fn release(ranges: &[(Range<u64>, Kind)]) -> Option<Hit> {
    for (range, _) in &ranges[..ranges.len().min(MOST)] {
        let _ =
            protect(range.start as usize..range.end as usize, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    }
    TABLE.used.store(0, Ordering::Release);
    let range = TABLE.hit.swap(0, Ordering::Acquire).checked_sub(1)?;
    let write = match TABLE.hit_access.load(Ordering::Relaxed) {
        1 => Some(false),
        2 => Some(true),
        _ => None,
    };
    Some(Hit { range, addr: TABLE.hit_addr.load(Ordering::Relaxed) as u64, write })
}

fn protect(pages: Range<usize>, access: ProtFlags) -> Result<(), Errno> {
    let Some(at) = NonNull::new(std::ptr::without_provenance_mut(pages.start)) else { return Ok(()) };
    // SAFETY: pages of memory that this process shares with its parent (the callers'); no reference to their contents exists in
    // Rust, which copies them in and out.
    unsafe { mprotect(at, pages.len(), access) }
}

/// The handler. A signal that comes from a page of the table is one access; it is recorded if it must not be, its page is opened, and the
/// instruction runs again.
extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to both.
    let (addr, write) = unsafe { ((*info).si_addr() as usize, is_write(context)) };
    let errno = Errno::last_raw();
    let used = TABLE.used.load(Ordering::Acquire).min(MOST);
    let found = TABLE.ranges[..used].iter().position(|entry| {
        (entry.start.load(Ordering::Relaxed)..entry.end.load(Ordering::Relaxed)).contains(&addr)
    });
    let page = addr & !(PAGE - 1);
    let opened = found.filter(|index| {
        let unwritten = TABLE.ranges[*index].kind.load(Ordering::Relaxed) == Kind::Unwritten as u32;
        if !(unwritten && write != Some(false)) {
            record(*index, addr, write);
        }
        protect(page..page + PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).is_ok()
    });
    if opened.is_none() {
        // The instruction runs again, and what was there before gets its fault.
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: it was this process's handler until this one was installed, or it is the default, which ends the process.
        let _ = unsafe { sigaction(Signal::SIGSEGV, BEFORE.get().unwrap_or(&default)) };
    }
    Errno::set_raw(errno);
}

/// Keeps the first.
fn record(index: usize, addr: usize, write: Option<bool>) {
    if TABLE.hit.compare_exchange(0, index + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        TABLE.hit_addr.store(addr, Ordering::Relaxed);
        TABLE.hit_access.store(write.map_or(0, |write| 1 + u32::from(write)), Ordering::Relaxed);
    }
}

/// Whether the access was a write, where the processor says so.
///
/// # Safety
/// `context` is what the kernel passed to the handler.
#[cfg(target_arch = "x86_64")]
unsafe fn is_write(context: *mut libc::c_void) -> Option<bool> {
    const WRITE: i64 = 2;
    // SAFETY: on this processor the context of a handler is a `ucontext_t`.
    let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    Some(error & WRITE != 0)
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn is_write(context: *mut libc::c_void) -> Option<bool> {
    // Records of a magic number and a size follow the registers; the one with the syndrome says what the access was.
    const ESR_MAGIC: u32 = 0x4553_5201;
    const WRITE: u64 = 1 << 6;
    const RECORDS: usize = 4096;
    // The registers before: 34 words of 8 bytes, aligned to 16.
    const RESERVED_AT: usize = 288;
    // SAFETY: on this processor the context of a handler is a `ucontext_t`, whose machine context ends with 4096 bytes of records.
    unsafe {
        let machine = (&raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext).cast::<u8>();
        let records = machine.add(RESERVED_AT);
        let mut at = 0;
        while at + 16 <= RECORDS {
            let magic = records.add(at).cast::<u32>().read_unaligned();
            let size = records.add(at + 4).cast::<u32>().read_unaligned() as usize;
            if magic == ESR_MAGIC {
                return Some(records.add(at + 8).cast::<u64>().read_unaligned() & WRITE != 0);
            }
            if magic == 0 || size < 8 {
                return None;
            }
            at += size;
        }
        None
    }
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn is_write(_: *mut libc::c_void) -> Option<bool> {
    None
}
