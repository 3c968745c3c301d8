//! Whether a figure grows from cycle to cycle, or only moves.

/// How one figure developed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trend {
    /// The median of the first quarter of the samples that count, and of the last.
    pub(crate) first: f64,
    pub(crate) last: f64,
    /// Theil and Sen's slope, per 1,000 cycles: the median of the slopes between any two samples.
    pub(crate) slope: f64,
    /// Where that slope is with a confidence of 99.9 %.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) grows: bool,
}

/// Allocators and caches fill up at first: the first quarter of the samples does not count.
const WARM_UP: usize = 4;
/// Fewer are not significant.
const FEWEST: usize = 20;
/// More would make too many pairs; every second sample is left out until there are few enough.
const MOST: usize = 800;
/// The normal distribution's width for 99.9 % on both sides.
const Z: f64 = 3.29;

/// The trend of `samples`: the number of the cycle and the value, in order. `None` when there are too few.
///
/// A figure grows when three things hold: the slope is above 0 with confidence, the last quarter is above the
/// first by more than `tolerance`, and it is above the third too. The first rules out noise, the second says
/// that it matters, the third that it has not settled.
pub(crate) fn trend(samples: &[(f64, f64)], tolerance: f64) -> Option<Trend> {
    let mut counted = samples[samples.len() / WARM_UP..].to_vec();
    if counted.len() < FEWEST {
        return None;
    }
    while counted.len() > MOST {
        counted = counted.into_iter().step_by(2).collect();
    }
    let quarter = |number: usize| {
        let range = counted.len() * number / 4..counted.len() * (number + 1) / 4;
        median(counted[range].iter().map(|(_, value)| *value).collect())
    };
    let (first, third, last) = (quarter(0), quarter(2), quarter(3));
    let (low, slope, high) = slopes(&counted);
    let grows = low > 0.0 && last - first > tolerance && last > third;
    let per_1000 = |slope: f64| slope * 1000.0;
    Some(Trend { first, last, slope: per_1000(slope), low: per_1000(low), high: per_1000(high), grows })
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

    /// Whether a value grows, with a sample every 20 cycles.
    fn grows(cycles: u64, tolerance: f64, value: impl Fn(u64) -> f64) -> bool {
        let samples: Vec<(f64, f64)> =
            (1..=cycles).step_by(20).map(|cycle| (cycle as f64, value(cycle))).collect();
        trend(&samples, tolerance).unwrap().grows
    }

    /// Pseudo-random numbers from 0 to 1.
    fn noise(cycle: u64) -> f64 {
        (cycle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1_u64 << 24) as f64
    }

    #[test]
    fn one_descriptor_in_100_cycles_is_found_within_2000() {
        assert!(grows(2000, 0.5, |cycle| 5.0 + (cycle / 100) as f64));
        // Also when a descriptor more or less is open anyway, every other cycle.
        assert!(grows(2000, 0.5, |cycle| 5.0 + noise(cycle).round() + (cycle / 100) as f64));
    }

    #[test]
    fn a_page_in_20_cycles_is_found_in_noise_of_half_a_mebibyte() {
        let kib = |cycle: u64| 4000.0 + 512.0 * noise(cycle) + 4.0 * (cycle / 20) as f64;
        assert!(grows(5000, 256.0, kib));
    }

    #[test]
    fn noise_and_steps_are_not_growth() {
        assert!(!grows(5000, 0.5, |_| 5.0));
        assert!(!grows(5000, 0.5, |cycle| 5.0 + noise(cycle).round()));
        assert!(!grows(5000, 256.0, |cycle| 4000.0 + 2048.0 * noise(cycle)));
        assert!(!grows(5000, 256.0, |cycle| 4000.0 - cycle as f64));
        // Once, in the middle of the run.
        assert!(!grows(5000, 0.5, |cycle| if cycle > 3100 { 6.0 } else { 5.0 }));
    }

    #[test]
    fn a_figure_that_settles_does_not_grow() {
        let filling = |cycle: u64| 4000.0 + 600.0 * (1.0 - (-(cycle as f64) / 800.0).exp());
        assert!(!grows(8000, 256.0, filling));
    }

    #[test]
    fn the_slope_is_per_thousand_cycles_and_inside_its_bounds() {
        let samples: Vec<(f64, f64)> = (0..200).map(|at| (at as f64 * 10.0, at as f64 / 10.0)).collect();
        let trend = trend(&samples, 0.5).unwrap();
        assert!((trend.slope - 10.0).abs() < 1e-9 && trend.low <= trend.slope && trend.slope <= trend.high);
    }

    #[test]
    fn too_few_samples_give_no_trend() {
        assert_eq!(trend(&[(1.0, 1.0); 20], 0.5), None);
        assert_eq!(trend(&[], 0.5), None);
    }

    #[test]
    fn many_samples_are_thinned_out() {
        assert!(grows(200_000, 0.5, |cycle| (cycle / 5000) as f64));
    }
}
