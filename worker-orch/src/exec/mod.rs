//! Hands that are started by exec: the same program in a new process, without a fork.
//!
//! The parent writes a [`Handover`](handover::Handover) for each hand, passes it on with the descriptors of the shared memory, and goes on as with a forked hand.
//!
//! # Safety
//! Asks a lower layer for the descriptors that the parent passed on, first thing in `main`.
#![allow(unsafe_code)]

mod hand;
mod handover;
mod spawn;

#[cfg(fuzzing)]
pub(crate) use handover::Handover;
pub(crate) use spawn::spawn_all;

use crate::program::TaskFn;
use child_process::respawned;
use std::sync::OnceLock;
use worker_errors::{ErrorCode, Failure};

/// How a Worker starts the processes of its hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// As copies of this process. Fast, and every function that this process knows is there.
    #[default]
    Fork,
    /// As new processes of this program. For hosts on which a copy is out of the question: threads that hold locks, libraries that do not survive a fork, more
    /// memory in use than may be there twice. `main` must call [`serve_if_child`] first thing.
    Exec,
}

/// The variable that tells a process that it is a hand.
const MARK: &str = "CHIPCOMM_CHILD";
/// What a process ends with when it could not even be asked to come up; the reason is on standard error.
const NOT_ATTACHED: i32 = 4;
/// What every sentence about a missing call says.
pub(crate) const ADVICE: &str =
    "with Start::Exec, call `worker_orch::serve_if_child(&[…])` first thing in main, before anything else";

/// Set once `serve_if_child` has found that this process is no hand.
static IS_PARENT: OnceLock<()> = OnceLock::new();

/// To be called first thing in `main` of a program whose Workers use [`Start::Exec`]. In a hand it serves the Worker and never returns; in any other process it
/// returns at once.
///
/// `functions` are the functions that hands may run, by the names under which they are registered with
/// [`Worker::register_function`](crate::Worker::register_function). Kernels are found by their paths and need no entry.
///
/// In a hand every descriptor is closed that the Worker did not pass on, except standard input, output and error.
pub fn serve_if_child(functions: &[(&str, TaskFn)]) {
    // SAFETY: this is the first thing in `main`, as the documentation asks for; descriptors that a library's initialiser may have opened before have
    // other numbers than those that were there when the process started.
    match unsafe { respawned(MARK) } {
        Ok(None) => *IS_PARENT.get_or_init(|| ()),
        Ok(Some(descriptors)) => std::process::exit(hand::live(descriptors, functions)),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(NOT_ATTACHED)
        }
    }
}

/// Refuses to start hands where that would start this program over and over again.
pub(crate) fn check(start: Start) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::new(ErrorCode::Invalid, text).in_phase("init"));
    if std::env::var_os(MARK).is_some() {
        let pid = std::process::id();
        return refused(format!("process {pid} is a hand of a Worker and has none of its own; {ADVICE}"));
    }
    if start == Start::Exec && IS_PARENT.get().is_none() {
        return refused(format!(
            "hands cannot be started by exec: this program would not serve them; {ADVICE}"
        ));
    }
    Ok(())
}
