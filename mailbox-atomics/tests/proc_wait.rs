//! The wait function between real processes, with real signals.
//!
//! # Safety
//! Forks. The children use shared memory and system calls, and no lock of the test harness.
#![cfg(not(loom))]
#![allow(unsafe_code, missing_docs)]

use child_process::{Child, Peers};
use deadline::{Deadline, HowDied};
use mailbox_atomics::{
    Barrier, Listener, OneShot, Place, SpinBudget, Wait, WaitError, WordI32, WordU32, WordU64,
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

fn watching(child: &Child) -> Peers {
    let mut peers = Peers::new();
    peers.add(3, child_process::ProcessWatch::of_process(child.pid()).unwrap());
    peers
}

#[test]
#[serial]
fn f02_a_peer_killed_while_we_wait_is_told_with_pid_and_signal() {
    // MA-3: a death is not a time-out.
    let region = Region::create("t", 4096).unwrap();
    let word = region.words::<WordI32>(0).unwrap();
    let child = sleeper();
    let peers = watching(&child);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(120));
            nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(peers.iter().next().unwrap().1.pid()),
                Signal::SIGKILL,
            )
            .unwrap();
        });
        let started = Instant::now();
        let told = OneShot::new(word).wait(&Wait::until(far()).watching(&peers)).unwrap_err();
        let WaitError::PeerDied(death) = told else { panic!("{told}") };
        assert_eq!(
            (death.peer, death.pid, death.how),
            (3, child.pid(), HowDied::Signalled(Signal::SIGKILL as i32))
        );
        assert!(started.elapsed() < Duration::from_secs(10), "told only after {:?}", started.elapsed());
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
            shot.publish(NonZeroI32::new(5).unwrap(), || region.write(64, b"last words").unwrap()).unwrap();
            nix::sys::signal::raise(Signal::SIGKILL).unwrap();
            0
        });
        child.watch().wait_for_death(far());
        let peers = watching(&child);
        assert_eq!(shot.wait(&Wait::until(far()).watching(&peers)), Ok(NonZeroI32::new(5).unwrap()));
        let mut text = [0; 10];
        region.read(64, &mut text).unwrap();
        assert_eq!(&text, b"last words");
    }
}

#[test]
#[serial]
fn f06_the_deadline_ends_a_wait_for_a_living_peer() {
    let region = Region::create("t", 4096).unwrap();
    let word = region.words::<WordI32>(0).unwrap();
    let child = sleeper();
    let peers = watching(&child);
    let short = Deadline::after(Duration::from_millis(80)).unwrap();
    let told = OneShot::new(word).wait(&Wait::until(short).watching(&peers)).unwrap_err();
    let WaitError::TimedOut { waited, limit } = told else { panic!("{told}") };
    assert!(waited >= limit && limit == Duration::from_millis(80));
}

#[test]
#[serial]
fn f03_children_end_with_their_parent() {
    // MA-9
    let region = Region::create("t", 4096).unwrap();
    let pid_word = region.words::<WordU32>(0).unwrap();
    let parent = fork(|| {
        let child = fork(|| {
            pid_word.store_and_wake(std::process::id());
            loop {
                std::hint::spin_loop();
            }
        });
        child.reap(far());
        0
    });
    let pid = Wait::until(far()).on(pid_word, None, |pid| (pid != 0).then_some(pid as i32)).unwrap();
    let grandchild = child_process::ProcessWatch::of_process(pid).unwrap();
    parent.signal(Signal::SIGKILL);
    assert!(grandchild.wait_for_death(far()), "the grandchild spins on without its parent");
}

#[test]
#[serial]
fn f43_a_parked_waiter_uses_next_to_no_processor_time() {
    // MA-8: with a watched peer, which costs the most looks.
    let region = Region::create("t", 4096).unwrap();
    let word = region.words::<WordU64>(0).unwrap();
    let flag = region.words::<WordU32>(64).unwrap();
    let peer = sleeper();
    let waiter = fork(|| {
        let peers = watching(&peer);
        let budget = SpinBudget::for_parties(2);
        let second = Deadline::after(Duration::from_secs(1)).unwrap();
        let wait = Wait::until(second).watching(&peers).spinning(&budget);
        let before = processor_time();
        wait.on(word, Some(Listener::new(flag)), |value| (value > 0).then_some(())).unwrap_err();
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
    // MA-8
    barrier_rounds(16, 500, true);
}

#[test]
#[serial]
fn f21_a_killed_owner_leaves_no_shared_memory() {
    // MA-7
    let before = std::fs::read_dir("/dev/shm").unwrap().count();
    let child = fork(|| {
        let region = Region::create("t", 1 << 20).unwrap();
        region.write(0, &[1; 4096]).unwrap();
        nix::sys::signal::raise(Signal::SIGKILL).unwrap();
        0
    });
    assert_eq!(child.reap(far()), Some(HowDied::Signalled(Signal::SIGKILL as i32)));
    assert_eq!(std::fs::read_dir("/dev/shm").unwrap().count(), before);
}

#[test]
#[serial]
fn f22_a_file_size_limit_is_an_error_and_not_a_signal() {
    // MA-7
    let child = fork(|| {
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE, 4096, 4096).unwrap();
        let told = Region::create("t", 1 << 20).unwrap_err().to_string();
        i32::from(
            !(told.contains("need 1048576") && told.contains("have 4096") && told.contains("ulimit -f")),
        )
    });
    assert_eq!(child.reap(far()), Some(HowDied::Exited(0)));
}
