//! Absolute deadlines on the monotonic clock.

use std::fmt;
use std::time::Duration;

/// The longest time limit of a wait: ten years of 365 days, for services that wait as long as they run. Longer
/// values are taken for mistakes (a wrong unit, an overflow).
pub const LONGEST_WAIT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A point on the monotonic clock by which a wait ends, and the point at which the waiting began.
///
/// One deadline is made when an operation starts and passed down through all its steps, so that no step
/// restarts the clock. The clock is `CLOCK_MONOTONIC`, which all processes of a machine share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    start_ns: u64,
    end_ns: u64,
}

/// Why a time limit was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeadlineError {
    /// No time at all.
    #[error("a time limit of zero leaves no time to wait; give a positive duration")]
    Zero,
    /// The point has passed already.
    #[error("the deadline passed {late:?} ago; give a later one")]
    Past {
        /// How long ago.
        late: Duration,
    },
    /// Longer than [`LONGEST_WAIT`].
    #[error(
        "a time limit of {asked:?} is longer than the ten years that a wait may take; give a shorter one"
    )]
    TooFar {
        /// What was asked for.
        asked: Duration,
    },
}

impl Deadline {
    /// The point `limit` from now. Limits of a second and more are counted on the coarse clock, which
    /// lags by at most a tick of the system (10 ms) and takes a third of the time to read.
    #[inline]
    pub fn after(limit: Duration) -> Result<Self, DeadlineError> {
        if limit.is_zero() {
            return Err(DeadlineError::Zero);
        }
        if limit > LONGEST_WAIT {
            return Err(DeadlineError::TooFar { asked: limit });
        }
        let start_ns = if limit < Duration::from_secs(1) { monotonic_ns() } else { coarse_monotonic_ns() };
        // At most ten years of nanoseconds: fits.
        Ok(Self { start_ns, end_ns: start_ns.saturating_add(limit.as_nanos() as u64) })
    }

    /// The point `ns` on the monotonic clock, as another process of this machine counts it.
    pub fn at_monotonic_ns(ns: u64) -> Result<Self, DeadlineError> {
        let start_ns = monotonic_ns();
        match ns.checked_sub(start_ns) {
            None | Some(0) => Err(DeadlineError::Past { late: Duration::from_nanos(start_ns - ns) }),
            Some(left) if left > LONGEST_WAIT.as_nanos() as u64 => {
                Err(DeadlineError::TooFar { asked: Duration::from_nanos(left) })
            }
            Some(_) => Ok(Self { start_ns, end_ns: ns }),
        }
    }

    /// The point `limit` after `start_ns` on the monotonic clock, which may have passed.
    pub fn since(start_ns: u64, limit: Duration) -> Self {
        Self { start_ns, end_ns: start_ns.saturating_add(limit.as_nanos() as u64) }
    }

    /// When the deadline was made, on the monotonic clock.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// The end, on the monotonic clock.
    #[inline]
    pub fn monotonic_ns(&self) -> u64 {
        self.end_ns
    }

    /// How long the wait was allowed to take in all.
    pub fn limit(&self) -> Duration {
        Duration::from_nanos(self.end_ns - self.start_ns)
    }

    /// How long ago the deadline was made.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(monotonic_ns().saturating_sub(self.start_ns))
    }

    /// What is left; zero when it has passed.
    pub fn left(&self) -> Duration {
        Duration::from_nanos(self.end_ns.saturating_sub(monotonic_ns()))
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        self.left().is_zero()
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deadline({:?} of {:?} left)", self.left(), self.limit())
    }
}

/// Nanoseconds on `CLOCK_MONOTONIC`, the same for every process of the machine.
#[inline]
pub fn monotonic_ns() -> u64 {
    crate::clock::monotonic_ns()
}

/// The same clock as of the system's last tick, a few milliseconds ago at most: for tables that people
/// read, at a tenth of the cost.
#[inline]
pub fn coarse_monotonic_ns() -> u64 {
    crate::clock::coarse_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DL-2
    #[test]
    fn f06_zero_past_and_absurd_limits_are_refused() {
        assert_eq!(Deadline::after(Duration::ZERO), Err(DeadlineError::Zero));
        assert!(matches!(Deadline::after(Duration::MAX), Err(DeadlineError::TooFar { .. })));
        assert!(matches!(
            Deadline::after(LONGEST_WAIT + Duration::from_nanos(1)),
            Err(DeadlineError::TooFar { .. })
        ));
        assert!(matches!(Deadline::at_monotonic_ns(1), Err(DeadlineError::Past { .. })));
        assert!(matches!(Deadline::at_monotonic_ns(u64::MAX), Err(DeadlineError::TooFar { .. })));
        let said = |refused: Result<Deadline, DeadlineError>| refused.unwrap_err().to_string();
        assert_eq!(
            said(Deadline::after(Duration::ZERO)),
            "a time limit of zero leaves no time to wait; give a positive duration"
        );
        assert_eq!(
            said(Deadline::after(LONGEST_WAIT * 2)),
            "a time limit of 630720000s is longer than the ten years that a wait may take; give a shorter one"
        );
        let past = said(Deadline::at_monotonic_ns(1));
        assert!(past.starts_with("the deadline passed") && past.ends_with("ago; give a later one"), "{past}");
    }

    /// DL-2
    #[test]
    fn f06_a_wait_may_take_longer_than_a_day() {
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        assert_eq!(Deadline::after(week).map(|deadline| deadline.limit()), Ok(week));
        let longest = Deadline::after(LONGEST_WAIT).unwrap();
        assert_eq!(
            Deadline::at_monotonic_ns(longest.monotonic_ns()).map(|there| there.has_passed()),
            Ok(false)
        );
    }

    /// DL-1, DL-3
    #[test]
    fn a_deadline_is_passed_on_as_a_number_and_does_not_move() {
        let here = Deadline::after(Duration::from_secs(60)).unwrap();
        let there = Deadline::at_monotonic_ns(here.monotonic_ns()).unwrap();
        assert_eq!(here.monotonic_ns(), there.monotonic_ns());
        assert!(there.limit() <= here.limit());
        assert!(!there.has_passed());
    }
}
