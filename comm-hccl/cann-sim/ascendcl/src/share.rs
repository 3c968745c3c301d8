//! Exports and imports of physical memory, with the checks that the vendor makes.
//!
//! The table's words are relaxed: they are accessed only under the session's lock.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::gate::{Answer, Refusal, call, ensure, refuse};
use crate::state::{Physical, State};
use crate::view::View;
use cann_sim::{
    Attachment, ControlLock, EXPORT_PIDS, ExportKind, ExportSlot, Kind, SharedMemory, process_start,
};
use comm_hccl::sys::*;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The first bytes of a Fabric handle.
const FABRIC_MAGIC: [u8; 8] = *b"cannsimF";

/// Takes the session's lock, or refuses.
pub(crate) fn lock(attachment: &Attachment) -> Result<ControlLock<'_>, Refusal> {
    attachment.lock().or_else(|e| refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, format!("the session's lock: {e}")))
}

/// Enters memory into the session's table and returns its nonce.
pub(crate) fn publish(
    attachment: &Attachment,
    kind: ExportKind,
    memory: &SharedMemory,
    visible: u32,
    open_to_all: bool,
) -> Result<u64, Refusal> {
    let lock = lock(attachment)?;
    let free = |slot: &&ExportSlot| {
        let owner = slot.pid.load(Relaxed);
        // The exports of a dead process are gone (CN-3).
        slot.kind.load(Relaxed) == 0 || process_start(owner) != Some(slot.start.load(Relaxed))
    };
    let Some(slot) = lock.control().exports.iter().find(free) else {
        return refuse(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "the session has no slot for another export");
    };
    let nonce = lock.nonce();
    slot.nonce.store(nonce, Relaxed);
    slot.pid.store(attachment.pid(), Relaxed);
    slot.start.store(process_start(attachment.pid()).unwrap_or(0), Relaxed);
    slot.host.store(attachment.host(), Relaxed);
    slot.fd.store(memory.raw_fd(), Relaxed);
    slot.size.store(memory.size() as u64, Relaxed);
    slot.device.store(visible, Relaxed);
    slot.open_to_all.store(open_to_all.into(), Relaxed);
    slot.pids.iter().chain(&slot.importers).for_each(|pid| pid.store(0, Relaxed));
    slot.kind.store(kind as u32, Relaxed);
    Ok(nonce)
}

/// Removes memory from the session's table. Refuses, after the fact, when a living process still has it open.
pub(crate) fn withdraw(attachment: &Attachment, nonce: u64) -> Answer {
    let lock = lock(attachment)?;
    let Some(slot) = lock.control().exports.iter().find(|s| is_live(s, nonce)) else { return Ok(()) };
    slot.kind.store(0, Relaxed);
    let open = |pid: &i32| *pid != 0 && process_start(*pid).is_some();
    match slot.importers.iter().map(|pid| pid.load(Relaxed)).find(open) {
        None => Ok(()),
        Some(pid) => {
            let text =
                format!("the memory is gone although process {pid} still has it open; importers close first");
            cann_sim::log(&text);
            refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, text)
        }
    }
}

/// Forgets an export or an import in the course of a reset, or an import that its process has closed.
pub(crate) fn forget(attachment: &Attachment, nonce: u64, imported: bool) {
    if let Ok(lock) = attachment.lock()
        && let Some(slot) = lock.control().exports.iter().find(|s| is_live(s, nonce))
    {
        if !imported {
            slot.kind.store(0, Relaxed);
        } else if let Some(mine) = slot.importers.iter().find(|pid| pid.load(Relaxed) == attachment.pid()) {
            mine.store(0, Relaxed);
        }
    }
}

fn is_live(slot: &ExportSlot, nonce: u64) -> bool {
    slot.kind.load(Relaxed) != 0 && slot.nonce.load(Relaxed) == nonce
}

fn find<'a>(lock: &'a ControlLock<'_>, kind: ExportKind, nonce: u64) -> Result<&'a ExportSlot, Refusal> {
    let slot =
        lock.control().exports.iter().find(|s| is_live(s, nonce) && s.kind.load(Relaxed) == kind as u32);
    match slot {
        Some(slot) if process_start(slot.pid.load(Relaxed)) == Some(slot.start.load(Relaxed)) => Ok(slot),
        _ => refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "unknown export, or its process is gone"),
    }
}

/// Allows processes to import an export.
pub(crate) fn permit(state: &State, kind: ExportKind, nonce: u64, pids: *const i32, count: usize) -> Answer {
    ensure(!pids.is_null() && count > 0, ACL_ERROR_INVALID_PARAM, "no pids are given")?;
    let lock = lock(state.attachment)?;
    let slot = find(&lock, kind, nonce)?;
    ensure(
        slot.pid.load(Relaxed) == state.attachment.pid(),
        ACL_ERROR_RT_NO_PERMISSION,
        "only the exporting process may allow imports",
    )?;
    for index in 0..count {
        // SAFETY: the caller provides `count` numbers.
        let pid = unsafe { pids.add(index).read() };
        ensure(pid > 0, ACL_ERROR_RT_PARAM_INVALID, "not a pid")?;
        let place = slot.pids.iter().find(|p| [0, pid].contains(&p.load(Relaxed)));
        match place {
            Some(place) => place.store(pid, Relaxed),
            None => {
                return refuse(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, format!("more than {EXPORT_PIDS} pids"));
            }
        }
    }
    Ok(())
}

/// How an import has to be allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// The fabric reaches every device.
    Fabric,
    /// Peer access must be up.
    PeerAccess,
    /// The import itself enables peer access.
    Enabling,
}

/// Opens what a peer exported, after the vendor's checks.
pub(crate) fn open(state: &State, kind: ExportKind, nonce: u64, path: Path) -> Result<View, Refusal> {
    let lock = lock(state.attachment)?;
    let slot = find(&lock, kind, nonce)?;
    let (pid, this) = (slot.pid.load(Relaxed), state.attachment.pid());
    // A driver knows the handles and the processes of its own host only (CN-13).
    let here = slot.host.load(Relaxed) == state.attachment.host();
    ensure(here || path == Path::Fabric, ACL_ERROR_RT_DRV_INTERNAL_ERROR, "unknown export on this host")?;
    let listed = here && slot.pids.iter().any(|p| p.load(Relaxed) == this);
    let allowed = listed || slot.open_to_all.load(Relaxed) == 1;
    ensure(allowed, ACL_ERROR_RT_NO_PERMISSION, "the exporting process did not allow this pid")?;
    let (exporter, current) = (slot.device.load(Relaxed), state.current_visible_id()?);
    if exporter != current && path != Path::Fabric {
        ensure(
            state.attachment.config().peer_access,
            ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
            "this machine has no peer access",
        )?;
        let up = path == Path::Enabling || state.peers.contains_key(&exporter);
        ensure(up, ACL_ERROR_RT_DRV_INTERNAL_ERROR, "peer access to the exporting device is not enabled")?;
    }
    let size = slot.size.load(Relaxed) as usize;
    let view = SharedMemory::open_peer(pid, slot.fd.load(Relaxed), size).and_then(View::new);
    let view =
        view.or_else(|e| refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, format!("the peer's memory: {e}")))?;
    let Some(place) = slot.importers.iter().find(|pid| pid.load(Relaxed) == 0) else {
        return refuse(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, format!("open in more than {EXPORT_PIDS} places"));
    };
    place.store(this, Relaxed);
    Ok(view)
}

fn export(
    state: &mut State,
    handle: aclrtDrvMemHandle,
    kind: ExportKind,
    flags: u64,
) -> Result<u64, Refusal> {
    ensure(
        flags <= ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION,
        ACL_ERROR_RT_PARAM_INVALID,
        "unknown flags",
    )?;
    let visible = state.current_visible_id()?;
    let attachment = state.attachment;
    match state.physical.get_mut(&(handle as usize)) {
        Some(physical) if physical.kind == Kind::Physical => {
            let open = flags == ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION;
            let nonce = publish(attachment, kind, physical.view.memory(), visible, open)?;
            physical.exports.push(nonce);
            Ok(nonce)
        }
        _ => refuse(ACL_ERROR_RT_PARAM_INVALID, "not physical memory of this process"),
    }
}

fn import(
    state: &mut State,
    kind: ExportKind,
    nonce: u64,
    path: Path,
    handle: *mut aclrtDrvMemHandle,
) -> Answer {
    let device = state.device()?;
    let view = Arc::new(open(state, kind, nonce, path)?);
    let id = state.handle();
    let physical = Physical { device, view, kind: Kind::Imported, exports: vec![nonce] };
    state.physical.insert(id, physical);
    state.attachment.created(Kind::Imported);
    // SAFETY: the callers checked that it is not null; the program provides a place for one handle.
    unsafe { handle.write(id as aclrtDrvMemHandle) };
    Ok(())
}

fn fabric_nonce(shareable: *const c_void, share_type: aclrtMemSharedHandleType) -> Result<u64, Refusal> {
    ensure(!shareable.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
    ensure(
        share_type == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC,
        ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
        "only Fabric handles are supported",
    )?;
    // SAFETY: not null; the share type says that it points to a Fabric handle, which is made of bytes.
    let data = unsafe { shareable.cast::<aclrtMemFabricHandle>().read_unaligned() }.data;
    ensure(data[..8] == FABRIC_MAGIC, ACL_ERROR_RT_DRV_INTERNAL_ERROR, "not a Fabric handle")?;
    Ok(u64::from_le_bytes(std::array::from_fn(|i| data[8 + i])))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemExportToShareableHandleV2(
    handle: aclrtDrvMemHandle,
    flags: u64,
    share_type: aclrtMemSharedHandleType,
    shareable: *mut c_void,
) -> aclError {
    call("aclrtMemExportToShareableHandleV2", |state| {
        ensure(!shareable.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let supported = share_type == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC && state.attachment.config().fabric;
        ensure(supported, ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "this machine has no fabric")?;
        let nonce = export(state, handle, ExportKind::Fabric, flags)?;
        let mut data = [0; 128];
        data[..8].copy_from_slice(&FABRIC_MAGIC);
        data[8..16].copy_from_slice(&nonce.to_le_bytes());
        // SAFETY: not null; the share type says that there is room for a Fabric handle.
        unsafe { shareable.cast::<aclrtMemFabricHandle>().write_unaligned(aclrtMemFabricHandle { data }) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemImportFromShareableHandleV2(
    shareable: *mut c_void,
    share_type: aclrtMemSharedHandleType,
    flags: u64,
    handle: *mut aclrtDrvMemHandle,
) -> aclError {
    call("aclrtMemImportFromShareableHandleV2", |state| {
        ensure(!handle.is_null() && flags == 0, ACL_ERROR_INVALID_PARAM, "null pointer or flags")?;
        let nonce = fabric_nonce(shareable, share_type)?;
        import(state, ExportKind::Fabric, nonce, Path::Fabric, handle)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemSetPidToShareableHandleV2(
    shareable: *mut c_void,
    share_type: aclrtMemSharedHandleType,
    pids: *mut i32,
    count: usize,
) -> aclError {
    call("aclrtMemSetPidToShareableHandleV2", |state| {
        let nonce = fabric_nonce(shareable, share_type)?;
        permit(state, ExportKind::Fabric, nonce, pids, count)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemExportToShareableHandle(
    handle: aclrtDrvMemHandle,
    handle_type: aclrtMemHandleType,
    flags: u64,
    shareable: *mut u64,
) -> aclError {
    call("aclrtMemExportToShareableHandle", |state| {
        ensure(!shareable.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        ensure(
            handle_type == ACL_MEM_HANDLE_TYPE_NONE,
            ACL_ERROR_RT_PARAM_INVALID,
            "handle type must be NONE",
        )?;
        ensure(
            state.attachment.config().shareable,
            ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
            "this machine has no shareable handles",
        )?;
        let nonce = export(state, handle, ExportKind::Shareable, flags)?;
        // SAFETY: not null; the caller provides a place for one number.
        unsafe { shareable.write(nonce) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemImportFromShareableHandle(
    shareable: u64,
    device: i32,
    handle: *mut aclrtDrvMemHandle,
) -> aclError {
    call("aclrtMemImportFromShareableHandle", |state| {
        ensure(!handle.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        state.visible_id(device)?;
        ensure(device as u32 == state.device()?, ACL_ERROR_RT_PARAM_INVALID, "not the current device")?;
        import(state, ExportKind::Shareable, shareable, Path::PeerAccess, handle)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtMemSetPidToShareableHandle(
    shareable: u64,
    pids: *mut i32,
    count: usize,
) -> aclError {
    call("aclrtMemSetPidToShareableHandle", |state| {
        permit(state, ExportKind::Shareable, shareable, pids, count)
    })
}
