//! What every backend must do, as cases that its tests run.
//!
//! A case is one function that every rank of a group runs at the same time, each in its own process. The
//! backend's test creates a group, makes a [`TestRank`] for every rank, calls [`Case::run`] on each, and
//! fails when any of them returns an error:
//!
//! ```no_run
//! # use comm_context::comm::{CommError, Communicator, Membership, Timeout};
//! # fn my_backend(_: Membership) -> Result<Box<dyn Communicator>, CommError> { Err(CommError::Closed) }
//! # type Outcome = Result<(), String>;
//! # fn in_processes(_nranks: u32, _body: &dyn Fn(u32) -> Outcome) -> Vec<Outcome> { vec![] }
//! use comm_context::conformance::{self, TestRank};
//!
//! let nranks = 4;
//! let mut ran = 0;
//! for case in conformance::cases(nranks) {
//!     let results = in_processes(nranks, &|rank| {
//!         (case.run)(&TestRank { rank, nranks, open: &my_backend, timeout: Timeout::DEFAULT })
//!     });
//!     for (rank, result) in results.into_iter().enumerate() {
//!         result.unwrap_or_else(|why| panic!("{} on rank {rank}: {why}", case.name));
//!     }
//!     ran += 1;
//! }
//! assert!(ran > 0);
//! ```
//!
//! A case opens one communicator and destroys it, so a group serves one case. The ranks of a case talk to
//! each other through the communicator only. No case asserts a time; a backend that hangs runs into
//! [`TestRank::timeout`].

mod arguments;
mod barrier;
mod c_library;
mod domains;
mod failures;
mod life;
mod support;
mod windows;

pub use c_library::{CLibrary, compile_kernel};

use crate::comm::{CommError, Communicator, Membership, Timeout};

/// One rank of the group that runs a case.
pub struct TestRank<'a> {
    /// This rank.
    pub rank: u32,
    /// The size of the group.
    pub nranks: u32,
    /// Joins the group of this case. Called once.
    pub open: &'a dyn Fn(Membership) -> Result<Box<dyn Communicator>, CommError>,
    /// How long a collective call may take before the case fails.
    pub timeout: Timeout,
}

/// One property of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What holds, as a name.
    pub name: &'static str,
    /// The smallest group in which it says something.
    pub min_ranks: u32,
    /// Runs one rank's part. The error says what does not hold.
    pub run: fn(&TestRank<'_>) -> Result<(), String>,
}

/// The cases that a group of `nranks` can run.
pub fn cases(nranks: u32) -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(move |case| case.min_ranks <= nranks)
}

macro_rules! cases {
    ($($module:ident::$name:ident from $min_ranks:literal),+ $(,)?) => {
        &[$(Case { name: stringify!($name), min_ranks: $min_ranks, run: $module::$name }),+]
    };
}

/// Every case.
pub const CASES: &[Case] = cases![
    life::a_group_forms_and_dissolves from 1,
    life::destroy_releases_windows_and_domains_that_are_left from 1,
    windows::a_window_is_zeroed_and_described_by_its_context from 1,
    windows::a_second_base_window_is_refused from 1,
    windows::what_a_rank_writes_every_rank_reads_after_the_barrier from 1,
    windows::a_derived_context_is_a_slice_under_other_ranks from 1,
    windows::derive_context_involves_no_peer from 1,
    barrier::ten_thousand_barriers_back_to_back from 1,
    barrier::no_rank_passes_early_or_runs_ahead from 2,
    domains::overlapping_domains_have_windows_of_their_own from 2,
    domains::two_domains_are_allocated_at_once_in_opposite_order from 2,
    domains::a_domain_is_zeroed_in_each_of_two_hundred_cycles from 1,
    domains::ranks_outside_a_domain_are_not_involved from 2,
    domains::members_that_disagree_are_all_refused_and_may_try_again from 2,
    arguments::calls_before_the_window_exists_are_refused from 1,
    arguments::wrong_sizes_are_refused_and_nothing_happens from 1,
    arguments::wrong_lists_of_ranks_are_refused_and_nothing_happens from 1,
    arguments::unknown_and_repeated_domains_are_refused from 1,
    arguments::ranges_outside_the_windows_are_refused from 1,
    failures::ranks_that_disagree_on_the_window_are_all_refused from 2,
    failures::a_rank_that_leaves_is_named_to_its_waiting_peers from 2,
    failures::a_timeout_names_the_missing_ranks from 2,
];

/// Makes every call of a communicator once and destroys it: a full life cycle for tests that inject faults.
///
/// # Errors
/// That of the first call that failed; the communicator is destroyed in any case.
pub fn full_cycle(comm: Box<dyn Communicator>, me: Membership, within: Timeout) -> Result<(), CommError> {
    let called = life::every_call(comm.as_ref(), me, within);
    let destroyed = comm.destroy(within);
    called.and(destroyed)
}
