//! Graphs as somebody else describes them: the calls of an orchestration in C++, which then run; and what a peer on
//! another chip says that it signals and waits for.
#![no_main]

use chip_runtime::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 2 {
        0 => fuzzing::orchestration(bytes),
        _ => fuzzing::hostile_peer(bytes),
    }
});
