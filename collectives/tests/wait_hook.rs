//! What a library above has done in every wait.
//!
//! # Safety
//! The hook counts, and uses no group.
#![allow(missing_docs, unsafe_code)]

use collectives::{Collectives, Op, Options, set_wait_hook};
use comm_context::comm::{Membership, Timeout};
use comm_sim::SimComm;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static CALLS: AtomicU64 = AtomicU64::new(0);

#[test]
fn a_wait_for_a_late_rank_calls_the_hook_again_and_again() {
    // SAFETY: see the head of the file.
    let hook = || unsafe {
        set_wait_hook(|| {
            // Relaxed: a count alone, read after the threads have ended.
            CALLS.fetch_add(1, Ordering::Relaxed);
        })
    };
    assert!(hook());
    assert!(!hook(), "the first one stays");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group");
    let rank = |rank: u32| {
        let comm = SimComm::rendezvous(&path, Membership::new(rank, 2).unwrap(), Timeout::DEFAULT).unwrap();
        let group = Collectives::new(&comm, Options::new()).unwrap();
        let before = CALLS.load(Ordering::Relaxed);
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        let mut value = [rank + 1];
        group.all_reduce(&mut value, Op::Sum).unwrap();
        assert_eq!(value, [3]);
        let during = CALLS.load(Ordering::Relaxed) - before;
        group.close().unwrap();
        during
    };
    let during = std::thread::scope(|scope| {
        let late = scope.spawn(|| rank(1));
        let first = rank(0);
        late.join().unwrap();
        first
    });
    // 200 microseconds apart, on a machine that may be busy.
    assert!(during >= 10, "{during}");
}
