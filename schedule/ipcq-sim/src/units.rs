//! Integer picoseconds, exact decimals and rational bandwidths. No float reaches an engine.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;

/// Picoseconds since the start of the collective.
pub type Ps = u64;

/// A non-negative decimal with six digits after the point, read exactly from text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decimal {
    micro: u64,
}

/// The error of [`Decimal::parse`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a decimal from 0 to 10^12 with at most six digits after the point")]
pub struct NotDecimal {
    text: String,
}

impl Decimal {
    /// A whole number.
    pub const fn whole(value: u64) -> Decimal {
        Decimal { micro: value * 1_000_000 }
    }

    /// Millionths.
    pub const fn micro(self) -> u64 {
        self.micro
    }

    /// Reads `12`, `0.01` or `1.5`.
    pub fn parse(text: &str) -> Result<Decimal, NotDecimal> {
        let wrong = || NotDecimal { text: text.to_owned() };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 6 || (whole.len() + fraction.len()) == 0 {
            return Err(wrong());
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
        if whole > 1_000_000_000_000 {
            return Err(wrong());
        }
        let micro: u64 = format!("{fraction:0<6}").parse().map_err(|_| wrong())?;
        Ok(Decimal { micro: whole * 1_000_000 + micro })
    }

    /// Nanoseconds as picoseconds; finer parts round up.
    pub const fn ns(self) -> Ps {
        self.micro.div_ceil(1000)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.micro / 1_000_000, self.micro % 1_000_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let rest = format!("{rest:06}");
        write!(f, "{whole}.{}", rest.trim_end_matches('0'))
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Decimal;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number such as 12 or 0.01")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Decimal, E> {
                Decimal::parse(text).map_err(E::custom)
            }
        }
        // As text: YAML scalars are text, and a float would not be exact.
        deserializer.deserialize_str(Text)
    }
}

/// A bandwidth in GB/s (10^9 bytes per second) as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    num: u64,
    den: u64,
}

impl Rate {
    /// From a decimal in GB/s, which must not be 0.
    pub const fn gbps(value: Decimal) -> Option<Rate> {
        if value.micro == 0 {
            return None;
        }
        let (mut a, mut b) = (value.micro, 1_000_000);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Some(Rate { num: value.micro / a, den: 1_000_000 / a })
    }

    /// From whole GB/s.
    ///
    /// # Panics
    /// If `value` is 0.
    pub const fn whole(value: u64) -> Rate {
        assert!(value > 0, "a bandwidth is never 0");
        Rate { num: value, den: 1 }
    }

    /// What is left of it when this share, below 1, is taken.
    pub fn less(self, share: Decimal) -> Rate {
        let (mut num, mut den) =
            (u128::from(self.num) * u128::from(1_000_000 - share.micro), u128::from(self.den) * 1_000_000);
        let (mut a, mut b) = (num, den);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (num, den) = (num / a, den / a);
        // Beyond 64 bits the last digits do not matter.
        let bits = (u128::BITS - num.max(den).leading_zeros()).saturating_sub(u64::BITS);
        Rate { num: ((num >> bits) as u64).max(1), den: ((den >> bits) as u64).max(1) }
    }

    /// How long `bytes` take, rounded up to the next picosecond.
    pub const fn time(self, bytes: u64) -> Ps {
        (bytes as u128 * 1000 * self.den as u128).div_ceil(self.num as u128) as Ps
    }

    /// Micro-GB/s, for sums of bandwidths.
    pub const fn micro(self) -> u128 {
        self.num as u128 * 1_000_000 / self.den as u128
    }

    /// The smaller of two.
    pub fn min(self, other: Rate) -> Rate {
        let less =
            u128::from(self.num) * u128::from(other.den) < u128::from(other.num) * u128::from(self.den);
        if less { self } else { other }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Decimal { micro: self.micro() as u64 }.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_and_print_as_written() {
        for text in ["0", "12", "0.01", "1.5", "999.000001"] {
            assert_eq!(Decimal::parse(text).unwrap().to_string(), text);
        }
        for text in ["", ".", "-1", "1e3", "0.0000001", "1.2.3", "99999999999999", "nan"] {
            assert!(Decimal::parse(text).is_err(), "{text}");
        }
        assert_eq!(Decimal::parse("0.0005").unwrap().ns(), 1);
    }

    #[test]
    fn bandwidths_are_fractions_and_times_round_up() {
        let rate = Rate::gbps(Decimal::parse("128").unwrap()).unwrap();
        assert_eq!((rate.time(16), rate.time(1), rate.time(0)), (125, 8, 0));
        let third = Rate::gbps(Decimal::parse("0.3").unwrap()).unwrap();
        assert_eq!(third.time(3), 10_000);
        assert_eq!(Rate::gbps(Decimal::whole(0)), None);
        assert_eq!(rate.min(third), third);
        let share = |text| Decimal::parse(text).unwrap();
        assert_eq!((rate.less(share("0.25")).time(96), rate.less(share("0"))), (1000, rate));
    }
}
