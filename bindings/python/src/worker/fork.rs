//! Python's fork hooks, where a Worker forks its children.
//!
//! # Safety
//! Registers functions with `pthread_atfork`. They do something only on a thread that is inside [`forking`], which is never entered in a
//! child; they call Python with its lock, as `os.fork` does.
#![allow(unsafe_code)]

use pyo3::ffi;
use std::cell::Cell;
use std::sync::Once;

std::thread_local! {
    static FORKING: Cell<bool> = const { Cell::new(false) };
    static HELD: Cell<Option<ffi::PyGILState_STATE>> = const { Cell::new(None) };
}

/// Runs `call`, in which children may be forked: they are proper copies of the interpreter.
pub(super) fn forking<T>(call: impl FnOnce() -> T) -> T {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: functions that stay, because the interpreter never unloads an extension module.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            FORKING.set(false);
        }
    }
    FORKING.set(true);
    let _over = Over;
    call()
}

unsafe extern "C" fn before() {
    if FORKING.get() {
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
        FORKING.set(false);
        // SAFETY: pairs with `before`; this is the only thread of the child. It gives the lock back, so that threads that a function
        // starts can run between tasks.
        unsafe {
            ffi::PyOS_AfterFork_Child();
            ffi::PyGILState_Release(held);
        }
    }
}
