//! The one wait function: word, deadline, liveness, abort.

use crate::spin::SpinBudget;
use crate::sync::{Site, intact};
use crate::word::{Futex, Listener, ParkWord, StickyWord, WordU32};
use core::num::NonZeroU32;
use deadline::{Deadline, Death, Watch, monotonic_ns};
use std::time::Duration;

/// The longest that a parked waiter sleeps before it looks whether its peers live and nobody aborted.
///
/// A quarter of the 200 ms within which a death must be told. A look costs some microseconds, 20 times a second.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How a wait may end other than with what it waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The deadline came. Everybody watched is alive and nobody aborted.
    #[error("timed out after {waited:?} of {limit:?}")]
    TimedOut {
        /// How long ago the deadline was set.
        waited: Duration,
        /// How long it allowed.
        limit: Duration,
    },
    /// A process that the wait depends on is gone, and did not deliver before it went.
    #[error("{0}")]
    PeerDied(Death),
    /// The abort word was raised.
    #[error("aborted (reason {reason})")]
    Aborted {
        /// What the word was raised with.
        reason: NonZeroU32,
    },
}

/// A way to wait: until when, for whose death, for which abort, and how eagerly.
///
/// Every wait between processes goes through [`Wait::on`]. It first looks, then spins while that pays
/// ([`SpinBudget`]), then parks in the kernel. Once in a [`POLL_INTERVAL`] it wakes by itself to look at the abort word and at
/// the watched processes; a waiter that watches nothing and can be aborted by nobody sleeps until it is woken or its
/// deadline comes.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    deadline: Deadline,
    watch: Option<&'a dyn Watch>,
    abort: Option<&'a StickyWord>,
    cancel: Option<&'a WordU32>,
    spin: Option<&'a SpinBudget>,
    nap: Option<Duration>,
}

impl<'a> Wait<'a> {
    /// Waits until `deadline` at the longest.
    pub fn until(deadline: Deadline) -> Self {
        Self { deadline, watch: None, abort: None, cancel: None, spin: None, nap: None }
    }

    /// Ends with [`WaitError::PeerDied`] when a watched process is gone.
    pub fn watching(mut self, watch: &'a dyn Watch) -> Self {
        self.watch = Some(watch);
        self.nap.get_or_insert(POLL_INTERVAL);
        self
    }

    /// Ends with [`WaitError::Aborted`] when `abort` is raised.
    pub fn abort_on(mut self, abort: &'a StickyWord) -> Self {
        self.abort = Some(abort);
        self.nap.get_or_insert(POLL_INTERVAL);
        self
    }

    /// Ends with [`WaitError::Aborted`] while `cancel` is not zero. Unlike an abort it may be taken back, so that later waits go on.
    pub fn cancel_on(mut self, cancel: &'a WordU32) -> Self {
        self.cancel = Some(cancel);
        self.nap.get_or_insert(POLL_INTERVAL);
        self
    }

    /// Spins before it parks, as long as `budget` finds it worth while. Without a budget it parks at once.
    pub fn spinning(mut self, budget: &'a SpinBudget) -> Self {
        self.spin = Some(budget);
        self
    }

    /// Looks again at least once in `nap`, for writers that may change the word without waking anybody.
    pub fn polling_every(mut self, nap: Duration) -> Self {
        self.nap = Some(self.nap.map_or(nap, |shorter| shorter.min(nap)));
        self
    }

    /// Whether spinning pays because every party has a core.
    pub(crate) fn is_eager(&self) -> bool {
        self.spin.is_some_and(|budget| !budget.is_crowded())
    }

    /// When this wait ends at the latest.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Waits until `ready` makes something of `word`'s value.
    ///
    /// `listener` is this waiter's park flag, which the writer looks at when it [notifies](crate::WordU64::store_and_notify) the word;
    /// `None` where the writer wakes unasked ([`store_and_wake`](crate::WordI32::store_and_wake)) or not at all
    /// ([`polling_every`](Self::polling_every)).
    ///
    /// What was delivered wins: a peer that published and then died has delivered, and so has one that published just
    /// before the deadline or an abort was noticed.
    pub fn on<W: ParkWord + Futex<Held = <W as ParkWord>::Value>, T>(
        &self,
        word: &W,
        listener: Option<Listener<'_>>,
        mut ready: impl FnMut(<W as ParkWord>::Value) -> Option<T>,
    ) -> Result<T, WaitError> {
        if let Some(done) = ready(word.load()) {
            return Ok(done);
        }
        if let Some(budget) = self.spin
            && let Some(done) = budget.spin(|| ready(word.load()), self.deadline)
        {
            return Ok(done);
        }
        let mut looks = Looks { next_ns: self.next_look() };
        loop {
            if let Some(listener) = listener {
                listener.announce();
            }
            let judged = word.load();
            let mut outcome = ready(judged).map(Ok);
            if outcome.is_none()
                && let Some(error) = self.interruption(&mut looks)
            {
                // A last look: the word may have been written before the event that ends this wait.
                outcome = Some(ready(word.load()).ok_or(error));
            }
            if outcome.is_none() {
                let judged = if intact(Site::ParkOnJudgedValue) { judged } else { word.load() };
                word.sleep(judged, looks.next_ns);
            }
            if let Some(listener) = listener {
                listener.withdraw();
            }
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
    }

    /// What, if anything, ends the wait now. The processes are looked at once in a nap, by the clock and not by the number of
    /// wakes, so that neither a busy nor a silent word keeps a death or the deadline from being noticed.
    fn interruption(&self, looks: &mut Looks) -> Option<WaitError> {
        let cancelled = || self.cancel.and_then(|word| NonZeroU32::new(word.load()));
        if let Some(reason) = self.abort.and_then(StickyWord::raised).or_else(cancelled) {
            return Some(WaitError::Aborted { reason });
        }
        if monotonic_ns() < looks.next_ns {
            return None;
        }
        looks.next_ns = self.next_look();
        if let Some(death) = self.watch.and_then(Watch::first_death) {
            return Some(WaitError::PeerDied(death));
        }
        self.deadline
            .has_passed()
            .then(|| WaitError::TimedOut { waited: self.deadline.elapsed(), limit: self.deadline.limit() })
    }

    fn next_look(&self) -> u64 {
        let end = self.deadline.monotonic_ns();
        self.nap.map_or(end, |nap| end.min(monotonic_ns() + nap.as_nanos() as u64))
    }
}

/// When a parked waiter looks at more than its word.
struct Looks {
    next_ns: u64,
}
