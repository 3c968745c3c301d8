//! From the bytes of a mailbox, which may hold anything, to a reply.

use crate::layout::*;
use crate::stamp::{self, Nonce, StampError};
use worker_errors::{ErrorCode, escape};

/// How a chip's bring-up ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The chip is ready.
    Success(Success),
    /// The chip could not be brought up.
    Failed(Failed),
}

/// A chip that is ready. The addresses are those of the chip's process or device; all zero without a
/// communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Success {
    /// The address of the chip's communication context.
    pub device_ctx: u64,
    /// The address of its window.
    pub window_base: u64,
    /// The size of the window, in bytes.
    pub window_size: u64,
    /// The addresses of its named buffers, in the order of the request; at most [`MAX_BUFFERS`].
    pub buffers: Vec<u64>,
}

/// A chip that could not be brought up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bring-up failed with {}: {message}", self.code_name())]
pub struct Failed {
    /// The number that the chip's process reported; one of [`ErrorCode`]'s if it runs this program.
    pub code: i32,
    /// What happened: one line, without control characters.
    pub message: String,
}

impl Failed {
    /// The code, if it is one of ours.
    pub fn error_code(&self) -> Option<ErrorCode> {
        ErrorCode::from_i32(self.code)
    }

    fn code_name(&self) -> String {
        match self.error_code() {
            Some(code) => format!("\"{code}\" (code {})", self.code),
            None => format!("code {}", self.code),
        }
    }
}

/// Why the bytes of a mailbox are not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Nothing has been published.
    #[error("the mailbox is idle: nothing has been published; wait for it with a Reader")]
    Idle,
    /// The state is not one of the three.
    #[error(
        "the mailbox has the unknown state {state}; known are {STATE_IDLE} to {STATE_ERROR}: its writer is of \
         another build, or something overwrote it"
    )]
    UnknownState {
        /// The state.
        state: i32,
    },
    /// It is not a mailbox of this layout and run.
    #[error(transparent)]
    Stamp(#[from] StampError),
}

/// Reads a reply from a copy of a mailbox of the run `nonce`.
pub(crate) fn decode_of_run(bytes: &[u8; MAILBOX_SIZE], nonce: Nonce) -> Result<Reply, DecodeError> {
    stamp::check(u64_at(bytes, HASH_AT), u64_at(bytes, NONCE_AT), nonce)?;
    decode(bytes)
}

/// Reads a reply from a copy of a mailbox. Any bytes are fine; a [`Reader`](crate::Reader) checks the
/// nonce.
pub fn decode(bytes: &[u8; MAILBOX_SIZE]) -> Result<Reply, DecodeError> {
    stamp::check_layout(u64_at(bytes, HASH_AT))?;
    match i32_at(bytes, STATE_AT) {
        STATE_IDLE => Err(DecodeError::Idle),
        STATE_SUCCESS => Ok(Reply::Success(success(bytes))),
        STATE_ERROR => {
            Ok(Reply::Failed(Failed { code: i32_at(bytes, ERROR_CODE_AT), message: message(bytes) }))
        }
        state => Err(DecodeError::UnknownState { state }),
    }
}

fn success(bytes: &[u8; MAILBOX_SIZE]) -> Success {
    let count = i32_at(bytes, BUFFER_COUNT_AT).clamp(0, MAX_BUFFERS as i32) as usize;
    Success {
        device_ctx: u64_at(bytes, DEVICE_CTX_AT),
        window_base: u64_at(bytes, WINDOW_BASE_AT),
        window_size: u64_at(bytes, WINDOW_SIZE_AT),
        buffers: (0..count).map(|index| u64_at(bytes, BUFFERS_AT + 8 * index)).collect(),
    }
}

/// The text up to its NUL, or all of it without one. Invalid UTF-8, such as a character that a C++ writer
/// cut in two, becomes U+FFFD.
fn message(bytes: &[u8; MAILBOX_SIZE]) -> String {
    let text = bytes[MESSAGE_AT..].split(|byte| *byte == 0).next().unwrap_or_default();
    // Needs no bound: at most MESSAGE_SIZE characters, each shown with a few.
    escape(&String::from_utf8_lossy(text), usize::MAX).into_owned()
}

fn i32_at(bytes: &[u8; MAILBOX_SIZE], at: usize) -> i32 {
    i32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8; MAILBOX_SIZE], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// The offsets come from `layout`, not from the bytes.
fn array_at<const N: usize>(bytes: &[u8; MAILBOX_SIZE], at: usize) -> [u8; N] {
    core::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A mailbox with `fields` as their offsets and bytes.
    fn mailbox(fields: &[(usize, &[u8])]) -> [u8; MAILBOX_SIZE] {
        let mut bytes = [0; MAILBOX_SIZE];
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    fn failed(message: &[u8]) -> Failed {
        let bytes = mailbox(&[(0, &[2]), (4, &(-7_i32).to_le_bytes()), (3072, message)]);
        let Ok(Reply::Failed(failed)) = decode(&bytes) else { panic!("{:?}", decode(&bytes)) };
        failed
    }

    #[test]
    fn bc_1_every_field_is_read_where_the_table_says() {
        let bytes = mailbox(&[
            (0, &[1]),
            (8, &[2]),
            (16, &0x1011_1213_1415_1617_u64.to_le_bytes()),
            (24, &0x18_u64.to_le_bytes()),
            (32, &0x20_u64.to_le_bytes()),
            (64, &0x40_u64.to_le_bytes()),
            (72, &u64::MAX.to_le_bytes()),
            (80, &[9]),
        ]);
        let expected = Success {
            device_ctx: 0x1011_1213_1415_1617,
            window_base: 0x18,
            window_size: 0x20,
            buffers: vec![0x40, u64::MAX],
        };
        assert_eq!(decode(&bytes), Ok(Reply::Success(expected)));
        assert_eq!(failed(b"no\0 more"), Failed { code: -7, message: "no".into() });
    }

    #[test]
    fn idle_unknown_states_and_other_layouts_are_different_errors() {
        assert_eq!(decode(&[0; MAILBOX_SIZE]), Err(DecodeError::Idle));
        for state in [-1, 3, i32::MIN, i32::MAX] {
            let bytes = mailbox(&[(0, &state.to_le_bytes())]);
            assert_eq!(decode(&bytes), Err(DecodeError::UnknownState { state }));
        }
        let other = mailbox(&[(0, &[1]), (40, &7_u64.to_le_bytes())]);
        assert_eq!(decode(&other), Err(StampError::OtherLayout { found: 7 }.into()));
        let ours = mailbox(&[(0, &[1]), (40, &LAYOUT_HASH.to_le_bytes())]);
        assert_eq!(decode(&ours), Ok(Reply::Success(Success::default())));
    }

    #[test]
    fn bc_4_a_count_beyond_the_capacity_is_clamped() {
        for (count, expected) in [(-1, 0), (i32::MIN, 0), (376, 376), (377, 376), (i32::MAX, 376)] {
            let bytes = mailbox(&[(0, &[1]), (8, &count.to_le_bytes())]);
            let Ok(Reply::Success(success)) = decode(&bytes) else { panic!("{:?}", decode(&bytes)) };
            assert_eq!(success.buffers.len(), expected, "{count}");
        }
    }

    #[test]
    fn bc_4_a_text_without_a_nul_ends_with_its_field() {
        assert_eq!(failed(&[b'x'; 1024]).message, "x".repeat(1024));
        assert_eq!(failed("xü".as_bytes().split_last().unwrap().1).message, "x\u{fffd}");
        assert_eq!(failed(b"\x1b[2Jgone\n").message, "\\u{1b}[2Jgone\\n");
    }

    #[test]
    fn the_text_of_a_failure_names_a_code_that_is_known() {
        let shown = |code| Failed { code, message: "no device 7".into() }.to_string();
        assert_eq!(shown(8), "bring-up failed with \"vendor error\" (code 8): no device 7");
        assert_eq!(shown(-7), "bring-up failed with code -7: no device 7");
    }

    // BC-4 and F29: random bytes hardly ever have a known state, so the header is chosen and the rest is
    // random.
    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn f29_any_bytes_decode_without_a_panic(
            rest in prop::collection::vec(any::<u8>(), MAILBOX_SIZE),
            state in prop_oneof![any::<i32>(), -1..4_i32],
            count in prop_oneof![any::<i32>(), -1..400_i32],
            hash in prop_oneof![any::<u64>(), Just(0), Just(LAYOUT_HASH)],
        ) {
            let mut bytes: [u8; MAILBOX_SIZE] = rest.try_into().unwrap();
            bytes[..4].copy_from_slice(&state.to_le_bytes());
            bytes[8..12].copy_from_slice(&count.to_le_bytes());
            bytes[40..48].copy_from_slice(&hash.to_le_bytes());
            match decode(&bytes) {
                Ok(Reply::Success(success)) => {
                    prop_assert_eq!(state, 1);
                    prop_assert_eq!(success.buffers.len(), count.clamp(0, 376) as usize);
                }
                Ok(Reply::Failed(failed)) => {
                    prop_assert_eq!(state, 2);
                    prop_assert!(!failed.message.chars().any(char::is_control));
                    prop_assert!(failed.message.chars().count() <= 10 * MESSAGE_SIZE);
                }
                Err(DecodeError::Stamp(error)) => {
                    prop_assert!(hash != 0 && hash != LAYOUT_HASH);
                    prop_assert_eq!(error, StampError::OtherLayout { found: hash });
                }
                Err(DecodeError::Idle) => prop_assert_eq!(state, 0),
                Err(DecodeError::UnknownState { state: found }) => {
                    prop_assert!(found == state && !(0..3).contains(&state));
                }
            }
        }
    }
}
