//! The numbers of runs.
//!
//! Runs that are in flight at the same time have one *flight* in the upper bits of their numbers, and count upwards in the lower ones.
//! What follows another, such as the clean-up after a run, has a flight of its own.

/// The lower bits: so many runs can follow each other without a moment in which none is under way.
const INDEX_BITS: u32 = 16;

/// The first run of a flight; flights count from 1.
pub(crate) fn first_of(flight: u64) -> u64 {
    flight << INDEX_BITS
}

/// The next run of the same flight; `None` when the flight is full.
pub(crate) fn next_of(run: u64) -> Option<u64> {
    Some(run + 1).filter(|next| same_flight(*next, run))
}

/// Whether both are, or were, in flight at the same time.
pub(crate) fn same_flight(run: u64, other: u64) -> bool {
    run >> INDEX_BITS == other >> INDEX_BITS
}

/// Whether what happened to `from`, a failure or that it was cancelled, holds for `run` too: it is the same run, or behind it in flight.
#[inline]
pub(crate) fn covers(from: u64, run: u64) -> bool {
    from <= run && same_flight(from, run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_covers_its_run_and_those_behind_it_in_flight() {
        let first = first_of(3);
        let second = next_of(first).unwrap();
        assert!(covers(first, first) && covers(first, second) && !covers(second, first));
        assert!(!covers(first, first_of(4)) && !covers(second, first_of(4)) && !covers(0, first_of(1)));
        assert!(!covers(u64::MAX, first) && same_flight(first, second));
        assert_eq!(next_of(first_of(4) - 1), None, "a full flight has no next run");
    }
}
