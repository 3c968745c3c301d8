//! The one place that switches between the machine's atomics and loom's, and where a mutant weakens them.
//!
//! Every ordering in this crate passes through [`at`], which names its [`Site`]. In a normal build
//! that is the identity and costs nothing. Under `cfg(loom)` a test may arm one site
//! ([`mutants::with`]); the real code then runs with that one ordering weakened or that one step left
//! out, and a model must fail.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence},
};

/// A cell as loom has it.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with the address of the value, which it reads only.
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with the address of the value.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A place in the protocols that a mutant can break. Each is armed by at least one test in
/// `tests/loom_*mutants.rs`.
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public in model builds, where mutants name it"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// The release store that publishes a payload.
    PublishStore,
    /// The acquire load that observes a published payload.
    ObserveLoad,
    /// A waiter announces its park before the last check of the word.
    AnnouncePark,
    /// The fence between announcing a park and the last check of the word.
    ParkFence,
    /// The fence between the store of a word and the check of the waiter's park flag.
    NotifyFence,
    /// A store that wakes unasked does wake.
    StoreWakes,
    /// The kernel must compare with the value that was checked, not with a fresher one.
    ParkOnCheckedValue,
    /// A store that waiters depend on changes the 32 bits that the kernel compares.
    LowHalfChanges,
    /// A waiter parks instead of spinning on.
    Parks,
    /// A parked waiter wakes by itself to poll.
    WakesToPoll,
    /// The deadline ends a wait.
    DeadlineEndsWait,
    /// The death of a watched process ends a wait.
    DeathEndsWait,
    /// A raised abort word ends a wait.
    AbortEndsWait,
    /// A wait checks the word once more before it gives up.
    CheckBeforeGivingUp,
    /// A sticky word keeps its first reason.
    FirstReasonStays,
    /// Shutdown wakes a receiver that may be asleep.
    ShutdownNotifies,
    /// Shutdown has a word of its own that the receiver never writes.
    ShutdownHasOwnWord,
    /// The fence between raising the shutdown and the check whether the receiver is still busy.
    ShutdownFence,
    /// A receiver that finds the shutdown checks once more for a frame that was sent before it.
    FramesBeforeShutdown,
    /// A slot is written again only when the frame in it is done.
    SlotFreedByDone,
    /// A receiver takes the next frame and not the one that was in its slot before.
    SlotHoldsThisFrame,
    /// A frame that is sent wakes a parked receiver.
    FrameNotifies,
    /// A frame that is done wakes those that wait for it.
    DoneNotifies,
    /// The barrier accepts a peer that has already gone on to a later phase.
    BarrierAcceptsLaterPhase,
    /// The release store that publishes a message or its state.
    MessagePublish,
    /// The acquire load that observes a message.
    MessageObserve,
    /// The stamp of a message slot is invalid while its words are replaced.
    MessageInvalidated,
    /// The fence between the invalid stamp and the words of the next message.
    MessageReuseFence,
    /// The fence between a reader's copy and its second load of the stamp.
    MessageCopyFence,
    /// A copy counts only if the stamp did not change during it.
    MessageRechecked,
    /// A reader passes over a message that it has taken.
    MessageTakenOnce,
    /// A refused message stays in its slot.
    MessageRefusalStays,
    /// A writer that has withdrawn or replaced its message does not need the others' any more.
    MessageMovedOn,
    /// A step published says nothing of what its rank has read; the lag beside it does.
    CreditIsWhatWasRead,
    /// Who writes a line or a buffer again first checks that its readers have finished.
    WriterChecksReaders,
    /// Pieces are staged in two buffers in turns.
    TwoHalves,
    /// The record of a call keeps its place while later calls are recorded.
    RecordsInARing,
    /// A rank that has read wakes those that wait for it to have read.
    ReadingNotifies,
    /// The label of a stamp is there before the stamp.
    LabelBeforeStamp,
    /// A stamp wakes those that wait for it.
    StampNotifies,
    /// A stamp says that what came before its piece was read, not the piece.
    StampIsNoCredit,
    /// The fence between announcing a demand and looking at the others'.
    DemandFence,
    /// A signal notifies its chip.
    SignalNotifies,
    /// The release store that says that a chip is quiet.
    StandingPublish,
    /// The acquire load that finds a chip quiet.
    StandingObserve,
    /// The fence between the state of a chip and what it publishes next.
    StandingReuseFence,
    /// The fence between a copy of what a chip published and the second look at its state.
    StandingCopyFence,
    /// A copy of what a chip published counts only if its state did not change during it.
    StandingRechecked,
    /// A chip reads its doorbell before it looks at its words for the last time.
    DoorbellBeforeWords,
    /// A chip that was notified after it last looked may still move.
    DoorbellCompared,
    /// The owner of an entry lock says that it is inside before it looks again.
    OwnerFence,
    /// The owner of an entry lock looks whether its bias is being taken away.
    OwnerLooksAgain,
    /// The release store with which the owner of an entry lock leaves it.
    OwnerLeaves,
    /// Who takes a bias away lets every thread know before it looks whether the owner is inside.
    RevokerFence,
    /// Who takes a bias away looks whether the owner is inside.
    RevokerLooks,
    /// The acquire load that finds the owner of an entry lock outside.
    RevokerObserves,
    /// An owner that closes its entry lock is inside until it is closed.
    ClosedBeforeLeft,
    /// The release store that gives work to a thread.
    WorkGiven,
    /// The acquire load that finds the work that was given.
    WorkObserved,
    /// The release store that says that work has ended.
    EndGiven,
    /// The acquire load that finds that work has ended.
    EndObserved,
    /// The end of work is taken by one only.
    EndTakenOnce,
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

/// Keeps this thread's earlier store before its later load of another word (store, fence, load on both
/// sides).
///
/// Acquire and release cannot forbid that both sides of a park miss each other; this pair of fences
/// is the one place where sequential consistency is needed.
#[inline(always)]
pub(crate) fn store_load_fence(site: Site) {
    if intact(site) {
        fence(Ordering::SeqCst);
    }
}

/// This side of a [store-load fence](store_load_fence) whose other side is a [heavy one](heavy_fence): it only binds the compiler.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn light_fence(_site: Site) {
    // SeqCst: the other orderings let the compiler move a load before a store.
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

#[cfg(loom)]
pub(crate) fn light_fence(site: Site) {
    store_load_fence(site);
}

/// A barrier in this thread and in every other one of the process, wherever it is just then. False if the kernel refuses.
#[cfg(not(loom))]
pub(crate) fn heavy_fence(_site: Site) -> bool {
    crate::sys::membarrier::in_every_thread()
}

#[cfg(loom)]
pub(crate) fn heavy_fence(site: Site) -> bool {
    store_load_fence(site);
    true
}

/// Whether there are heavy fences.
pub(crate) fn has_heavy_fence() -> bool {
    #[cfg(not(loom))]
    return crate::sys::membarrier::is_there();
    #[cfg(loom)]
    true
}

/// A fence that a mutant can leave out.
#[inline(always)]
pub(crate) fn fence_at(site: Site, ordering: Ordering) {
    if intact(site) {
        fence(ordering);
    }
}

/// Arms a mutant for the length of a closure; only in model builds.
#[cfg(loom)]
pub mod mutants {
    use super::Site;
    use std::cell::Cell;

    // Loom runs all threads of a model as coroutines of the thread that called it, so a thread-local
    // reaches all of them and leaves tests that run beside this one alone.
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
