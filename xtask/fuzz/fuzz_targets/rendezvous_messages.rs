//! What another rank can send or write: datagrams of a rendezvous; its rank block with messages and reason, and the
//! broadcast; the word that reports a death.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendezvous::fuzzing;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => fuzzing::message(bytes),
        1 => fuzzing::rank_block(bytes),
        _ => fuzzing::numbers(bytes),
    }
});
