//! Sorting by time.

use crate::units::Ps;

/// Sorts numbers by time; its lists are reused.
#[derive(Default)]
pub(super) struct Order {
    keys: Vec<u64>,
    sorted: Vec<u64>,
    places: Vec<u32>,
    /// What a key holds below the time.
    mask: u64,
}

impl Order {
    /// Sorts the numbers of the times before `until` by time; the sort is stable. No time is before `first`.
    pub(super) fn sort(&mut self, times: &[Ps], first: Ps, until: Ps) {
        let last = if until == Ps::MAX { times.iter().copied().max().unwrap_or(first) } else { until };
        let time_bits = Ps::BITS - (last - first).leading_zeros();
        let index_bits = usize::BITS - times.len().leading_zeros();
        let chosen = times.iter().copied().zip(0u64..).filter(|&(time, _)| time < until);
        self.keys.clear();
        if time_bits + index_bits > u64::BITS {
            self.mask = u64::MAX;
            self.keys.extend(chosen.map(|(_, i)| i));
            return self.keys.sort_by_key(|&i| times[i as usize]);
        }
        // A radix sort by time. Time and number share a word, and every pass is stable.
        self.mask = (1 << index_bits) - 1;
        self.keys.extend(chosen.map(|(time, i)| (time - first) << index_bits | i));
        let passes = time_bits.div_ceil(11);
        let bits = time_bits.div_ceil(passes.max(1));
        for pass in 0..passes {
            let digit = |key: u64| (key >> (index_bits + pass * bits)) as usize & ((1 << bits) - 1);
            self.places.clear();
            self.places.resize(1 << bits, 0);
            for &key in &self.keys {
                self.places[digit(key)] += 1;
            }
            let mut before = 0;
            for place in &mut self.places {
                before += std::mem::replace(place, before);
            }
            self.sorted.resize(self.keys.len(), 0);
            for &key in &self.keys {
                let place = &mut self.places[digit(key)];
                self.sorted[*place as usize] = key;
                *place += 1;
            }
            std::mem::swap(&mut self.keys, &mut self.sorted);
        }
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.keys.iter().map(|key| (key & self.mask) as usize)
    }
}
