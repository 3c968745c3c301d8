//! The layout of a mailbox.
//!
//! Little endian, natural alignment, 4096 bytes:
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | i32 | state: 0 idle, 1 success, 2 error; written last, release |
//! | 4 | i32 | error_code |
//! | 8 | i32 | buffer_count |
//! | 12 | – | 0 |
//! | 16 | u64 | device_ctx |
//! | 24 | u64 | local_window_base |
//! | 32 | u64 | actual_window_size |
//! | 40 | u64 | layout hash, stamped by the parent; 0 if the parent does not know of it |
//! | 48 | u64 | nonce, stamped by the parent |
//! | 56 | u32 | phase, written by the child at any time |
//! | 60 | – | 0 |
//! | 64 | u64\[376\] | buffer_ptrs |
//! | 3072 | u8\[1024\] | error message, NUL-terminated UTF-8 |

use core::mem::offset_of;
use shared_memory::{FNV_OFFSET, fnv1a};

/// Bytes of a mailbox.
pub const MAILBOX_SIZE: usize = 4096;
/// The alignment of a mailbox in its region.
pub const MAILBOX_ALIGN: usize = 8;
/// The most buffers that a mailbox holds.
pub const MAX_BUFFERS: usize = 376;
/// The bytes of the error message, its NUL included.
pub const MESSAGE_SIZE: usize = 1024;

/// The value of the state while nothing is published.
pub const STATE_IDLE: i32 = 0;
/// The value of the state after a successful bring-up.
pub const STATE_SUCCESS: i32 = 1;
/// The value of the state after a failed one.
pub const STATE_ERROR: i32 = 2;

/// The mailbox as C sees it. No value of it exists: the bytes are in memory that others write, and are
/// copied out by offset.
#[repr(C)]
struct Image {
    state: i32,
    error_code: i32,
    buffer_count: i32,
    reserved: u32,
    device_ctx: u64,
    local_window_base: u64,
    actual_window_size: u64,
    layout_hash: u64,
    nonce: u64,
    phase: u32,
    reserved2: u32,
    buffer_ptrs: [u64; MAX_BUFFERS],
    error_message: [u8; MESSAGE_SIZE],
}

pub(crate) const STATE_AT: usize = offset_of!(Image, state);
pub(crate) const ERROR_CODE_AT: usize = offset_of!(Image, error_code);
pub(crate) const BUFFER_COUNT_AT: usize = offset_of!(Image, buffer_count);
pub(crate) const DEVICE_CTX_AT: usize = offset_of!(Image, device_ctx);
pub(crate) const WINDOW_BASE_AT: usize = offset_of!(Image, local_window_base);
pub(crate) const WINDOW_SIZE_AT: usize = offset_of!(Image, actual_window_size);
pub(crate) const HASH_AT: usize = offset_of!(Image, layout_hash);
pub(crate) const NONCE_AT: usize = offset_of!(Image, nonce);
pub(crate) const PHASE_AT: usize = offset_of!(Image, phase);
pub(crate) const BUFFERS_AT: usize = offset_of!(Image, buffer_ptrs);
pub(crate) const MESSAGE_AT: usize = offset_of!(Image, error_message);

// The numbers that C++ programs have compiled in (BC-1). The fields leave no gap: each begins where the
// one before it ends.
const _: () = {
    assert!(size_of::<Image>() == MAILBOX_SIZE && align_of::<Image>() == MAILBOX_ALIGN);
    assert!(STATE_AT == 0 && ERROR_CODE_AT == 4 && BUFFER_COUNT_AT == 8 && offset_of!(Image, reserved) == 12);
    assert!(DEVICE_CTX_AT == 16 && WINDOW_BASE_AT == 24 && WINDOW_SIZE_AT == 32);
    assert!(HASH_AT == 40 && NONCE_AT == 48 && PHASE_AT == 56 && offset_of!(Image, reserved2) == 60);
    assert!(BUFFERS_AT == 64 && BUFFERS_AT + 8 * MAX_BUFFERS == 3072);
    assert!(MESSAGE_AT == 3072 && MESSAGE_AT + MESSAGE_SIZE == 4096);
};

/// Distinguishes a mailbox of this layout from one of another. Never 0, which means not stamped.
pub const LAYOUT_HASH: u64 = {
    let constants = [
        1,
        MAILBOX_SIZE,
        STATE_AT,
        ERROR_CODE_AT,
        BUFFER_COUNT_AT,
        DEVICE_CTX_AT,
        WINDOW_BASE_AT,
        WINDOW_SIZE_AT,
        HASH_AT,
        NONCE_AT,
        PHASE_AT,
        BUFFERS_AT,
        MAX_BUFFERS,
        MESSAGE_AT,
        MESSAGE_SIZE,
    ];
    let mut hash = FNV_OFFSET;
    let mut at = 0;
    while at < constants.len() {
        hash = fnv1a(hash, &(constants[at] as u64).to_le_bytes());
        at += 1;
    }
    assert!(hash != 0);
    hash
};

#[cfg(test)]
mod tests {
    use super::*;

    /// BC-1: programs that are built separately compare this number, so that it may change only together
    /// with the layout.
    #[test]
    fn the_layout_hash_is_pinned() {
        assert_eq!(LAYOUT_HASH, 0xd3d2_b76e_1e28_82ab);
    }
}
