//! Python's fork hooks, where a Worker forks its children.
//!
//! # Safety
//! Registers functions with `pthread_atfork`. They do something only on a thread that forks for a Worker, and not while it runs code of
//! Python's, whose own forks run the hooks themselves; they call Python with its lock, as `os.fork` does.
#![allow(unsafe_code)]

use pyo3::ffi;
use std::cell::Cell;
use std::sync::Once;

std::thread_local! {
    /// For how many levels of children the forks of this thread are a Worker's: its own, and those of Workers below it.
    static LEVELS: Cell<u32> = const { Cell::new(0) };
    static HELD: Cell<Option<ffi::PyGILState_STATE>> = const { Cell::new(None) };
}

/// Puts the number of levels back.
struct Before(u32);

impl Drop for Before {
    fn drop(&mut self) {
        LEVELS.set(self.0);
    }
}

/// Runs `call`, in which children may be forked, and `levels - 1` times children of these: they are proper copies of the interpreter.
pub(super) fn forking<T>(levels: u32, call: impl FnOnce() -> T) -> T {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: functions that stay, because the interpreter never unloads an extension module.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    let _before = Before(LEVELS.replace(levels));
    call()
}

/// Runs code of Python's, of a task or of a run.
pub(super) fn not_forking<T>(call: impl FnOnce() -> T) -> T {
    let _before = Before(LEVELS.replace(0));
    call()
}

unsafe extern "C" fn before() {
    if LEVELS.get() > 0 {
        // SAFETY: the interpreter is up, because this thread is inside a call of it.
        unsafe {
            HELD.set(Some(ffi::PyGILState_Ensure()));
            ffi::PyOS_BeforeFork();
        }
    }
}

unsafe extern "C" fn in_parent() {
    if let Some(held) = HELD.take() {
        // SAFETY: pairs with `before`.
        unsafe {
            ffi::PyOS_AfterFork_Parent();
            ffi::PyGILState_Release(held);
        }
    }
}

unsafe extern "C" fn in_child() {
    if let Some(held) = HELD.take() {
        LEVELS.set(LEVELS.get().saturating_sub(1));
        // SAFETY: pairs with `before`; this is the only thread of the child. It gives the lock back, so that threads that a function
        // starts can run between tasks.
        unsafe {
            ffi::PyOS_AfterFork_Child();
            ffi::PyGILState_Release(held);
        }
    }
}
