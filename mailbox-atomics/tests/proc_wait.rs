//! The wait function between real processes, with real signals.
//!
//! # Safety
//! Forks. The children use shared memory and system calls, and no lock of the test harness.
#![cfg(not(loom))]
#![allow(unsafe_code, missing_docs)]

use child_process::Child;
use deadline::{Deadline, Death, HowDied, Watch};
use mailbox_atomics::{
    Barrier, OneShot, ParkFlag, Place, SpinBudget, Wait, WaitError, WordI32, WordU32, WordU64,
};
use nix::sys::signal::Signal;
use serial_test::serial;
use shared_memory::Region;
use std::num::NonZeroI32;
use std::time::{Duration, Instant};

/// Far away: a test that gets here has hung.
fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60)).unwrap()
}

fn fork(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: the bodies of this file use shared memory and system calls, and no lock of the test harness.
    unsafe { Child::fork(&[], body) }.unwrap()
}

/// A process that lives until it is killed.
fn sleeper() -> Child {
    fork(|| {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    })
}

/// Reports the death of `child` as that of peer 3.
fn watch(child: &Child) -> impl Watch {
    || child.watch().death().map(|how| Death { peer: 3, pid: child.pid(), how })
}

#[test]
#[serial]
fn f02_a_peer_killed_while_we_wait_is_reported_with_pid_and_signal() {
    // MA-3: a death is not a time-out.
    let region = Region::create("t", 4096).unwrap();
    let word = region.words::<WordI32>(0).unwrap();
    let child = sleeper();
    let watch = watch(&child);
    let pid = child.pid();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(120));
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        });
        let started = Instant::now();
        let error = OneShot::new(word).wait(&Wait::until(far()).watching(&watch)).unwrap_err();
        let how = HowDied::Signalled(Signal::SIGKILL as i32);
        assert_eq!(error, WaitError::PeerDied(Death { peer: 3, pid, how }));
        assert!(started.elapsed() < Duration::from_secs(10), "reported only after {:?}", started.elapsed());
    });
}

#[test]
#[serial]
fn what_a_peer_published_before_it_died_is_delivered() {
    // MA-4
    for _ in 0..20 {
        let region = Region::create("t", 4096).unwrap();
        let shot = OneShot::new(region.words::<WordI32>(0).unwrap());
        let child = fork(|| {
            shot.publish(NonZeroI32::new(5).unwrap(), || region.write(64, b"the result").unwrap()).unwrap();
            nix::sys::signal::raise(Signal::SIGKILL).unwrap();
            0
        });
        child.watch().wait_for_death(far());
        let watch = watch(&child);
        assert_eq!(shot.wait(&Wait::until(far()).watching(&watch)), Ok(NonZeroI32::new(5).unwrap()));
        let mut text = [0; 10];
        region.read(64, &mut text).unwrap();
        assert_eq!(&text, b"the result");
    }
}

#[test]
#[serial]
fn f06_the_deadline_ends_a_wait_for_a_living_peer() {
    let region = Region::create("t", 4096).unwrap();
    let word = region.words::<WordI32>(0).unwrap();
    let child = sleeper();
    let watch = watch(&child);
    // MA-3
    let short = Deadline::after(Duration::from_millis(80)).unwrap();
    let error = OneShot::new(word).wait(&Wait::until(short).watching(&watch)).unwrap_err();
    let WaitError::TimedOut { waited, limit } = error else { panic!("{error}") };
    assert!(waited >= limit && limit == Duration::from_millis(80));
}

#[test]
#[serial]
fn f43_a_parked_waiter_uses_next_to_no_processor_time() {
    // MA-7: with a watched peer, which takes the most checks.
    let region = Region::create("t", 4096).unwrap();
    let word = region.words::<WordU64>(0).unwrap();
    let flag = region.words::<WordU32>(64).unwrap();
    let peer = sleeper();
    let waiter = fork(|| {
        let watch = watch(&peer);
        let budget = SpinBudget::for_parties(2);
        let second = Deadline::after(Duration::from_secs(1)).unwrap();
        let wait = Wait::until(second).watching(&watch).spinning(&budget);
        let before = processor_time();
        wait.on(word, Some(&mut ParkFlag::new(flag)), |value| (value > 0).then_some(())).unwrap_err();
        i32::from(processor_time() - before >= Duration::from_millis(10))
    });
    assert_eq!(waiter.reap(far()), Some(HowDied::Exited(0)), "over 1 % of a core");
}

fn processor_time() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64;
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}

/// `parties` processes go through `rounds` phases; each writes its round before and checks the others' after.
fn barrier_rounds(parties: usize, rounds: u64, one_core: bool) {
    let region = Region::create("t", 128 * 1024).unwrap();
    let places = region.word_slice::<Place>(0, parties).unwrap();
    let stamps = region.word_slice::<WordU64>(64 * 1024, parties).unwrap();
    let children: Vec<Child> = (0..parties)
        .map(|me| {
            fork(move || {
                if one_core {
                    let mut only = nix::sched::CpuSet::new();
                    only.set(0).unwrap();
                    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &only).unwrap();
                }
                let budget = SpinBudget::for_parties(parties);
                let wait = Wait::until(far()).spinning(&budget);
                let barrier = Barrier::new(places, me);
                for round in 1..=rounds {
                    stamps[me].store(round);
                    if barrier.wait(&wait) != Ok(2 * round - 1)
                        || stamps.iter().any(|stamp| stamp.load() != round)
                    {
                        return 1;
                    }
                    if barrier.wait(&wait) != Ok(2 * round) {
                        return 2;
                    }
                }
                0
            })
        })
        .collect();
    for child in children {
        assert_eq!(child.reap(far()), Some(HowDied::Exited(0)), "{parties} parties");
    }
}

#[test]
#[serial]
fn f26_the_barrier_holds_for_ten_thousand_phases_back_to_back() {
    // MA-6
    for parties in [1, 2, 3, 5] {
        barrier_rounds(parties, 5_000, false);
    }
}

#[test]
#[serial]
fn f42_sixteen_processes_on_one_core_make_progress() {
    // MA-7
    barrier_rounds(16, 500, true);
}
