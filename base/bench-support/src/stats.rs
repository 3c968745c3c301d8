//! Numbers from many runs.

/// Measured values, each from one batch or one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    sorted: Vec<f64>,
}

impl Samples {
    /// The value that half of the samples do not exceed; 0 when there is none.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The value that 99 of 100 samples do not exceed.
    pub fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    fn quantile(&self, part: f64) -> f64 {
        // The nearest rank: the smallest sample that has at least this part of all at or below it.
        let rank = (part * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let hundred: Samples = (1..=100).rev().map(f64::from).collect();
        assert_eq!((hundred.median(), hundred.p99(), hundred.count()), (50.0, 99.0, 100));
        let three: Samples = [9.0, 1.0, 2.0].into_iter().collect();
        assert_eq!((three.median(), three.p99()), (2.0, 9.0));
        assert_eq!(Samples::default().median(), 0.0);
    }
}
