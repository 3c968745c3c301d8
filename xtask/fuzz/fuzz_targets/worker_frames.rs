//! What a Worker and its child processes write for each other: frames of the ring, program definitions,
//! launch specs, spans of tasks whose arguments are not whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use worker_orch::fuzzing;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 4 {
        0 => fuzzing::frame(bytes),
        1 => fuzzing::definition(bytes),
        2 => fuzzing::launch_spec(bytes),
        _ => fuzzing::spans(bytes),
    }
});
