//! The progress thread: works on the started calls of one group while the rank computes.
//!
//! # Safety
//! The thread uses the engine through a raw pointer, only while it holds the lock and the group says that calls are under way. The group
//! takes that back, and waits until the thread has left the engine and the communicator, before the last of those calls is over for its
//! caller. Calls of the group hold the same lock.
#![allow(unsafe_code)]

use crate::engine::{Ended, Engine, LongWait};
use comm_context::comm::CommError;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use mailbox_atomics::WordU64;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a thread that was called back may take before it is woken again.
const WAKE_AGAIN: Duration = Duration::from_micros(100);

/// A group's progress thread.
pub(crate) struct Helper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Held while the engine is in use.
pub(crate) type Lock<'g> = MutexGuard<'g, State>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The thread shall leave its wait.
    interrupt: AtomicBool,
}

pub(crate) struct State {
    /// The engine, while calls are under way; its lifetime is forgotten.
    engine: *mut Engine<'static>,
    /// The word that the thread waits on, outside the lock.
    word: *const WordU64,
    stop: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { engine: ptr::null_mut(), word: ptr::null(), stop: false }
    }
}

// SAFETY: the pointers are used under the lock and the conditions at the head of the file.
unsafe impl Send for State {}

impl Helper {
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let there = shared.clone();
        let thread =
            std::thread::Builder::new().name("coll-progress".to_owned()).spawn(move || there.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) fn lock(&self) -> Lock<'_> {
        self.shared.lock()
    }

    /// A call of the group ends: the thread goes on with `engine`, or with nothing when that is null. Then it has also left the
    /// communicator when this returns.
    pub(crate) fn resume(&self, mut state: Lock<'_>, engine: *mut Engine<'static>) {
        let had = !state.engine.is_null();
        state.engine = engine;
        match (had, engine.is_null()) {
            (false, false) => self.shared.changed.notify_all(),
            (true, true) => drop(self.shared.call_back(state)),
            _ => {}
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&mut self) {
        let mut state = self.shared.lock();
        (state.engine, state.stop) = (ptr::null_mut(), true);
        self.shared.changed.notify_all();
        drop(self.shared.call_back(state));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

impl Shared {
    fn lock(&self) -> Lock<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread has left its wait.
    ///
    /// The interrupt does not change the word that the thread sleeps on. A thread that looked for it just before and is about to sleep
    /// sleeps through the wake, so it is woken again until it has left.
    fn call_back<'g>(&'g self, mut state: Lock<'g>) -> Lock<'g> {
        while !state.word.is_null() {
            self.interrupt.store(true, Ordering::Release);
            // SAFETY: the thread is in its wait on this word, so the word's group, and its memory, are there.
            unsafe { (*state.word).wake_waiters() };
            let waited = self.changed.wait_timeout(state, WAKE_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.interrupt.store(false, Ordering::Release);
        state
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.stop {
            if state.engine.is_null() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            // SAFETY: not null, so calls are under way and the engine is there; we hold the lock.
            let engine = unsafe { &mut *state.engine };
            let Ok(Some(blocked)) = engine.progress_all() else {
                // Nothing is under way, or the group broke. Whoever asks next finds out.
                state.engine = ptr::null_mut();
                continue;
            };
            let wait = engine.long_wait_of_helper(&blocked);
            state.word = blocked.word;
            drop(state);
            let waited = self.wait(&wait);
            state = self.lock();
            state.word = ptr::null();
            self.changed.notify_all();
            // Called back, the group may be in another state than it was.
            if !state.engine.is_null() {
                // SAFETY: as above.
                unsafe { (*state.engine).helper_waited(&blocked, waited) };
            }
        }
    }

    fn wait<'c>(&self, wait: &LongWait<'c>) -> Result<Ended<'c>, CommError> {
        wait.run(&mut || self.interrupt.load(Ordering::Acquire))
    }
}
