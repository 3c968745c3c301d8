//! How children are started, and the entry into a child that is started by exec.
//!
//! # Safety
//! Asks a lower layer for the descriptors that the parent passed on, first thing in `main`.
#![allow(unsafe_code)]

use crate::child::main_after_exec;
use crate::program::TaskFn;
use crate::shared::{CHILD_VARIABLE, EXEC_ADVICE, NOT_ATTACHED};
use child_process::respawned;
use std::sync::OnceLock;
use worker_errors::{ErrorCode, Failure};

/// How a Worker starts its child processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// As copies of this process. Fast, and every function that is registered before `init` is there.
    #[default]
    Fork,
    /// As new processes of this program. For hosts on which a copy is impossible: threads that hold locks,
    /// libraries that do not survive a fork, more memory in use than may be counted twice. `main` must call
    /// [`serve_if_child`] first.
    Exec,
}

/// The name that [`CHILD_VARIABLE`] had before.
const OLD_VARIABLE: &str = "CHIPCOMM_HAND";

/// The functions of this program's children, once `serve_if_child` has found that this process is not one of
/// them.
static FUNCTIONS: OnceLock<Vec<TaskFn>> = OnceLock::new();

/// To be called first thing in `main` of a program whose Workers use [`Start::Exec`]. In a child process it
/// serves the Worker and never returns; in any other process it returns at once.
///
/// `functions` are the functions that children can run, by the names under which they are registered with
/// [`Worker::register_function`](crate::Worker::register_function). Kernels are found by their paths and need
/// no entry.
///
/// In a child every descriptor is closed that the Worker did not pass on, except standard input, output and
/// error.
pub fn serve_if_child(functions: &[(&str, TaskFn)]) {
    if std::env::var_os(OLD_VARIABLE).is_some() {
        eprintln!(
            "{OLD_VARIABLE} is set; it is called {CHILD_VARIABLE} now, and only this program sets it: unset it"
        );
        std::process::exit(NOT_ATTACHED);
    }
    // SAFETY: this is the first thing in `main`, as the documentation asks for; descriptors that a library's
    // initialiser may have opened before have other numbers than those that were there when the process
    // started.
    match unsafe { respawned(CHILD_VARIABLE) } {
        Ok(None) => {
            FUNCTIONS.get_or_init(|| functions.iter().map(|(_, function)| *function).collect());
        }
        Ok(Some(descriptors)) => std::process::exit(main_after_exec(descriptors, functions)),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(NOT_ATTACHED)
        }
    }
}

/// The functions that this program passed to [`serve_if_child`]. Every child has them, however it is started.
pub(crate) fn functions_of_program() -> Vec<TaskFn> {
    FUNCTIONS.get().cloned().unwrap_or_default()
}

/// Refuses to start children where that would start this program over and over again.
pub(crate) fn check(start: Start) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::new(ErrorCode::Invalid, text).in_phase("init"));
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        let pid = std::process::id();
        return refused(format!(
            "process {pid} is a child of a Worker and cannot start its own; {EXEC_ADVICE}"
        ));
    }
    if start == Start::Exec && FUNCTIONS.get().is_none() {
        return refused(format!(
            "children cannot be started by exec: this program would not serve them; {EXEC_ADVICE}"
        ));
    }
    Ok(())
}
