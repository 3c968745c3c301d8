//! What a process on another host can send: messages before and after its proof; and the address of rank 0, as a user or
//! a launcher writes it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendezvous::fuzzing;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => fuzzing::host_message(bytes),
        1 => fuzzing::host_address(&String::from_utf8_lossy(bytes)),
        _ => match fuzzing::launcher_address(&String::from_utf8_lossy(bytes)) {
            Ok(address) => fuzzing::host_address(&address.to_string()),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.chars().any(|c| c.is_control()), "{text:?}");
            }
        },
    }
});
