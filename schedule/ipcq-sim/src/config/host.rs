//! `host` of `topology.yaml`: ranks that are processes of one machine and read each other's memory.
//!
//! A line that another core has written comes from that core's cache, and how fast that goes depends on where the data of the
//! call fits. So there are three rates for each of a few sizes: staging (copying to where others read), taking (copying
//! what another rank has written) and folding (adding what another rank has written to what this one has). Between two sizes a
//! time is on the straight line between theirs.

use crate::units::{Ps, Rate};
use serde::Deserialize;

/// The most sizes with rates of their own.
pub const MOST_LEVELS: usize = 12;

/// How data passes between ranks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Passing {
    /// A rank copies what it sends to its window, once.
    Staged,
    /// It is there already: sends cost nothing.
    Window,
}

/// The rates where the data of a rank has so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The bytes.
    pub bytes: u64,
    /// Copying to the window.
    pub stage: Rate,
    /// Copying from another rank's.
    pub take: Rate,
    /// Adding another rank's data to this one's.
    pub fold: Rate,
}

/// A machine whose ranks share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Ranks beyond these take turns.
    pub cores: u32,
    /// From one core's store of a word until another one has seen it.
    pub signal: Ps,
    /// What a send costs.
    pub passing: Passing,
    levels: [Level; MOST_LEVELS],
    count: usize,
}

/// What one operation costs on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCosts {
    /// Staging.
    pub stage: Ps,
    /// Taking.
    pub take: Ps,
    /// Folding; never less than taking.
    pub fold: Ps,
}

impl Host {
    /// `None` when there is no level, or too many, or they are not in the order of their sizes.
    pub fn new(cores: u32, signal: Ps, passing: Passing, levels: &[Level]) -> Option<Host> {
        let first = *levels.first()?;
        let ordered = levels.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        if levels.len() > MOST_LEVELS || !ordered || cores == 0 {
            return None;
        }
        let mut all = [first; MOST_LEVELS];
        all[..levels.len()].copy_from_slice(levels);
        Some(Host { cores, signal, passing, levels: all, count: levels.len() })
    }

    /// The sizes that have rates.
    pub fn levels(&self) -> &[Level] {
        &self.levels[..self.count]
    }

    /// What an operation on `bytes` costs where each of `ranks` has data of `whole` bytes.
    pub fn costs(&self, ranks: u32, whole: u64, bytes: u64) -> HostCosts {
        let between = |rate: fn(&Level) -> Rate| {
            let levels = self.levels();
            let above = levels.iter().position(|level| level.bytes >= whole).unwrap_or(levels.len() - 1);
            let (low, high) = (&levels[above.saturating_sub(1)], &levels[above]);
            let [from, to] = [low, high].map(|level| u128::from(rate(level).time(bytes)));
            let span = u128::from(high.bytes - low.bytes);
            let past = u128::from(whole.clamp(low.bytes, high.bytes) - low.bytes);
            let time = (from * (span - past) + to * past).checked_div(span).unwrap_or(to);
            // Ranks that share a core share its time.
            (time * u128::from(ranks.max(self.cores))).div_ceil(u128::from(self.cores)) as Ps
        };
        let (stage, take, fold) = (between(|l| l.stage), between(|l| l.take), between(|l| l.fold));
        HostCosts { stage, take, fold: fold.max(take) }
    }

    /// The fastest that a rank takes or folds data of `whole` bytes.
    pub fn reading(&self, whole: u64) -> Rate {
        let levels = self.levels();
        let above = levels.iter().position(|level| level.bytes >= whole).unwrap_or(levels.len() - 1);
        let near = &levels[above.saturating_sub(1)..=above];
        near.iter()
            .map(|level| level.take)
            .reduce(|a, b| if a.micro() > b.micro() { a } else { b })
            .unwrap_or(levels[0].take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(bytes: u64, gbps: u64) -> Level {
        Level { bytes, stage: Rate::whole(2 * gbps), take: Rate::whole(gbps), fold: Rate::whole(gbps) }
    }

    #[test]
    fn times_lie_between_those_of_the_levels_and_grow_with_ranks_that_share_cores() {
        let host = Host::new(2, 100_000, Passing::Staged, &[level(1000, 20), level(3000, 10)]).unwrap();
        let take = |ranks, whole| host.costs(ranks, whole, 1000).take;
        assert_eq!(
            [take(2, 10), take(2, 1000), take(2, 2000), take(2, 3000), take(2, 1 << 30)].map(|ps| ps / 1000),
            [50, 50, 75, 100, 100]
        );
        assert_eq!(take(1, 1000), take(2, 1000));
        assert_eq!(take(8, 1000), 4 * take(2, 1000));
        assert_eq!(host.costs(2, 1000, 1000).stage, 25_000);
    }

    #[test]
    fn levels_out_of_order_are_refused() {
        let new = |levels: &[Level]| Host::new(2, 0, Passing::Window, levels);
        assert_eq!(new(&[]), None);
        assert_eq!(new(&[level(2, 1), level(1, 1)]), None);
        assert_eq!(new(&[level(1, 1); MOST_LEVELS + 1]), None);
        assert!(new(&[level(1, 1)]).is_some());
    }
}
