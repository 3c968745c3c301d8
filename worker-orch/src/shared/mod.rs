//! What both sides of a Worker read and write: the control block in shared memory, the frames in its rings,
//! the launch spec of a child that is started by exec, and the table of programs.
//!
//! This room knows the lower crates and the public types of this one. It knows neither `parent` nor `child`:
//! they meet here only, and whatever one of them may get from the other has its layout and its checks here.

mod child_context;
mod chip_launch;
mod control_block;
mod definition;
mod frame;
mod launch_spec;
mod programs;
mod run_number;
mod spans;

pub(crate) use child_context::{ChildContext, ChildMain, ChipRole, ChipTrace, LOST, NOT_UP, Role, RunAbove};
pub(crate) use chip_launch::ChipLaunch;
pub(crate) use control_block::{
    Activity, ControlBlock, FailedAt, HEAD_BYTES, MAX_CHILDREN, Outcome, ParentWords, RING, Times,
};
pub(crate) use definition::{DEFAULT_SYMBOL, Definition};
#[cfg(fuzzing)]
pub(crate) use frame::{BODY_AT, as_bytes};
pub(crate) use frame::{
    Frame, INLINE_PREREQUISITES, Kind, MOST_PREREQUISITES, Prerequisite, ReceivedFrame, SLOT_BYTES,
};
pub(crate) use launch_spec::{LaunchSpec, SharedRange};
pub(crate) use programs::{Functions, Inherited, Programs};
pub(crate) use run_number::{covers, first_of, next_of, same_flight};
pub(crate) use spans::{Argument, CANARY, Span, UNWRITTEN, decode as decode_spans, encode as encode_spans};

/// The environment variable that tells a process that it is a child of a Worker.
pub(crate) const CHILD_VARIABLE: &str = "CHIPCOMM_CHILD";
/// The exit code of a process that could not attach to what its parent passed on; the reason is on standard
/// error.
pub(crate) const NOT_ATTACHED: i32 = 4;
/// How a program serves children that are started by exec; ends every sentence about a missing call.
pub(crate) const EXEC_ADVICE: &str =
    "with Start::Exec, call `worker_orch::serve_if_child(&[…])` first thing in main, before anything else";
