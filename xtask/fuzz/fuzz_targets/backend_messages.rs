//! What the ranks of a backend send to each other when they make windows: results, places, tickets, refusals.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => rendezvous::fuzzing::result(bytes),
        1 => comm_sim::fuzzing::message(bytes),
        _ => comm_hccl::fuzzing::message(bytes),
    }
});
