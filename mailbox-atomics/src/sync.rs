//! The one place that switches between the machine's atomics and loom's, and where a mutant weakens them.
//!
//! Every ordering in this crate passes through [`at`], which names its [`Site`]. In a normal build that is the identity
//! and costs nothing. Under `cfg(loom)` a test may arm one site ([`mutants::with`]); the real code then runs with that one
//! ordering weakened or that one step left out, and the model must fail.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

/// A place in the protocols that a mutant can break. Each is armed by at least one test in `tests/loom_mutants.rs`.
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public in model builds, where mutants name it"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// The release store that publishes a payload.
    PublishStore,
    /// The acquire load that observes a published payload.
    ObserveLoad,
    /// The fence between announcing a park and the last look at the word.
    ParkFence,
    /// The fence between the store of a word and the look at the waiter's park flag.
    NotifyFence,
    /// The kernel must compare with the value that was judged not ready, not with a fresher one.
    ParkOnJudgedValue,
    /// Shutdown changes the word that the responder parks on.
    ShutdownNotifies,
    /// Shutdown has a word of its own that a reply never writes.
    ShutdownHasOwnWord,
    /// The barrier accepts a peer that has already gone on to a later phase.
    BarrierAcceptsLaterPhase,
    /// A reply carries the number of its request.
    ReplyNumbered,
    /// A step published says nothing of what its rank has read; the lag beside it does.
    CreditIsWhatWasRead,
    /// Who writes a line or a buffer again first checks that its readers have finished.
    WriterChecksReaders,
    /// Pieces are staged in two buffers in turns.
    TwoHalves,
    /// The record of a call keeps its place while later calls are recorded.
    RecordsInARing,
    /// A rank that has read wakes those who wait for that.
    ReadingNotifies,
}

#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn at(_site: Site, ordering: Ordering) -> Ordering {
    ordering
}

// Relaxed is what a mutant runs with.
#[cfg(loom)]
pub(crate) fn at(site: Site, ordering: Ordering) -> Ordering {
    if mutants::armed(site) { Ordering::Relaxed } else { ordering }
}

/// Whether the step at `site` is to be taken; always, except in a mutant.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn intact(_site: Site) -> bool {
    true
}

#[cfg(loom)]
pub(crate) fn intact(site: Site) -> bool {
    !mutants::armed(site)
}

/// Orders this thread's earlier store before its later load of another word (store, fence, load on both sides).
///
/// Acquire and release cannot forbid that both sides of a park miss each other; this pair of fences is the one place
/// where sequential consistency is needed.
#[inline(always)]
pub(crate) fn store_load_fence(site: Site) {
    if intact(site) {
        fence(Ordering::SeqCst);
    }
}

/// Arms a mutant for the length of a closure; only in model builds.
#[cfg(loom)]
pub mod mutants {
    use super::Site;
    use std::cell::Cell;

    // Loom runs all threads of a model as coroutines of the thread that called it, so a thread-local reaches all of them and
    // leaves tests that run beside this one alone.
    std::thread_local!(static ARMED: Cell<Option<Site>> = const { Cell::new(None) });

    /// Runs `body` with `site` broken.
    pub fn with<T>(site: Site, body: impl FnOnce() -> T) -> T {
        struct Disarm;
        impl Drop for Disarm {
            fn drop(&mut self) {
                ARMED.with(|armed| armed.set(None));
            }
        }
        ARMED.with(|armed| armed.set(Some(site)));
        let _disarm = Disarm;
        body()
    }

    pub(crate) fn armed(site: Site) -> bool {
        ARMED.with(|armed| armed.get() == Some(site))
    }
}
