//! IPC keys. A key is the nonce of the session's export in hexadecimal, padded to 64 characters, and a NUL.
//!
//! # Safety
//! The exported functions have the vendor's C interface: a caller passes pointers that are valid as the vendor's headers
//! say. Null, sizes and handles are checked here; each unsafe block says what the caller must ensure.
#![allow(unsafe_code)]

use crate::gate::{Refusal, call, ensure, refuse};
use crate::share::{self, Path};
use crate::state::{IpcKey, Range, unmap};
use cann_sim::{ExportKind, Kind};
use comm_hccl::sys::*;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

/// The only length that the vendor accepts, NUL included.
const KEY_LEN: usize = 65;

fn key_text(key: *const c_char) -> Result<Vec<u8>, Refusal> {
    ensure(!key.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
    // SAFETY: not null; the caller provides a text that ends in NUL.
    let text = unsafe { CStr::from_ptr(key) }.to_bytes().to_vec();
    ensure(text.len() == KEY_LEN - 1, ACL_ERROR_RT_PARAM_INVALID, "a key has 64 characters")?;
    Ok(text)
}

fn key_nonce(text: &[u8]) -> Result<u64, Refusal> {
    let digits = std::str::from_utf8(&text[KEY_LEN - 17..]).unwrap_or_default();
    u64::from_str_radix(digits, 16).or_else(|_| refuse(ACL_ERROR_RT_PARAM_INVALID, "not a key"))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtIpcMemGetExportKey(
    pointer: *mut c_void,
    size: usize,
    key: *mut c_char,
    len: usize,
    flags: u64,
) -> aclError {
    call("aclrtIpcMemGetExportKey", |state| {
        ensure(!key.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        ensure(len == KEY_LEN, ACL_ERROR_RT_PARAM_INVALID, "a key has exactly 65 bytes")?;
        ensure(
            flags <= ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION,
            ACL_ERROR_RT_PARAM_INVALID,
            "unknown flags",
        )?;
        ensure(
            state.attachment.config().ipc,
            ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
            "this machine has no IPC keys",
        )?;
        let device = state.device()?;
        let visible = state.visible_id(device as i32)?;
        let memory = match state.ranges.get(&(pointer as usize)) {
            Some(range) if range.kind == Kind::Memory && size > 0 && size <= range.size => {
                Arc::clone(&range.memory)
            }
            _ => return refuse(ACL_ERROR_RT_PARAM_INVALID, "not memory of aclrtMalloc of this size"),
        };
        let open = flags == ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION;
        let nonce = share::publish(state.attachment, ExportKind::IpcKey, &memory, visible, open)?;
        let text = format!("{nonce:064x}").into_bytes();
        // SAFETY: not null; the caller provides `len` bytes, and text and NUL are 65.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), key, KEY_LEN - 1);
            key.add(KEY_LEN - 1).write(0);
        }
        state.keys.insert(text, IpcKey { device, nonce, import: None });
        state.attachment.created(Kind::IpcKey);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtIpcMemSetImportPid(
    key: *const c_char,
    pids: *mut i32,
    count: usize,
) -> aclError {
    call("aclrtIpcMemSetImportPid", |state| {
        let nonce = key_nonce(&key_text(key)?)?;
        share::permit(state, ExportKind::IpcKey, nonce, pids, count)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtIpcMemImportByKey(
    pointer: *mut *mut c_void,
    key: *const c_char,
    flags: u64,
) -> aclError {
    call("aclrtIpcMemImportByKey", |state| {
        ensure(!pointer.is_null(), ACL_ERROR_INVALID_PARAM, "null pointer")?;
        let path = match flags {
            ACL_RT_IPC_MEM_IMPORT_FLAG_DEFAULT => Path::PeerAccess,
            ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS => Path::Enabling,
            _ => return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown flags"),
        };
        let text = key_text(key)?;
        ensure(
            !state.keys.contains_key(&text),
            ACL_ERROR_RT_PARAM_INVALID,
            "the key is this process's own, or open already",
        )?;
        let nonce = key_nonce(&text)?;
        let memory = share::open(state, ExportKind::IpcKey, nonce, path)?;
        let base = memory.map().or_else(|e| refuse(ACL_ERROR_RT_DRV_INTERNAL_ERROR, e.to_string()))?;
        let device = state.device()?;
        let range = Range { device, size: memory.size(), memory: Arc::new(memory), kind: Kind::IpcImport };
        state.ranges.insert(base, range);
        state.keys.insert(text, IpcKey { device, nonce, import: Some(base) });
        state.attachment.created(Kind::IpcImport);
        // SAFETY: not null; the caller provides a place for one address.
        unsafe { pointer.write(base as *mut c_void) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aclrtIpcMemClose(key: *const c_char) -> aclError {
    call("aclrtIpcMemClose", |state| {
        let text = key_text(key)?;
        let Some(key) = state.keys.remove(&text) else {
            return refuse(ACL_ERROR_RT_PARAM_INVALID, "unknown key");
        };
        match key.import {
            None => {
                share::withdraw(state.attachment, key.nonce);
                state.attachment.destroyed(Kind::IpcKey);
            }
            Some(base) => {
                if let Some(range) = state.ranges.remove(&base) {
                    unmap(base, range.size);
                }
                state.attachment.destroyed(Kind::IpcImport);
            }
        }
        Ok(())
    })
}
