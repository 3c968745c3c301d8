//! Demands under loom: two parties that announce at the same time cannot both miss the other (MA-15), and the model
//! rejects the code without its fence.
#![cfg(loom)]
#![allow(missing_docs)]

mod loom_rejected;

use loom::sync::Arc;
use loom::thread;
use loom_rejected::rejected;
use mailbox_atomics::{Demands, Site, WordU64};

/// How much there is for both.
const LIMIT: u64 = 10;

fn check(scenario: fn()) {
    loom::model(scenario);
}

/// Takes `amount`, or leaves it when too little is left.
fn take(words: &[WordU64], me: usize, amount: u64) -> u64 {
    let demands = Demands::new(words, me);
    demands.announce(amount);
    let others: u64 = demands.of_others().map(|(_, theirs)| theirs).sum();
    if amount + others <= LIMIT { amount } else { 0 }
}

/// Each alone fits, both together do not.
fn two_that_announce_at_once_do_not_both_take() {
    let words = Arc::new([WordU64::new(0), WordU64::new(0)]);
    let there = words.clone();
    let other = thread::spawn(move || take(&*there, 1, 7));
    let taken = take(&*words, 0, 6) + other.join().unwrap();
    assert!(taken <= LIMIT, "{taken} of {LIMIT} are taken");
}

#[test]
fn model_f51_two_that_announce_at_once_do_not_both_take() {
    check(two_that_announce_at_once_do_not_both_take);
}

/// MA-15
#[test]
fn mutant_f51_no_fence_after_announcing() {
    rejected(
        "mutant_f51_no_fence_after_announcing",
        Site::DemandFence,
        check,
        two_that_announce_at_once_do_not_both_take,
        "are taken",
    );
}
