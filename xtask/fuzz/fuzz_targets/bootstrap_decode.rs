//! Any bytes of a mailbox give a reply or a typed error, and what is shown of them is harmless.
#![no_main]

use bootstrap_channel::layout::{MAILBOX_SIZE, MAX_BUFFERS, MESSAGE_SIZE};
use bootstrap_channel::{Reply, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // A shorter input is a mailbox that is zero from there on.
    let mut bytes = [0; MAILBOX_SIZE];
    let len = data.len().min(MAILBOX_SIZE);
    bytes[..len].copy_from_slice(&data[..len]);
    match decode(&bytes) {
        Ok(Reply::Success(success)) => assert!(success.buffers.len() <= MAX_BUFFERS),
        Ok(Reply::Failed(failed)) => {
            assert!(!failed.to_string().chars().any(char::is_control));
            // The longest escape of one byte's worth of text, `\u{..}`.
            assert!(failed.message.len() <= 10 * MESSAGE_SIZE);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
