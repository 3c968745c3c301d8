//! The samples of a soak, in memory that is taken before the first one, so that keeping them is not growth.

use crate::sample::{FIGURES, Sample};
use crate::trend::{Trend, trend};

/// When so many are full, every second one is dropped, and fewer are kept from then on.
const MOST: usize = 4096;

/// The samples so far, each with its cycle.
pub(crate) struct History {
    /// Written at the start: a page that is touched later would count as growth.
    samples: Vec<(u64, Sample)>,
    len: usize,
    /// Only every so many-th sample is kept.
    keep_every: u64,
    taken: u64,
}

impl History {
    pub(crate) fn new() -> Self {
        // Not zero, or the system would not have to touch the pages.
        let samples = vec![(u64::MAX, [u64::MAX; FIGURES.len()]); MOST];
        Self { samples, len: 0, keep_every: 1, taken: 0 }
    }

    pub(crate) fn add(&mut self, cycle: u64, sample: Sample) {
        self.taken += 1;
        if self.len == MOST {
            for at in 0..MOST / 2 {
                self.samples[at] = self.samples[2 * at + 1];
            }
            (self.len, self.keep_every) = (MOST / 2, self.keep_every * 2);
        }
        if self.taken.is_multiple_of(self.keep_every) {
            self.samples[self.len] = (cycle, sample);
            self.len += 1;
        }
    }

    /// How many samples are kept.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The trend of each figure, in the order of [`FIGURES`]; `None` when there are too few samples.
    pub(crate) fn trends(&self) -> Option<Vec<Trend>> {
        let of = |figure: usize| {
            let samples = self.samples[..self.len].iter();
            let values: Vec<(f64, f64)> =
                samples.map(|(cycle, sample)| (*cycle as f64, sample[figure] as f64)).collect();
            trend(&values, FIGURES[figure].1)
        };
        (0..FIGURES.len()).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_samples_than_are_kept_are_thinned_out_evenly() {
        let mut history = History::new();
        (1..=3 * MOST as u64).for_each(|cycle| history.add(cycle, [10 * cycle; FIGURES.len()]));
        assert!(history.len() > MOST / 2 && history.len() <= MOST, "{}", history.len());
        let cycles: Vec<u64> = history.samples[..history.len()].iter().map(|(cycle, _)| *cycle).collect();
        assert!(cycles.windows(2).all(|pair| pair[1] - pair[0] == 4), "{cycles:?}");
        assert!(history.trends().unwrap().iter().all(|trend| trend.grows));
    }

    #[test]
    fn a_few_samples_have_no_trend() {
        let mut history = History::new();
        (1..20).for_each(|cycle| history.add(cycle, [1; FIGURES.len()]));
        assert!(history.trends().is_none());
    }
}
