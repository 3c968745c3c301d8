//! Ctrl-C ends the measuring, and what was measured is still printed and written. The second one ends the program.
//!
//! # Safety
//! The handler stores one word.
#![allow(unsafe_code)]

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn asked(_: i32) {
    // Relaxed: nothing goes with it.
    ASKED.store(true, Ordering::Relaxed);
}

/// Lets the first Ctrl-C be seen by [`came`] instead of ending the program. Programs that are started end with theirs.
pub(crate) fn listen() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(asked), SaFlags::SA_RESETHAND, SigSet::empty());
    // SAFETY: the handler may run at any point.
    unsafe { sigaction(Signal::SIGINT, &action) }.map(drop)
}

/// Whether it came.
pub(crate) fn came() -> bool {
    ASKED.load(Ordering::Relaxed)
}
