//! What another rank can say or write: datagrams of a meeting, its card with notes and reason, the letter, the word of a death.
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
