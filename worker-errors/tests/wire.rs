//! The wire form: round trips, cuts, and hostile bytes.

use proptest::prelude::*;
use worker_errors::{ErrorCode, Failure, MAX_CHAIN, MIN_WIRE_LEN, WireError};

fn encoded(failure: &Failure, room: usize) -> Vec<u8> {
    let mut slot = vec![0xee; room];
    let len = failure.encode(&mut slot).unwrap();
    assert!(slot[len..].iter().all(|b| *b == 0xee), "wrote beyond what it says");
    slot.truncate(len);
    slot
}

fn any_failure() -> impl Strategy<Value = Failure> {
    let place = (any::<Option<u32>>(), any::<Option<i32>>(), any::<Option<u32>>());
    (0..ErrorCode::ALL.len(), "\\PC{0,40}", place, any::<String>()).prop_map(
        |(code, phase, place, message)| {
            let mut failure = Failure::new(ErrorCode::ALL[code], message).in_phase(phase);
            (failure.rank, failure.device, failure.pid) = place;
            failure
        },
    )
}

fn any_chain() -> impl Strategy<Value = Failure> {
    prop::collection::vec(any_failure(), 1..2 * MAX_CHAIN)
        .prop_map(|links| links.into_iter().reduce(Failure::caused_by).expect("at least one"))
}

proptest! {
    // Miri is slow and has no file system; failing cases are printed instead.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 4 } else { 256 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_failure_that_fits_comes_back_as_it_was(link in any_failure(), cause in any_failure()) {
        let clip_free = |f: &Failure| f.phase.len() <= 64;
        prop_assume!(clip_free(&link) && clip_free(&cause));
        let failure = link.caused_by(cause);
        let room = failure.encoded_len().max(MIN_WIRE_LEN);
        let bytes = encoded(&failure, room);
        prop_assert_eq!(bytes.len(), failure.encoded_len());
        prop_assert_eq!(Failure::decode(&bytes), Ok(failure));
    }

    // WE-3
    #[test]
    fn f34_any_chain_fits_any_room_and_keeps_its_ends(failure in any_chain(), room in MIN_WIRE_LEN..2048) {
        let bytes = encoded(&failure, room);
        let back = Failure::decode(&bytes).unwrap();
        let depth = |f: &Failure| f.chain().map(|link| 1 + usize::from(link.left_out())).sum::<usize>();
        prop_assert_eq!(depth(&back), depth(&failure));
        for (back, sent) in [(&back, &failure), (back.root_cause(), failure.root_cause())] {
            let place = |f: &Failure| (f.code, f.rank, f.device, f.pid);
            prop_assert_eq!(place(back), place(sent));
            prop_assert_eq!(back.message.is_empty(), sent.message.is_empty());
        }
    }

    // WE-5
    #[test]
    fn f29_any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Failure::decode(&bytes);
    }

    // WE-5
    #[test]
    fn f29_a_failure_with_any_byte_changed_decodes_or_is_refused(
        failure in any_chain(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = encoded(&failure, 1024);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(back) = Failure::decode(&bytes) {
            prop_assert!(back.chain().count() <= MAX_CHAIN);
            prop_assert!(!back.line().to_string().contains('\n'));
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    let failure =
        Failure::new(ErrorCode::Task, "kernel 3").on_rank(1).caused_by(Failure::new(ErrorCode::Panic, "no"));
    let bytes = encoded(&failure, 256);
    for len in 0..bytes.len() {
        assert!(matches!(Failure::decode(&bytes[..len]), Err(WireError::Truncated { .. })), "{len}");
    }
}

#[test]
fn a_long_message_keeps_head_and_tail_and_the_root_gets_its_share() {
    let root = Failure::new(ErrorCode::Vendor, "HCCL_E_TCP_CONNECT: port 60000 is taken").in_phase("init");
    let failure = (0..MAX_CHAIN)
        .map(|n| Failure::new(ErrorCode::Aborted, format!("begin {n} {} end {n}", "y".repeat(5000))))
        .reduce(Failure::caused_by)
        .unwrap()
        .caused_by(root.clone());
    let back = Failure::decode(&encoded(&failure, 512)).unwrap();
    assert_eq!(back.root_cause(), &root);
    assert!(back.message.starts_with("begin 0 y") && back.message.ends_with("end 0"), "{}", back.message);
    assert!(back.message.contains("bytes cut"));
    assert!(back.to_string().contains("left out)"));
    let smallest = Failure::decode(&encoded(&failure, MIN_WIRE_LEN)).unwrap();
    assert_eq!(smallest.chain().count(), 2);
    assert_eq!(smallest.root_cause().code, ErrorCode::Vendor);
    assert!(smallest.root_cause().message.starts_with("HCCL_E_TCP"), "{smallest}");
}

#[test]
fn each_kind_of_bad_bytes_is_refused_by_name() {
    let good = encoded(&Failure::new(ErrorCode::Task, "ä"), 256);
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        Failure::decode(&bytes).unwrap_err()
    };
    let cases = [
        (Failure::decode(&[0; 64]).unwrap_err(), WireError::Magic { found: [0; 4] }),
        (with(4, &[2, 0]), WireError::Version { found: 2 }),
        (with(6, &[0, 0]), WireError::Count { count: 0 }),
        (with(6, &[17, 0]), WireError::Count { count: 17 }),
        (with(8, &[255; 4]), WireError::Truncated { len: good.len(), need: u32::MAX as usize }),
        (with(8, &[13, 0, 0, 0]), WireError::Truncated { len: 13, need: 34 }),
        (with(12, &[0; 4]), WireError::Code { index: 0, code: 0 }),
        (with(28, &[8]), WireError::Flags { index: 0, flags: 8 }),
        (with(30, &[1, 0]), WireError::Utf8 { index: 0 }),
        (with(30, &[0, 0]), WireError::Length { stated: good.len(), found: good.len() - 2 }),
        (
            Failure::new(ErrorCode::Task, "x").encode(&mut [0; MIN_WIRE_LEN - 1]).unwrap_err(),
            WireError::BufferTooSmall { len: MIN_WIRE_LEN - 1 },
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    assert_eq!(
        cases.map(|(found, _)| found.to_string()),
        [
            "the bytes start with [00, 00, 00, 00]; a failure starts with [57, 45, 52, 52]: read what `encode` wrote",
            "the failure is written in version 2, this program reads version 1; run one build in all processes",
            "the chain has 0 failures; the limit is 1 to 16",
            "the chain has 17 failures; the limit is 1 to 16",
            "the bytes end at 36, the failure needs 4294967295; pass all of it",
            "the bytes end at 13, the failure needs 34; pass all of it",
            "failure 0 of the chain has the unknown code 0",
            "failure 0 of the chain has the unknown flags 0x08",
            "failure 0 of the chain has text that is not UTF-8",
            "the header says 36 bytes, the failures take 34",
            "a failure needs a buffer of at least 192 bytes, this one has 191; give it more",
        ]
    );
}
