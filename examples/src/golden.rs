//! Comparison of results with what they should be.

use crate::exit::Outcome;
use std::fmt;

/// What an element holds before a kernel writes it: a NaN with a payload that no arithmetic produces.
pub const UNTOUCHED: f32 = f32::from_bits(0x7fc0_dead);

/// Whole numbers up to here are exact in an f32, and so are sums that stay below.
const EXACT: f64 = (1 << f32::MANTISSA_DIGITS) as f64;

/// How far off a chip's results were, over all iterations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// The greatest difference; infinite when an element is missing, or was written that should not be.
    pub max_error: f64,
    /// The first wrong element, as text.
    pub first_wrong: Option<String>,
    /// How many elements were compared.
    pub elements: u64,
}

impl Checked {
    /// Wrong if any element is wrong, or if none was compared.
    pub fn outcome(&self) -> Outcome {
        if self.first_wrong.is_none() && self.elements > 0 { Outcome::Right } else { Outcome::Wrong }
    }

    /// Compares the output of one iteration. An element with `None` as its expected value must be untouched.
    pub fn check(
        &mut self,
        iteration: u32,
        got: &[f32],
        expected: impl Fn(usize) -> Option<f64>,
        slack: f64,
    ) {
        for (index, got) in got.iter().enumerate() {
            let expected = expected(index);
            let (error, allowed) = match expected {
                None => (if got.to_bits() == UNTOUCHED.to_bits() { 0.0 } else { f64::INFINITY }, 0.0),
                Some(value) => {
                    let error = (f64::from(*got) - value).abs();
                    (if error.is_nan() { f64::INFINITY } else { error }, slack * value.abs())
                }
            };
            self.max_error = self.max_error.max(error);
            if error > allowed && self.first_wrong.is_none() {
                let wanted = expected.map_or("untouched".to_owned(), |value| value.to_string());
                self.first_wrong =
                    Some(format!("element {index} of iteration {iteration} is {got}, should be {wanted}"));
            }
        }
        self.elements += got.len() as u64;
    }
}

/// The relative error of a sum of `terms` whole numbers: none while the sum is exact.
pub fn slack_of_sum(terms: usize, greatest: f64) -> f64 {
    if greatest < EXACT { 0.0 } else { terms as f64 * f64::from(f32::EPSILON) }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "max |out - expected| = {}", self.max_error)?;
        match &self.first_wrong {
            Some(what) => write!(f, "; {what}"),
            None if self.elements == 0 => write!(f, "; nothing was checked"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(got: &[f32], expected: &[Option<f64>]) -> Checked {
        let mut checked = Checked::default();
        checked.check(3, got, |index| expected[index], 0.0);
        checked
    }

    #[test]
    fn right_wrong_missing_and_overwritten_elements_are_distinguished() {
        assert_eq!(check(&[1.0, UNTOUCHED], &[Some(1.0), None]).outcome(), Outcome::Right);
        let wrong = check(&[1.0, 2.5], &[Some(1.0), Some(2.0)]);
        assert_eq!(wrong.max_error, 0.5);
        assert!(wrong.to_string().contains("element 1 of iteration 3 is 2.5, should be 2"), "{wrong}");
        assert_eq!(check(&[UNTOUCHED], &[Some(0.0)]).max_error, f64::INFINITY);
        assert_eq!(check(&[0.0], &[None]).outcome(), Outcome::Wrong);
        assert_eq!(Checked::default().outcome(), Outcome::Wrong);
    }

    #[test]
    fn sums_have_slack_only_where_they_round() {
        assert_eq!(slack_of_sum(64, 16_777_215.0), 0.0);
        assert!(slack_of_sum(64, 2e7) > 0.0);
    }
}
