//! The groups of this thread in which a call is under way, so that a wait in one group works on the others too: two ranks that wait for two
//! groups in opposite order would otherwise wait for ever. Beside them, what a library above this one wants to be done in every wait.
//!
//! # Safety
//! Keeps addresses of engines. A group enters when a call is started and leaves when none is under way, on the same thread, and before
//! it is dropped. Work on other groups is done only from inside a call, where the one engine that is in use is the one passed over.
#![allow(unsafe_code)]

use crate::engine::Engine;
use std::cell::RefCell;
use std::sync::OnceLock;

/// An engine whose group has calls under way, its lifetime forgotten.
type Entry = *mut Engine<'static>;

/// What a wait calls besides.
static HOOK: OnceLock<fn()> = OnceLock::new();

/// Has every wait of this process that is not over within some microseconds call `hook`, again and again: whenever it looks at its word,
/// and 5000 times a second while it sleeps. For a library below the same program whose own messages go on only while somebody is in it.
/// The first one stays; returns whether it is this one.
///
/// # Safety
/// `hook` uses no group of this crate: it is called while one is in use.
pub unsafe fn set_wait_hook(hook: fn()) -> bool {
    HOOK.set(hook).is_ok()
}

thread_local! {
    static GROUPS: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// The group has calls under way.
pub(crate) fn enter(engine: &mut Engine<'_>) {
    let entry: Entry = core::ptr::from_mut(engine).cast();
    GROUPS.with_borrow_mut(|groups| {
        if !groups.contains(&entry) {
            groups.push(entry);
        }
    });
}

/// The group at that address has none any more.
pub(crate) fn leave(address: usize) {
    // After the thread's values are gone nothing is kept.
    let _ = GROUPS.try_with(|groups| {
        if let Ok(mut groups) = groups.try_borrow_mut() {
            groups.retain(|entry| entry.addr() != address);
        }
    });
}

/// Whether a wait has something to do besides: groups other than that at `address` have calls under way, or there is a hook.
pub(crate) fn has_others(address: usize) -> bool {
    HOOK.get().is_some() || GROUPS.with_borrow(|groups| groups.iter().any(|entry| entry.addr() != address))
}

/// Works on the calls of all groups other than that at `address`, and calls the hook. An error stays with its group.
pub(crate) fn progress_others(address: usize) {
    if let Some(hook) = HOOK.get() {
        hook();
    }
    for at in 0.. {
        // Read anew each time: a group that has nothing under way any more leaves.
        let Some(entry) = GROUPS.with_borrow(|groups| groups.get(at).copied()) else { return };
        if entry.addr() != address {
            // SAFETY: a listed engine is alive and belongs to this thread; it is not the one in use, and only one is at a time.
            let _ = unsafe { (*entry).progress_all() };
        }
    }
}
