//! The one wait function: word, deadline, liveness, abort.

use crate::interrupt;
use crate::listener::ParkFlag;
use crate::spin::{Placement, SpinBudget};
use crate::sticky::StickyWord;
use crate::sync::{Site, intact};
use crate::word::{Futex, ParkWord, WordU32};
use core::num::NonZeroU32;
use deadline::{Deadline, Death, Watch, monotonic_ns};
use std::time::Duration;

/// The longest that a parked waiter sleeps before it checks whether its peers live and nobody
/// aborted.
///
/// A check costs some microseconds, 20 times a second.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

// A death must be reported within 200 ms (MA-3). The rest is for a scheduler under load.
const _: () = assert!(4 * POLL_INTERVAL.as_millis() <= 200);

/// How a wait may end other than with what it waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The deadline passed. Everybody watched is alive and nobody aborted.
    #[error("timed out after {waited:?} of {limit:?}")]
    TimedOut {
        /// How long ago the deadline was set.
        waited: Duration,
        /// How long it allowed.
        limit: Duration,
    },
    /// A process that the wait depends on is gone, and did not deliver before it died.
    #[error("{0}")]
    PeerDied(Death),
    /// The abort word was raised.
    #[error("aborted (reason {reason})")]
    Aborted {
        /// What the word was raised with.
        reason: NonZeroU32,
    },
    /// This process was asked to stop ([`interrupt_waits`](crate::interrupt_waits)).
    #[error("interrupted")]
    Interrupted,
}

/// How to wait: until when, on which processes and abort word it depends, and how eagerly.
///
/// Every wait between processes goes through [`Wait::on`]. It checks the word, then spins while that
/// pays ([`SpinBudget`]), then parks in the kernel. Once in a [`POLL_INTERVAL`] it wakes by itself to
/// check the abort word and the watched processes; a waiter that watches nothing and has no abort
/// word sleeps until it is woken or its deadline passes.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    deadline: Deadline,
    watch: Option<&'a dyn Watch>,
    abort: Option<&'a StickyWord>,
    cancel: Option<&'a WordU32>,
    spin: Option<&'a SpinBudget>,
    placement: Option<&'a dyn Placement>,
    poll_interval: Option<Duration>,
}

impl<'a> Wait<'a> {
    /// Waits until `deadline` at the longest.
    #[inline]
    pub fn until(deadline: Deadline) -> Self {
        Self {
            deadline,
            watch: None,
            abort: None,
            cancel: None,
            spin: None,
            placement: None,
            poll_interval: None,
        }
    }

    /// Ends with [`WaitError::PeerDied`] when a watched process is gone.
    #[inline]
    pub fn watching(mut self, watch: &'a dyn Watch) -> Self {
        self.watch = Some(watch);
        self.polling_every(POLL_INTERVAL)
    }

    /// Ends with [`WaitError::Aborted`] when `abort` is raised.
    ///
    /// ```
    /// # use deadline::Deadline;
    /// use mailbox_atomics::{StickyWord, Wait, WaitError, WordU64};
    /// # use std::{num::NonZeroU32, time::Duration};
    ///
    /// let (word, abort) = (WordU64::new(0), StickyWord::new());
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| abort.raise(NonZeroU32::MIN));
    ///     let wait = Wait::until(Deadline::after(Duration::from_secs(60)).unwrap()).abort_on(&abort);
    ///     let ended = wait.on(&word, None, |value| (value > 0).then_some(value));
    ///     assert!(matches!(ended, Err(WaitError::Aborted { .. })));
    /// });
    /// ```
    #[inline]
    pub fn abort_on(mut self, abort: &'a StickyWord) -> Self {
        self.abort = Some(abort);
        self.polling_every(POLL_INTERVAL)
    }

    /// Ends with [`WaitError::Aborted`] while `cancel` is not zero. Unlike an abort it can be
    /// withdrawn, so that later waits go on.
    pub fn cancel_on(mut self, cancel: &'a WordU32) -> Self {
        self.cancel = Some(cancel);
        self.polling_every(POLL_INTERVAL)
    }

    /// Spins before it parks, as long as `budget` finds it worthwhile. Without a budget it parks at
    /// once.
    #[inline]
    pub fn spinning(mut self, budget: &'a SpinBudget) -> Self {
        self.spin = Some(budget);
        self
    }

    /// While it spins, sees that the parties do not share a core that they need not share.
    pub fn placed_by(mut self, placement: &'a dyn Placement) -> Self {
        self.placement = Some(placement);
        self
    }

    /// Checks again at least once in `interval`, for writers that may change the word without waking
    /// anybody. The shortest interval counts.
    #[inline]
    pub fn polling_every(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(self.poll_interval.map_or(interval, |shorter| shorter.min(interval)));
        self
    }

    pub(crate) fn spin_budget(&self) -> Option<&'a SpinBudget> {
        self.spin
    }

    /// When this wait ends at the latest.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Waits until `ready` returns something for `word`'s value.
    ///
    /// `flag` is this waiter's park flag, which the writer checks when it
    /// [notifies](crate::WordU64::store_and_notify); `None` where the writer always wakes
    /// ([`store_and_wake`](crate::WordI32::store_and_wake)) or never does
    /// ([`polling_every`](Self::polling_every)).
    ///
    /// What was delivered wins: a peer that published and then died has delivered, and so has one
    /// that published just before the deadline or an abort was noticed.
    pub fn on<W: ParkWord + Futex<Held = <W as ParkWord>::Value>, T>(
        &self,
        word: &W,
        flag: Option<&mut ParkFlag<'_>>,
        ready: impl FnMut(<W as ParkWord>::Value) -> Option<T>,
    ) -> Result<T, WaitError> {
        self.on_in_place(word, flag, ready)
    }

    /// The same, compiled into its caller: for waits as short as the call itself.
    #[inline(always)]
    pub(crate) fn on_in_place<W: ParkWord + Futex<Held = <W as ParkWord>::Value>, T>(
        &self,
        word: &W,
        flag: Option<&mut ParkFlag<'_>>,
        mut ready: impl FnMut(<W as ParkWord>::Value) -> Option<T>,
    ) -> Result<T, WaitError> {
        if let Some(done) = ready(word.load()) {
            return Ok(done);
        }
        if let Some(budget) = self.spin
            && let Some(done) = budget.spin(|| ready(word.load()), self.deadline, self.placement)
        {
            return Ok(done);
        }
        self.parked_on(word, flag, ready)
    }

    /// The wait of one that parks. Apart, so that a wait that ends before is short.
    #[inline(never)]
    fn parked_on<W: ParkWord + Futex<Held = <W as ParkWord>::Value>, T>(
        &self,
        word: &W,
        mut flag: Option<&mut ParkFlag<'_>>,
        mut ready: impl FnMut(<W as ParkWord>::Value) -> Option<T>,
    ) -> Result<T, WaitError> {
        let mut next_poll_ns = self.next_poll_ns();
        loop {
            if let Some(flag) = &mut flag {
                flag.announce();
            }
            let checked = word.load();
            let mut outcome = ready(checked).map(Ok);
            if outcome.is_none()
                && let Some(error) = self.interruption(&mut next_poll_ns)
            {
                // The last check: the word may have been written before the event that ends this wait.
                let last = if intact(Site::CheckBeforeGivingUp) { ready(word.load()) } else { None };
                outcome = Some(last.ok_or(error));
            }
            if outcome.is_none() && intact(Site::Parks) {
                let checked = if intact(Site::ParkOnCheckedValue) { checked } else { word.load() };
                let until_ns =
                    if intact(Site::WakesToPoll) { next_poll_ns } else { self.deadline.monotonic_ns() };
                word.sleep(checked, until_ns);
            }
            if let Some(flag) = &mut flag {
                flag.withdraw();
            }
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
    }

    /// What, if anything, ends the wait now. The processes and the deadline are checked once in a poll
    /// interval, or when the watch has news; by the clock and not by the number of wakes, so that neither a busy nor a silent word
    /// keeps a death or the deadline from being noticed.
    fn interruption(&self, next_poll_ns: &mut u64) -> Option<WaitError> {
        let cancelled = || self.cancel.and_then(|word| NonZeroU32::new(word.load()));
        if let Some(reason) = self.abort.and_then(StickyWord::raised).or_else(cancelled)
            && intact(Site::AbortEndsWait)
        {
            return Some(WaitError::Aborted { reason });
        }
        if monotonic_ns() < *next_poll_ns && !self.watch.is_some_and(Watch::has_news) {
            return None;
        }
        *next_poll_ns = self.next_poll_ns();
        if let Some(death) = self.watch.and_then(Watch::first_death)
            && intact(Site::DeathEndsWait)
        {
            return Some(WaitError::PeerDied(death));
        }
        if interrupt::is_interrupted() {
            return Some(WaitError::Interrupted);
        }
        (self.deadline.has_passed() && intact(Site::DeadlineEndsWait))
            .then(|| WaitError::TimedOut { waited: self.deadline.elapsed(), limit: self.deadline.limit() })
    }

    fn next_poll_ns(&self) -> u64 {
        let end = self.deadline.monotonic_ns();
        let interval = self.poll_interval.or_else(|| interrupt::is_possible().then_some(POLL_INTERVAL));
        let Some(interval) = interval else { return end };
        // An interval of more than 500 years counts as no interval.
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        end.min(monotonic_ns().saturating_add(interval))
    }
}
