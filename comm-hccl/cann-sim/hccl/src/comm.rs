//! Communicators: joining, the barrier, leaving.
//!
//! Words that ranks wait on are acquired and released. The relaxed ones are accessed only under the session's lock, or
//! before and after the barriers that order them.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, numbers and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::gate::{Refusal, call, ensure, enter, refuse};
use crate::sibling::Sibling;
use cann_sim::{Attachment, CommSlot, Kind, SharedMemory, futex_wait, futex_wake};
use comm_hccl::sys::*;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_char;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MAX_RANKS: u32 = 64;
/// The first bytes of a root info.
const ROOT_MAGIC: [u8; 8] = *b"cannsimR";
/// Staging bytes of one rank.
pub(crate) const PIECE: usize = 64 << 10;
/// Bytes that all ranks of a communicator share: a piece for each, and a place for the messages of each pair.
const SHARED: usize = PIECE * MAX_RANKS as usize + PAIR_PLACE * (MAX_RANKS * MAX_RANKS) as usize;
/// Bytes of a pair's place: a word that says how many bytes are there, then the bytes.
pub(crate) const PAIR_PLACE: usize = 64 + PAIR_BYTES;
pub(crate) const PAIR_BYTES: usize = 16 << 10;

/// How often a wait looks for ranks that have left.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(20);

/// A rank's membership.
pub(crate) struct Member {
    attachment: &'static Attachment,
    slot: usize,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Where the staging memory is mapped.
    pub(crate) staging: usize,
    memory: SharedMemory,
}

impl Drop for Member {
    fn drop(&mut self) {
        // SAFETY: mapped in `join` with this size, and not used any more.
        unsafe { libc::munmap(self.staging as *mut libc::c_void, self.memory.size()) };
    }
}

static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x2000_0000);
static MEMBERS: Mutex<Option<HashMap<usize, Arc<Member>>>> = Mutex::new(None);
/// Staging memory that this process holds as a root, by nonce, until every rank has opened it.
static HELD: Mutex<BTreeMap<u64, SharedMemory>> = Mutex::new(BTreeMap::new());

fn members() -> MutexGuard<'static, Option<HashMap<usize, Arc<Member>>>> {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The member behind a handle.
pub(crate) fn member(comm: HcclComm) -> Result<Arc<Member>, Refusal> {
    match members().as_ref().and_then(|m| m.get(&(comm as usize))) {
        Some(member) => Ok(Arc::clone(member)),
        None => refuse(HCCL_E_PARA, "unknown communicator"),
    }
}

/// The sibling library. Refuses when no device is set in the calling thread.
pub(crate) fn sibling() -> Result<&'static Sibling, Refusal> {
    let Some(sibling) = Sibling::get() else {
        return refuse(HCCL_E_INTERNAL, "libascendcl.so of the double is not beside this library");
    };
    ensure(sibling.has_device(), HCCL_E_RUNTIME, "no device is set in this thread")?;
    Ok(sibling)
}

fn seconds(variable: &str, default: u64) -> Duration {
    let text = std::env::var(variable).ok();
    Duration::from_secs(text.and_then(|t| t.parse().ok()).unwrap_or(default))
}

impl Member {
    fn slot(&self) -> &CommSlot {
        &self.attachment.tables().comms[self.slot]
    }

    /// Waits for every rank, as long as the vendor would.
    pub(crate) fn barrier(&self) -> Result<(), Refusal> {
        self.barrier_until(Self::exec_deadline())
    }

    fn barrier_until(&self, deadline: Instant) -> Result<(), Refusal> {
        let slot = self.slot();
        let generation = slot.generation.load(Acquire);
        // AcqRel: what each rank wrote before it arrived is visible to the last, which publishes it to all.
        if slot.arrived.fetch_add(1, AcqRel) + 1 == self.ranks {
            slot.arrived.store(0, Relaxed);
            // Release: pairs with the Acquire loads of the waiters below.
            slot.generation.store(generation.wrapping_add(1), Release);
            futex_wake(&slot.generation);
            return Ok(());
        }
        loop {
            // Before the word: a rank that came and then left has changed the word by now.
            let members = self.check_members();
            if slot.generation.load(Acquire) != generation {
                return Ok(());
            }
            members?;
            let left = deadline.saturating_duration_since(Instant::now());
            ensure(!left.is_zero(), HCCL_E_TIMEOUT, "a rank did not come in time")?;
            // Looks up now and then: a rank that leaves does not change the word.
            futex_wait(&slot.generation, generation, left.min(LOOK_UP));
        }
    }

    /// Refuses when a rank has destroyed its communicator, for which the others would wait until their deadline. A wait
    /// asks first and then looks at its word: what a rank did before it left is visible to who sees that it left.
    pub(crate) fn check_members(&self) -> Result<(), Refusal> {
        let all = u64::MAX >> (64 - self.ranks);
        // Acquire: pairs with the Release of the rank that leaves.
        ensure(self.slot().joined.load(Acquire) == all, HCCL_E_REMOTE, "a rank has left the communicator")
    }

    /// Where the messages from one rank to another are.
    pub(crate) fn pair_place(&self, from: u32, to: u32) -> usize {
        let number = (from * MAX_RANKS + to) as usize;
        self.staging + PIECE * MAX_RANKS as usize + number * PAIR_PLACE
    }

    pub(crate) fn exec_deadline() -> Instant {
        Instant::now() + seconds("HCCL_EXEC_TIMEOUT", 1836)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclGetRootInfo(root: *mut HcclRootInfo) -> HcclResult {
    call("HcclGetRootInfo", |attachment| {
        ensure(!root.is_null(), HCCL_E_PTR, "null pointer")?;
        sibling()?;
        ensure(
            attachment.config().root_port_free,
            HCCL_E_UNAVAIL,
            "no port of 60000 to 60031 is free for rank 0 to listen on",
        )?;
        let memory = SharedMemory::create(SHARED);
        let memory = memory.or_else(|e| refuse(HCCL_E_MEMORY, e.to_string()))?;
        let lock = attachment.lock().or_else(|e| refuse(HCCL_E_SYSCALL, e.to_string()))?;
        let free = lock.control().comms.iter().enumerate().find(|(_, s)| s.nonce.load(Relaxed) == 0);
        let Some((index, slot)) = free else {
            return refuse(HCCL_E_UNAVAIL, "the session has no slot for another communicator");
        };
        let nonce = lock.nonce();
        [&slot.ranks, &slot.ready, &slot.arrived].iter().for_each(|word| word.store(0, Relaxed));
        slot.joined.store(0, Relaxed);
        slot.root_pid.store(attachment.pid(), Relaxed);
        slot.root_fd.store(memory.raw_fd(), Relaxed);
        slot.nonce.store(nonce, Relaxed);
        drop(lock);
        HELD.lock().unwrap_or_else(PoisonError::into_inner).insert(nonce, memory);
        let mut bytes = [0; HCCL_ROOT_INFO_BYTES];
        bytes[..8].copy_from_slice(&ROOT_MAGIC);
        bytes[8..16].copy_from_slice(&nonce.to_le_bytes());
        bytes[16..24].copy_from_slice(&(index as u64).to_le_bytes());
        // SAFETY: not null; the caller provides a place for one root info.
        unsafe { root.write(HcclRootInfo { internal: bytes.map(|b| b as c_char) }) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclCommInitRootInfo(
    ranks: u32,
    root: *const HcclRootInfo,
    rank: u32,
    comm: *mut HcclComm,
) -> HcclResult {
    call("HcclCommInitRootInfo", |attachment| {
        ensure(!root.is_null() && !comm.is_null(), HCCL_E_PTR, "null pointer")?;
        ensure(rank < ranks && ranks <= MAX_RANKS, HCCL_E_PARA, "rank or number of ranks out of range")?;
        let sibling = sibling()?;
        // SAFETY: not null; the caller provides a valid root info.
        let bytes = unsafe { &(*root).internal }.map(|c| c as u8);
        let member = join(attachment, &bytes, ranks, rank)?;
        let handle = {
            let mut members = members();
            let members = members.get_or_insert_default();
            // A new number each time, not an address, so that the use of a stale handle is noticed.
            let handle = NEXT_HANDLE.fetch_add(0x10, Relaxed);
            members.insert(handle, Arc::new(member));
            handle
        };
        attachment.created(Kind::Communicator);
        sibling.switch_context();
        // SAFETY: not null; the caller provides a place for one handle.
        unsafe { comm.write(handle as HcclComm) };
        Ok(())
    })
}

fn join(attachment: &'static Attachment, root: &[u8], ranks: u32, rank: u32) -> Result<Member, Refusal> {
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| root[at + i]));
    ensure(root[..8] == ROOT_MAGIC, HCCL_E_PARA, "not a root info")?;
    let (nonce, index) = (number(8), number(16) as usize);
    let slot = attachment.tables().comms.get(index).filter(|s| s.nonce.load(Relaxed) == nonce && nonce != 0);
    let Some(slot) = slot else {
        return refuse(HCCL_E_TCP_CONNECT, "no rank listens there: the root info is stale");
    };
    let bit = 1_u64 << rank;
    {
        let _lock = attachment.lock().or_else(|e| refuse(HCCL_E_SYSCALL, e.to_string()))?;
        let agreed = slot.ranks.load(Relaxed);
        ensure([0, ranks].contains(&agreed), HCCL_E_PARA, "the ranks do not agree on their number")?;
        ensure(slot.joined.load(Relaxed) & bit == 0, HCCL_E_PARA, "another process has this rank")?;
        slot.ranks.store(ranks, Relaxed);
        let joined = slot.joined.load(Relaxed) | bit;
        slot.joined.store(joined, Relaxed);
        if joined.count_ones() == ranks {
            // Release: the slot is complete; pairs with the Acquire loads below.
            slot.ready.store(1, Release);
            futex_wake(&slot.ready);
        }
    }
    let deadline = Instant::now() + seconds("HCCL_CONNECT_TIMEOUT", 120);
    while slot.ready.load(Acquire) == 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let _lock = attachment.lock().or_else(|e| refuse(HCCL_E_SYSCALL, e.to_string()))?;
            // The last rank may have come while the lock was being taken.
            if slot.ready.load(Acquire) == 0 {
                slot.joined.fetch_and(!bit, Relaxed);
                return refuse(HCCL_E_TIMEOUT, "a rank did not come in HCCL_CONNECT_TIMEOUT");
            }
        }
        futex_wait(&slot.ready, 0, left);
    }
    let (pid, fd) = (slot.root_pid.load(Relaxed), slot.root_fd.load(Relaxed));
    let memory = SharedMemory::open_peer(pid, fd, SHARED);
    let memory = memory.or_else(|e| refuse(HCCL_E_TCP_CONNECT, format!("rank 0 is gone: {e}")))?;
    let staging = memory.map().or_else(|e| refuse(HCCL_E_MEMORY, e.to_string()))?;
    let member = Member { attachment, slot: index, rank, ranks, staging, memory };
    member.barrier_until(deadline)?;
    HELD.lock().unwrap_or_else(PoisonError::into_inner).remove(&nonce);
    Ok(member)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclGetCommName(comm: HcclComm, name: *mut c_char) -> HcclResult {
    call("HcclGetCommName", |_| {
        ensure(!name.is_null(), HCCL_E_PTR, "null pointer")?;
        let text = format!("cann-sim-{}\0", member(comm)?.slot);
        // SAFETY: not null; the caller provides room for 128 bytes, and the text is far shorter.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclBarrier(comm: HcclComm, stream: aclrtStream) -> HcclResult {
    call("HcclBarrier", |_| {
        let member = member(comm)?;
        let sibling = sibling()?;
        ensure(sibling.stream(stream), HCCL_E_PARA, "unknown stream")?;
        // Also when it fails: the vendor promises nothing, and so a caller that does not restore the context is noticed.
        sibling.switch_context();
        member.barrier()
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclGetCommAsyncError(comm: HcclComm, error: *mut HcclResult) -> HcclResult {
    call("HcclGetCommAsyncError", |_| {
        ensure(!error.is_null(), HCCL_E_PTR, "null pointer")?;
        member(comm)?;
        // SAFETY: not null; the caller provides a place for one number. Nothing is asynchronous here.
        unsafe { error.write(HCCL_SUCCESS) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclGetErrorString(code: HcclResult) -> *const c_char {
    if enter("HcclGetErrorString").is_err() {
        return std::ptr::null();
    }
    match code {
        HCCL_SUCCESS => c"no error".as_ptr(),
        HCCL_E_PARA => c"parameter error".as_ptr(),
        HCCL_E_UNAVAIL => c"resource unavailable".as_ptr(),
        HCCL_E_TIMEOUT => c"timeout".as_ptr(),
        HCCL_E_TCP_CONNECT => c"tcp connect fail".as_ptr(),
        HCCL_E_RUNTIME => c"call runtime api fail".as_ptr(),
        _ => c"some other error".as_ptr(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn HcclCommDestroy(comm: HcclComm) -> HcclResult {
    call("HcclCommDestroy", |attachment| {
        let Some(member) = members().as_mut().and_then(|m| m.remove(&(comm as usize))) else {
            return refuse(HCCL_E_PARA, "unknown communicator");
        };
        let alive = attachment.process().live[Kind::Communicator as usize].load(Relaxed) > 0;
        ensure(alive, HCCL_E_RUNTIME, "the device was reset under the communicator")?;
        attachment.destroyed(Kind::Communicator);
        let _lock = attachment.lock().or_else(|e| refuse(HCCL_E_SYSCALL, e.to_string()))?;
        let left = member.slot().joined.load(Relaxed) & !(1 << member.rank);
        // Release: pairs with the Acquire of `check_members`.
        member.slot().joined.store(left, Release);
        if left == 0 {
            // The last member has left: the slot is free for another communicator.
            member.slot().nonce.store(0, Relaxed);
        }
        Ok(())
    })
}
