//! How long a call may wait for its peers.

use core::fmt;
use core::str::FromStr;
use std::env::{self, VarError};
use std::time::Duration;

use super::ArgumentError;

/// The longest wait of one call: more than zero, at most ten years.
///
/// A bad value is refused here, before anything is created (F06). A call turns it into one absolute deadline
/// at its start, which all inner steps share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeout(Duration);

impl Timeout {
    /// The default: 120 s, enough for the bring-up of a large group.
    pub const DEFAULT: Self = Self(Duration::from_secs(120));

    /// The longest accepted value: ten years of 365 days, for services that wait as long as they run. Longer values
    /// are taken for mistakes (a wrong unit, an overflow).
    pub const MAX: Self = Self(Duration::from_secs(10 * 365 * 24 * 60 * 60));

    /// The environment variable that overrides [`DEFAULT`](Self::DEFAULT), in seconds.
    pub const ENV: &'static str = "CHIPCOMM_TIMEOUT_S";

    /// Checks a duration.
    pub fn new(limit: Duration) -> Result<Self, ArgumentError> {
        if limit.is_zero() || limit > Self::MAX.0 {
            return Err(ArgumentError::Timeout { given: limit });
        }
        Ok(Self(limit))
    }

    /// Reads `variable` (usually [`ENV`](Self::ENV)): [`DEFAULT`](Self::DEFAULT) when it is not set, an error
    /// when it does not hold a number of seconds such as `120` or `0.5`.
    pub fn from_env(variable: &str) -> Result<Self, ArgumentError> {
        let given = match env::var(variable) {
            Ok(text) => text,
            Err(VarError::NotPresent) => return Ok(Self::DEFAULT),
            Err(VarError::NotUnicode(text)) => text.to_string_lossy().into_owned(),
        };
        given.parse().map_err(|_| ArgumentError::TimeoutVariable { variable: variable.to_owned(), given })
    }

    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

/// Seconds: digits with at most one point between them. `f64::from_str` alone would also take `inf`, `nan`,
/// `1e3` and `+1`.
impl FromStr for Timeout {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, ArgumentError> {
        let refused = || ArgumentError::TimeoutText { given: text.to_owned() };
        let plain = text.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        if !plain || text.matches('.').count() > 1 {
            return Err(refused());
        }
        let seconds = text.parse().map_err(|_| refused())?;
        Duration::try_from_secs_f64(seconds).ok().and_then(|limit| Self::new(limit).ok()).ok_or_else(refused)
    }
}

impl Default for Timeout {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl TryFrom<Duration> for Timeout {
    type Error = ArgumentError;

    fn try_from(limit: Duration) -> Result<Self, ArgumentError> {
        Self::new(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // CC-6
    #[test]
    fn f06_zero_and_absurd_limits_are_refused() {
        for given in [Duration::ZERO, Timeout::MAX.get() + Duration::from_nanos(1), Duration::MAX] {
            assert_eq!(Timeout::new(given), Err(ArgumentError::Timeout { given }));
        }
        for given in [Duration::from_nanos(1), Timeout::DEFAULT.get(), Timeout::MAX.get()] {
            assert_eq!(Timeout::new(given).map(Timeout::get), Ok(given));
        }
    }

    // CC-6
    #[test]
    fn f06_only_plain_seconds_are_read() {
        for (text, millis) in [("1", 1_000), ("0.5", 500), ("120", 120_000), ("007.250", 7_250)] {
            assert_eq!(text.parse(), Ok(Timeout(Duration::from_millis(millis))), "{text}");
        }
        for text in [
            "",
            " 1",
            "1 ",
            "0",
            "0.0",
            "-1",
            "+1",
            "1s",
            "1e3",
            "inf",
            "nan",
            "NaN",
            ".5",
            "5.",
            "1.2.3",
            ".",
            "1,5",
            "315360001",
            "99999999999999999999999999",
            "0.0000000000001",
            "１",
        ] {
            let refused = ArgumentError::TimeoutText { given: text.to_owned() };
            assert_eq!(text.parse::<Timeout>(), Err(refused), "{text:?}");
        }
    }

    // CC-6
    #[test]
    fn f06_a_wait_may_take_longer_than_a_day() {
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        assert_eq!(Timeout::new(week).map(Timeout::get), Ok(week));
        assert_eq!("604800".parse(), Ok(Timeout(week)));
        assert_eq!("315360000".parse(), Ok(Timeout::MAX));
    }

    #[test]
    fn an_unset_variable_means_the_default() {
        assert_eq!(Timeout::from_env("CHIPCOMM_NO_SUCH_VARIABLE_IN_TESTS"), Ok(Timeout::DEFAULT));
    }
}
