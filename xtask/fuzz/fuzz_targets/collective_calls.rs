//! What ranks of a group of collectives read of each other: records of calls, heads of messages, options.
#![no_main]

use collectives::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => fuzzing::call(bytes),
        1 => fuzzing::message(bytes),
        _ => fuzzing::options(bytes),
    }
});
