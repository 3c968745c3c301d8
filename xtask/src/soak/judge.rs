//! Whether a figure grows from cycle to cycle, or only moves.

use serde::Serialize;

/// What a soak tells of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Trend {
    /// The median of the first quarter of what is judged, and of the last.
    pub(crate) first: f64,
    pub(crate) last: f64,
    /// Theil and Sen's slope, per 1,000 cycles: the median of the slopes between any two samples.
    pub(crate) slope: f64,
    /// Where that slope is with a confidence of 99.9 %.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Steady,
    Grows,
}

/// Allocators and caches fill up at first: the first quarter of the samples is not judged.
const WARM_UP: usize = 4;
/// Fewer tell nothing.
pub(crate) const FEWEST: usize = 20;
/// More make the pairs too many; every second one is left out as often as it takes.
const MOST: usize = 800;
/// The normal distribution's width for 99.9 % on both sides.
const Z: f64 = 3.29;

/// Judges `samples`: the number of the cycle and the value, in order. `None` when there are too few.
///
/// A figure grows when three things hold: the slope is above 0 with confidence, the last quarter is above
/// the first by more than `tolerance`, and it is above the third too. The first says that it is no noise,
/// the second that it matters, the third that it has not come to rest.
pub(crate) fn judge(samples: &[(f64, f64)], tolerance: f64) -> Option<Trend> {
    let mut judged = samples[samples.len() / WARM_UP..].to_vec();
    if judged.len() < FEWEST {
        return None;
    }
    while judged.len() > MOST {
        judged = judged.into_iter().step_by(2).collect();
    }
    let quarter = |number: usize| {
        let range = judged.len() * number / 4..judged.len() * (number + 1) / 4;
        median(judged[range].iter().map(|(_, value)| *value).collect())
    };
    let (first, third, last) = (quarter(0), quarter(2), quarter(3));
    let (low, slope, high) = slopes(&judged);
    let grows = low > 0.0 && last - first > tolerance && last > third;
    let verdict = if grows { Verdict::Grows } else { Verdict::Steady };
    let per_1000 = |slope: f64| slope * 1000.0;
    Some(Trend { first, last, slope: per_1000(slope), low: per_1000(low), high: per_1000(high), verdict })
}

/// The median of all slopes between two samples, and the bounds of its confidence interval (Sen 1968).
fn slopes(samples: &[(f64, f64)]) -> (f64, f64, f64) {
    let mut slopes = Vec::with_capacity(samples.len() * samples.len() / 2);
    for (at, (x, y)) in samples.iter().enumerate() {
        slopes.extend(samples[at + 1..].iter().map(|(later, value)| (value - y) / (later - x).max(1.0)));
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let (n, pairs) = (samples.len() as f64, slopes.len() as f64);
    let width = Z * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let at = |place: f64| slopes[(place.max(0.0) as usize).min(slopes.len() - 1)];
    (at((pairs - width) / 2.0), median(slopes.clone()), at((pairs + width) / 2.0))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample every 20 cycles of what `value` says of the cycle.
    fn verdict(cycles: u64, tolerance: f64, value: impl Fn(u64) -> f64) -> Verdict {
        let samples: Vec<(f64, f64)> =
            (1..=cycles).step_by(20).map(|cycle| (cycle as f64, value(cycle))).collect();
        judge(&samples, tolerance).unwrap().verdict
    }

    /// Numbers from 0 to 1 without order.
    fn noise(cycle: u64) -> f64 {
        (cycle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1_u64 << 24) as f64
    }

    #[test]
    fn one_descriptor_in_100_cycles_is_found_within_2000() {
        assert_eq!(verdict(2000, 0.5, |cycle| 5.0 + (cycle / 100) as f64), Verdict::Grows);
        // Also when a descriptor more or less is open anyway, every other cycle.
        assert_eq!(
            verdict(2000, 0.5, |cycle| 5.0 + noise(cycle).round() + (cycle / 100) as f64),
            Verdict::Grows
        );
    }

    #[test]
    fn a_page_in_20_cycles_is_found_in_noise_of_half_a_mebibyte() {
        let kib = |cycle: u64| 4000.0 + 512.0 * noise(cycle) + 4.0 * (cycle / 20) as f64;
        assert_eq!(verdict(5000, 256.0, kib), Verdict::Grows);
    }

    #[test]
    fn noise_and_steps_are_no_growth() {
        assert_eq!(verdict(5000, 0.5, |_| 5.0), Verdict::Steady);
        assert_eq!(verdict(5000, 0.5, |cycle| 5.0 + noise(cycle).round()), Verdict::Steady);
        assert_eq!(verdict(5000, 256.0, |cycle| 4000.0 + 2048.0 * noise(cycle)), Verdict::Steady);
        assert_eq!(verdict(5000, 256.0, |cycle| 4000.0 - cycle as f64), Verdict::Steady);
        // Once, in the middle of the run.
        assert_eq!(verdict(5000, 0.5, |cycle| if cycle > 3100 { 6.0 } else { 5.0 }), Verdict::Steady);
    }

    #[test]
    fn what_fills_up_and_comes_to_rest_is_no_growth() {
        let filling = |cycle: u64| 4000.0 + 600.0 * (1.0 - (-(cycle as f64) / 800.0).exp());
        assert_eq!(verdict(8000, 256.0, filling), Verdict::Steady);
    }

    #[test]
    fn the_slope_is_per_thousand_cycles_and_inside_its_bounds() {
        let samples: Vec<(f64, f64)> = (0..200).map(|at| (at as f64 * 10.0, at as f64 / 10.0)).collect();
        let trend = judge(&samples, 0.5).unwrap();
        assert!((trend.slope - 10.0).abs() < 1e-9 && trend.low <= trend.slope && trend.slope <= trend.high);
    }

    #[test]
    fn too_few_samples_tell_nothing() {
        assert_eq!(judge(&[(1.0, 1.0); 20], 0.5), None);
        assert_eq!(judge(&[], 0.5), None);
    }

    #[test]
    fn many_samples_are_thinned_out() {
        assert_eq!(verdict(200_000, 0.5, |cycle| (cycle / 5000) as f64), Verdict::Grows);
    }
}
