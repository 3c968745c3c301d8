//! Any bytes are a failure or a typed error. A failure prints as safe text and survives another round trip,
//! cut but valid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use worker_errors::{Failure, MAX_CHAIN, MIN_WIRE_LEN, clip, escape};

fuzz_target!(|data: &[u8]| {
    let Some((room, bytes)) = data.split_first_chunk::<2>() else { return };
    let room = usize::from(u16::from_le_bytes(*room));
    text(&String::from_utf8_lossy(bytes), room);
    match Failure::decode(bytes) {
        Ok(failure) => {
            printed(&failure);
            round_trip(&failure, room);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

fn printed(failure: &Failure) {
    let links = failure.chain().count();
    assert!((1..=MAX_CHAIN).contains(&links));
    let text = failure.to_string();
    assert!(!text.chars().any(|c| c != '\n' && c.is_control()));
    // A further line of a message must not pass for a cause.
    assert!(text.lines().skip(1).all(|line| line.starts_with("    ") || line.starts_with("  caused by: ")));
    let causes = text.lines().skip(1).filter(|line| line.starts_with("  caused by: ")).count();
    let gaps = failure.chain().filter(|link| link.left_out() > 0 && link.direct_cause().is_some()).count();
    assert_eq!(causes, links - 1 + gaps);
}

fn round_trip(failure: &Failure, room: usize) {
    let mut whole = vec![0; failure.encoded_len().max(MIN_WIRE_LEN)];
    let Ok(len) = failure.encode(&mut whole) else { panic!("{failure:?}") };
    assert!(len <= whole.len());
    let Ok(again) = Failure::decode(&whole[..len]) else { panic!("{failure:?}") };
    if failure.chain().all(|link| link.phase.len() <= 64) {
        assert_eq!(&again, failure);
    }

    let mut tight = vec![0; room];
    let Ok(len) = failure.encode(&mut tight) else { return assert!(room < MIN_WIRE_LEN) };
    assert!(room >= MIN_WIRE_LEN && len <= room);
    let Ok(cut) = Failure::decode(&tight[..len]) else { panic!("{failure:?} in {room} bytes") };
    assert_eq!(cut.code, failure.code);
    assert_eq!(cut.root_cause().code, failure.root_cause().code);
    assert!(cut.chain().count() <= failure.chain().count());
}

fn text(text: &str, room: usize) {
    let cut = clip(text, room);
    assert!(cut.len() <= room && (text.len() > room || cut == text));
    let escaped = escape(text, room);
    assert!(escaped.len() <= room);
    assert!(!escaped.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)));
    assert_eq!(escape(&escaped, room), escaped);
}
