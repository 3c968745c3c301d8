//! Both sides in one process: what is refused, what is published once, what is read.
#![allow(missing_docs)]

use bootstrap_channel::layout::{LAYOUT_HASH, MAILBOX_SIZE, MAX_BUFFERS};
use bootstrap_channel::{
    ChannelSet, Failed, GatherError, Mailbox, Nonce, PublishError, ReadError, Reply, SetError, Silent,
    StampError, Success,
};
use deadline::Deadline;
use mailbox_atomics::{StickyWord, Wait, WaitError};
use shared_memory::{Region, RegionError};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;
use worker_errors::ErrorCode;

fn within(limit: Duration) -> Wait<'static> {
    Wait::until(Deadline::after(limit).unwrap())
}

fn soon() -> Wait<'static> {
    within(Duration::from_secs(20))
}

fn ready() -> Success {
    Success { device_ctx: 0x1000, window_base: 0x2000, window_size: 64, buffers: vec![0x2000, u64::MAX] }
}

fn nonce(number: u64) -> Nonce {
    Nonce::new(NonZeroU64::new(number).unwrap())
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_published_is_read() {
    let set = ChannelSet::create(3).unwrap();
    assert_eq!(set.reader(1).unwrap().peek(), Ok(None));
    set.writer(1).unwrap().publish_success(&ready()).unwrap();
    assert_eq!(set.reader(1).unwrap().wait(&soon()), Ok(Reply::Success(ready())));
    let full = Success { buffers: (1..=MAX_BUFFERS as u64).collect(), ..ready() };
    set.writer(0).unwrap().publish_success(&full).unwrap();
    assert_eq!(set.reader(0).unwrap().peek(), Ok(Some(Reply::Success(full))));
    set.writer(2).unwrap().publish_error(ErrorCode::Vendor, "no device 7").unwrap();
    let failed = Failed { code: 8, message: "no device 7".into() };
    assert_eq!(failed.error_code(), Some(ErrorCode::Vendor));
    assert_eq!(set.reader(2).unwrap().wait(&soon()), Ok(Reply::Failed(failed)));
}

#[test]
fn a_process_with_the_descriptor_and_the_nonce_can_publish() {
    let set = ChannelSet::create(2).unwrap();
    let passed = set.fd().try_clone_to_owned().unwrap();
    let there = ChannelSet::attach(passed, 2, nonce(set.nonce().get())).unwrap();
    there.writer(1).unwrap().publish_success(&ready()).unwrap();
    assert_eq!(set.reader(1).unwrap().wait(&soon()), Ok(Reply::Success(ready())));
    let other = |count| ChannelSet::attach(set.fd().try_clone_to_owned().unwrap(), count, set.nonce());
    assert!(other(0).is_err() && other(3).is_err() && other(usize::MAX).is_err());
}

/// BC-1: the bytes that a C++ reader finds.
#[test]
fn published_bytes_are_where_the_table_says() {
    let region = Region::create("t", MAILBOX_SIZE).unwrap();
    let mailbox = Mailbox::at(&region, 0).unwrap();
    mailbox.stamp(nonce(0x0102_0304));
    let mut writer = mailbox.writer(nonce(0x0102_0304)).unwrap();
    writer.set_phase(5);
    writer.publish_success(&ready()).unwrap();
    let mut expected = vec![0; MAILBOX_SIZE];
    for (at, field) in [
        (0, &1_i32.to_le_bytes()[..]),
        (8, &2_i32.to_le_bytes()),
        (16, &0x1000_u64.to_le_bytes()),
        (24, &0x2000_u64.to_le_bytes()),
        (32, &64_u64.to_le_bytes()),
        (40, &LAYOUT_HASH.to_le_bytes()),
        (48, &0x0102_0304_u64.to_le_bytes()),
        (56, &5_u32.to_le_bytes()),
        (64, &0x2000_u64.to_le_bytes()),
        (72, &u64::MAX.to_le_bytes()),
    ] {
        expected[at..at + field.len()].copy_from_slice(field);
    }
    assert!(bytes_of(&region) == expected);
}

/// BC-3
#[test]
fn a_second_publish_is_refused_and_changes_nothing() {
    let region = Region::create("t", MAILBOX_SIZE).unwrap();
    let mailbox = Mailbox::at(&region, 0).unwrap();
    let mut writer = mailbox.writer(Nonce::random()).unwrap();
    writer.publish_error(ErrorCode::Load, "first").unwrap();
    let before = bytes_of(&region);
    let refused = Err(PublishError::AlreadyPublished { state: 2 });
    assert_eq!(writer.publish_success(&ready()), refused);
    assert_eq!(writer.publish_error(ErrorCode::Panic, "a later and longer one"), refused);
    assert_eq!(mailbox.writer(Nonce::random()).unwrap().publish_success(&ready()), refused);
    assert!(bytes_of(&region) == before);
}

/// BC-7
#[test]
fn what_cannot_be_published_is_refused_before_a_byte_is_written() {
    let region = Region::create("t", MAILBOX_SIZE).unwrap();
    let mut writer = Mailbox::at(&region, 0).unwrap().writer(Nonce::random()).unwrap();
    let too_many = Success { buffers: vec![1; MAX_BUFFERS + 1], ..ready() };
    assert_eq!(writer.publish_success(&too_many), Err(PublishError::TooManyBuffers { count: 377 }));
    let null = Success { buffers: vec![1, 0], ..ready() };
    assert_eq!(writer.publish_success(&null), Err(PublishError::NullBuffer { index: 1 }));
    let nowhere = Success { window_base: 0, ..ready() };
    assert_eq!(writer.publish_success(&nowhere), Err(PublishError::NullWindow { size: 64 }));
    assert!(bytes_of(&region).iter().all(|byte| *byte == 0));
    writer.publish_success(&Success::default()).unwrap();
}

/// BC-7
#[test]
fn a_mailbox_that_does_not_fit_its_region_is_refused() {
    let region = Region::create("t", 2 * MAILBOX_SIZE).unwrap();
    for offset in [MAILBOX_SIZE + 8, 2 * MAILBOX_SIZE, usize::MAX - 7] {
        let error = Mailbox::at(&region, offset).unwrap_err();
        assert!(matches!(error, RegionError::OutOfBounds { .. }), "{offset}: {error}");
    }
    assert_eq!(Mailbox::at(&region, 4).unwrap_err(), RegionError::Misaligned { offset: 4, align: 8 });
    let small = Region::create("t", MAILBOX_SIZE - 1).unwrap();
    assert!(matches!(Mailbox::at(&small, 0), Err(RegionError::OutOfBounds { .. })));
    Mailbox::at(&region, MAILBOX_SIZE).unwrap();
    assert_eq!(ChannelSet::create(0).unwrap_err(), SetError::NoChips);
    assert!(matches!(ChannelSet::create(usize::MAX), Err(SetError::Region(RegionError::BadLength { .. }))));
    let set = ChannelSet::create(2).unwrap();
    assert_eq!(set.writer(2).unwrap_err(), SetError::NoSuchChip { chip: 2, count: 2 });
    assert_eq!(set.reader(usize::MAX).unwrap_err(), SetError::NoSuchChip { chip: usize::MAX, count: 2 });
}

/// BC-7
#[test]
fn f34_a_long_text_keeps_its_head_and_tail() {
    let set = ChannelSet::create(1).unwrap();
    let text = format!("first\0words{}last words", "ü".repeat(2000));
    set.writer(0).unwrap().publish_error(ErrorCode::Task, &text).unwrap();
    let Ok(Reply::Failed(failed)) = set.reader(0).unwrap().wait(&soon()) else { panic!("no error") };
    let Failed { code, message } = failed;
    assert_eq!(code, ErrorCode::Task.as_i32());
    assert!(message.starts_with("first\\0wordsü") && message.ends_with("last words"), "{message}");
    assert!(message.contains("bytes cut") && message.len() <= 1023 && !message.contains('\u{fffd}'));
}

/// BC-6
#[test]
fn f36_a_mailbox_of_another_layout_or_run_is_refused_by_both_sides() {
    let region = Region::create("t", MAILBOX_SIZE).unwrap();
    let mailbox = Mailbox::at(&region, 0).unwrap();
    mailbox.stamp(nonce(7));
    let other_run = StampError::OtherNonce { found: 7, expected: 8 };
    assert_eq!(mailbox.writer(nonce(8)).unwrap_err(), other_run);
    mailbox.writer(nonce(7)).unwrap().publish_success(&ready()).unwrap();
    assert_eq!(
        mailbox.reader(nonce(8)).wait(&soon()),
        Err(ReadError::Malformed(bootstrap_channel::DecodeError::Stamp(other_run)))
    );
    assert_eq!(mailbox.reader(nonce(7)).wait(&soon()), Ok(Reply::Success(ready())));
    region.write(40, &9_u64.to_le_bytes()).unwrap();
    assert_eq!(mailbox.writer(nonce(7)).unwrap_err(), StampError::OtherLayout { found: 9 });
    assert!(mailbox.reader(nonce(7)).wait(&soon()).is_err());
    // A peer that knows nothing of stamps.
    region.write(40, &0_u64.to_le_bytes()).unwrap();
    assert_eq!(mailbox.reader(nonce(8)).wait(&soon()), Ok(Reply::Success(ready())));
    mailbox.writer(nonce(8)).unwrap();
}

/// BC-5 and F44: a time-out says in which phase, and is not an abort.
#[test]
fn f44_a_time_out_names_the_phase() {
    let set = ChannelSet::create(1).unwrap();
    set.writer(0).unwrap().set_phase(4);
    let reader = set.reader(0).unwrap();
    let error = reader.wait(&within(Duration::from_millis(20))).unwrap_err();
    assert!(matches!(error, ReadError::NoReply { phase: 4, cause: WaitError::TimedOut { .. } }), "{error}");
    let abort = StickyWord::new();
    abort.raise(NonZeroU32::MIN);
    let error = reader.wait(&soon().abort_on(&abort)).unwrap_err();
    assert!(matches!(error, ReadError::NoReply { cause: WaitError::Aborted { .. }, .. }), "{error}");
}

/// BC-9
#[test]
fn an_error_is_reported_although_others_are_silent() {
    let set = ChannelSet::create(3).unwrap();
    set.writer(0).unwrap().set_phase(2);
    set.writer(1).unwrap().publish_success(&ready()).unwrap();
    let error = set.gather(&within(Duration::from_millis(20))).unwrap_err();
    let GatherError::NoReply { silent, cause: WaitError::TimedOut { .. } } = &error else {
        panic!("{error}")
    };
    assert_eq!(silent, &[Silent { chip: 0, phase: 2 }, Silent { chip: 2, phase: 0 }]);
    assert!(error.to_string().ends_with("no reply yet from chip 0 in phase 2, chip 2 in phase 0"), "{error}");

    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            set.writer(2).unwrap().publish_error(ErrorCode::Load, "no libhccl.so").unwrap();
        });
        let failed = Failed { code: 15, message: "no libhccl.so".into() };
        let wait = soon();
        assert_eq!(set.gather(&wait), Err(GatherError::Failed { chip: 2, failed }));
        assert!(!wait.deadline().has_passed(), "noticed only by the last check at the deadline");
    });
}

#[test]
fn all_replies_come_in_the_order_of_the_chips() {
    let set = ChannelSet::create(4).unwrap();
    let reply = |chip: usize| Success { device_ctx: chip as u64, ..ready() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for chip in [2, 0, 3, 1] {
                set.writer(chip).unwrap().publish_success(&reply(chip)).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        assert_eq!(set.gather(&soon()), Ok((0..4).map(reply).collect()));
    });
}

/// BC-4
#[test]
fn f29_an_unknown_state_is_a_typed_error() {
    let region = Region::create("t", MAILBOX_SIZE).unwrap();
    region.write(0, &77_i32.to_le_bytes()).unwrap();
    let reader = Mailbox::at(&region, 0).unwrap().reader(Nonce::random());
    let unknown = bootstrap_channel::DecodeError::UnknownState { state: 77 };
    assert_eq!(reader.wait(&soon()), Err(ReadError::Malformed(unknown)));
    assert_eq!(reader.peek(), Err(unknown));
}

/// What each refusal says, as its reader finds it.
#[test]
fn what_the_errors_of_mailboxes_say() {
    let region = Region::create("t", MAILBOX_SIZE).unwrap();
    let mailbox = Mailbox::at(&region, 0).unwrap();
    mailbox.stamp(nonce(7));
    let mut writer = mailbox.writer(nonce(7)).unwrap();
    let idle = bootstrap_channel::decode(&[0; MAILBOX_SIZE]).unwrap_err();
    let set = ChannelSet::create(2).unwrap();
    set.writer(0).unwrap().set_phase(4);
    let silent = set.reader(0).unwrap().wait(&within(Duration::from_millis(5))).unwrap_err().to_string();
    let waited = set.gather(&within(Duration::from_millis(5))).unwrap_err().to_string();
    set.writer(1).unwrap().publish_error(ErrorCode::Load, "no libhccl.so").unwrap();
    let strangers = ChannelSet::attach(set.fd().try_clone_to_owned().unwrap(), 2, nonce(9)).unwrap();
    let said = [
        ChannelSet::create(0).unwrap_err().to_string(),
        set.reader(5).unwrap_err().to_string(),
        strangers.writer(1).unwrap_err().to_string(),
        writer.publish_success(&Success { buffers: vec![1; 377], ..ready() }).unwrap_err().to_string(),
        writer.publish_success(&Success { buffers: vec![1, 0], ..ready() }).unwrap_err().to_string(),
        writer.publish_success(&Success { window_base: 0, ..ready() }).unwrap_err().to_string(),
        idle.to_string(),
        mailbox.writer(nonce(8)).unwrap_err().to_string(),
        set.gather(&soon()).unwrap_err().to_string(),
        strangers.gather(&soon()).unwrap_err().to_string(),
    ];
    let other = set.nonce().get();
    let of_another_run = |this: u64| {
        format!(
            "the mailbox has the nonce {other:#018x}, this run has {this:#018x}: it belongs to another run; pass the \
             descriptor and the nonce of one set"
        )
    };
    assert_eq!(
        said,
        [
            "a set of mailboxes needs at least one chip; give their number".to_owned(),
            "there is no mailbox for chip 5; the set has 2, counted from 0".to_owned(),
            format!("mailbox of chip 1: {}", of_another_run(9)),
            "377 buffers do not fit; a mailbox holds at most 376: join some".to_owned(),
            "buffer 1 has a null address; leave it out, or give it memory".to_owned(),
            "the window of 64 bytes has a null address; say 0 bytes where there is none".to_owned(),
            "the mailbox is idle: nothing has been published; wait for it with a Reader".to_owned(),
            of_another_run(8).replace(&format!("{other:#018x}"), &format!("{:#018x}", 7)),
            "chip 1: bring-up failed with \"load failed\" (code 15): no libhccl.so".to_owned(),
            format!("chip 1 published a malformed reply: {}", of_another_run(9)),
        ]
    );
    assert!(silent.starts_with("no reply from the chip, which is in phase 4: timed out after "), "{silent}");
    assert!(waited.contains("; no reply yet from chip 0 in phase 4, chip 1 in phase 0"), "{waited}");

    writer.publish_success(&ready()).unwrap();
    assert_eq!(
        writer.publish_success(&ready()).unwrap_err().to_string(),
        "the mailbox has a reply already (state 1); a chip reports its bring-up once"
    );
    region.write(0, &77_i32.to_le_bytes()).unwrap();
    assert_eq!(
        mailbox.reader(nonce(7)).wait(&soon()).unwrap_err().to_string(),
        "the chip published a malformed reply: the mailbox has the unknown state 77; known are 0 to 2: its writer is \
         of another build, or something overwrote it"
    );
    region.write(40, &9_u64.to_le_bytes()).unwrap();
    assert_eq!(
        mailbox.writer(nonce(7)).unwrap_err().to_string(),
        format!(
            "the mailbox has the layout hash {:#018x}, this program knows {LAYOUT_HASH:#018x}; build parent and chip \
             process from one source",
            9
        )
    );
}
