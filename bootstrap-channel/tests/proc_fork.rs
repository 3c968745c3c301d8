//! Parent and chip as real processes, and chips that are killed.
//!
//! # Safety
//! Forks. The children use shared memory and system calls, and no lock of the test harness.
#![allow(unsafe_code, missing_docs)]

use bootstrap_channel::layout::MAILBOX_SIZE;
use bootstrap_channel::{ChannelSet, Failed, GatherError, ReadError, Reply, Success};
use child_process::Child;
use deadline::{Deadline, Death, HowDied, Watch};
use fault_points::{Action, Plan};
use mailbox_atomics::{Wait, WaitError};
use nix::sys::signal::{Signal, raise};
use serial_test::serial;
use shared_memory::Region;
use std::time::Duration;
use worker_errors::ErrorCode;

/// A test that gets here has hung.
fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}

fn fork(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: see the top of the file.
    unsafe { Child::fork(&[], body) }.unwrap()
}

fn watch(children: &[Child]) -> impl Watch {
    || {
        children
            .iter()
            .zip(0..)
            .find_map(|(child, peer)| child.watch().death().map(|how| Death { peer, pid: child.pid(), how }))
    }
}

fn ready(chip: usize) -> Success {
    let base = 0x1000 * (chip as u64 + 1);
    Success { device_ctx: base, window_base: base, window_size: 64, buffers: vec![base; 376] }
}

fn die() -> i32 {
    raise(Signal::SIGKILL).unwrap();
    0
}

fn idle() -> i32 {
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Waits for the reply of one chip that runs `body` with the set and its bare memory.
fn reply_of(body: impl FnOnce(&ChannelSet, &Region) -> i32) -> (Result<Reply, ReadError>, i32) {
    let set = ChannelSet::create(1).unwrap();
    let raw = Region::attach(set.fd().try_clone_to_owned().unwrap(), "t", MAILBOX_SIZE).unwrap();
    let child = [fork(|| body(&set, &raw))];
    let watch = watch(&child);
    (set.reader(0).unwrap().wait(&Wait::until(far()).watching(&watch)), child[0].pid())
}

#[track_caller]
fn assert_killed((reply, pid): (Result<Reply, ReadError>, i32)) {
    let Err(ReadError::NoReply { phase, cause: WaitError::PeerDied(death) }) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!((phase, death.pid, death.how), (6, pid, HowDied::Signalled(Signal::SIGKILL as i32)));
}

#[test]
#[serial]
fn chips_report_across_a_fork() {
    let set = ChannelSet::create(4).unwrap();
    let children: Vec<Child> = (0..4)
        .map(|chip| {
            fork(|| {
                set.writer(chip).unwrap().publish_success(&ready(chip)).unwrap();
                idle()
            })
        })
        .collect();
    let watch = watch(&children);
    let gathered = set.gather(&Wait::until(far()).watching(&watch));
    assert_eq!(gathered, Ok((0..4).map(ready).collect()));
}

/// BC-5
#[test]
#[serial]
fn f01_a_chip_killed_before_it_publishes_is_a_death_and_not_a_time_out() {
    assert_killed(reply_of(|set, _| {
        set.writer(0).unwrap().set_phase(6);
        die()
    }));
}

/// BC-2: everything is written but the state.
#[test]
#[serial]
fn f01_a_chip_killed_between_payload_and_state_has_published_nothing() {
    assert_killed(reply_of(|set, raw| {
        set.writer(0).unwrap().set_phase(6);
        raw.write(8, &376_i32.to_le_bytes()).unwrap();
        raw.write(16, &[0xff; 24]).unwrap();
        raw.write(64, &[0xff; 376 * 8]).unwrap();
        raw.write(3072, b"half a reply").unwrap();
        die()
    }));
}

/// BC-5: what was published wins.
#[test]
#[serial]
fn a_chip_killed_after_it_published_has_published() {
    let (reply, _) = reply_of(|set, _| {
        set.writer(0).unwrap().publish_success(&ready(0)).unwrap();
        die()
    });
    assert_eq!(reply, Ok(Reply::Success(ready(0))));
    let (reply, _) = reply_of(|set, _| {
        set.writer(0).unwrap().publish_error(ErrorCode::Panic, "the reason").unwrap();
        die()
    });
    assert_eq!(reply, Ok(Reply::Failed(Failed { code: 11, message: "the reason".into() })));
}

/// BC-2: the points are inside of a publish, before the payload and behind it.
#[test]
#[serial]
fn f01_a_chip_killed_inside_a_publish_has_published_nothing() {
    for point in ["channel.writing", "channel.written", "channel.error.writing", "channel.error.written"] {
        assert_killed(reply_of(|set, _| {
            let mut writer = set.writer(0).unwrap();
            writer.set_phase(6);
            fault_points::set_rank(0);
            fault_points::arm(Plan::one(point, 0, 1, Action::Kill));
            if point.starts_with("channel.error") {
                writer.publish_error(ErrorCode::Panic, "the reason").unwrap();
            } else {
                writer.publish_success(&ready(0)).unwrap();
            }
            unreachable!("{point} was not passed")
        }));
    }
}

/// BC-2: killed from outside at any point, a chip has published all or nothing.
#[test]
#[serial]
fn a_chip_killed_at_any_point_has_published_all_or_nothing() {
    for round in 0..60 {
        let set = ChannelSet::create(1).unwrap();
        let child = [fork(|| {
            set.writer(0).unwrap().publish_success(&ready(0)).unwrap();
            idle()
        })];
        std::thread::sleep(Duration::from_micros(round * 25));
        child[0].signal(Signal::SIGKILL as i32);
        let watch = watch(&child);
        match set.reader(0).unwrap().wait(&Wait::until(far()).watching(&watch)) {
            Ok(reply) => assert_eq!(reply, Reply::Success(ready(0))),
            Err(ReadError::NoReply { cause: WaitError::PeerDied(_), .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// BC-9
#[test]
#[serial]
fn f20_the_chip_that_died_is_named_among_the_silent() {
    let set = ChannelSet::create(3).unwrap();
    let children: Vec<Child> = (0..3)
        .map(|chip| {
            fork(|| match chip {
                0 => {
                    set.writer(0).unwrap().publish_success(&ready(0)).unwrap();
                    idle()
                }
                1 => idle(),
                _ => {
                    set.writer(2).unwrap().set_phase(9);
                    // On a loaded machine chip 0 may be late, and would be silent too.
                    set.reader(0).unwrap().wait(&Wait::until(far())).unwrap();
                    die()
                }
            })
        })
        .collect();
    let watch = watch(&children);
    let error = set.gather(&Wait::until(far()).watching(&watch)).unwrap_err();
    let GatherError::NoReply { silent, cause: WaitError::PeerDied(death) } = &error else {
        panic!("{error}")
    };
    assert_eq!((death.peer, death.how), (2, HowDied::Signalled(Signal::SIGKILL as i32)));
    assert_eq!(silent.iter().map(|silent| silent.chip).collect::<Vec<_>>(), [1, 2]);
    assert!(error.to_string().contains("chip 2 in phase 9"), "{error}");
}

/// BC-4: a chip that keeps overwriting its mailbox with random bytes while the parent reads it.
#[test]
#[serial]
fn f29_a_hostile_chip_cannot_crash_its_parent() {
    let set = ChannelSet::create(1).unwrap();
    let raw = Region::attach(set.fd().try_clone_to_owned().unwrap(), "t", MAILBOX_SIZE).unwrap();
    let _chip = fork(|| {
        // Known states and one that is not; everything else but the stamp is random.
        for random in (0_u64..).map(|step| step.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let bytes = random.to_le_bytes();
            raw.write(64 + 8 * (random >> 53) as usize % (MAILBOX_SIZE - 72), &bytes).unwrap();
            raw.write(4, &bytes).unwrap();
            raw.write(3072 + (random >> 56) as usize, &bytes).unwrap();
            raw.write(0, &((random >> 60) as i32 % 4).to_le_bytes()).unwrap();
        }
        0
    });
    let reader = set.reader(0).unwrap();
    let wait = Wait::until(far());
    let (mut replies, mut refused) = (0, 0);
    while replies < 1_000 || refused < 100 {
        match reader.wait(&wait) {
            Ok(_) => replies += 1,
            Err(ReadError::Malformed(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
}

/// The mailboxes have no name, so that nothing of them stays.
#[test]
#[serial]
fn f21_a_killed_parent_leaves_no_mailbox() {
    let before = std::fs::read_dir("/dev/shm").unwrap().count();
    let parent = fork(|| {
        let set = ChannelSet::create(16).unwrap();
        set.writer(15).unwrap().publish_success(&ready(15)).unwrap();
        die()
    });
    assert_eq!(parent.reap(far()), Some(HowDied::Signalled(Signal::SIGKILL as i32)));
    assert_eq!(std::fs::read_dir("/dev/shm").unwrap().count(), before);
}
